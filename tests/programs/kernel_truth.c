/* kernel_truth CASE [raw]: the kernel does otherwise than its userfaultfd events say, or says nothing at all. Each case fills
 * memory, has most of it evicted, makes its call, and counts words that are wrong. `raw`: by syscall() in place of the C
 * library's function. */
#include "common.h"
#include <fcntl.h>
#if __has_include(<linux/userfaultfd.h>)
#include <linux/userfaultfd.h>
#define HAS_HEADERS
#endif
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#ifndef SHM_REMAP
#define SHM_REMAP 040000
#endif
enum { MSEAL = 462, PIDFD_OPEN = 434, PROCESS_MADVISE = 440, GUARD_INSTALL = 102, GUARD_REMOVE = 103, WIPEONFORK = 18, PIDFD_SELF = -10001 };
#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 8
#endif
#if defined(HAS_HEADERS) && !defined(UFFDIO_MOVE)
struct uffdio_move {
	uint64_t dst, src, len, mode;
	int64_t move;
};
#define UFFDIO_MOVE _IOWR(0xaa, 5, struct uffdio_move)
#endif

enum { ALL = 96, PART = 8 }; /* MiB */
static unsigned char *all;
static int raw, fails;

static size_t value(size_t i)
{
	return mix(i) | 1;
}

static void put(unsigned char *at, size_t bytes)
{
	for (size_t i = 0; i < bytes / 8; i++)
		((size_t *)at)[i] = value(i);
}

static void say(const char *what, unsigned char *at, size_t bytes, int zero)
{
	size_t wrong = 0;
	for (size_t i = 0; i < bytes / 8; i++)
		wrong += ((size_t *)at)[i] != (zero ? 0 : value(i));
	printf("%s: %zu of %zu words are wrong\n", what, wrong, bytes / 8);
	fflush(stdout);
	fails |= wrong != 0;
}

/* All but the first part is touched until some of that is out, and once more. Natively none ever is. */
static void push_out(void)
{
	int last = 0;
	for (int round = 0; round < 150 && !last; round++) {
		last = round >= 2 && some_are_out(all, PART * MIB / PAGE);
		for (size_t i = (PART + 1) * MIB; i < ALL * MIB; i += PAGE)
			all[i] = (unsigned char)(all[i] + 1);
	}
}

static void must_fail(int is, int why)
{
	MUST(is && errno == why);
}

/* The page behind the part is sealed. */
static void seal(void)
{
	MUST(mprotect(all + PART * MIB, PAGE, PROT_READ) == 0);
	MUST(syscall(MSEAL, all + PART * MIB, PAGE, 0) == 0);
	push_out();
}

static void munmap_seal(void)
{
	size_t n = PART * MIB + PAGE;
	seal();
	must_fail((raw ? (int)syscall(SYS_munmap, all, n) : munmap(all, n)) == -1, EPERM);
}

static void mmap_seal(void)
{
	size_t n = PART * MIB + PAGE;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
	seal();
	must_fail((raw ? (void *)syscall(SYS_mmap, all, n, PROT_READ, flags, -1, 0) : mmap(all, n, PROT_READ, flags, -1, 0)) == MAP_FAILED,
	          EPERM);
}

static void mremap_seal(void)
{
	size_t n = PART * MIB + PAGE;
	unsigned char *from = map_pages(n / PAGE);
	seal();
	put(from, n);
	push_out();
	void *to = raw ? (void *)syscall(SYS_mremap, from, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, all)
	               : mremap(from, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, all);
	must_fail(to == MAP_FAILED, EPERM);
	say("what was to move", from, n, 0);
}

/* A part of the break's end is sealed. */
static void brk_seal(void)
{
	unsigned char *start = (unsigned char *)(((uintptr_t)sbrk(0) + PAGE - 1) & ~(PAGE - 1));
	MUST(brk(start + PART * MIB) == 0);
	put(start, PART * MIB);
	push_out();
	MUST(syscall(MSEAL, start + PART * MIB / 2, PAGE, 0) == 0);
	/* (The C library says that it was done.) */
	if (raw)
		MUST((unsigned char *)syscall(SYS_brk, start + MIB) == start + PART * MIB);
	else
		brk(start + MIB), MUST((unsigned char *)sbrk(0) == start + PART * MIB);
	say("the break", start, PART * MIB, 0);
}

/* More than the machine promises. */
static void overcommit(void)
{
	size_t huge = (size_t)1 << 43, n = PART * MIB;
	unsigned char *reserved = mmap(NULL, huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	MUST(reserved != MAP_FAILED && mprotect(reserved, n, PROT_READ | PROT_WRITE) == 0);
	put(reserved, n);
	push_out();
	must_fail(mmap(reserved, huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED, ENOMEM);
	say("the beginning of what was reserved", reserved, n, 0);
}

/* The limits are lowered for one call. */
static void by_limit(int which)
{
	struct rlimit old, low;
	push_out();
	MUST(getrlimit(which, &old) == 0);
	low = old;
	low.rlim_cur = PAGE;
	MUST(setrlimit(which, &low) == 0);
	void *new = mmap(all, 4 * ALL * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	MUST(new == MAP_FAILED);
	new = mmap(all, 2 * PART * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	int why = errno;
	MUST(setrlimit(which, &old) == 0);
	if (new != MAP_FAILED)
		die("the kernel lets a mapping replace one under this limit");
	errno = why;
	must_fail(1, ENOMEM);
}

static void as(void)
{
	by_limit(RLIMIT_AS);
}

static void data(void)
{
	by_limit(RLIMIT_DATA);
}

/* An error is an answer, too, if memory is as it was. */
static void refused(void)
{
	MUST(is_refused(EINVAL));
	say("what was not changed", all, PART * MIB, 0);
	if (!fails)
		printf("OK\n");
	exit(fails);
}

static void *attach(unsigned char *at, size_t n)
{
	int id = shmget(IPC_PRIVATE, n, IPC_CREAT | 0600);
	MUST(id != -1);
	void *got = raw ? (void *)syscall(SYS_shmat, id, at, SHM_REMAP) : shmat(id, at, SHM_REMAP);
	int error = errno;
	MUST(shmctl(id, IPC_RMID, NULL) == 0);
	errno = error;
	if (got == (void *)-1)
		refused();
	return got;
}

/* Private memory where shared memory was, in the middle of what was there before; it is evicted, too. */
static void shm(void)
{
	size_t n = PART * MIB / 2;
	unsigned char *at = all + PART * MIB / 4;
	push_out();
	MUST(attach(at, n) == at);
	put(at, n);
	push_out();
	say("shared memory", at, n, 0);
	MUST(shmdt(at) == 0);
	MUST(mmap(at, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
	say("new memory", at, n, 1);
	put(at, n);
	push_out();
	say("new memory that was out", at, n, 0);
	/* As the rest of the part is. */
	for (size_t i = 0; i < n / 8; i++)
		((size_t *)at)[i] = value(i + PART * MIB / 32);
}

/* The same, and more of its surroundings is new. */
static void shm_beside(void)
{
	size_t n = PART * MIB / 4;
	push_out();
	MUST(attach(all, n) == all);
	MUST(shmdt(all) == 0);
	MUST(munmap(all + n, n) == 0);
	MUST(mmap(all, 2 * n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == all);
	say("new memory", all, 2 * n, 1);
	put(all, 2 * n);
}

static void wiped(unsigned char *at, size_t n)
{
	put(at, n);
	push_out();
	pid_t child = raw ? (pid_t)syscall(SYS_fork) : fork();
	if (child == 0) {
		say("wiped in a child", at, n, 1);
		_exit(fails);
	}
	wait_for(child);
	say("of its parent", at, n, 0);
}

static void wipe(void)
{
	unsigned char *at = map_pages(64);
	MUST(madvise(at, 64 * PAGE, WIPEONFORK) == 0);
	wiped(at, 64 * PAGE);
}

/* Memory that was registered and is out. */
static void wipe_late(void)
{
	push_out();
	MUST(madvise(all, PART * MIB, WIPEONFORK) == 0);
	wiped(all, PART * MIB);
}

static void droppable(void)
{
	unsigned char *at = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_DROPPABLE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED) /* Linux before 6.11 */
		at = map_pages(64), MUST(madvise(at, 64 * PAGE, WIPEONFORK) == 0);
	wiped(at, 64 * PAGE);
}

static void advise(int advice)
{
	/* The process itself, by its number since Linux 6.17. */
	int self = advice == GUARD_INSTALL && syscall(PROCESS_MADVISE, PIDFD_SELF, NULL, 0, MADV_COLD, 0) == 0
			   ? PIDFD_SELF
			   : (int)syscall(PIDFD_OPEN, getpid(), 0);
	struct iovec ranges[] = { { all, MIB }, { all + 2 * MIB, MIB } };
	MUST(self != -1);
#ifdef __GLIBC__
	ssize_t n = raw ? syscall(PROCESS_MADVISE, self, ranges, 2, advice, 0) : process_madvise(self, ranges, 2, advice, 0);
#else
	ssize_t n = syscall(PROCESS_MADVISE, self, ranges, 2, advice, 0);
#endif
	if (n == -1) { /* Linux before 6.13 */
		MUST(errno == EINVAL);
		if (madvise(all, MIB, advice) != 0 || madvise(all + 2 * MIB, MIB, advice) != 0)
			refused();
	} else {
		MUST(n == (ssize_t)(2 * MIB));
	}
	close(self);
}

static void process_madvise_guards(void)
{
	push_out();
	advise(GUARD_INSTALL);
	MUST(madvise(all, 3 * MIB, GUARD_REMOVE) == 0);
	say("where guards were", all, MIB, 1);
	say("and further on", all + 2 * MIB, MIB, 1);
	put(all, PART * MIB);
}

static void process_madvise_drops(void)
{
	push_out();
	advise(MADV_DONTNEED);
	say("what was dropped", all, MIB, 1);
	say("and further on", all + 2 * MIB, MIB, 1);
	put(all, PART * MIB);
}

/* lowtide only says that this much is locked: what may not be dropped is kept all the same. */
static void refuse_to_drop(unsigned char *at)
{
	MUST(madvise(at, PART * MIB / 2, MADV_DONTNEED) == -1 && errno == EINVAL);
	MUST(madvise(at, PART * MIB / 2, MADV_FREE) == -1 && errno == EINVAL);
	MUST(madvise(at, PART * MIB / 2, GUARD_INSTALL) == -1 && errno == EINVAL);
}

static void locked(void)
{
	push_out();
	MUST(mlock(all, PART * MIB) == 0);
	refuse_to_drop(all);
	MUST(munlock(all, PART * MIB) == 0);
}

static void all_locked(void)
{
	push_out();
	MUST(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
	unsigned char *later = map_pages(PART * MIB / PAGE);
	put(later, PART * MIB);
	refuse_to_drop(all);
	refuse_to_drop(later);
	say("what was mapped later", later, PART * MIB, 0);
	MUST(munlockall() == 0 && madvise(later, PART * MIB, MADV_DONTNEED) == 0);
	say("what was dropped when it was unlocked", later, PART * MIB, 1);
}

/* Several mappings at once, which Linux moves since 6.17: the old place stays mapped, and empty. */
static void leave_several(void)
{
	size_t n = PART * MIB;
	unsigned char *to = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(to != MAP_FAILED && mprotect(all, n / 2, PROT_READ) == 0);
	push_out();
	if (mremap(all, n - 100, n, MREMAP_MAYMOVE | MREMAP_FIXED | 4 /* DONTUNMAP */, to) == to) {
		say("where it has moved", to, n, 0);
		say("from where it has moved", all, n, 1);
	} else {
		MUST(errno == EFAULT);
	}
	MUST(mprotect(all, n / 2, PROT_READ | PROT_WRITE) == 0);
	put(all, n);
}

#ifdef HAS_HEADERS
/* A userfaultfd of the program's own moves pages out of what is out. */
static void own_move(void)
{
	int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1 /* UFFD_USER_MODE_ONLY */);
	struct uffdio_api api = { .api = UFFD_API, .features = 1 << 16 /* UFFD_FEATURE_MOVE */ };
	size_t n = PART * MIB;
	unsigned char *to = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = { .range = { (uintptr_t)to, n }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	MUST(uffd >= 0 && ioctl(uffd, UFFDIO_API, &api) == 0 && ioctl(uffd, UFFDIO_REGISTER, &range) == 0);
	push_out();
	for (size_t done = 0; done < n;) {
		struct uffdio_move move = { (uintptr_t)to + done, (uintptr_t)all + done, n - done, 2 /* holes */, 0 };
		if (ioctl(uffd, UFFDIO_MOVE, &move) == 0)
			break;
		MUST(errno == EAGAIN && move.move > 0);
		done += (size_t)move.move;
	}
	close(uffd);
	say("where it has moved", to, n, 0);
	say("from where it has moved", all, n, 1);
	put(all, n);
}
#endif

static const struct {
	const char *name;
	void (*run)(void);
} CASES[] = {
	{ "munmap-seal", munmap_seal }, { "mmap-seal", mmap_seal }, { "mremap-seal", mremap_seal }, { "brk-seal", brk_seal },
	{ "overcommit", overcommit }, { "as", as }, { "data", data }, { "shm", shm }, { "shm-beside", shm_beside },
	{ "wipe", wipe }, { "wipe-late", wipe_late }, { "droppable", droppable },
	{ "locked", locked }, { "all-locked", all_locked }, { "leave-several", leave_several },
	{ "process-madvise-guards", process_madvise_guards }, { "process-madvise-drops", process_madvise_drops },
#ifdef HAS_HEADERS
	{ "own-move", own_move },
#endif
};

int main(int argc, char **argv)
{
	raw = argc > 2 && strcmp(argv[2], "raw") == 0;
	all = map_pages(ALL * MIB / PAGE);
	put(all, PART * MIB);
	for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
		if (argc > 1 && strcmp(argv[1], CASES[i].name) == 0) {
			CASES[i].run();
			say("the first part", all, PART * MIB, 0);
			if (!fails)
				printf("OK\n");
			return fails;
		}
	die("kernel_truth CASE [raw]");
}
