/* fork_steps MIB: a fork with much of the memory out. Parent and child verify every byte, and say so. One of them may be killed under way. */
#include "common.h"
#include <sys/wait.h>

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 24) * MIB / PAGE;
	unsigned char *start = map_pages(pages);
	fill(start, pages, "tnzw", 1);
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		usleep(50 * 1000);
		check(start, pages, "tnzw", 1, "the child");
		MUST(write(1, "OK the child\n", 13) == 13);
		return 0;
	}
	MUST(waitpid(child, NULL, 0) == child);
	check(start, pages, "tnzw", 1, "the parent");
	MUST(write(1, "OK the parent\n", 14) == 14);
	return 0;
}
