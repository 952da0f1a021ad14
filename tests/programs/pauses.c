/* A process that does nothing until it gets SIGUSR1. pauses [MIB KINDS]: then it fills so much memory at once, and checks it. */
#include "common.h"
#include <signal.h>

int main(int argc, char **argv)
{
	sigset_t set;
	int signal;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	MUST(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	MUST(sigwait(&set, &signal) == 0);
	size_t pages = number(argc, argv, 1, 1) * MIB / PAGE;
	const char *kinds = argc > 2 ? argv[2] : "t";
	unsigned char *area = map_pages(pages);
	fill(area, pages, kinds, 1);
	check(area, pages, kinds, 1, "after it was filled");
	printf("OK %016llx\n", (unsigned long long)checksum(area, pages * PAGE, 7));
	return 0;
}
