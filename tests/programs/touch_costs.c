/* Threads touch pages at random, and the process counts how often its threads were switched meanwhile. touch_costs THREADS MIB ROUNDS
 *
 * ROUNDS: each page is touched so often on average, by all threads together. Prints switches of the program's threads and of
 * lowtide's. */
#include "common.h"
#include <dirent.h>
#include <pthread.h>

static unsigned char *memory;
static size_t pages, touches;
static pthread_barrier_t barrier;

static void *touch(void *seed)
{
	uint64_t random = (uint64_t)(uintptr_t)seed << 32;
	volatile unsigned sum = 0;
	pthread_barrier_wait(&barrier);
	for (size_t i = 0; i < touches; i++)
		sum += memory[next_random(&random) % pages * PAGE];
	pthread_barrier_wait(&barrier);
	/* Its switches are counted before it ends. */
	pthread_barrier_wait(&barrier);
	return NULL;
}

struct switches { long program, lowtide; };

static struct switches count(void)
{
	struct switches all = {0, 0};
	DIR *threads = opendir("/proc/self/task");
	struct dirent *thread;
	MUST(threads != NULL);
	while ((thread = readdir(threads)) != NULL) {
		char path[300], line[256];
		long number, switches = 0;
		int is_lowtide = 0;
		if (thread->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%s/status", thread->d_name);
		FILE *status = fopen(path, "r");
		if (status == NULL)
			continue;
		while (fgets(line, sizeof line, status)) {
			is_lowtide |= strncmp(line, "Name:\tlowtide", 13) == 0;
			if (sscanf(line, "voluntary_ctxt_switches: %ld", &number) == 1 || sscanf(line, "nonvoluntary_ctxt_switches: %ld", &number) == 1)
				switches += number;
		}
		fclose(status);
		*(is_lowtide ? &all.lowtide : &all.program) += switches;
	}
	closedir(threads);
	return all;
}

int main(int argc, char **argv)
{
	pthread_t thread[64];
	MUST(argc == 4);
	size_t threads = strtoul(argv[1], NULL, 10);
	pages = strtoul(argv[2], NULL, 10) * MIB / PAGE;
	touches = pages * strtoul(argv[3], NULL, 10) / threads;
	MUST(threads <= 64);
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(memory != MAP_FAILED);
	fill(memory, pages, "t", 0);
	MUST(pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1) == 0);
	for (size_t i = 0; i < threads; i++)
		MUST(pthread_create(&thread[i], NULL, touch, (void *)(i + 1)) == 0);
	/* Until the limit holds, and threads serve themselves if they are to. */
	for (int round = 0; round < 2; round++)
		check(memory, pages, "t", 0, "before");
	struct switches before = count();
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	struct switches after = count();
	pthread_barrier_wait(&barrier);
	for (size_t i = 0; i < threads; i++)
		MUST(pthread_join(thread[i], NULL) == 0);
	printf("%ld %ld\n", after.program - before.program, after.lowtide - before.lowtide);
	return 0;
}
