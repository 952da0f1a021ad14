/* A mapping of so much address space that registering it piece by piece would take all mappings that the kernel allows a process; a part of it is
 * used. Then the program maps more, as it can natively.
 * many_ranges MIB MORE */
#include "common.h"

/* Such pieces would not fit. */
#define PIECE ((size_t)256 << 10)

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 96) * MIB / PAGE, more = number(argc, argv, 2, 2000), most;
	FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
	MUST(file && fscanf(file, "%zu", &most) == 1);
	fclose(file);
	unsigned char *large = mmap(NULL, most * PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	MUST(large != MAP_FAILED);
	fill(large, pages, "t", 1);
	for (size_t n = 0; n < more; n++) {
		/* A page by itself: its neighbour is inaccessible. */
		unsigned char *own = map_pages(2);
		MUST(mprotect(own + PAGE, PAGE, PROT_NONE) == 0);
		make_page(own, TEXT, n);
	}
	check(large, pages, "t", 1, "large");
	check_zero(large + most * PIECE - PAGE, PAGE, "its end");
	printf("OK %zu\n", more);
	return 0;
}
