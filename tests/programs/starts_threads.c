/* A library whose constructor starts threads, as some that compute do: 16, which allocate and free as fast as they can until `threads_end`. */
#include "common.h"
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>

#define THREADS 16

static pthread_t threads[THREADS];
static atomic_int is_over;
static atomic_ulong rounds;

static void *work(void *unused)
{
	(void)unused;
	while (!is_over) {
		unsigned char *block = malloc(MIB);
		MUST(block != NULL);
		*(volatile unsigned char *)(block + MIB / 2) = 1;
		free(block);
		rounds++;
	}
	return NULL;
}

/* Ends them; how often one has allocated and freed. */
unsigned long threads_end(void);

unsigned long threads_end(void)
{
	is_over = 1;
	for (int i = 0; i < THREADS; i++)
		MUST(pthread_join(threads[i], NULL) == 0);
	return rounds;
}

__attribute__((constructor)) static void start(void)
{
	/* Each block is a mapping, so that there is always a thread in mmap or munmap. */
	mallopt(M_MMAP_THRESHOLD, 64 << 10);
	for (int i = 0; i < THREADS; i++)
		MUST(pthread_create(&threads[i], NULL, work, NULL) == 0);
	/* They are at work when the next library is initialised. */
	while (rounds < THREADS)
		usleep(100);
}
