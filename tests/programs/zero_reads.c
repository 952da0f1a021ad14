/* Fills memory with zeros, reads it in no order again and again, and then writes to all of it as fast as it can; a forked child
 * reads and writes what was zeros, too.
 * zero_reads MIB THREADS */
#include "common.h"
#include <pthread.h>
#include <sys/wait.h>

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

static void read_all(size_t times)
{
	uint64_t random = 7;
	for (size_t i = 0; i < times * pages; i++)
		MUST(*(volatile uint64_t *)word(next_random(&random) % pages) == 0);
}

static void write_all(void)
{
	pthread_t writer[64];
	MUST(threads <= sizeof writer / sizeof *writer);
	for (size_t t = 0; t < threads; t++)
		MUST((errno = pthread_create(&writer[t], NULL, writes, (void *)t)) == 0);
	for (size_t t = 0; t < threads; t++)
		pthread_join(writer[t], NULL);
	for (size_t i = 0; i < pages; i++)
		if (*word(i) != i + 1)
			die("page %zu: %lu", i, (unsigned long)*word(i));
}

int main(int argc, char **argv)
{
	pages = number(argc, argv, 1, 256) * MIB / PAGE;
	threads = number(argc, argv, 2, 2);
	start = map_pages(pages);
	memset(start, 0, pages * PAGE);
	read_all(4);
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		read_all(1);
		for (size_t i = 0; i < pages / 8; i++)
			*word(i * 8) = 3 * i + 1;
		for (size_t i = 0; i < pages; i++)
			if (*word(i) != (i % 8 == 0 ? 3 * (i / 8) + 1 : 0))
				die("page %zu in the child: %lu", i, (unsigned long)*word(i));
		_exit(0);
	}
	read_all(1);
	int status;
	MUST(waitpid(child, &status, 0) == child);
	MUST(status == 0);
	read_all(1);
	write_all();
	puts("OK");
	return 0;
}
