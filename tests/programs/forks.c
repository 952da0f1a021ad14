/* Children under pressure. forks MODE MIB COUNT
 * exec    fork and exec of a small program, again and again, with memory written in between
 * spawn   posix_spawn and vfork in turn
 * stay    the child checks all it inherited while the parent overwrites it; the parent waits
 * orphan  the same, but the parent overwrites, frees and exits first; the child reports on standard output
 * thread  a second thread forks while the first goes on writing; the child checks
 * nested  the child overwrites and forks again: three generations, each with its own content
 * raw     fork by the bare system calls (fork, clone, clone3) */
#include "common.h"
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;
static unsigned char *area;
static size_t pages, count;
static const char *kinds = "twtzn";

/* The whole life of a child that stays: what it inherited, its own writes, its own new memory, twice over. */
static void live(uint64_t inherited, uint64_t own)
{
	check(area, pages, kinds, inherited, "inherited");
	fill(area, pages / 2, kinds, own);
	unsigned char *fresh = map_pages(pages / 4);
	fill(fresh, pages / 4, "tw", own);
	check(area, pages / 2, kinds, own, "the child's own");
	for (size_t i = pages / 2; i < pages; i++)
		check_page(area + i * PAGE, kind_at(kinds, i), inherited + i * PAGE, "inherited, later");
	check(fresh, pages / 4, "tw", own, "the child's new memory");
	munmap(fresh, pages / 4 * PAGE);
}

static void exec_loop(void)
{
	char *arguments[] = { "true", NULL };
	for (size_t n = 0; n < count; n++) {
		pid_t child = fork();
		if (child == 0) {
			execve("/bin/true", arguments, environ);
			_exit(8);
		}
		/* Writes while the child may still share the pages. */
		size_t part = pages / 8, first = n % 8 * part;
		fill(area + first * PAGE, part, kinds, n);
		wait_for(child);
		check(area + first * PAGE, part, kinds, n, "written beside fork and exec");
	}
}

static void spawn_loop(void)
{
	char *arguments[] = { "true", NULL };
	for (volatile size_t n = 0; n < count; n++) {
		pid_t child;
		if (n % 2 == 0) {
			MUST(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) == 0);
		} else {
			child = vfork();
			if (child == 0) {
				execve("/bin/true", arguments, environ);
				_exit(8);
			}
		}
		size_t part = pages / 8, first = n % 8 * part;
		fill(area + first * PAGE, part, kinds, n);
		wait_for(child);
		check(area + first * PAGE, part, kinds, n, "written beside vfork");
	}
}

static void stay(void)
{
	for (size_t n = 0; n < count; n++) {
		pid_t child = fork();
		if (child == 0) {
			live(n, 1000 + n);
			_exit(0);
		}
		fill(area, pages, kinds, n + 1);
		check(area, pages, kinds, n + 1, "the parent's own");
		wait_for(child);
	}
	check(area, pages, kinds, count, "the parent's own, after its children");
}

static void orphan(void)
{
	int ready[2];
	MUST(pipe(ready) == 0);
	pid_t parent = getpid(), child = fork();
	MUST(child >= 0);
	if (child > 0) {
		fill(area, pages, kinds, 1);
		check(area, pages, kinds, 1, "the parent's own");
		munmap(area, pages * PAGE);
		_exit(0);
	}
	/* Half is checked while the parent lives, all of it after the parent is gone. */
	check(area, pages / 2, kinds, 0, "inherited, parent alive");
	while (getppid() == parent)
		usleep(1000);
	live(0, 1000);
	printf("OK orphan\n");
	fflush(stdout);
	_exit(0);
}

static void *fork_in_thread(void *unused)
{
	(void)unused;
	for (size_t n = 0; n < count; n++) {
		pid_t child = fork();
		if (child == 0) {
			/* The second half is this thread's, so it can't have changed; the first is in the other's hands. */
			for (size_t i = pages / 2; i < pages; i++)
				check_page(area + i * PAGE, kind_at(kinds, i), i * PAGE, "inherited by a thread's child");
			fill(area, pages, kinds, 1000 + n);
			check(area, pages, kinds, 1000 + n, "a thread's child's own");
			_exit(0);
		}
		wait_for(child);
	}
	return NULL;
}

static void from_thread(void)
{
	pthread_t other;
	MUST(pthread_create(&other, NULL, fork_in_thread, NULL) == 0);
	for (uint64_t lap = 1; pthread_tryjoin_np(other, NULL) != 0; lap++) {
		fill(area, pages / 2, kinds, lap);
		check(area, pages / 2, kinds, lap, "the first thread's own");
	}
	for (size_t i = pages / 2; i < pages; i++)
		check_page(area + i * PAGE, kind_at(kinds, i), i * PAGE, "the second thread's own");
	/* How many laps there were is not part of the answer. */
	fill(area, pages / 2, kinds, 0);
}

static void nested(unsigned depth, uint64_t content)
{
	if (depth == 0)
		return;
	pid_t child = fork();
	if (child == 0) {
		check(area, pages, kinds, content, "inherited");
		fill(area, pages, kinds, content + 100);
		nested(depth - 1, content + 100);
		check(area, pages, kinds, content + 100, "a generation's own");
		_exit(0);
	}
	fill(area, pages / 2, kinds, content + 7);
	check(area, pages / 2, kinds, content + 7, "the elder's own");
	wait_for(child);
	fill(area, pages / 2, kinds, content);
}

static void raw(void)
{
	for (size_t n = 0; n < count * 3; n++) {
		struct clone_args arguments = { .exit_signal = SIGCHLD };
		long child = n % 3 == 0 ? syscall(SYS_fork) :
			     n % 3 == 1 ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) :
					  syscall(SYS_clone3, &arguments, sizeof arguments);
		if (child == 0) {
			live(n, 1000 + n);
			_exit(0);
		}
		fill(area, pages, kinds, n + 1);
		wait_for((pid_t)child);
	}
	check(area, pages, kinds, count * 3, "the parent's own, after its children");
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "stay";
	pages = number(argc, argv, 2, 128) * MIB / PAGE;
	count = number(argc, argv, 3, 3);
	area = map_pages(pages);
	fill(area, pages, kinds, 0);
	check(area, pages, kinds, 0, "before any child");
	if (strcmp(mode, "exec") == 0)
		exec_loop();
	else if (strcmp(mode, "spawn") == 0)
		spawn_loop();
	else if (strcmp(mode, "stay") == 0)
		stay();
	else if (strcmp(mode, "orphan") == 0)
		orphan();
	else if (strcmp(mode, "thread") == 0)
		from_thread();
	else if (strcmp(mode, "nested") == 0)
		nested(3, 0);
	else if (strcmp(mode, "raw") == 0)
		raw();
	else
		die("no such mode: %s", mode);
	printf("OK %s %016llx\n", mode, (unsigned long long)checksum(area, pages * PAGE, 1));
	return 0;
}
