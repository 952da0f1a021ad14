/* daemonize MIB MODE [MS [US [CALL]]]: a program that fills its memory and becomes a daemon.
   once    if (fork()) _exit(0), as most do
   twice   fork, setsid, fork, as the books say
   exit    the parent leaves by exit(), which runs its handlers
   both    two threads fork at the same time, and whoever is back first ends the parent
   after   by CALL, after a child of the C library's fork has ended
   child   a child of the C library's fork, by CALL
   thread  another thread of the parent calls exit_group at about the time of the fork
   execs   the parent executes another program right after the fork
   fexec   another thread of the parent executes another program by fexecve US microseconds after the beginning of the fork
   rawexec the same by a bare system call; in both the child says that it has begun
   CALL: by what it forks: libc (if nothing is said), or a bare fork, clone or clone3.
   The one that is left waits a moment, verifies every byte, changes some, and verifies again. */
#include "common.h"
#include <pthread.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int go;
static const char *mode, *call;
static unsigned char *start;
static size_t pages;
static unsigned waits_ms;
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

/* Not by the C library's syscall, which lowtide has a hook in. */
static long bare(long number, long first, long second)
{
	register long fourth __asm__("r10") = 0, fifth __asm__("r8") = 0;
	long answer;
	__asm__ volatile("syscall"
	                 : "=a"(answer)
	                 : "a"(number), "D"(first), "S"(second), "d"(0L), "r"(fourth), "r"(fifth)
	                 : "rcx", "r11", "memory");
	return answer;
}

static pid_t forks(void)
{
	/* The kernel's struct clone_args, whose fifth word is the signal. */
	uint64_t arguments[8] = { [4] = SIGCHLD };
	pid_t child;
	if (strcmp(call, "fork") == 0)
		child = (pid_t)bare(SYS_fork, 0, 0);
	else if (strcmp(call, "clone") == 0)
		child = (pid_t)bare(SYS_clone, SIGCHLD, 0);
	else if (strcmp(call, "clone3") == 0)
		child = (pid_t)bare(SYS_clone3, (long)arguments, sizeof arguments);
	else
		child = fork();
	MUST(child >= 0);
	return child;
}

static int lives(void)
{
	usleep(waits_ms * 1000);
	check(start, pages, "tnzw", 1, "the daemon");
	for (size_t i = 0; i < pages; i += 3)
		make_page(start + i * PAGE, kind_at("tnzw", i), 5 + i * PAGE);
	for (size_t i = 0; i < pages; i++)
		check_page(start + i * PAGE, kind_at("tnzw", i), (i % 3 ? 1 : 5) + i * PAGE, "the daemon, later");
	printf("OK the daemon\n");
	fflush(stdout);
	return 0;
}

static void *forks_too(void *unused)
{
	(void)unused;
	while (!__atomic_load_n(&go, __ATOMIC_ACQUIRE))
		;
	_exit(forks() > 0 ? 0 : lives());
}

int main(int argc, char **argv)
{
	call = argc > 5 ? argv[5] : "libc";
	pages = number(argc, argv, 1, 100) * MIB / PAGE;
	mode = argc > 2 ? argv[2] : "once";
	delay_us = (unsigned)number(argc, argv, 4, 200);
	waits_ms = (unsigned)number(argc, argv, 3, 500);
	start = map_pages(pages);
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
	if (strcmp(mode, "both") == 0) {
		pthread_t thread;
		MUST(pthread_create(&thread, NULL, forks_too, NULL) == 0);
		usleep(2000);
		__atomic_store_n(&go, 1, __ATOMIC_RELEASE);
	}
	if (strcmp(mode, "after") == 0) {
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		wait_for(child);
	}
	if (strcmp(mode, "child") == 0) {
		pid_t child = fork();
		MUST(child >= 0);
		if (child > 0)
			_exit(0);
	}
	int is_parent = forks() > 0;
	/* Nobody but its output tells of a child whose parent executes another program. */
	if (!is_parent && strstr(mode, "exec") && strcmp(mode, "execs") != 0) {
		printf("begun\n");
		fflush(stdout);
	}
	if (is_parent) {
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
		if (forks() > 0)
			_exit(0);
	}
	return lives();
}
