/* System calls whose arguments are in memory that may be out: the kernel reads and writes it as the program does. */
#include "torture.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

enum { MOST_TRANSFERRED = 15 }; /* pages: less than a pipe holds */

/* Each moves pages through the kernel. */
static void by_file(unsigned char *from, unsigned char *to, size_t pages, int flags)
{
	int file = open(".", O_TMPFILE | O_RDWR | flags, 0600);
	if (file < 0 && flags != 0) /* not every file system has O_DIRECT */
		file = open(".", O_TMPFILE | O_RDWR, 0600);
	MUST(file >= 0);
	MUST(pwrite(file, from, pages * PAGE, 0) == (ssize_t)(pages * PAGE));
	MUST(pread(file, to, pages * PAGE, 0) == (ssize_t)(pages * PAGE));
	close(file);
}

/* Backwards, page by page; the list itself is in memory that nobody touches otherwise. */
static void by_list(struct worker *w, unsigned char *from, unsigned char *to, size_t pages)
{
	struct iovec *list = (struct iovec *)(w->held + HELD_PAGES * PAGE + PAGE - 40);
	int file = open(".", O_TMPFILE | O_RDWR, 0600);
	MUST(file >= 0);
	for (int is_write = 1; is_write >= 0; is_write--) {
		for (size_t i = 0; i < pages; i++)
			list[i] = (struct iovec){ (is_write ? from : to) + (pages - 1 - i) * PAGE, PAGE };
		ssize_t n = is_write ? pwritev(file, list, (int)pages, 0) : preadv(file, list, (int)pages, 0);
		MUST(n == (ssize_t)(pages * PAGE));
	}
	close(file);
}

static void by_pipe(unsigned char *from, unsigned char *to, size_t pages, int splice)
{
	int ends[2];
	struct iovec all = { from, pages * PAGE };
	MUST(pipe(ends) == 0);
	MUST((splice ? vmsplice(ends[1], &all, 1, 0) : writev(ends[1], &all, 1)) == (ssize_t)(pages * PAGE));
	for (size_t done = 0; done < pages * PAGE;) {
		size_t rest = pages * PAGE - done, some = rest < 1000 ? rest : 1000;
		struct iovec parts[2] = { { to + done, some }, { to + done + some, rest - some < 5000 ? rest - some : 5000 } };
		ssize_t n = readv(ends[0], parts, 2);
		MUST(n > 0);
		done += (size_t)n;
	}
	close(ends[0]);
	close(ends[1]);
}

static void by_message(unsigned char *from, unsigned char *to, size_t pages)
{
	int ends[2];
	MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
	struct iovec out[2] = { { from, 77 }, { from + 77, pages * PAGE - 77 } }, in = { to, pages * PAGE };
	struct msghdr sent = { .msg_iov = out, .msg_iovlen = 2 }, received = { .msg_iov = &in, .msg_iovlen = 1 };
	MUST(sendmsg(ends[0], &sent, 0) == (ssize_t)(pages * PAGE));
	MUST(recvmsg(ends[1], &received, 0) == (ssize_t)(pages * PAGE));
	close(ends[0]);
	close(ends[1]);
}

static void by_process_vm(unsigned char *from, unsigned char *to, size_t pages)
{
	struct iovec source = { from, pages * PAGE }, target = { to, pages * PAGE };
	if (process_vm_readv(getpid(), &target, 1, &source, 1, 0) != (ssize_t)(pages * PAGE)) {
		MUST(errno == EPERM || errno == ENOSYS);
		memcpy(to, from, pages * PAGE);
	}
}

/* Linux (6.18 at least) loses pages that a system call has pinned to read them while they were shared with a forked child:
 * the copy that it makes for that (FAULT_FLAG_UNSHARE) counts as clean, and when a later child frees its share of it by
 * MADV_FREE, the next reclaim drops it here as well. What is written afterwards is safe. See tests/programs/unshared.c. */
static void make_dirty(unsigned char *at, size_t pages)
{
	for (size_t i = 0; i < pages; i++) {
		volatile unsigned char *byte = at + i * PAGE;
		*byte = *byte;
	}
}

/* Pages of one region become those of another one, or of another part of the same. */
void transfer(struct worker *w)
{
	struct region *a = any_region(w), *b = any_region(w);
	if (a == NULL)
		return;
	size_t pages, from = part_of(w, a, MOST_TRANSFERRED, &pages), way = pick(w, 8);
	if (b->pages < pages)
		return;
	size_t to = pick(w, b->pages - pages + 1);
	if (a == b && from < to + pages && to < from + pages)
		return;
	make_plain(w, a, from, pages);
	make_plain(w, b, to, pages);
	unsigned char *source = a->start + from * PAGE, *target = b->start + to * PAGE;
	static const char *const NAME[] = {
		"file", "O_DIRECT", "iovecs", "pipe", "vmsplice", "sendmsg", "process_vm_readv", "io_uring",
	};
	remember(w, a, NAME[way], from, pages);
	remember(w, b, NAME[way], to, pages);
	switch (way) {
	case 0:
	case 1:
		by_file(source, target, pages, way == 1 ? O_DIRECT : 0);
		break;
	case 2:
		by_list(w, source, target, pages);
		break;
	case 3:
	case 4:
		by_pipe(source, target, pages, way == 4);
		break;
	case 5:
		by_message(source, target, pages);
		break;
	case 6:
		by_process_vm(source, target, pages);
		break;
	default: {
		int file = open(".", O_TMPFILE | O_RDWR, 0600);
		MUST(file >= 0);
		if (!uring_fixed(file, source, target, pages))
			by_process_vm(source, target, pages);
		close(file);
	}
	}
	make_dirty(source, pages);
	memcpy(b->page + to, a->page + from, pages * sizeof *b->page);
	check_pages(w, b, to, pages, NAME[way]);
	check_pages(w, a, from, pages, NAME[way]);
}

/* The kernel compares a word with what it must be. */
void futex(struct worker *w)
{
	struct region *r = any_region(w);
	size_t word = pick(w, PAGE / 4);
	if (r == NULL)
		return;
	size_t pages, i = part_of(w, r, 1, &pages);
	make_plain(w, r, i, 1);
	unsigned char content[PAGE];
	uint32_t value, *at = (uint32_t *)(r->start + i * PAGE) + word;
	struct timespec soon = { .tv_nsec = 1000 };
	make_content(content, r->page[i]);
	memcpy(&value, content + word * 4, 4);
	remember(w, r, "futex", i, 1);
	long n = syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, value, &soon, NULL, 0);
	if (n != -1 || (errno != ETIMEDOUT && errno != EINTR))
		check_region_page(w, r, i, "futex"), fail("futex at %p: %ld, errno %d, is the value", (void *)at, n, errno);
	n = syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, value + 1, &soon, NULL, 0);
	if (n != -1 || errno != EAGAIN)
		check_region_page(w, r, i, "futex"), fail("futex at %p: %ld, errno %d, is not the value", (void *)at, n, errno);
}

/* What the kernel writes is there, and stays. */
void random_bytes(struct worker *w)
{
	struct region *r = any_region(w);
	if (r == NULL)
		return;
	unsigned char copy[256];
	size_t pages, i = part_of(w, r, 1, &pages), offset = pick(w, PAGE - sizeof copy);
	make_plain(w, r, i, 1);
	check_region_page(w, r, i, "before getrandom");
	unsigned char *at = r->start + i * PAGE + offset;
	memcpy(copy, at, sizeof copy);
	remember(w, r, "getrandom", i, 1);
	MUST(getrandom(at, sizeof copy, 0) == sizeof copy);
	if (memcmp(at, copy, sizeof copy) == 0)
		fail("getrandom wrote nothing at %p", (void *)at);
	memcpy(at, copy, sizeof copy);
	check_region_page(w, r, i, "what getrandom did not write");
}
