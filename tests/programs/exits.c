/* The ways to end, each with memory swapped out and a thread at work in it. exits MODE MIB
 * return | exit | _exit | term | segv | abort | main-thread (pthread_exit of main, another thread ends the process) |
 * grows-after-main (the same, and the other one has all the memory) | wait */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

static unsigned char *area;
static size_t pages;

static void *work(void *unused)
{
	(void)unused;
	for (uint64_t random = 1;; ) {
		size_t i = next_random(&random) % pages;
		check_page(area + i * PAGE, kind_at("tn", i), 1 + i * PAGE, "in the other thread");
	}
	return NULL;
}

static void *end_later(void *unused)
{
	(void)unused;
	usleep(300000);
	check(area, pages, "tn", 1, "after the main thread ended");
	printf("OK other thread\n");
	exit(5);
}

static void *grow_later(void *unused)
{
	(void)unused;
	usleep(300000);
	area = map_pages(pages);
	for (int round = 1; round <= 2; round++) {
		fill(area, pages, "tn", round);
		check(area, pages, "tn", round, "after the main thread ended");
	}
	printf("OK other thread\n");
	exit(5);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "return";
	struct rlimit no_core = { 0, 0 };
	pthread_t worker;
	pages = number(argc, argv, 2, 128) * MIB / PAGE;
	setrlimit(RLIMIT_CORE, &no_core);
	if (strcmp(mode, "grows-after-main") == 0) {
		MUST(pthread_create(&worker, NULL, grow_later, NULL) == 0);
		pthread_exit(NULL);
	}
	area = map_pages(pages);
	fill(area, pages, "tn", 1);
	check(area, pages, "tn", 1, "before the end");
	MUST(pthread_create(&worker, NULL, work, NULL) == 0);
	printf("OK %s\n", mode);
	fflush(stdout);
	if (strcmp(mode, "exit") == 0)
		exit(7);
	if (strcmp(mode, "_exit") == 0)
		_exit(8);
	if (strcmp(mode, "term") == 0)
		raise(SIGTERM);
	if (strcmp(mode, "segv") == 0)
		*(volatile int *)(uintptr_t)pages = 1; /* an address in no mapping */
	if (strcmp(mode, "abort") == 0)
		abort();
	if (strcmp(mode, "main-thread") == 0) {
		MUST(pthread_create(&worker, NULL, end_later, NULL) == 0);
		pthread_exit(NULL);
	}
	if (strcmp(mode, "wait") == 0) /* until a signal comes from outside */
		for (;;)
			pause();
	return 0;
}
