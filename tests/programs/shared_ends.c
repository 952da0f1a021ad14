/* What the kernel does not wait for, while a child shares the memory where it happens: threads end and are joined, robust mutexes
 * lose their owner, mutexes with priority inheritance are fought for.
 * shared_ends BALLAST_MIB ROUNDS */
#include "common.h"
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

enum { MUTEXES = 16, THREADS = 8, STACK = 64 << 10, TURNS = 2000 };

static pthread_mutex_t *robust[MUTEXES], *fair;
static unsigned char *stacks, *ballast;
static pthread_barrier_t owned, shared;

static pthread_mutex_t *make(unsigned char *at, int is_robust)
{
	pthread_mutexattr_t attributes;
	pthread_mutex_t *mutex = (void *)at;
	MUST(pthread_mutexattr_init(&attributes) == 0);
	if (is_robust)
		MUST(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
	else
		MUST(pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT) == 0);
	MUST(pthread_mutex_init(mutex, &attributes) == 0);
	return mutex;
}

static void rest(long ms)
{
	struct timespec time = { .tv_nsec = ms * 1000000 };
	MUST(nanosleep(&time, NULL) == 0);
}

/* Takes the mutexes, and ends with them when all of it has been shared for a while. */
static void *own(void *argument)
{
	for (size_t i = 0; i < MUTEXES; i++)
		MUST(pthread_mutex_lock(robust[i]) == 0);
	pthread_barrier_wait(&owned);
	pthread_barrier_wait(&shared);
	rest(30);
	return argument;
}

static void *fight(void *argument)
{
	for (size_t i = 0; i < TURNS; i++) {
		MUST(pthread_mutex_lock(fair) == 0);
		MUST(pthread_mutex_unlock(fair) == 0);
	}
	return argument;
}

static void *end(void *argument)
{
	return argument;
}

/* Threads on small stacks of the C library, and on stacks of the program's. */
static void come_and_go(void)
{
	pthread_attr_t attributes;
	pthread_t thread[THREADS];
	for (size_t i = 0; i < THREADS; i++) {
		MUST(pthread_attr_init(&attributes) == 0);
		if (i % 2 == 0)
			MUST(pthread_attr_setstacksize(&attributes, (size_t)PTHREAD_STACK_MIN) == 0);
		else
			MUST(pthread_attr_setstack(&attributes, stacks + i * STACK, STACK) == 0);
		MUST(pthread_create(&thread[i], &attributes, end, NULL) == 0);
	}
	for (size_t i = 0; i < THREADS; i++)
		MUST(pthread_join(thread[i], NULL) == 0);
}

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 48) * MIB / PAGE, rounds = number(argc, argv, 2, 10);
	pthread_t owner, fighter[2];
	unsigned char *mutexes = map_pages(MUTEXES + 1);
	for (size_t i = 0; i < MUTEXES; i++)
		robust[i] = make(mutexes + i * PAGE, 1);
	fair = make(mutexes + MUTEXES * PAGE, 0);
	stacks = map_pages(THREADS * STACK / PAGE);
	ballast = map_pages(pages);
	fill(ballast, pages, "n", 0);
	MUST(pthread_barrier_init(&owned, NULL, 2) == 0 && pthread_barrier_init(&shared, NULL, 2) == 0);
	for (size_t n = 0; n < rounds; n++) {
		come_and_go();
		MUST(pthread_create(&owner, NULL, own, NULL) == 0);
		pthread_barrier_wait(&owned);
		pid_t child = fork();
		if (child == 0) {
			for (;;)
				pause();
		}
		MUST(child > 0);
		pthread_barrier_wait(&shared);
		for (size_t i = 0; i < 2; i++)
			MUST(pthread_create(&fighter[i], NULL, fight, NULL) == 0);
		for (size_t i = 0; i < 20; i++) {
			come_and_go();
			rest(1);
		}
		MUST(pthread_join(owner, NULL) == 0);
		for (size_t i = 0; i < MUTEXES; i++) {
			struct timespec until;
			MUST(clock_gettime(CLOCK_REALTIME, &until) == 0);
			until.tv_sec += 5;
			int error = pthread_mutex_timedlock(robust[i], &until);
			if (error != EOWNERDEAD)
				die("round %zu, mutex %zu: %s, and its owner is dead", n, i, error == 0 ? "it was free" : strerror(error));
			MUST(pthread_mutex_consistent(robust[i]) == 0 && pthread_mutex_unlock(robust[i]) == 0);
		}
		for (size_t i = 0; i < 2; i++)
			MUST(pthread_join(fighter[i], NULL) == 0);
		/* As much as brings copies to the limit. */
		fill(ballast, pages, "n", n + 1);
		MUST(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
		check(ballast, pages, "n", n + 1, "overwritten beside a child");
	}
	printf("OK %zu\n", rounds);
	return 0;
}
