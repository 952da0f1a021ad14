/* Forks whose parents end. fork_chain COUNT MIB
 * Each generation but the last forks the next one and ends. The third one makes the file `early` with its pid, and the last one
 * `late`; both wait until the file is gone. The last one checks all that it has inherited. */
#include "common.h"
#include <fcntl.h>

static unsigned char *area;
static size_t pages;

static void show(const char *name)
{
	char pid[32], made[32];
	int length = snprintf(pid, sizeof pid, "%d", (int)getpid());
	snprintf(made, sizeof made, "%s.made", name);
	int file = open(made, O_CREAT | O_WRONLY, 0600);
	MUST(write(file, pid, (size_t)length) == length);
	MUST(close(file) == 0);
	MUST(rename(made, name) == 0);
	while (access(name, F_OK) == 0) {
		/* Some are out again by then, and it has faults. */
		check(area, pages, "t", 1, "meanwhile");
		usleep(10000);
	}
}

int main(int argc, char **argv)
{
	size_t count = number(argc, argv, 1, 200);
	pages = number(argc, argv, 2, 24) * MIB / PAGE;
	area = map_pages(pages);
	fill(area, pages, "t", 1);
	for (size_t generation = 1; generation < count; generation++) {
		pid_t child = fork();
		MUST(child >= 0);
		if (child > 0)
			_exit(0);
		/* Some come in, and others must go. */
		check(area + generation % 4 * (pages / 4) * PAGE, 16, "t", 1 + generation % 4 * (pages / 4) * PAGE, "inherited");
		if (generation == 3)
			show("early");
	}
	show("late");
	check(area, pages, "t", 1, "at last");
	printf("OK generation %zu\n", count);
	return 0;
}
