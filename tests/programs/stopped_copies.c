/* stopped_copies MIB COUNT: forks COUNT children that stop themselves again and again for a second, as by ^Z, and go on at once each time. Then they
 * check their memory for three more. */
#include "common.h"
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 4) * MIB / PAGE, count = number(argc, argv, 2, 40);
	unsigned char *area = map_pages(pages);
	fill(area, pages, "tw", 1);
	for (size_t n = 0; n < count; n++) {
		pid_t child = fork();
		MUST(child >= 0);
		if (child != 0)
			continue;
		double start = now();
		while (now() - start < 1)
			MUST(raise(SIGSTOP) == 0);
		while (now() - start < 4) {
			check(area, pages, "tw", 1, "a child");
			usleep(50000);
		}
		_exit(0);
	}
	size_t stops = 0;
	for (size_t ended = 0; ended < count;) {
		int status;
		pid_t child = waitpid(-1, &status, WUNTRACED);
		MUST(child > 0);
		if (WIFSTOPPED(status)) {
			stops++;
			usleep(1);
			MUST(kill(child, SIGCONT) == 0);
			continue;
		}
		MUST(status == 0);
		ended++;
	}
	MUST(stops > 100);
	check(area, pages, "tw", 1, "the parent");
	printf("OK\n");
	return 0;
}
