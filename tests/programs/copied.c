/* copied MIB: forks children, each of which is in the middle of something for a while, sees that nothing disturbs it there, and
   then fills memory: with what its parent had (an eighth of it), MIB. */
#include "common.h"
#include <math.h>
#include <signal.h>
#include <time.h>

static volatile sig_atomic_t signals;
static unsigned char *before, *after;
static size_t pages;
static int ends[2];

static void count(int signal)
{
	(void)signal;
	signals++;
}

static void nap(long ms)
{
	struct timespec time = { ms / 1000, ms % 1000 * 1000000 };
	while (nanosleep(&time, &time) != 0)
		MUST(errno == EINTR);
}

/* All of it in vector registers. */
static double logistic(long steps)
{
	double x[4] = { 0.1, 0.2, 0.3, 0.4 };
	for (long i = 0; i < steps; i++)
		for (int j = 0; j < 4; j++)
			x[j] = 3.99 * x[j] * (1 - x[j]);
	return x[0] + x[1] + x[2] + x[3];
}

static void sleeps(void)
{
	struct timespec time = { 0, 500000000 };
	MUST(nanosleep(&time, NULL) == 0);
}

static void reads(void)
{
	char byte;
	MUST(read(ends[0], &byte, 1) == 1 && byte == 'x');
}

static void pauses(void)
{
	sigset_t none;
	sigemptyset(&none);
	MUST(sigsuspend(&none) == -1 && errno == EINTR && signals == 1);
}

/* Downwards, as memmove of some C libraries does, and upwards again. */
static void moves(void)
{
	size_t size = 32 * MIB;
	unsigned char *area = map_pages(size / PAGE + 1);
	fill(area, size / PAGE, "n", 3);
	struct timespec start, now;
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		unsigned char *from = area + size - 1, *to = from + 8;
		size_t count = size;
		__asm__ volatile("std; rep movsb; cld" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
		memmove(area, area + 8, size);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec < start.tv_sec + 2);
	check(area, size / PAGE, "n", 3, "what was moved");
	munmap(area, size + PAGE);
}

static double expected;
#define STEPS 60000000L

static void computes(void)
{
	MUST(logistic(STEPS) == expected);
}

int main(int argc, char **argv)
{
	pages = number(argc, argv, 1, 64) * MIB / PAGE;
	before = map_pages(pages / 8);
	fill(before, pages / 8, "t", 1);
	expected = logistic(STEPS);
	MUST(pipe(ends) == 0);
	struct sigaction action = { .sa_handler = count };
	MUST(sigaction(SIGUSR1, &action, NULL) == 0);
	sigset_t usr1;
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	MUST(sigprocmask(SIG_BLOCK, &usr1, NULL) == 0);
	void (*const all[])(void) = { sleeps, reads, pauses, computes, moves };
	for (int i = 0; i < 5; i++) {
		pid_t child = fork();
		MUST(child >= 0);
		if (child == 0) {
			all[i]();
			after = map_pages(pages - pages / 8);
			fill(after, pages - pages / 8, "t", 2);
			check(after, pages - pages / 8, "t", 2, "its own");
			check(before, pages / 8, "t", 1, "its parent's");
			puts("OK");
			fflush(stdout);
			_exit(0);
		}
		nap(500);
		if (all[i] == reads)
			MUST(write(ends[1], "x", 1) == 1);
		if (all[i] == pauses)
			MUST(kill(child, SIGUSR1) == 0);
		wait_for(child);
	}
	return 0;
}
