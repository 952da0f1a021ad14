/* outlives HOW MIB: fills MIB, and makes a process that shares the memory (CLONE_VM) and checks it when its parent is not there any
   more: it has ended (HOW: ends), was killed (killed), or executes another program (executes). `quiet`: it looks at nothing that
   could be out. `seen`: there is none, but a process is killed while its parent reads its memory (process_vm_readv). */
#include "common.h"
#include <sched.h>
#include <signal.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/uio.h>
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

static volatile int reads;

static void *kills(void *first)
{
	while (!reads)
		usleep(100);
	usleep(3000);
	kill(*(pid_t *)first, SIGKILL);
	return NULL;
}

/* Reads all that a process has, which ends meanwhile: what it gets is right. */
static void sees_the_end_of(pid_t first)
{
	enum { PIECES = 64 };
	size_t len = own.pages * PAGE, piece = len / PIECES;
	unsigned char *buffer = map_pages(piece / PAGE);
	struct iovec to[PIECES], from = { own.memory, len };
	for (int i = 0; i < PIECES; i++)
		to[i] = (struct iovec){ buffer, piece };
	pthread_t thread;
	MUST(pthread_create(&thread, NULL, kills, &first) == 0);
	ssize_t read;
	do {
		reads = 1;
		read = process_vm_readv(first, to, PIECES, &from, 1, 0);
		/* A page of one piece or another. */
		for (size_t i = 0; read >= (ssize_t)piece && i < piece / PAGE; i++)
			MUST((*(uint64_t *)(buffer + i * PAGE) - 1) % (piece / PAGE) == i);
	} while (read > 0 && kill(first, 0) == 0);
	MUST(pthread_join(thread, NULL) == 0);
	int status;
	MUST(waitpid(first, &status, 0) == first && WIFSIGNALED(status));
	puts("the reader goes on");
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
	int ends[2];
	MUST(pipe(ends) == 0);
	/* In a process of its own, which may be killed. */
	pid_t first = fork();
	MUST(first >= 0);
	int is_seen = strcmp(how, "seen") == 0;
	char byte;
	if (first > 0 && is_seen) {
		close(ends[1]);
		MUST(read(ends[0], &byte, 1) == 1);
		sees_the_end_of(first);
		return 0;
	}
	if (first > 0) {
		int status;
		MUST(waitpid(first, &status, 0) == first);
		return 0;
	}
	for (size_t i = 0; i < own.pages; i++)
		*(uint64_t *)(own.memory + i * PAGE) = i + 1;
	if (is_seen) {
		MUST(write(ends[1], "", 1) == 1);
		pause();
	}
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
