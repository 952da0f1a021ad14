/* Threads whose mappings of files grow with them (mremap), as some databases do, beside MIB of memory. Statically linked, so that the
 * calls are past the C library's hooks. file_grows MIB */
#include "common.h"
#include <pthread.h>

enum { THREADS = 2, STEPS = 64 };

static void *grow(void *unused)
{
	FILE *file = tmpfile();
	MUST(file != NULL && ftruncate(fileno(file), PAGE) == 0);
	unsigned char *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
	MUST(at != MAP_FAILED);
	for (size_t pages = 1; pages < STEPS; pages++) {
		make_page(at + (pages - 1) * PAGE, TEXT, pages);
		MUST(ftruncate(fileno(file), (off_t)((pages + 1) * PAGE)) == 0);
		MUST((at = mremap(at, pages * PAGE, (pages + 1) * PAGE, MREMAP_MAYMOVE)) != MAP_FAILED);
		for (size_t i = 1; i <= pages; i++)
			check_page(at + (i - 1) * PAGE, TEXT, i, "of a file");
		usleep(1000);
	}
	return unused;
}

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 64) * MIB / PAGE;
	unsigned char *memory = map_pages(pages);
	for (int i = 0; i < 2; i++)
		fill(memory, pages, "t", 7);
	pthread_t thread[THREADS];
	for (int i = 0; i < THREADS; i++)
		MUST(pthread_create(&thread[i], NULL, grow, NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		MUST(pthread_join(thread[i], NULL) == 0);
	check(memory, pages, "t", 7, "the rest");
	printf("OK\n");
	return 0;
}
