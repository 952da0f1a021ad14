/* One big malloc with patterns: written, read forwards, backwards and at random, rewritten at random, read again.
 * one_malloc MIB KINDS RANDOM_PAGES */
#include "common.h"

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 256) * MIB / PAGE;
	const char *kinds = argc > 2 ? argv[2] : "zwt";
	size_t touches = number(argc, argv, 3, pages / 2);
	unsigned char *block = malloc((pages + 1) * PAGE);
	MUST(block != NULL);
	/* Aligned to pages, so that a page of content is a page of memory. */
	unsigned char *start = (unsigned char *)(((uintptr_t)block + PAGE - 1) & ~(PAGE - 1));
	uint32_t *generation = calloc(pages, sizeof *generation);
	MUST(generation != NULL);

	fill(start, pages, kinds, 1);
	check(start, pages, kinds, 1, "forwards");
	for (size_t i = pages; i-- > 0;)
		check_page(start + i * PAGE, kind_at(kinds, i), 1 + i * PAGE, "backwards");

	uint64_t random = 42;
	for (size_t n = 0; n < touches; n++) {
		size_t i = next_random(&random) % pages;
		uint64_t seed = 1 + i * PAGE + ((uint64_t)generation[i] << 40);
		check_page(start + i * PAGE, kind_at(kinds, i), seed, "at random");
		if (n % 2 == 0)
			make_page(start + i * PAGE, kind_at(kinds, i), 1 + i * PAGE + ((uint64_t)++generation[i] << 40));
	}
	for (size_t i = 0; i < pages; i++)
		check_page(start + i * PAGE, kind_at(kinds, i), 1 + i * PAGE + ((uint64_t)generation[i] << 40), "at the end");
	printf("OK %016llx\n", (unsigned long long)checksum(start, pages * PAGE, 7));
	free(generation);
	free(block);
	return 0;
}
