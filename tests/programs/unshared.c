/* What a system call has read by pinning it while it was shared with a forked child must stay, whatever later children free. On
 * Linux 6.18 it does not, with lowtide or without, so no test runs this: docs/limits.md tells of it.
 *
 * For the pin the kernel makes a copy (FAULT_FLAG_UNSHARE) that counts as clean; a child's MADV_FREE of its share of that page,
 * which is meant for the child alone, makes the page one that may be dropped where it is clean; and the next reclaim drops it
 * in the parent. */
#include "common.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

enum { PAGES = 64 };

static pid_t child_that(int frees, unsigned char *at)
{
	pid_t child = fork();
	MUST(child >= 0);
	if (child > 0)
		return child;
	if (!frees)
		for (;;)
			pause();
	_exit(madvise(at, PAGES * PAGE, MADV_FREE) != 0);
}

static void ended(pid_t child, int status)
{
	int found;
	MUST(waitpid(child, &found, 0) == child && found == status);
}

int main(void)
{
	unsigned char *at = map_pages(PAGES);
	int file = open(".", O_TMPFILE | O_RDWR | O_DIRECT, 0600);
	MUST(file >= 0);
	MUST(madvise(at, PAGES * PAGE, MADV_NOHUGEPAGE) == 0);
	fill(at, PAGES, "tnw", 1);
	pid_t shares = child_that(0, at);
	MUST(pwrite(file, at, PAGES * PAGE, 0) == PAGES * PAGE);
	MUST(kill(shares, SIGKILL) == 0);
	ended(shares, SIGKILL);
	ended(child_that(1, at), 0);
	/* As reclaim would, if memory were short. */
	MUST(madvise(at, PAGES * PAGE, MADV_PAGEOUT) == 0);
	check(at, PAGES, "tnw", 1, "what a child has freed for itself");
	printf("OK\n");
	return 0;
}
