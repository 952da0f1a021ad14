/* Fills MIB, and forks CHILDREN that share all of it and do nothing. When there is a file `go`, they stay for another second. Once they are
 * gone the program looks at its memory for some seconds, and must have no more than AT_MOST MiB of it then.
 * children_leave MIB CHILDREN AT_MOST */
#include "common.h"
#include <fcntl.h>
#include <time.h>

enum { LOOK = 4 };

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
	while (access("go", F_OK) != 0)
		usleep(10 * 1000);
	sleep(1);
	MUST(close(ends[1]) == 0);
	for (size_t i = 0; i < children; i++)
		wait_for(child[i]);
	time_t end = seconds() + LOOK;
	uint64_t random = 7;
	while (seconds() < end) {
		size_t page = next_random(&random) % pages;
		check_page(area + page * PAGE, TEXT, 1 + page * PAGE, "while alone");
		usleep(1000);
	}
	size_t has = resident();
	if (has > at_most)
		die("%zu MiB in memory, %zu at most", has / MIB, at_most / MIB);
	printf("OK\n");
	return 0;
}
