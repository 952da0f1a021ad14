/* Mappings of which a part is read-only while memory gets short: afterwards each is one mapping again, for mremap as well.
 * split_mapping MIB */
#include "common.h"

enum { MAPPINGS = 64, PAGES = 45, FIRST = 20, READ_ONLY = 5, LONGER = 60 };

int main(int argc, char **argv)
{
	size_t mib = number(argc, argv, 1, 160);
	unsigned char *small[MAPPINGS];
	for (size_t i = 0; i < MAPPINGS; i++) {
		small[i] = map_pages(PAGES + 1);
		/* Neighbours stay two mappings. */
		MUST(munmap(small[i] + PAGES * PAGE, PAGE) == 0);
		fill(small[i], PAGES, "t", i << 32);
		MUST(mprotect(small[i] + FIRST * PAGE, READ_ONLY * PAGE, PROT_READ) == 0);
	}
	unsigned char *large = map_pages(mib * MIB / PAGE);
	fill(large, mib * MIB / PAGE, "t", 7);
	for (size_t i = 0; i < MAPPINGS; i++) {
		MUST(mprotect(small[i] + FIRST * PAGE, READ_ONLY * PAGE, PROT_READ | PROT_WRITE) == 0);
		void *longer = mremap(small[i], PAGES * PAGE, LONGER * PAGE, MREMAP_MAYMOVE);
		MUST(longer != MAP_FAILED);
		check(longer, PAGES, "t", i << 32, "moved");
	}
	check(large, mib * MIB / PAGE, "t", 7, "large");
	printf("OK %zu\n", mib);
	return 0;
}
