/* scattered COUNT [PAGES]: COUNT mappings of 256 KiB at random addresses all over 100 TiB, as engines place the areas of their heaps. In each
   PAGES pages (16) are written, then all of them are verified in another order, some are unmapped and mapped elsewhere, and all are verified
   again. */
#include "common.h"

#define AREA ((size_t)256 << 10)

static unsigned char *map_somewhere(uint64_t *random)
{
	for (int tries = 0; tries < 1000; tries++) {
		uintptr_t hint = ((next_random(random) % ((uintptr_t)100 << 40)) & ~(PAGE - 1)) + ((uintptr_t)1 << 32);
		void *at = mmap((void *)hint, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		if (at != MAP_FAILED)
			return at;
		if (errno != EEXIST)
			die("mmap: %s", strerror(errno));
	}
	die("no room in 100 TiB");
}

/* The page of an area that is its `i`th: spread over it. */
static unsigned char *page_of(unsigned char *area, size_t i, size_t pages)
{
	return area + i * (AREA / PAGE / pages) * PAGE;
}

int main(int argc, char **argv)
{
	size_t count = number(argc, argv, 1, 20000), pages = number(argc, argv, 2, 16);
	unsigned char **areas = malloc(count * sizeof *areas);
	uint64_t random = 42;
	MUST(areas && pages <= AREA / PAGE);
	for (size_t n = 0; n < count; n++) {
		areas[n] = map_somewhere(&random);
		for (size_t i = 0; i < pages; i++)
			make_page(page_of(areas[n], i, pages), TEXT, n * pages + i);
	}
	for (int round = 0; round < 2; round++) {
		for (size_t k = 0; k < count; k++) {
			size_t n = k * 7919 % count;
			for (size_t i = 0; i < pages; i++)
				check_page(page_of(areas[n], i, pages), TEXT, n * pages + i, "area");
		}
		for (size_t n = 0; n < count && round == 0; n += 10) {
			MUST(munmap(areas[n], AREA) == 0);
			areas[n] = map_somewhere(&random);
			check_zero(areas[n], PAGE, "new area");
			for (size_t i = 0; i < pages; i++)
				make_page(page_of(areas[n], i, pages), TEXT, n * pages + i);
		}
	}
	printf("OK %zu areas\n", count);
	return 0;
}
