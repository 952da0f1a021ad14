/* Threads touch pages at random, and what that costs is measured. touch_costs THREADS MIB ROUNDS
 *
 * Each of two measurements begins with a line of standard input: all threads together touch each page ROUNDS times on average. The
 * first prints how many nanoseconds that took. While the second one goes on, the kernel counts, on all CPUs: it prints how often
 * threads were switched and woken and made system calls, or "-" where the kernel does not count those. A third line ends it. */
#include "common.h"
#include <fcntl.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>

enum { MEASUREMENTS = 2, EVENTS = 3, MOST_CPUS = 64, MOST_THREADS = 64 };
static const char *const event[EVENTS] = {"sched/sched_switch", "sched/sched_wakeup", "raw_syscalls/sys_enter"};
static int counters[EVENTS][MOST_CPUS];
static long cpus;

static unsigned char *memory;
static size_t pages, touches;
static pthread_barrier_t barrier;

static void *touch(void *seed)
{
	uint64_t random = (uint64_t)(uintptr_t)seed << 32;
	volatile unsigned sum = 0;
	for (int i = 0; i < MEASUREMENTS; i++) {
		pthread_barrier_wait(&barrier);
		for (size_t k = 0; k < touches; k++)
			sum += memory[next_random(&random) % pages * PAGE];
		pthread_barrier_wait(&barrier);
	}
	return NULL;
}

/* Has the kernel count; 0: it does not. Not before it is needed: what is counted takes instructions. */
static int begin_to_count(void)
{
	for (int i = 0; i < EVENTS; i++) {
		char path[128];
		unsigned long long id;
		snprintf(path, sizeof path, "/sys/kernel/tracing/events/%s/id", event[i]);
		FILE *file = fopen(path, "r");
		if (file == NULL || fscanf(file, "%llu", &id) != 1)
			return 0;
		fclose(file);
		struct perf_event_attr attributes = {.type = PERF_TYPE_TRACEPOINT, .size = sizeof attributes, .config = id};
		for (int cpu = 0; cpu < cpus; cpu++) {
			counters[i][cpu] = (int)syscall(SYS_perf_event_open, &attributes, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
			if (counters[i][cpu] < 0)
				return 0;
		}
	}
	return 1;
}

static uint64_t counted(int i)
{
	uint64_t all = 0, of;
	for (int cpu = 0; cpu < cpus; cpu++) {
		MUST(read(counters[i][cpu], &of, sizeof of) == sizeof of);
		all += of;
	}
	return all;
}

static uint64_t now(void)
{
	struct timespec t;
	MUST(clock_gettime(CLOCK_MONOTONIC, &t) == 0);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void await_line(void)
{
	MUST(fflush(stdout) == 0);
	MUST(getchar() == '\n');
}

/* Nanoseconds. */
static uint64_t let_touch(void)
{
	uint64_t began = now();
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	return now() - began;
}

int main(int argc, char **argv)
{
	pthread_t thread[MOST_THREADS];
	uint64_t before[EVENTS];
	MUST(argc == 4);
	size_t threads = number(argc, argv, 1, 0);
	pages = number(argc, argv, 2, 0) * MIB / PAGE;
	touches = pages * number(argc, argv, 3, 0) / threads;
	cpus = sysconf(_SC_NPROCESSORS_ONLN);
	MUST(threads <= MOST_THREADS && cpus <= MOST_CPUS);
	memory = map_pages(pages);
	/* One page a fault, whoever serves it. */
	MUST(madvise(memory, pages * PAGE, MADV_NOHUGEPAGE) == 0);
	fill(memory, pages, "t", 0);
	MUST(pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1) == 0);
	for (size_t i = 0; i < threads; i++)
		MUST(pthread_create(&thread[i], NULL, touch, (void *)(i + 1)) == 0);
	/* Until the limit holds, and threads serve themselves if they are to. */
	for (int round = 0; round < 2; round++)
		check(memory, pages, "t", 0, "before");
	printf("ready\n");
	await_line();
	printf("%llu\n", (unsigned long long)let_touch());
	await_line();
	int counts = begin_to_count();
	for (int i = 0; counts && i < EVENTS; i++)
		before[i] = counted(i);
	let_touch();
	for (int i = 0; i < EVENTS; i++)
		counts ? printf("%llu ", (unsigned long long)(counted(i) - before[i])) : printf("- ");
	printf("\n");
	await_line();
	for (size_t i = 0; i < threads; i++)
		MUST(pthread_join(thread[i], NULL) == 0);
	return 0;
}
