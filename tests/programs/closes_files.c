/* A program that closes every descriptor it does not know, as daemons and shells do, twice. closes_files MIB */
#include "common.h"
#include <fcntl.h>
#include <sys/syscall.h>

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 200) * MIB / PAGE;
	MUST(syscall(SYS_close_range, 3u, ~0u, 0u) == 0);
	unsigned char *area = map_pages(pages);
	fill(area, pages, "twn", 1);
	check(area, pages, "twn", 1, "after close_range");
	for (int descriptor = 3; descriptor < 1024; descriptor++)
		close(descriptor);
	/* The numbers are free for the program's own files. */
	int file = open("/dev/null", O_RDONLY);
	MUST(file == 3 && dup2(file, 100) == 100);
	fill(area, pages, "twn", 2);
	check(area, pages, "twn", 2, "after close()");
	printf("OK %016llx\n", (unsigned long long)checksum(area, pages * PAGE, 1));
	return 0;
}
