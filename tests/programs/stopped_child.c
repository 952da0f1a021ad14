/* stopped_child MIB [leaves]: a program whose forked child is stopped at its first instruction, by a debugger that follows forks, for three seconds. Its
   fork must return before that, all its memory must be there meanwhile, and the child's when it goes on. `leaves`: the parent ends at once, and the child says when it is done. */
#include "common.h"
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int traced(size_t pages, int leaves)
{
	unsigned char *start = map_pages(pages);
	fill(start, pages, "tnzw", 1);
	MUST(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
	raise(SIGSTOP);
	double begin = now();
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		check(start, pages, "tnzw", 1, "the child");
		fill(start, pages, "nt", 7);
		check(start, pages, "nt", 7, "the child, later");
		if (leaves)
			MUST(write(1, "OK the child\n", 13) == 13);
		return 0;
	}
	double took = now() - begin;
	if (took > 2.5)
		die("fork waited %.1f s for a child that is stopped", took);
	if (leaves)
		return 0;
	check(start, pages, "tnzw", 1, "the parent");
	fill(start, pages / 4, "tnzw", 9);
	check(start, pages / 4, "tnzw", 9, "the parent, later");
	int status;
	MUST(waitpid(child, &status, 0) == child && status == 0);
	return 0;
}

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 80) * MIB / PAGE;
	pid_t parent = fork(), child = 0;
	double stopped = 0;
	int status, left = 1, leaves = argc > 2;
	MUST(parent >= 0);
	if (parent == 0)
		_exit(traced(pages, leaves));
	MUST(waitpid(parent, &status, 0) == parent && WIFSTOPPED(status));
	MUST(ptrace(PTRACE_SETOPTIONS, parent, 0, PTRACE_O_TRACEFORK) == 0);
	MUST(ptrace(PTRACE_CONT, parent, 0, 0) == 0);
	while (left > 0 || stopped > 0) {
		if (stopped > 0 && now() - stopped > 3) {
			MUST(ptrace(PTRACE_DETACH, child, 0, 0) == 0);
			stopped = 0;
		}
		pid_t pid = waitpid(-1, &status, __WALL | WNOHANG);
		if (pid <= 0) {
			usleep(1000);
			continue;
		}
		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			if (status != 0)
				die("process %d ended with status %x", pid, status);
			left -= pid == parent;
		} else if (pid == parent) {
			int signal = WSTOPSIG(status);
			MUST(ptrace(PTRACE_CONT, pid, 0, status >> 16 != 0 || signal == SIGTRAP ? 0 : signal) == 0);
		} else {
			child = pid;
			stopped = now();
		}
	}
	printf("OK\n");
	return 0;
}
