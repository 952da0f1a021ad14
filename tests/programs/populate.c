/* One thread asks the kernel to fill a large range again and again, which takes long under a limit, while another touches memory.
 * populate advice|file MIB BALLAST_MIB LAPS
 * advice: by MADV_POPULATE_WRITE. file: by mapping a file with MAP_POPULATE (in a directory that may be written). */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static size_t pages;
static int by_file;
static volatile int finished;

static void populate_file(size_t lap)
{
	static int file = -1;
	if (file < 0) {
		file = open(".", O_TMPFILE | O_RDWR, 0600);
		MUST(file >= 0);
		for (size_t i = 0; i < pages; i++)
			MUST(pwrite(file, &i, sizeof i, (off_t)(i * PAGE)) == sizeof i);
	}
	size_t *start = mmap(NULL, pages * PAGE, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
	MUST(start != MAP_FAILED);
	for (size_t i = 0; i < pages; i++)
		if (start[i * PAGE / sizeof i] != i)
			die("file page %zu in lap %zu", i, lap);
	munmap(start, pages * PAGE);
}

static void *populate(void *unused)
{
	(void)unused;
	unsigned char *start = map_pages(pages);
	for (size_t lap = 0; !finished; lap++) {
		if (by_file) {
			populate_file(lap);
			continue;
		}
		MUST(madvise(start, pages * PAGE, MADV_POPULATE_WRITE) == 0);
		for (size_t i = 0; i < pages; i += 64) {
			uint64_t *word = (uint64_t *)(start + i * PAGE);
			if (*word != (lap == 0 ? 0 : mix(lap - 1 + i)))
				die("page %zu in lap %zu", i, lap);
			*word = mix(lap + i);
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t other;
	by_file = argc > 1 && strcmp(argv[1], "file") == 0;
	pages = number(argc, argv, 2, 64) * MIB / PAGE;
	size_t ballast_pages = number(argc, argv, 3, 64) * MIB / PAGE, laps = number(argc, argv, 4, 8);
	unsigned char *ballast = map_pages(ballast_pages);
	/* The limit has been reached once before it begins. */
	fill(ballast, ballast_pages, "tw", 0);
	MUST(pthread_create(&other, NULL, populate, NULL) == 0);
	for (size_t lap = 0; lap < laps; lap++) {
		fill(ballast, ballast_pages, "tw", lap);
		check(ballast, ballast_pages, "tw", lap, "ballast");
	}
	finished = 1;
	MUST(pthread_join(other, NULL) == 0);
	printf("OK %zu\n", laps);
	return 0;
}
