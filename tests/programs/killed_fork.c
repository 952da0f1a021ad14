/* killed_fork MIB DELAY_US: a program that is killed (SIGKILL) so long after the beginning of a fork. The child, if there is one, says so, waits a
   moment, and verifies every byte. */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <time.h>

static int go;
static long delay_us;

static long now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void *kills(void *unused)
{
	(void)unused;
	while (!__atomic_load_n(&go, __ATOMIC_ACQUIRE))
		;
	long start = now_us();
	while (now_us() - start < delay_us)
		;
	kill(getpid(), SIGKILL);
	return NULL;
}

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 80) * MIB / PAGE;
	delay_us = (long)number(argc, argv, 2, 500);
	unsigned char *start = map_pages(pages);
	pthread_t thread;
	fill(start, pages, "tnzw", 1);
	MUST(pthread_create(&thread, NULL, kills, NULL) == 0);
	usleep(2000);
	__atomic_store_n(&go, 1, __ATOMIC_RELEASE);
	if (fork() != 0) {
		for (;;)
			pause();
	}
	MUST(write(1, "begun\n", 6) == 6);
	usleep(200 * 1000);
	check(start, pages, "tnzw", 1, "the child");
	printf("OK the child\n");
	return 0;
}
