/* Pages that are dropped without an event.
 * dropped_pages free MIB BALLAST_MIB ROUNDS: MADV_FREE. The kernel may drop the pages whenever it likes, until they are written to
 * again, wherever they have been moved to. To be run in a memory cgroup with little room, and in a directory that may be written: a
 * thread that writes a file makes the kernel look for pages to drop.
 * dropped_pages again MIB BALLAST_MIB ROUNDS: what was freed so is written again at once, all of it. Says how many of these pages are in
 * memory when the ballast has been written after them.
 * dropped_pages guard 0 BALLAST_MIB ROUNDS: MADV_GUARD_INSTALL, which drops them at once, where the kernel has it. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

static volatile int finished;

static void *press(void *unused)
{
	(void)unused;
	char *data = malloc(MIB);
	int file = open(".", O_TMPFILE | O_RDWR, 0600);
	MUST(data != NULL && file >= 0);
	memset(data, 1, MIB);
	for (size_t n = 0; !finished; n++) {
		MUST(pwrite(file, data, MIB, (off_t)(n % 256 * MIB)) == (ssize_t)MIB);
		/* What waits for a slow disk can't be dropped, and would fill a small cgroup. */
		if (n % 8 == 7)
			MUST(fdatasync(file) == 0);
	}
	return NULL;
}

static size_t ballast_pages;
static unsigned char *ballast;

static void push_out(uint64_t seed)
{
	static uint64_t last;
	for (size_t i = 0; i < ballast_pages; i++) {
		uint64_t *word = (uint64_t *)(ballast + i * PAGE);
		if (last != 0 && word[9] != mix(last + i))
			die("ballast page %zu", i);
		word[9] = mix(seed + i);
	}
	last = seed;
}

static void guards(uint64_t seed)
{
	enum { PAGES = 64 };
	unsigned char *start = map_pages(PAGES);
	fill(start, PAGES, "tw", seed);
	push_out(seed + 1);
	if (madvise(start + 8 * PAGE, 16 * PAGE, MADV_GUARD_INSTALL) == 0) {
		push_out(seed + 2);
		MUST(madvise(start + 8 * PAGE, 16 * PAGE, MADV_GUARD_REMOVE) == 0);
		check_zero(start + 8 * PAGE, 16 * PAGE, "where a guard was");
		check(start, 8, "tw", seed, "below a guard");
		/* Over a hole: the call says so, and has done the rest. */
		push_out(seed + 3);
		MUST(munmap(start + 40 * PAGE, PAGE) == 0);
		MUST(madvise(start + 32 * PAGE, 16 * PAGE, MADV_GUARD_INSTALL) == -1 && errno == ENOMEM);
		MUST(madvise(start + 32 * PAGE, 16 * PAGE, MADV_GUARD_REMOVE) == -1 && errno == ENOMEM);
		check_zero(start + 32 * PAGE, 8 * PAGE, "before a hole");
		check_zero(start + 41 * PAGE, 7 * PAGE, "behind a hole");
	} else {
		MUST(errno == EINVAL);
	}
	munmap(start, PAGES * PAGE);
}

static void freed(unsigned char *start, size_t pages, uint64_t seed)
{
	fill(start, pages, "tw", seed);
	MUST(madvise(start, pages * PAGE, MADV_FREE) == 0 || is_refused(EINVAL));
	/* The first half is written again, and must stay. */
	for (size_t i = 0; i < pages / 2; i++)
		start[i * PAGE] = 77;
	push_out(seed + 1);
	for (size_t i = 0; i < pages / 2; i++)
		if (start[i * PAGE] != 77)
			die("page %zu was written after it was freed, and is gone", i);
	for (size_t i = pages / 2; i < pages; i++)
		if (*(uint64_t *)(start + i * PAGE + 64) == 0)
			check_zero(start + i * PAGE, PAGE, "freed and dropped");
		else
			check_page(start + i * PAGE, kind_at("tw", i), seed + i * PAGE, "freed and still there");
}

static void written_again(unsigned char *start, size_t pages, uint64_t seed)
{
	static unsigned char is_there[64 * MIB / PAGE];
	size_t there = 0;
	MUST(pages <= sizeof is_there);
	fill(start, pages, "tw", seed);
	/* Half at once, half as a malloc does it, a block after the other. */
	MUST(madvise(start, pages / 2 * PAGE, MADV_FREE) == 0 || is_refused(EINVAL));
	for (size_t i = pages / 2; i < pages; i += 4)
		MUST(madvise(start + i * PAGE, 4 * PAGE, MADV_FREE) == 0);
	fill(start, pages, "wt", seed);
	push_out(seed + 1);
	MUST(mincore(start, pages * PAGE, is_there) == 0);
	for (size_t i = 0; i < pages; i++)
		there += is_there[i] & 1;
	printf("%zu in memory\n", there);
	check(start, pages, "wt", seed, "freed and written again");
}

int main(int argc, char **argv)
{
	int free_them = argc > 1 && strcmp(argv[1], "free") == 0;
	int again = argc > 1 && strcmp(argv[1], "again") == 0;
	size_t pages = number(argc, argv, 2, 16) * MIB / PAGE, rounds = number(argc, argv, 4, 20);
	unsigned char *start = free_them || again ? map_pages(pages) : NULL;
	pthread_t other;
	ballast_pages = number(argc, argv, 3, 64) * MIB / PAGE;
	ballast = map_pages(ballast_pages);
	fill(ballast, ballast_pages, "tz", 3);
	/* Natively none ever is. */
	for (uint64_t round = 1; round <= 300 && !some_are_out(ballast, ballast_pages); round++)
		push_out(round);
	if (free_them)
		MUST(pthread_create(&other, NULL, press, NULL) == 0);
	for (size_t n = 0; n < rounds; n++)
		if (free_them)
			freed(start, pages, 1000 * (n + 1));
		else if (again)
			written_again(start, pages, 1000 * (n + 1));
		else
			guards(1000 * (n + 1));
	finished = 1;
	if (free_them)
		MUST(pthread_join(other, NULL) == 0);
	printf("OK %zu\n", rounds);
	return 0;
}
