/* One thread that misses pages on each CPU in turn. wanders MIB
 * It fills MIB and checks it on one CPU after the other, eight times on each; then it makes the file `ready`, and goes on until
 * there is the file `go`. */
#include "common.h"
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 48) * MIB / PAGE;
	unsigned char *start = map_pages(pages);
	cpu_set_t all;
	MUST(sched_getaffinity(0, sizeof all, &all) == 0);
	fill(start, pages, "t", 1);
	for (int round = 0; access("go", F_OK) != 0; round++) {
		for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
			cpu_set_t only;
			if (!CPU_ISSET(cpu, &all))
				continue;
			CPU_ZERO(&only);
			CPU_SET(cpu, &only);
			MUST(sched_setaffinity(0, sizeof only, &only) == 0);
			check(start, pages, "t", 1, "what it wrote");
		}
		if (round == 8)
			MUST(close(open("ready", O_CREAT | O_WRONLY, 0600)) == 0);
	}
	puts("OK");
	return 0;
}
