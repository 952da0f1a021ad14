/* exec_time COUNT PROGRAM ARGUMENTS: what it takes to start a program and to wait for its end (posix_spawn, which is vfork and
   exec), and what an exec takes that fails, in microseconds: the medians. */
#include "common.h"
#include <spawn.h>
#include <time.h>

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

int main(int argc, char **argv)
{
	MUST(argc > 2);
	int count = atoi(argv[1]);
	double *times = calloc(count, sizeof *times);
	MUST(count > 0 && times != NULL);
	for (int i = 0; i < count; i++) {
		double start = now();
		pid_t child;
		MUST(posix_spawn(&child, argv[2], NULL, NULL, argv + 2, environ) == 0);
		wait_for(child);
		times[i] = now() - start;
	}
	qsort(times, count, sizeof *times, by_size);
	printf("exec %.0f us, ", times[count / 2]);
	char *none[] = { "/nonexistent", NULL };
	for (int i = 0; i < count; i++) {
		double start = now();
		MUST(execve(none[0], none, environ) == -1);
		times[i] = now() - start;
	}
	qsort(times, count, sizeof *times, by_size);
	printf("one that fails %.1f us\n", times[count / 2]);
	return 0;
}
