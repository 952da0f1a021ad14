/* MADV_DONTNEED under pressure: right after it, every byte reads zero, whoever evicts meanwhile.
 * dontneed_race own|stack THREADS ROUNDS BALLAST_MIB
 * own: each thread drops parts of its own block. stack: one thread drops the unused part of the others' stacks. */
#include "common.h"
#include <pthread.h>

enum { BLOCK = 96, STACK = 256 };

static volatile int finished;
static size_t rounds, ballast_pages;
static unsigned char *ballast;

/* Goes round a large area all the time, so that something must always be evicted. */
static void *press(void *unused)
{
	(void)unused;
	for (uint64_t lap = 0; !finished; lap++)
		for (size_t i = 0; i < ballast_pages && !finished; i++) {
			uint64_t *word = (uint64_t *)(ballast + i * PAGE);
			if (lap > 0 && (word[0] != mix(i) + lap - 1 || word[511] != i))
				die("ballast page %zu in lap %llu: %llx", i, (unsigned long long)lap, (unsigned long long)word[0]);
			word[0] = mix(i) + lap;
			word[511] = i;
		}
	return NULL;
}

static void *drop_own(void *argument)
{
	uint64_t random = mix((uintptr_t)argument);
	unsigned char *block = map_pages(BLOCK);
	for (size_t n = 0; n < rounds; n++) {
		size_t first = next_random(&random) % BLOCK, pages = 1 + next_random(&random) % (BLOCK - first);
		fill(block, BLOCK, "twn", n);
		if (n % 4 == 1)
			usleep(200); /* time to be evicted */
		MUST(madvise(block + first * PAGE, pages * PAGE, MADV_DONTNEED) == 0);
		check_zero(block + first * PAGE, pages * PAGE, "right after DONTNEED");
		if (n % 4 == 2)
			usleep(200);
		check_zero(block + first * PAGE, pages * PAGE, "a moment after DONTNEED");
		for (size_t i = 0; i < BLOCK; i++)
			if (i < first || i >= first + pages)
				check_page(block + i * PAGE, kind_at("twn", i), n + i * PAGE, "beside what DONTNEED dropped");
	}
	munmap(block, BLOCK * PAGE);
	return NULL;
}

struct sleeper {
	pthread_t handle;
	unsigned char *stack;
	pthread_barrier_t before, after;
};

/* Fills a deep part of its own stack, waits until another thread has dropped it, and reads zeros there. */
static void *sleep_on_stack(void *argument)
{
	struct sleeper *me = argument;
	for (size_t n = 0; n < rounds; n++) {
		fill(me->stack, STACK / 2, "tw", n);
		pthread_barrier_wait(&me->before);
		pthread_barrier_wait(&me->after);
		check_zero(me->stack, STACK / 2 * PAGE, "own stack after another thread's DONTNEED");
	}
	return NULL;
}

static void drop_stacks(size_t threads)
{
	struct sleeper *all = calloc(threads, sizeof *all);
	MUST(all != NULL);
	for (size_t i = 0; i < threads; i++) {
		pthread_attr_t attributes;
		all[i].stack = map_pages(STACK);
		pthread_barrier_init(&all[i].before, NULL, 2);
		pthread_barrier_init(&all[i].after, NULL, 2);
		MUST(pthread_attr_init(&attributes) == 0);
		MUST(pthread_attr_setstack(&attributes, all[i].stack, STACK * PAGE) == 0);
		MUST(pthread_create(&all[i].handle, &attributes, sleep_on_stack, &all[i]) == 0);
	}
	for (size_t n = 0; n < rounds; n++)
		for (size_t i = 0; i < threads; i++) {
			pthread_barrier_wait(&all[i].before);
			MUST(madvise(all[i].stack, STACK / 2 * PAGE, MADV_DONTNEED) == 0);
			check_zero(all[i].stack, STACK / 2 * PAGE, "another thread's stack after DONTNEED");
			pthread_barrier_wait(&all[i].after);
		}
	for (size_t i = 0; i < threads; i++)
		MUST(pthread_join(all[i].handle, NULL) == 0);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "own";
	size_t threads = number(argc, argv, 2, 2);
	pthread_t presser, worker[16];
	rounds = number(argc, argv, 3, 2000);
	ballast_pages = number(argc, argv, 4, 160) * MIB / PAGE;
	ballast = map_pages(ballast_pages);
	MUST(threads <= 16);
	/* One lap before the race, so that the program is over its limit from the start. */
	for (size_t i = 0; i < ballast_pages; i++)
		ballast[i * PAGE + 100] = 1;
	MUST(pthread_create(&presser, NULL, press, NULL) == 0);
	if (strcmp(mode, "stack") == 0) {
		drop_stacks(threads);
	} else {
		for (size_t i = 0; i < threads; i++)
			MUST(pthread_create(&worker[i], NULL, drop_own, (void *)i) == 0);
		for (size_t i = 0; i < threads; i++)
			MUST(pthread_join(worker[i], NULL) == 0);
	}
	finished = 1;
	MUST(pthread_join(presser, NULL) == 0);
	printf("OK %s %zu\n", mode, rounds);
	return 0;
}
