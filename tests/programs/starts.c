/* Starts a program in each way that there is, one after the other: starts PROGRAM ARGUMENTS. Its environment is this program's,
   but for the second and third time: empty, and with a library to preload that is none of lowtide's. Between them what fails. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>

static char **arguments;

static void tick(int signal)
{
	(void)signal;
}

static void *execute(void *environment)
{
	execve(arguments[0], arguments, environment);
	die("%s: %s", arguments[0], strerror(errno));
}

/* Natively each of these fails with the error that it says, and nothing else comes of it. */
static void fails(void)
{
	char *none[] = { "/nonexistent", NULL };
	for (int i = 0; i < 20; i++) {
		MUST(execve(none[0], none, environ) == -1 && errno == ENOENT);
		MUST(execve("/", none, environ) == -1 && errno == EACCES);
		MUST(syscall(SYS_execveat, -1, "relative", none, environ, 0) == -1 && errno == EBADF);
		MUST(syscall(SYS_execve, NULL, none, environ) == -1 && errno == EFAULT);
	}
}

int main(int argc, char **argv)
{
	MUST(argc > 1);
	arguments = argv + 1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	fails();

	pid_t child;
	MUST(posix_spawn(&child, arguments[0], NULL, NULL, arguments, environ) == 0);
	wait_for(child);

	char *empty[] = { NULL };
	if ((child = fork()) == 0)
		execute(empty);
	wait_for(child);

	char *another[] = { "A=1", "LD_PRELOAD=", "B=2", NULL };
	int file = open(arguments[0], O_RDONLY | O_CLOEXEC);
	MUST(file >= 0);
	if ((child = vfork()) == 0) {
		syscall(SYS_execveat, file, "", arguments, another, AT_EMPTY_PATH);
		_exit(9);
	}
	wait_for(child);

	/* From a thread that is not the first, while signals come. */
	if ((child = fork()) == 0) {
		struct sigaction action = { .sa_handler = tick, .sa_flags = SA_RESTART };
		MUST(sigaction(SIGUSR1, &action, NULL) == 0);
		fails();
		pthread_t thread;
		MUST(pthread_create(&thread, NULL, execute, environ) == 0);
		for (;;)
			pthread_kill(pthread_self(), SIGUSR1);
	}
	wait_for(child);
	return 0;
}
