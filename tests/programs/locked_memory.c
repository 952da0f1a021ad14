/* The mlock family: all calls succeed as they do natively, and the data stay right. locked_memory MIB */
#include "common.h"

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 200) * MIB / PAGE, small = 16;
	unsigned char *key = map_pages(small), *big = map_pages(pages);
	fill(key, small, "n", 5);
	MUST(mlock(key, small * PAGE) == 0);
	printf("small %d\n", mlock(key, small * PAGE));
	printf("large %d\n", mlock(big, pages * PAGE));
	fill(big, pages, "tw", 1);
	check(big, pages, "tw", 1, "locked");
	printf("unlock %d\n", munlock(big, pages * PAGE));
	fill(big, pages, "tw", 2);
	printf("on fault %d\n", mlock2(big, pages * PAGE, MLOCK_ONFAULT));
	check(big, pages, "tw", 2, "locked on fault");
	printf("all %d\n", mlockall(MCL_CURRENT | MCL_FUTURE));
	unsigned char *later = map_pages(pages / 4);
	fill(later, pages / 4, "tw", 3);
	check(later, pages / 4, "tw", 3, "mapped after mlockall");
	check(big, pages, "tw", 2, "after mlockall");
	printf("none %d\n", munlockall());
	check(key, small, "n", 5, "small");
	printf("OK %016llx\n", (unsigned long long)checksum(big, pages * PAGE, 1));
	return 0;
}
