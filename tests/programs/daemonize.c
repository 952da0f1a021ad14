/* daemonize MIB MODE [MS]: a program that fills its memory and becomes a daemon.
   once    if (fork()) _exit(0), as most do
   twice   fork, setsid, fork, as the books say
   exit    the parent leaves by exit(), which runs its handlers
   thread  another thread of the parent calls exit_group at about the time of the fork
   execs   the parent executes another program right after the fork
   The one that is left waits a moment, verifies every byte, changes some, and verifies again. */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

static int go;

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
	const char *mode = argc > 2 ? argv[2] : "once";
	unsigned char *start = map_pages(pages);
	fill(start, pages, "tnzw", 1);
	if (strcmp(mode, "thread") == 0) {
		pthread_t thread;
		MUST(pthread_create(&thread, NULL, leaves, NULL) == 0);
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
		if (strcmp(mode, "thread") == 0)
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
