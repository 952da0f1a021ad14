/* copied_whole MIB: fills MIB, forks a child that sleeps for a second and a half before it checks what it has inherited, and then
   checks it as well. */
#include "common.h"
#include <time.h>

int main(int argc, char **argv)
{
	MUST(argc == 2);
	size_t pages = strtoul(argv[1], NULL, 10) * (MIB / PAGE);
	unsigned char *area = map_pages(pages);
	fill(area, pages, "tn", 1);
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		struct timespec time = { 1, 500000000 };
		while (nanosleep(&time, &time) != 0)
			MUST(errno == EINTR);
		check(area, pages, "tn", 1, "inherited");
		_exit(0);
	}
	wait_for(child);
	check(area, pages, "tn", 1, "the parent's");
	puts("OK");
	return 0;
}
