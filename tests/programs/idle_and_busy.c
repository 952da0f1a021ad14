/* Two processes of the same size: idle_and_busy MIB. The first fills MIB and sleeps; the second does the same and goes on touching pages all over it, as many in a
 * round as it has. How many rounds there were is in the file `rounds`. When there is a file `go`, both look at all of their memory and end. */
#include "common.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

static volatile sig_atomic_t is_over;

static void end(int unused)
{
	(void)unused;
	is_over = 1;
}

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 200) * MIB / PAGE;
	int filled[2], file = open("rounds", O_WRONLY | O_CREAT | O_TRUNC, 0600);
	MUST(file >= 0);
	MUST(pipe(filled) == 0 && signal(SIGTERM, end) != SIG_ERR);
	pid_t idle = fork();
	MUST(idle >= 0);
	unsigned char *area = map_pages(pages);
	if (idle == 0) {
		fill(area, pages, "t", 1);
		MUST(write(filled[1], "x", 1) == 1);
		while (!is_over)
			pause();
		check(area, pages, "t", 1, "the idle one's");
		_exit(0);
	}
	char byte;
	MUST(read(filled[0], &byte, 1) == 1);
	fill(area, pages, "t", 2);
	uint64_t random = 3;
	for (uint64_t round = 0; access("go", F_OK) != 0; round++) {
		MUST(pwrite(file, &round, sizeof round, 0) == sizeof round);
		for (size_t i = 0; i < pages; i++)
			*(volatile unsigned char *)(area + next_random(&random) % pages * PAGE);
		usleep(10 * 1000);
	}
	check(area, pages, "t", 2, "the busy one's");
	MUST(kill(idle, SIGTERM) == 0);
	wait_for(idle);
	puts("OK");
	return 0;
}
