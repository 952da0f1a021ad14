/* fork_scattered MIB: forks by a bare system call while pages are out among others that are in memory, just left, or are not handed on to children
   (MADV_DONTFORK). The child verifies every byte that it has. */
#include "common.h"
#include <signal.h>
#include <sys/syscall.h>

/* One of so many pages in a row is not handed on. */
#define HOLES ((size_t)37)

static int is_hole(size_t page)
{
	return page % HOLES == 5 && page < 100 * HOLES;
}

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 64) * MIB / PAGE;
	unsigned char *start = map_pages(pages);
	fill(start, pages, "tnzw", 1);
	for (size_t page = 0; page < pages; page++)
		if (is_hole(page))
			MUST(madvise(start + page * PAGE, PAGE, MADV_DONTFORK) == 0);
	for (int round = 0; round < 3; round++) {
		/* In memory again, some of them. */
		for (size_t page = (size_t)round; page < pages; page += 11)
			check_page(start + page * PAGE, kind_at("tnzw", page), 1 + page * PAGE, "the parent");
		pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
		MUST(child >= 0);
		if (child == 0) {
			for (size_t page = 0; page < pages; page++)
				if (!is_hole(page))
					check_page(start + page * PAGE, kind_at("tnzw", page), 1 + page * PAGE, "the child");
			_exit(0);
		}
		wait_for(child);
	}
	check(start, pages, "tnzw", 1, "the parent, later");
	printf("OK\n");
	return 0;
}
