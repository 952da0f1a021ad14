/* Many threads touch the same pages at random: each touch verifies the page, and one of four writes it again. many_threads THREADS MIB TOUCHES [REST]
 * What the pages hold in the end does not depend on the order. With REST, the threads stay for so many seconds and do nothing; "resting" on standard error
 * says when that begins. */
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { MOST_THREADS = 256 };

static unsigned char *area;
static size_t pages, touches;
static unsigned rest;
static struct page {
	atomic_uchar taken;
	uint32_t generation;
} *state;
static pthread_barrier_t done;

static enum kind kind_for(size_t page)
{
	return kind_of("wtnt"[page % 4]);
}

static uint64_t seed_for(size_t page)
{
	return (uint64_t)page << 32 | state[page].generation;
}

static void touch(size_t page, int write)
{
	/* Who has it may wait for its bytes meanwhile. */
	while (atomic_exchange_explicit(&state[page].taken, 1, memory_order_acquire))
		sched_yield();
	check_page(area + page * PAGE, kind_for(page), seed_for(page), "touched");
	if (write) {
		state[page].generation++;
		make_page(area + page * PAGE, kind_for(page), seed_for(page));
	}
	atomic_store_explicit(&state[page].taken, 0, memory_order_release);
}

static void *run(void *thread)
{
	uint64_t random = mix((uintptr_t)thread);
	for (size_t i = 0; i < touches; i++) {
		uint64_t choice = next_random(&random);
		touch(choice % pages, choice >> 62 == 0);
	}
	pthread_barrier_wait(&done);
	sleep(rest);
	return NULL;
}

int main(int argc, char **argv)
{
	size_t threads = number(argc, argv, 1, 16);
	pages = number(argc, argv, 2, 96) * MIB / PAGE;
	touches = number(argc, argv, 3, 3000);
	rest = (unsigned)number(argc, argv, 4, 0);
	MUST(threads > 0 && threads <= MOST_THREADS && pages > 0);
	area = map_pages(pages);
	MUST((state = calloc(pages, sizeof *state)) != NULL);
	for (size_t i = 0; i < pages; i++)
		make_page(area + i * PAGE, kind_for(i), seed_for(i));
	pthread_t handle[MOST_THREADS];
	MUST(pthread_barrier_init(&done, NULL, (unsigned)threads + 1) == 0);
	for (size_t i = 0; i < threads; i++)
		MUST(pthread_create(&handle[i], NULL, run, (void *)(i + 1)) == 0);
	pthread_barrier_wait(&done);
	if (rest)
		fprintf(stderr, "resting\n");
	for (size_t i = 0; i < threads; i++)
		MUST(pthread_join(handle[i], NULL) == 0);
	uint64_t written = 0;
	for (size_t i = 0; i < pages; i++) {
		touch(i, 0);
		written += state[i].generation;
	}
	printf("OK %zu threads, %llu pages written again, %016llx\n", threads, (unsigned long long)written,
	       (unsigned long long)checksum(area, pages * PAGE, 7));
	return 0;
}
