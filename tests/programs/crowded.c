/* Fills MIB and waits for a file `go` (crowded MIB). Then a forked child looks at all of it, and a program that is started anew fills as much and looks at that. */
#include "common.h"
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 96) * MIB / PAGE;
	unsigned char *area = map_pages(pages);
	fill(area, pages, "t", 1);
	if (argc > 2) {
		check(area, pages, "t", 1, "of a program without a place");
		return 0;
	}
	MUST(close(open("filled", O_WRONLY | O_CREAT, 0600)) == 0);
	while (access("go", F_OK) != 0)
		usleep(10 * 1000);
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		check(area, pages, "t", 1, "of a child without a place");
		fill(area, pages, "t", 2);
		check(area, pages, "t", 2, "written by a child without a place");
		_exit(0);
	}
	wait_for(child);
	char *again[] = { argv[0], argc > 1 ? argv[1] : "96", "again", NULL };
	MUST(posix_spawn(&child, argv[0], NULL, NULL, again, environ) == 0);
	wait_for(child);
	check(area, pages, "t", 1, "of their parent");
	puts("OK");
	return 0;
}
