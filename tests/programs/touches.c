/* Touches pages of memory in a pattern, and says how long that took. touches MIB TOUCHES PATTERN DATA
 * PATTERN: random, skewed (a fifth of the pages gets four fifths of the touches) or round. DATA: z zeros, t a third noise (compresses 3:1), n noise. */
#include "common.h"
#include <time.h>

static void fill_page(uint64_t *page, size_t number, char data)
{
	for (size_t i = 0; i < PAGE / 8; i++)
		page[i] = data == 'n' || (data == 't' && i < PAGE / 8 / 3) ? mix(number * 512 + i) : 0;
	page[0] = number;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	MUST(argc == 5);
	size_t pages = strtoul(argv[1], NULL, 10) * MIB / PAGE, touches = strtoul(argv[2], NULL, 10);
	char pattern = argv[3][0], data = argv[4][0];
	uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(pages > 5 && memory != MAP_FAILED);
	double start = now();
	for (size_t i = 0; i < pages; i++)
		fill_page(memory + i * (PAGE / 8), i, data);
	double filled = now();
	uint64_t seed = 1, sum = 0;
	for (size_t i = 0; i < touches; i++) {
		uint64_t random = mix(seed++);
		size_t page = random % pages;
		/* Hot pages lie between cold ones. */
		if (pattern == 's' && (random >> 32) % 5 != 0)
			page = random % (pages / 5) * 5;
		else if (pattern == 'r' && argv[3][1] == 'o')
			page = i % pages;
		uint64_t *at = memory + page * (PAGE / 8);
		MUST(at[0] % pages == page % pages);
		sum += at[1 + random % 500];
	}
	fprintf(stderr, "filled %.3f s, touched %.3f s\n", filled - start, now() - filled);
	printf("%016llx\n", (unsigned long long)sum);
	return 0;
}
