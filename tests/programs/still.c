/* Memory that is filled and left alone; then as much more as is said is touched, as fast as it can be. still MIB KINDS MORE
 * Makes the file `ready` when all is written, and waits for the file `go`. */
#include "common.h"
#include <fcntl.h>

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 32) * MIB / PAGE, more = number(argc, argv, 3, 64) * MIB / PAGE;
	const char *kinds = argc > 2 ? argv[2] : "t";
	unsigned char *area = map_pages(pages);
	fill(area, pages, kinds, 1);
	MUST(close(open("ready", O_CREAT | O_WRONLY, 0600)) == 0);
	while (access("go", F_OK) != 0)
		usleep(50000);
	unsigned char *fresh = map_pages(more);
	/* A huge page is cleared faster than a thread can touch its pages one by one. */
	madvise(fresh, more * PAGE, MADV_HUGEPAGE);
	for (size_t i = 0; i < more; i++)
		*(uint64_t *)(fresh + i * PAGE) = mix(i);
	check(area, pages, kinds, 1, "what was left alone");
	for (size_t i = 0; i < more; i++)
		MUST(*(uint64_t *)(fresh + i * PAGE) == mix(i));
	printf("OK %016llx\n", (unsigned long long)checksum(area, pages * PAGE, 7));
	return 0;
}
