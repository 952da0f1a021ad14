/* Calls that the kernel refuses after it has begun, and other ways to do what mmap and madvise do. */
#include "torture.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#ifndef SHM_REMAP
#define SHM_REMAP 040000
#endif
/* Of newer kernels than some C libraries. */
enum { MSEAL = 462, PIDFD_OPEN = 434, PROCESS_MADVISE = 440, GUARD_INSTALL = 102, WIPEONFORK = 18, MOST_SEALED = 64 };
#ifndef UFFDIO_MOVE
struct uffdio_move {
	uint64_t dst, src, len, mode;
	int64_t move;
};
#define UFFDIO_MOVE _IOWR(0xaa, 5, struct uffdio_move)
#endif

/* As plain as a call needs it that is to be refused for one reason only, at its new place. NULL: none was found. */
static struct region *moved_to(struct worker *w, unsigned char *to, size_t most)
{
	struct region *r = any_region(w);
	if (r == NULL || r->patched || r->is_break || r->pages > most)
		return NULL;
	make_plain(w, r, 0, r->pages);
	if (mremap(r->start, r->pages * PAGE, r->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
		return NULL;
	remember(w, r, "moved to where a call is refused", 0, r->pages);
	r->start = to;
	return r;
}

/* All of a region and a sealed page behind it: munmap, mmap and mremap over both fail at its end. */
void refused_by_a_seal(struct worker *w)
{
	static atomic_int sealed, has_none;
	struct region *r = any_region(w);
	if (r == NULL || r->patched || r->is_break || has_none || w->depth > 0 || atomic_fetch_add(&sealed, 1) >= MOST_SEALED)
		return;
	size_t pages = r->pages;
	unsigned char *to = map_pages(pages + 1);
	if (syscall(MSEAL, to + pages * PAGE, PAGE, 0) != 0) {
		/* Linux before 6.10. */
		MUST(errno == ENOSYS);
		has_none = 1;
		munmap(to, (pages + 1) * PAGE);
		return;
	}
	make_plain(w, r, 0, pages);
	if (mremap(r->start, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
		return;
	r->start = to;
	remember(w, r, "moved before a sealed page", 0, pages);
	check_sample(w, r, 0, pages, "before a sealed page");
	for (int way = 0; way < 3; way++) {
		size_t length = (pages + 1) * PAGE;
		void *other = MAP_FAILED;
		switch (way) {
		case 0:
			MUST(munmap(to, length) == -1 && errno == EPERM);
			break;
		case 1:
			MUST(mmap(to, length, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED && errno == EPERM);
			break;
		default:
			other = map_pages(pages + 1);
			MUST(mremap(other, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED);
			MUST(errno == EPERM || is_refused(ENOMEM));
			munmap(other, length);
		}
		remember(w, r, "a call was refused for a seal", 0, pages);
		check_sample(w, r, 0, pages, "after a call that was refused for a seal");
	}
	/* What was cut for the call stays cut. */
	r->patched = 1;
}

/* A mapping of more than the machine has, over a region and what was reserved behind it. */
void refused_by_overcommit(struct worker *w)
{
	static const size_t HUGE = (size_t)1 << 42;
	static _Thread_local unsigned char *reserved;
	if (w->depth > 0)
		return;
	if (reserved == NULL)
		reserved = mmap(NULL, HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (reserved == MAP_FAILED)
		return;
	/* Never where a region was before: something else may be there by now. */
	size_t offset = (w->step * 2 * MOST_PAGES * PAGE + pick(w, MOST_PAGES) * PAGE) % (HUGE / 2);
	struct region *r = moved_to(w, reserved + offset, MOST_PAGES);
	if (r == NULL)
		return;
	unsigned char *at = r->start;
	void *new = mmap(at, HUGE / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	/* (A page that was sealed may be there, behind what has moved.) */
	MUST(new == MAP_FAILED && (errno == ENOMEM || errno == EPERM));
	remember(w, r, "mmap was refused for overcommit", 0, r->pages);
	check_sample(w, r, 0, r->pages, "after an mmap that was refused for overcommit");
	r->patched = 1;
}

/* Shared memory over a part of a region, then new private memory there. */
void attach(struct worker *w)
{
	struct region *r = any_region(w);
	if (r == NULL || r->is_break)
		return;
	size_t pages, first = part_of(w, r, 64, &pages);
	unsigned char *at = r->start + first * PAGE;
	make_plain(w, r, first, pages);
	int id = shmget(IPC_PRIVATE, pages * PAGE, IPC_CREAT | 0600);
	if (id == -1) {
		MUST(errno == ENOSPC || errno == ENOSYS || errno == ENOMEM);
		return;
	}
	void *where = shmat(id, at, SHM_REMAP);
	int may_be = where == at || is_refused(EINVAL);
	MUST(shmctl(id, IPC_RMID, NULL) == 0);
	MUST(may_be);
	if (where != at)
		return;
	r->patched = 1;
	remember(w, r, "shmat", first, pages);
	set_zero(r, first, pages);
	check_pages(w, r, first, pages, "shared memory");
	struct page content = fresh(w);
	make_content(at, content);
	if (first > 0)
		check_sample(w, r, 0, first, "before shared memory");
	check_content(at, content, "shared memory");
	/* (Not by shmdt: another thread's mapping would come into the hole.) */
	MUST(mmap(at, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
	set_zero(r, first, pages);
	remember(w, r, "where shared memory was", first, pages);
	check_pages(w, r, first, pages, "where shared memory was");
	for (size_t i = first; i < first + pages; i++)
		if (pick(w, 2))
			write_page(w, r, i);
}

/* madvise by process_madvise on the process itself. */
void advise_itself(struct worker *w)
{
	struct region *r = any_region(w);
	if (r == NULL)
		return;
	size_t pages, first = part_of(w, r, 64, &pages);
	make_plain(w, r, first, pages);
	int guards = pick(w, 2) == 0, self = (int)syscall(PIDFD_OPEN, getpid(), 0);
	struct iovec ranges[2] = { { r->start + first * PAGE, PAGE }, { r->start + (first + 1) * PAGE, (pages - 1) * PAGE } };
	MUST(self >= 0);
#ifdef __GLIBC__
	ssize_t n = process_madvise(self, ranges, pages > 1 ? 2 : 1, guards ? GUARD_INSTALL : MADV_DONTNEED, 0);
#else
	ssize_t n = syscall(PROCESS_MADVISE, self, ranges, pages > 1 ? 2 : 1, guards ? GUARD_INSTALL : MADV_DONTNEED, 0);
#endif
	close(self);
	if (n == -1) {
		/* Linux before 6.13. */
		MUST(errno == EINVAL || errno == ENOSYS);
		return;
	}
	MUST(n == (ssize_t)(pages * PAGE));
	remember(w, r, guards ? "guards by process_madvise" : "MADV_DONTNEED by process_madvise", first, pages);
	set_zero(r, first, pages);
	for (size_t i = first; guards && i < first + pages; i++)
		r->state[i] |= GUARD;
	if (guards)
		make_plain(w, r, first, pages);
	check_pages(w, r, first, pages, "after process_madvise");
}

/* A userfaultfd of the program's own takes pages of a region away. Not of a static program: of one without hooks lowtide does not
 * know that (docs/limits.md). */
void move_by_userfaultfd(struct worker *w)
{
	if (getauxval(AT_BASE) == 0)
		return;
	struct region *r = any_region(w);
	if (r == NULL || r->is_break)
		return;
	size_t pages, first = part_of(w, r, 16, &pages);
	make_plain(w, r, first, pages);
	int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1 /* UFFD_USER_MODE_ONLY */);
	if (uffd < 0)
		return;
	struct uffdio_api api = { .api = UFFD_API, .features = 1 << 16 /* UFFD_FEATURE_MOVE */ };
	unsigned char *to = map_pages(pages);
	struct uffdio_register range = { .range = { (uintptr_t)to, pages * PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	if (ioctl(uffd, UFFDIO_API, &api) == 0 && ioctl(uffd, UFFDIO_REGISTER, &range) == 0) {
		char moved[16] = { 0 };
		for (size_t i = 0; i < pages; i++) {
			struct uffdio_move move = { (uintptr_t)to + i * PAGE, (uintptr_t)r->start + (first + i) * PAGE, PAGE, 2, 0 };
			moved[i] = ioctl(uffd, UFFDIO_MOVE, &move) == 0;
		}
		remember(w, r, "moved by a userfaultfd", first, pages);
		close(uffd);
		for (size_t i = 0; i < pages; i++)
			if (moved[i]) {
				check_content(to + i * PAGE, r->page[first + i], "moved by a userfaultfd");
				set_zero(r, first + i, 1);
			}
		check_pages(w, r, first, pages, "from where a userfaultfd has moved");
	} else {
		close(uffd);
	}
	munmap(to, pages * PAGE);
}

/* Pages that are wiped in children (processes.c looks there). */
void wiped_init(struct worker *w)
{
	w->wiped = map_pages(WIPED_PAGES);
	MUST(madvise(w->wiped, WIPED_PAGES * PAGE, WIPEONFORK) == 0);
	for (size_t i = 0; i < WIPED_PAGES; i++)
		make_content(w->wiped + i * PAGE, w->wiped_page[i] = fresh(w));
}

void check_wiped(struct worker *w)
{
	for (size_t i = 0; i < WIPED_PAGES; i++)
		check_content(w->wiped + i * PAGE, w->wiped_page[i], "not to be in children");
}

void forget_wiped(struct worker *w)
{
	for (size_t i = 0; i < WIPED_PAGES; i++) {
		w->wiped_page[i] = (struct page){ 0 };
		check_content(w->wiped + i * PAGE, w->wiped_page[i], "wiped in a child");
	}
}

/* A process that shares all memory writes to it, while its parent waits. */
struct shared {
	struct worker *w;
	struct region *r;
	size_t first, pages;
};

static int write_as_another_process(void *argument)
{
	struct shared *s = argument;
	check_pages(s->w, s->r, s->first, s->pages, "in a process that shares memory");
	for (size_t i = s->first; i < s->first + s->pages; i++)
		write_page(s->w, s->r, i);
	return 5;
}

void share_memory(struct worker *w)
{
	struct region *r = any_region(w);
	if (r == NULL)
		return;
	struct shared s = { .w = w, .r = r };
	s.first = part_of(w, r, 64, &s.pages);
	make_plain(w, r, s.first, s.pages);
	unsigned char *stack = map_pages(32);
	remember(w, r, "written by a process that shares memory", s.first, s.pages);
	sigset_t all, old;
	sigfillset(&all);
	MUST(pthread_sigmask(SIG_SETMASK, &all, &old) == 0);
	pid_t child = clone(write_as_another_process, stack + 32 * PAGE, CLONE_VM | SIGCHLD, &s);
	int status;
	MUST(child > 0 && waitpid(child, &status, 0) == child);
	MUST(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 5)
		fail("a process that shares memory: wait status %x", (unsigned)status);
	munmap(stack, 32 * PAGE);
	check_pages(w, r, s.first, s.pages, "written by a process that shares memory");
}
