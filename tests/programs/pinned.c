/* Threads all of which miss pages, one on each CPU. pinned MIB [THREADS]
 * Each fills its part of MIB and checks it again and again, until there is the file `go`. With THREADS: so many, on any CPU. */
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#define MOST 1024

static size_t pages;
static struct part {
	pthread_t thread;
	unsigned char *start;
	int cpu;
} parts[MOST];

static void *run(void *argument)
{
	struct part *part = argument;
	uint64_t seed = (uint64_t)(part - parts);
	if (part->cpu >= 0) {
		cpu_set_t only;
		CPU_ZERO(&only);
		CPU_SET(part->cpu, &only);
		MUST(sched_setaffinity(0, sizeof only, &only) == 0);
	}
	part->start = map_pages(pages);
	fill(part->start, pages, "t", seed);
	do {
		check(part->start, pages, "t", seed, "a thread's own");
	} while (access("go", F_OK) != 0);
	return NULL;
}

int main(int argc, char **argv)
{
	cpu_set_t all;
	size_t count = 0, anywhere = number(argc, argv, 2, 0);
	MUST(anywhere <= MOST && sched_getaffinity(0, sizeof all, &all) == 0);
	for (; count < anywhere; count++)
		parts[count].cpu = -1;
	for (int cpu = 0; cpu < CPU_SETSIZE && count < MOST && anywhere == 0; cpu++)
		if (CPU_ISSET(cpu, &all))
			parts[count++].cpu = cpu;
	pages = number(argc, argv, 1, 48) * MIB / PAGE / count;
	for (size_t i = 0; i < count; i++)
		MUST(pthread_create(&parts[i].thread, NULL, run, &parts[i]) == 0);
	for (size_t i = 0; i < count; i++)
		MUST(pthread_join(parts[i].thread, NULL) == 0);
	printf("OK %zu threads\n", count);
	return 0;
}
