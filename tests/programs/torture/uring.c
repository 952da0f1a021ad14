/* io_uring with fixed buffers, which stay pinned as long as they are registered. */
#include "torture.h"
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { ENTRIES = 4 };

/* One request of a ring that nobody else uses: `opcode` for a whole fixed buffer. 0: it was cancelled, which the kernel does where it needs a
 * thread for it and a signal meets the making of that. */
static int one(int ring, const struct io_uring_params *p, unsigned char *rings, struct io_uring_sqe *entries, unsigned opcode,
               int file, unsigned char *at, size_t length, unsigned index)
{
	_Atomic uint32_t *tail = (_Atomic uint32_t *)(rings + p->sq_off.tail), *head = (_Atomic uint32_t *)(rings + p->cq_off.head);
	uint32_t *array = (uint32_t *)(rings + p->sq_off.array);
	const struct io_uring_cqe *done = (const struct io_uring_cqe *)(rings + p->cq_off.cqes) + *head % p->cq_entries;
	uint32_t slot = *tail % p->sq_entries;
	memset(&entries[slot], 0, sizeof *entries);
	entries[slot].opcode = (uint8_t)opcode;
	entries[slot].fd = file;
	entries[slot].addr = (uint64_t)(uintptr_t)at;
	entries[slot].len = (uint32_t)length;
	entries[slot].buf_index = (uint16_t)index;
	array[slot] = slot;
	++*tail;
	long submit = 1;
	/* A signal ends the wait, not the request. */
	while (*(_Atomic uint32_t *)(rings + p->cq_off.tail) == *head) {
		long n = syscall(SYS_io_uring_enter, ring, submit, 1, IORING_ENTER_GETEVENTS, NULL, 0);
		MUST(n >= 0 || errno == EINTR);
		if (n > 0)
			submit = 0;
	}
	int32_t result = done->res;
	++*head;
	if (result != (int32_t)length && result != -ECANCELED)
		fail("io_uring, operation %u: %d of %zu", opcode, result, length);
	return result != -ECANCELED;
}

/* Writes pages to a file and reads them back to another place, both fixed buffers. 0: there is no io_uring here. */
int uring_fixed(int file, unsigned char *from, unsigned char *to, size_t pages)
{
	struct io_uring_params p = { 0 };
	struct iovec buffers[2] = { { from, pages * PAGE }, { to, pages * PAGE } };
	int ring = (int)syscall(SYS_io_uring_setup, ENTRIES, &p);
	if (ring < 0) {
		MUST(errno == ENOSYS || errno == EPERM || errno == ENOMEM);
		return 0;
	}
	MUST(p.features & IORING_FEAT_SINGLE_MMAP);
	size_t length = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	if (length < p.sq_off.array + p.sq_entries * sizeof(uint32_t))
		length = p.sq_off.array + p.sq_entries * sizeof(uint32_t);
	unsigned char *rings = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	struct io_uring_sqe *entries =
		mmap(NULL, p.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
	MUST(rings != MAP_FAILED && (void *)entries != MAP_FAILED);
	int pinned = syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, buffers, 2) == 0;
	MUST(pinned || errno == ENOMEM);
	if (pinned) {
		while (!one(ring, &p, rings, entries, IORING_OP_WRITE_FIXED, file, from, pages * PAGE, 0))
			;
		while (!one(ring, &p, rings, entries, IORING_OP_READ_FIXED, file, to, pages * PAGE, 1))
			;
	}
	munmap(entries, p.sq_entries * sizeof *entries);
	munmap(rings, length);
	close(ring);
	return pinned;
}
