/* One thread on each CPU, all of which miss pages. pinned MIB
 * Each fills its part of MIB and checks it again and again, until there is the file `go`. */
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
	cpu_set_t only;
	CPU_ZERO(&only);
	CPU_SET(part->cpu, &only);
	MUST(sched_setaffinity(0, sizeof only, &only) == 0);
	part->start = map_pages(pages);
	fill(part->start, pages, "t", (uint64_t)part->cpu);
	do {
		check(part->start, pages, "t", (uint64_t)part->cpu, "a thread's own");
	} while (access("go", F_OK) != 0);
	return NULL;
}

int main(int argc, char **argv)
{
	cpu_set_t all;
	size_t count = 0;
	MUST(sched_getaffinity(0, sizeof all, &all) == 0);
	for (int cpu = 0; cpu < CPU_SETSIZE && count < MOST; cpu++)
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
