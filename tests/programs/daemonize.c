/* daemonize MIB MODE [MS [US]]: a program that fills its memory and becomes a daemon.
   once    if (fork()) _exit(0), as most do
   twice   fork, setsid, fork, as the books say
   exit    the parent leaves by exit(), which runs its handlers
   thread  another thread of the parent calls exit_group at about the time of the fork
   execs   the parent executes another program right after the fork
   fexec   another thread of the parent executes another program by fexecve US microseconds after the beginning of the fork
   rawexec the same by a bare system call
   The one that is left waits a moment, verifies every byte, changes some, and verifies again. */
#include "common.h"
#include <pthread.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int go;
static const char *mode;
static unsigned delay_us;

static void *executes(void *unused)
{
	(void)unused;
	char *arguments[] = { "true", NULL };
	int file = open("/bin/true", O_RDONLY | O_CLOEXEC);
	MUST(file >= 0);
	while (!__atomic_load_n(&go, __ATOMIC_ACQUIRE))
		;
	usleep(delay_us);
	if (strcmp(mode, "fexec") == 0)
		fexecve(file, arguments, environ);
	else
		syscall(SYS_execve, "/bin/true", arguments, environ);
	_exit(9);
}

static void *leaves(void *unused)
{
	(void)unused;
	while (!__atomic_load_n(&go, __ATOMIC_ACQUIRE))
		;
	usleep(200);
	_exit(0);
}

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 100) * MIB / PAGE;
	mode = argc > 2 ? argv[2] : "once";
	delay_us = (unsigned)number(argc, argv, 4, 200);
	unsigned char *start = map_pages(pages);
	fill(start, pages, "tnzw", 1);
	if (strcmp(mode, "thread") == 0) {
		pthread_t thread;
		MUST(pthread_create(&thread, NULL, leaves, NULL) == 0);
		__atomic_store_n(&go, 1, __ATOMIC_RELEASE);
	}
	if (strstr(mode, "exec") && strcmp(mode, "execs") != 0) {
		pthread_t thread;
		MUST(pthread_create(&thread, NULL, executes, NULL) == 0);
		usleep(2000);
		__atomic_store_n(&go, 1, __ATOMIC_RELEASE);
	}
	pid_t child = fork();
	MUST(child >= 0);
	if (child > 0) {
		if (strcmp(mode, "exit") == 0)
			exit(0);
		if (strcmp(mode, "execs") == 0) {
			execl("/bin/true", "true", NULL);
			_exit(9);
		}
		if (strcmp(mode, "thread") == 0 || strstr(mode, "exec"))
			pause();
		_exit(0);
	}
	if (strcmp(mode, "twice") == 0) {
		MUST(setsid() > 0);
		child = fork();
		MUST(child >= 0);
		if (child > 0)
			_exit(0);
	}
	usleep((unsigned)number(argc, argv, 3, 500) * 1000);
	check(start, pages, "tnzw", 1, "the daemon");
	for (size_t i = 0; i < pages; i += 3)
		make_page(start + i * PAGE, kind_at("tnzw", i), 5 + i * PAGE);
	for (size_t i = 0; i < pages; i++)
		check_page(start + i * PAGE, kind_at("tnzw", i), (i % 3 ? 1 : 5) + i * PAGE, "the daemon, later");
	printf("OK the daemon\n");
	return 0;
}
