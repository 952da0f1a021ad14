/* fork_churn MIB FORKS: memory that is rewritten all the time, while children come that execute another program at once, or end. */
#include "common.h"
#include <sys/wait.h>

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 64) * MIB / PAGE, forks = number(argc, argv, 2, 100);
	unsigned char *start = map_pages(pages);
	uint32_t *generation = calloc(pages, sizeof *generation);
	uint64_t random = 3;
	MUST(generation != NULL);
	fill(start, pages, "n", 1);
	for (size_t round = 0; round < 100; round++) {
		pid_t child = round < forks ? fork() : 1;
		MUST(child >= 0);
		if (child == 0) {
			if (round % 2 == 0)
				execl("/bin/true", "true", NULL);
			_exit(0);
		}
		if (round < forks) {
			int status;
			MUST(waitpid(child, &status, 0) == child && status == 0);
		}
		for (size_t n = 0; n < pages / 32; n++) {
			size_t page = next_random(&random) % pages;
			check_page(start + page * PAGE, NOISE, 1 + page * PAGE + ((uint64_t)generation[page] << 40), "churn");
			make_page(start + page * PAGE, NOISE, 1 + page * PAGE + ((uint64_t)++generation[page] << 40));
		}
	}
	for (size_t page = 0; page < pages; page++)
		check_page(start + page * PAGE, NOISE, 1 + page * PAGE + ((uint64_t)generation[page] << 40), "at the end");
	printf("OK\n");
	return 0;
}
