/* A thread asks the kernel to fill a large range again and again, which takes long under a limit, while another goes on.
 * populate advice MIB OTHER_MIB: by MADV_POPULATE_WRITE, all the time. The other maps memory past the C library, and fills it slowly.
 * populate once MIB, populate once-advice MIB: nothing else but one call that fills all, by MAP_POPULATE or MADV_POPULATE_WRITE.
 * populate file MIB OTHER_MIB LAPS: by mapping a file with MAP_POPULATE, in a directory that may be written. The other fills its
 * memory again and again. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static size_t pages;
static int by_file;
static _Atomic int begun, finished;

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

static void populate_by_advice(void)
{
	unsigned char *start = map_pages(pages);
	fill(start, pages, "wt", 7);
	begun = 1;
	while (!finished)
		MUST(madvise(start, pages * PAGE, MADV_POPULATE_WRITE) == 0);
	check(start, pages, "wt", 7, "populated");
}

static void *populate(void *unused)
{
	(void)unused;
	if (!by_file)
		populate_by_advice();
	for (size_t lap = 0; by_file && !finished; lap++)
		populate_file(lap);
	return NULL;
}

/* Mappings that nobody was told of: they have to be found. */
static void fill_slowly(size_t other_pages)
{
	enum { MOST = 1024, CHUNK = 256 };
	static unsigned char *starts[MOST];
	size_t chunks = other_pages / CHUNK;
	MUST(chunks <= MOST);
	while (!begun)
		usleep(1000);
	for (size_t i = 0; i < chunks; i++) {
		starts[i] = (void *)syscall(SYS_mmap, NULL, CHUNK * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		MUST(starts[i] != MAP_FAILED);
		fill(starts[i], CHUNK, "tw", i);
		usleep(8000);
	}
	for (size_t i = 0; i < chunks; i++)
		check(starts[i], CHUNK, "tw", i, "filled slowly");
}

static void fill_again_and_again(size_t other_pages, size_t laps)
{
	unsigned char *start = map_pages(other_pages);
	for (size_t lap = 0; lap < laps; lap++) {
		fill(start, other_pages, "tw", lap);
		check(start, other_pages, "tw", lap, "filled again");
	}
}

static void populate_once(int by_advice)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | (by_advice ? 0 : MAP_POPULATE);
	unsigned char *start = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
	MUST(start != MAP_FAILED && (!by_advice || madvise(start, pages * PAGE, MADV_POPULATE_WRITE) == 0));
	fill(start, pages, "tw", 3);
	check(start, pages, "tw", 3, "filled by one call");
	printf("OK\n");
}

int main(int argc, char **argv)
{
	pthread_t other;
	by_file = argc > 1 && strcmp(argv[1], "file") == 0;
	pages = number(argc, argv, 2, 64) * MIB / PAGE;
	if (argc > 1 && strncmp(argv[1], "once", 4) == 0) {
		populate_once(strcmp(argv[1], "once") != 0);
		return 0;
	}
	size_t other_pages = number(argc, argv, 3, 64) * MIB / PAGE;
	MUST(pthread_create(&other, NULL, populate, NULL) == 0);
	if (by_file)
		fill_again_and_again(other_pages, number(argc, argv, 4, 8));
	else
		fill_slowly(other_pages);
	finished = 1;
	MUST(pthread_join(other, NULL) == 0);
	printf("OK\n");
	return 0;
}
