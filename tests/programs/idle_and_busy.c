/* Two processes of the same size: idle_and_busy MIB ROUNDS. The first fills MIB and sleeps; the second does the same and goes on reading all of it, again and again,
 * in an order that changes. At the end the first one looks at its memory too. */
#include "common.h"
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
	size_t pages = number(argc, argv, 1, 200) * MIB / PAGE, rounds = number(argc, argv, 2, 60);
	int filled[2], status;
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
	uint64_t random = 3, sum = 0;
	for (size_t round = 0; round < rounds; round++) {
		for (size_t i = 0; i < pages; i++)
			sum += area[next_random(&random) % pages * PAGE];
		usleep(50 * 1000);
	}
	check(area, pages, "t", 2, "the busy one's");
	MUST(kill(idle, SIGTERM) == 0 && waitpid(idle, &status, 0) == idle);
	MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	printf("OK %016llx\n", (unsigned long long)sum);
	return 0;
}
