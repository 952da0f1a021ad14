/* Threads that end while memory is short: each is waited for, and comes to its end.
 * thread_ends THREADS ROUNDS BALLAST_MIB [random]
 * The kernel says that a thread has ended by writing to the thread's own memory (CLONE_CHILD_CLEARTID), at a time at which it
 * waits for no userfaultfd any more: where that page is missing, who joins the thread waits for ever. These threads end as the C
 * library's do, which give their stack back and are gone; but they lose their CPU in between. To be run without restartable
 * sequences (GLIBC_TUNABLES=glibc.pthread.rseq=0), which bring the page in when they get it back. */
#include "common.h"
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>

enum { MOST = 64, STACK = 1 << 20, KEPT = 16 << 10 };

static unsigned char *ballast;
static size_t ballast_pages;
static int is_random;
static volatile int finished;

/* Page after page, or anywhere: then all that is in memory is wanted back soon. */
static void *press(void *argument)
{
	uint64_t random = (size_t)argument;
	for (size_t n = (size_t)argument; !finished; n++)
		for (size_t i = n % 2; i < ballast_pages && !finished; i += 2)
			ballast[(is_random ? next_random(&random) % ballast_pages : i) * PAGE + 8] = (unsigned char)n;
	return NULL;
}

/* On other pages than what the C library keeps of a thread. */
static __attribute__((noinline)) void *end_late(size_t depth)
{
	unsigned char some[PAGE];
	struct timespec moment = { .tv_nsec = 100000000 };
	memset(some, (int)depth, sizeof some);
	if (depth > 0)
		return end_late(depth - 1);
	uintptr_t here = (uintptr_t)some & ~(PAGE - 1);
	MUST(madvise((void *)(here - STACK / 2), STACK / 2 - KEPT, MADV_DONTNEED) == 0);
	syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &moment, NULL);
	syscall(SYS_exit, 0);
	return (void *)(size_t)some[7];
}

static void *live(void *argument)
{
	return end_late(3 + (size_t)argument % 2);
}

int main(int argc, char **argv)
{
	size_t threads = number(argc, argv, 1, 16), rounds = number(argc, argv, 2, 20);
	pthread_t thread[MOST], other[2];
	pthread_attr_t attributes;
	ballast_pages = number(argc, argv, 3, 64) * MIB / PAGE;
	is_random = argc > 4 && strcmp(argv[4], "random") == 0;
	ballast = map_pages(ballast_pages);
	MUST(threads <= MOST && pthread_attr_init(&attributes) == 0);
	MUST(pthread_attr_setstacksize(&attributes, STACK) == 0);
	fill(ballast, ballast_pages, "t", 1);
	for (size_t i = 0; i < 2; i++)
		MUST(pthread_create(&other[i], NULL, press, (void *)i) == 0);
	for (size_t n = 0; n < rounds; n++) {
		for (size_t i = 0; i < threads; i++)
			MUST(pthread_create(&thread[i], &attributes, live, (void *)i) == 0);
		for (size_t i = 0; i < threads; i++)
			MUST(pthread_join(thread[i], NULL) == 0);
	}
	finished = 1;
	for (size_t i = 0; i < 2; i++)
		MUST(pthread_join(other[i], NULL) == 0);
	printf("OK %zu\n", rounds);
	return 0;
}
