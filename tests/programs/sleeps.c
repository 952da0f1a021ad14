/* Memory that is filled, and then left alone for a while. sleeps MIB KINDS
 * Makes the file `ready` when all is written, waits for the file `go`, and checks everything. */
#include "common.h"
#include <fcntl.h>

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 64) * MIB / PAGE;
	const char *kinds = argc > 2 ? argv[2] : "t";
	unsigned char *area = map_pages(pages);
	fill(area, pages, kinds, 1);
	MUST(close(open("ready", O_CREAT | O_WRONLY, 0600)) == 0);
	while (access("go", F_OK) != 0)
		usleep(50000);
	check(area, pages, kinds, 1, "after the wait");
	printf("OK %016llx\n", (unsigned long long)checksum(area, pages * PAGE, 7));
	return 0;
}
