/* MIB of the main thread's stack, filled and checked a few times, beside a heap that is near the limit by itself. deep MIB */
#include "common.h"

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 64) * MIB / PAGE, heap = 40 * MIB / PAGE;
	unsigned char *area = map_pages(heap);
	fill(area, heap, "t", 1);
	volatile unsigned char deep[pages * PAGE];
	for (int round = 0; round < 20; round++) {
		for (size_t i = 0; i < pages; i++)
			deep[i * PAGE] = (unsigned char)(i * 31 + (size_t)round);
		for (size_t i = 0; i < pages; i++)
			MUST(deep[i * PAGE] == (unsigned char)(i * 31 + (size_t)round));
		usleep(20000);
	}
	check(area, heap, "t", 1, "the heap");
	puts("OK");
	return 0;
}
