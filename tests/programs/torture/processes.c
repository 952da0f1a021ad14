/* Children: that go on with what their parent had, that look into their parent, that execute something. */
#include "torture.h"
#include <signal.h>
#include <sys/uio.h>
#include <sys/wait.h>

static pthread_mutex_t quiet = PTHREAD_MUTEX_INITIALIZER;

/* Waits for a child, which must have exited with this status. */
static void reap(pid_t child, int status)
{
	int found;
	pid_t pid;
	while ((pid = waitpid(child, &found, 0)) == -1 && errno == EINTR)
		;
	if (pid != child || !WIFEXITED(found) || WEXITSTATUS(found) != status)
		fail("child %d: wait status %x", (int)child, found);
}

void reap_all(struct worker *w)
{
	for (size_t i = 0; i < MOST_CHILDREN; i++)
		if (w->child[i] != 0) {
			reap(w->child[i], 0);
			w->child[i] = 0;
		}
}

/* A fork while no other worker is in the middle of a step, so that the child knows what is in their regions too. */
static pid_t fork_between_steps(struct worker *w)
{
	pthread_mutex_unlock(&w->turn);
	pthread_mutex_lock(&quiet);
	for (size_t i = 0; i < workers; i++)
		pthread_mutex_lock(&worker[i].turn);
	pid_t child = fork();
	if (child == 0)
		return 0;
	for (size_t i = 0; i < workers; i++)
		if (&worker[i] != w)
			pthread_mutex_unlock(&worker[i].turn);
	pthread_mutex_unlock(&quiet);
	return child;
}

/* A child: sees what its parent had, changes it as its parent does, and has at times a child of its own. */
__attribute__((noreturn)) static void live(struct worker *w, int knows_all)
{
	w->depth++;
	memset(w->child, 0, sizeof w->child);
	forget_wiped(w);
	for (size_t i = 0; i < workers; i++)
		for (size_t slot = 0; slot < SLOTS && (knows_all || &worker[i] == w); slot++) {
			struct region *r = &worker[i].region[slot];
			for (size_t n = 0; r->start != NULL && n < 4; n++)
				check_region_page(w, r, pick(w, r->pages), &worker[i] == w ? "in a child" : "another worker's, in a child");
		}
	some_steps(w, 8 + pick(w, 24));
	if (w->depth < 3 && pick(w, 6) == 0) {
		pid_t child = fork();
		MUST(child >= 0);
		if (child == 0)
			live(w, 0);
		some_steps(w, pick(w, 20));
		reap(child, 0);
	}
	for (size_t slot = 0; slot < SLOTS; slot++)
		if (w->region[slot].start != NULL)
			check_sample(w, &w->region[slot], 0, w->region[slot].pages, "at the end of a child");
	_exit(0);
}

/* The child may live on while its parent does. */
void fork_child(struct worker *w)
{
	size_t slot = pick(w, MOST_CHILDREN);
	int between_steps = pick(w, 4) == 0, wait = pick(w, 2) == 0;
	if (w->child[slot] != 0)
		reap(w->child[slot], 0);
	w->child[slot] = 0;
	pid_t child = between_steps ? fork_between_steps(w) : fork();
	MUST(child >= 0);
	if (child == 0)
		live(w, between_steps);
	w->child[slot] = child;
	if (wait)
		reap_all(w);
}

/* A child that reads and writes its parent's memory, which waits meanwhile. */
void fork_reader(struct worker *w)
{
	struct region *r = any_region(w);
	if (r == NULL)
		return;
	size_t pages, first = part_of(w, r, 16, &pages);
	make_plain(w, r, first, pages);
	uint64_t before = w->clock;
	unsigned char *at = r->start + first * PAGE, *own = map_pages(pages);
	remember(w, r, "process_vm_writev", first, pages);
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		struct iovec here = { own, pages * PAGE }, there = { at, pages * PAGE };
		if (process_vm_readv(getppid(), &here, 1, &there, 1, 0) == -1) {
			MUST(errno == EPERM || errno == ENOSYS);
			_exit(1);
		}
		for (size_t i = 0; i < pages; i++) {
			check_content(own + i * PAGE, r->page[first + i], "read by a child");
			make_content(own + i * PAGE, fresh(w));
		}
		MUST(process_vm_writev(getppid(), &here, 1, &there, 1, 0) == (ssize_t)(pages * PAGE));
		_exit(0);
	}
	int status;
	while (waitpid(child, &status, 0) == -1 && errno == EINTR)
		;
	if (!WIFEXITED(status) || WEXITSTATUS(status) > 1)
		fail("child %d that reads its parent's memory: wait status %x", (int)child, status);
	munmap(own, pages * PAGE);
	if (WEXITSTATUS(status) == 1)
		return;
	w->clock = before;
	for (size_t i = first; i < first + pages; i++)
		r->page[i] = fresh(w);
	check_pages(w, r, first, pages, "written by a child");
}

/* Executes this program again, or another one, in a child of fork or vfork; its argument is in memory that may be out. */
void execute(struct worker *w)
{
	int by_vfork = pick(w, 2) == 0, itself = pick(w, 2) == 0;
	unsigned char *text = map_pages(4);
	sigset_t all, old;
	for (size_t i = 0; i < 3 * PAGE; i++)
		text[i] = (unsigned char)('a' + mix(i / 8) % 26);
	char *const arguments[] = { "torture", itself ? "--executed" : NULL, (char *)text, NULL };
	char *const environment[] = { NULL };
	const char *path = itself ? "/proc/self/exe" : "/bin/true";
	sigfillset(&all);
	MUST(pthread_sigmask(SIG_SETMASK, &all, &old) == 0);
	/* In a child of vfork nothing may be changed that its parent needs. */
	pid_t child = by_vfork ? vfork() : fork();
	if (child == 0) {
		execve(path, arguments, environment);
		_exit(127);
	}
	MUST(child > 0);
	MUST(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);
	reap(child, itself ? 7 : 0);
	munmap(text, 4 * PAGE);
}

/* What is executed: its argument has arrived, and memory is memory. */
int executed(const char *text)
{
	for (size_t i = 0; i < 3 * PAGE; i++)
		MUST(text[i] == (char)('a' + mix(i / 8) % 26));
	MUST(text[3 * PAGE] == 0);
	unsigned char *at = map_pages(256);
	check_zero(at, 256 * PAGE, "memory of what is executed");
	fill(at, 256, "tn", 5);
	check(at, 256, "tn", 5, "memory of what is executed");
	return 7;
}
