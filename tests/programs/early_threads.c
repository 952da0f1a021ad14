/* Linked with starts_threads.c: early_threads STARTS MIB. Starts itself that many times, each time without arguments, then ends the threads, fills MIB and looks at it. */
#include "common.h"
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;
unsigned long threads_end(void);

int main(int argc, char **argv)
{
	size_t starts = number(argc, argv, 1, 0), pages = number(argc, argv, 2, 0) * MIB / PAGE;
	for (size_t i = 0; i < starts; i++) {
		char *arguments[] = { argv[0], NULL };
		pid_t child;
		MUST(posix_spawn(&child, argv[0], NULL, NULL, arguments, environ) == 0);
		wait_for(child);
	}
	MUST(threads_end() >= 16);
	if (pages > 0) {
		unsigned char *area = map_pages(pages);
		fill(area, pages, "t", 1);
		check(area, pages, "t", 1, "after the threads");
		puts("OK");
	}
	return 0;
}
