/* A heap that the program itself grows and shrinks with sbrk and brk. brk_growth MIB
 * No malloc and no stdio here: they would move the same break. */
#include "common.h"

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 200) * MIB / PAGE, step = 256;
	unsigned char *start = sbrk(0);
	MUST(sbrk((intptr_t)((PAGE - (uintptr_t)start % PAGE) % PAGE)) == start);
	start = sbrk(0);
	for (size_t done = 0; done < pages; done += step) {
		MUST(sbrk((intptr_t)(step * PAGE)) == start + done * PAGE);
		check_zero(start + done * PAGE, PAGE, "new at the break");
		fill(start + done * PAGE, step, "tw", done);
	}
	pages = pages / step * step;
	for (size_t done = 0; done < pages; done += step)
		check(start + done * PAGE, step, "tw", done, "below the break");
	/* Half goes back and comes again: zeros. */
	size_t half = pages / 2 / step * step;
	MUST(brk(start + half * PAGE) == 0);
	MUST(brk(start + pages * PAGE) == 0);
	check_zero(start + half * PAGE, (pages - half) * PAGE, "given back and taken again");
	for (size_t done = half; done < pages; done += step)
		fill(start + done * PAGE, step, "tw", done + 1);
	uint64_t sum = checksum(start, pages * PAGE, 1);
	for (size_t done = 0; done < pages; done += step)
		check(start + done * PAGE, step, "tw", done + (done >= half), "at the end");
	MUST(brk(start) == 0);
	dprintf(1, "OK %016llx\n", (unsigned long long)sum);
	return 0;
}
