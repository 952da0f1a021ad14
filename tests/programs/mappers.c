/* More threads map memory at a time than lowtide takes requests (mappers THREADS ROUNDS): each maps, writes, looks, and unmaps what it mapped some rounds
 * before. */
#include "common.h"
#include <pthread.h>

enum { KEPT = 4, PAGES = 32, MOST = 256 };

static size_t rounds;
static pthread_barrier_t start;

static void *maps(void *argument)
{
	size_t me = (size_t)argument;
	unsigned char *kept[KEPT] = { NULL };
	for (size_t n = 0; n < rounds + KEPT; n++) {
		unsigned char **slot = &kept[n % KEPT];
		if (*slot != NULL) {
			for (size_t i = 0; i < PAGES; i++)
				check_page(*slot + i * PAGE, TEXT, (me << 32 | (n - KEPT) << 8) + i, "of a mapping");
			MUST(munmap(*slot, PAGES * PAGE) == 0);
			*slot = NULL;
		}
		if (n % 8 == 0)
			pthread_barrier_wait(&start);
		if (n >= rounds)
			continue;
		*slot = map_pages(PAGES);
		for (size_t i = 0; i < PAGES; i++)
			make_page(*slot + i * PAGE, TEXT, (me << 32 | n << 8) + i);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	size_t threads = number(argc, argv, 1, 150);
	pthread_t all[MOST];
	rounds = number(argc, argv, 2, 40);
	MUST(threads <= MOST && pthread_barrier_init(&start, NULL, (unsigned)threads) == 0);
	for (size_t i = 0; i < threads; i++)
		MUST(pthread_create(&all[i], NULL, maps, (void *)i) == 0);
	for (size_t i = 0; i < threads; i++)
		MUST(pthread_join(all[i], NULL) == 0);
	puts("OK");
	return 0;
}
