/* How long a fork takes. fork_time MIB HOT_MIB COUNT [raw]: fills MIB of text, goes over the last HOT_MIB again, so that the rest is what is out, and
 * forks COUNT times a child that ends at once, `raw`: by the bare system call. Prints for each fork the seconds until it returned in the parent, and until the child had ended. */
#include "common.h"
#include <sys/syscall.h>
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
	size_t pages = number(argc, argv, 1, 1024) * MIB / PAGE, hot = number(argc, argv, 2, 400) * MIB / PAGE;
	size_t count = number(argc, argv, 3, 5);
	int raw = argc > 4 && strcmp(argv[4], "raw") == 0;
	unsigned char *area = map_pages(pages);
	MUST(hot <= pages);
	fill(area, pages, "t", 0);
	for (int lap = 0; lap < 2; lap++)
		check(area + (pages - hot) * PAGE, hot, "t", (pages - hot) * PAGE, "hot");
	sleep(1);
	for (size_t n = 0; n < count; n++) {
		double start = now();
		pid_t child = raw ? (pid_t)syscall(SYS_fork) : fork();
		if (child == 0)
			_exit(0);
		double forked = now();
		int status;
		MUST(child > 0 && waitpid(child, &status, 0) == child && status == 0);
		printf("%.6f %.6f\n", forked - start, now() - start);
		usleep(300 * 1000);
	}
	check(area, pages, "t", 0, "after the forks");
	return 0;
}
