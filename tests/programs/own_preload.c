/* A program that starts a child with its own LD_PRELOAD: own_preload MIB LIBRARY. The child is this program again. */
#include "common.h"
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 128) * MIB / PAGE;
	int status, is_child = argc < 3;
	unsigned char *area = map_pages(pages);
	fill(area, pages, "twn", 1);
	if (!is_child) {
		pid_t child;
		char *arguments[] = { argv[0], argv[1], NULL };
		setenv("LD_PRELOAD", argv[2], 1);
		MUST(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) == 0);
		MUST(waitpid(child, &status, 0) == child && status == 0);
	}
	check(area, pages, "twn", 1, is_child ? "child" : "parent");
	printf("OK %s\n", is_child ? "child" : "parent");
	return 0;
}
