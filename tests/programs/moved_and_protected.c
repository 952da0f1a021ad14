/* Blocks that are moved (mremap), and a part of each is made read-only at once: both are to have all of their pages.
 * moved_and_protected MIB ROUNDS */
#include "common.h"

enum { PAGES = 256, PART = 100 };

int main(int argc, char **argv)
{
	size_t blocks = number(argc, argv, 1, 64) * MIB / (PAGES * PAGE), rounds = number(argc, argv, 2, 20);
	unsigned char *block[blocks];
	for (size_t i = 0; i < blocks; i++) {
		block[i] = map_pages(PAGES);
		fill(block[i], PAGES, "t", i << 32);
	}
	for (size_t round = 0; round < rounds; round++)
		for (size_t i = 0; i < blocks; i++) {
			unsigned char *place = map_pages(PAGES), *part = place + PART * PAGE;
			MUST(mremap(block[i], PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
			MUST(mprotect(part, (PAGES - PART) * PAGE, PROT_READ) == 0);
			check(part, 1, "t", (i << 32) + PART * PAGE, "read-only");
			MUST(mprotect(part, (PAGES - PART) * PAGE, PROT_READ | PROT_WRITE) == 0);
			block[i] = place;
		}
	for (size_t i = 0; i < blocks; i++)
		check(block[i], PAGES, "t", i << 32, "at the end");
	printf("OK %zu\n", blocks);
	return 0;
}
