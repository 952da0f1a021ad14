/* Fills MIB, and forks CHILDREN that share all of it and do nothing. When there is a file `go`, they stay for two more seconds, in which
 * more than AT_MOST MiB must be in memory: nothing can be evicted. Once they are gone the program looks at its memory, until it has no
 * more than AT_MOST MiB of it; for 30 s at most. children_leave MIB CHILDREN AT_MOST */
#include "common.h"
#include <fcntl.h>
#include <time.h>

enum { STAY = 2, LONGEST = 30 };

static size_t resident(void)
{
	char line[256];
	size_t kib = 0;
	FILE *status = fopen("/proc/self/status", "r");
	MUST(status != NULL);
	while (fgets(line, sizeof line, status) != NULL)
		sscanf(line, "RssAnon: %zu", &kib);
	MUST(fclose(status) == 0);
	return kib * 1024;
}

static time_t seconds(void)
{
	struct timespec now;
	MUST(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return now.tv_sec;
}

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 96) * MIB / PAGE;
	size_t children = number(argc, argv, 2, 12), at_most = number(argc, argv, 3, 52) * MIB;
	unsigned char *area = map_pages(pages);
	int ends[2];
	char byte;
	fill(area, pages, "t", 1);
	MUST(pipe(ends) == 0);
	pid_t child[children];
	for (size_t i = 0; i < children; i++) {
		MUST((child[i] = fork()) >= 0);
		if (child[i] == 0) {
			MUST(close(ends[1]) == 0 && read(ends[0], &byte, 1) == 0);
			_exit(0);
		}
	}
	MUST(close(open("forked", O_WRONLY | O_CREAT, 0600)) == 0);
	for (time_t end = seconds() + LONGEST; access("go", F_OK) != 0; usleep(10 * 1000))
		if (seconds() > end)
			die("there is no file `go`");
	sleep(STAY);
	if (resident() <= at_most)
		die("%zu MiB in memory: the children are not in the way", resident() / MIB);
	MUST(close(ends[1]) == 0);
	for (size_t i = 0; i < children; i++)
		wait_for(child[i]);
	time_t end = seconds() + LONGEST;
	uint64_t random = 7;
	while (resident() > at_most) {
		if (seconds() > end)
			die("%zu MiB in memory, %zu at most", resident() / MIB, at_most / MIB);
		for (int i = 0; i < 100; i++) {
			size_t page = next_random(&random) % pages;
			check_page(area + page * PAGE, TEXT, 1 + page * PAGE, "while alone");
			usleep(1000);
		}
	}
	printf("OK\n");
	return 0;
}
