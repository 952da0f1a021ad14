/* outlives HOW MIB: fills MIB, and makes a process that shares the memory (CLONE_VM) and checks it when its parent is not there any
   more: it has ended (HOW: ends), was killed (killed), or executes another program (executes). `quiet`: it looks at nothing that
   could be out. */
#include "common.h"
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>

/* What a survivor needs in any case. */
static _Alignas(4096) struct {
	size_t pages;
	unsigned char *memory;
	int is_quiet;
	pid_t parent;
	_Alignas(16) char stack[64 << 10];
} own;

/* System calls only: the C library's data are its parent's. */
static int survives(void *argument)
{
	(void)argument;
	struct timespec nap = { 0, 10000000 };
	/* What has executed another program stays this one's parent until it ends. */
	while (syscall(SYS_getppid) == own.parent)
		syscall(SYS_nanosleep, &nap, NULL);
	size_t wrong = 0;
	if (!own.is_quiet)
		for (size_t i = 0; i < own.pages; i++)
			wrong += *(volatile uint64_t *)(own.memory + i * PAGE) != i + 1;
	const char *text = wrong == 0 ? "the survivor is right\n" : "the survivor has wrong words\n";
	syscall(SYS_write, 1, text, strlen(text));
	syscall(SYS_exit_group, wrong != 0);
	return 0;
}

int main(int argc, char **argv)
{
	MUST(argc > 1);
	const char *how = argv[1];
	own.pages = number(argc, argv, 2, 96) * MIB / PAGE;
	own.memory = map_pages(own.pages);
	for (size_t i = 0; i < own.pages; i++)
		*(uint64_t *)(own.memory + i * PAGE) = i + 1;
	own.is_quiet = strcmp(how, "quiet") == 0;
	/* In a process of its own, which may be killed. */
	pid_t first = fork();
	MUST(first >= 0);
	if (first > 0) {
		int status;
		MUST(waitpid(first, &status, 0) == first);
		return 0;
	}
	for (size_t i = 0; i < own.pages; i++)
		*(uint64_t *)(own.memory + i * PAGE) = i + 1;
	/* A child has not its parent's locks. */
	MUST(mlock(&own, sizeof own) == 0);
	own.parent = getpid();
	MUST(clone(survives, own.stack + sizeof own.stack, CLONE_VM | SIGCHLD, NULL) > 0);
	if (strcmp(how, "killed") == 0)
		kill(getpid(), SIGKILL);
	if (strcmp(how, "executes") == 0)
		execl("/bin/sleep", "sleep", "0.3", NULL);
	_exit(0);
}
