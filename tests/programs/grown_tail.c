/* Small mappings grow in place, zeros are read that are out, and then the mappings are moved: however lowtide has its pages watched
 * meanwhile, to the kernel each stays one mapping, or it would refuse to move it. A forked child moves them, too.
 * grown_tail MIB MAPPINGS */
#include "common.h"
#include <sys/wait.h>

/* A place is as large as the least that is registered at once: less would test nothing. */
enum { PLACE = 16, FIRST = 4, GROWN = 12 };

static uint64_t *last_word(unsigned char *start, size_t pages)
{
	return (uint64_t *)(start + (pages - 1) * PAGE);
}

static void move_all(unsigned char **start, size_t mappings)
{
	for (size_t i = 0; i < mappings; i++) {
		unsigned char *target = map_pages(GROWN);
		MUST(mremap(start[i], GROWN * PAGE, GROWN * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
		if (*last_word(target, FIRST) != i + 1 || *last_word(target, GROWN) != i + 2)
			die("mapping %zu: %lu, %lu", i, (unsigned long)*last_word(target, FIRST), (unsigned long)*last_word(target, GROWN));
	}
}

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 64) * MIB / PAGE, mappings = number(argc, argv, 2, 100);
	unsigned char *zeros = map_pages(pages), **start = calloc(mappings, sizeof *start);
	MUST(start != NULL);
	memset(zeros, 0, pages * PAGE);
	for (size_t i = 0; i < mappings; i++) {
		start[i] = map_pages(PLACE);
		*last_word(start[i], FIRST) = i + 1;
	}
	/* Room to grow into, and some behind that, so that no two of them are neighbours. */
	for (size_t i = 0; i < mappings; i++) {
		MUST(munmap(start[i] + FIRST * PAGE, (PLACE - FIRST) * PAGE) == 0);
		MUST(mremap(start[i], FIRST * PAGE, GROWN * PAGE, 0) == start[i]);
		*last_word(start[i], GROWN) = i + 2;
	}
	uint64_t random = 7;
	for (size_t i = 0; i < 4 * pages; i++)
		MUST(*(volatile uint64_t *)(zeros + next_random(&random) % pages * PAGE) == 0);
	pid_t child = fork();
	MUST(child >= 0);
	move_all(start, mappings);
	if (child == 0)
		_exit(0);
	int status;
	MUST(waitpid(child, &status, 0) == child);
	if (status != 0)
		die("the child ended with %d", status);
	puts("OK");
	return 0;
}
