/* Reads memory that was never written, so that the kernel maps its page of zeros there, and then writes to all of it as fast as it
 * can: such a write is none of a missing page.
 * read_before MIB THREADS [huge]: with huge pages. */
#include "common.h"
#include <pthread.h>

static size_t pages, threads;
static unsigned char *start;

static uint64_t *word(size_t page)
{
	return (uint64_t *)(start + page * PAGE);
}

static void *writes(void *number)
{
	size_t mine = (size_t)number;
	for (size_t i = pages * mine / threads; i < pages * (mine + 1) / threads; i++)
		*word(i) = i + 1;
	return NULL;
}

int main(int argc, char **argv)
{
	pages = number(argc, argv, 1, 1024) * MIB / PAGE;
	threads = number(argc, argv, 2, 2);
	start = map_pages(pages);
	int is_huge = argc > 3 && strcmp(argv[3], "huge") == 0;
	MUST(madvise(start, pages * PAGE, is_huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) == 0 || errno == EINVAL);
	for (size_t i = 0; i < pages; i++)
		MUST(*(volatile uint64_t *)word(i) == 0);
	pthread_t writer[64];
	MUST(threads <= sizeof writer / sizeof *writer);
	for (size_t t = 0; t < threads; t++)
		MUST((errno = pthread_create(&writer[t], NULL, writes, (void *)t)) == 0);
	for (size_t t = 0; t < threads; t++)
		pthread_join(writer[t], NULL);
	for (size_t i = 0; i < pages; i++)
		if (*word(i) != i + 1)
			die("page %zu: %lu", i, (unsigned long)*word(i));
	puts("OK");
	return 0;
}
