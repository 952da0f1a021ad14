/* Threads with big stacks that come and go: each uses its stack deep, waits for the others, sleeps, and reads it again. (If they did not
 * wait, it would be chance how many of them are deep at the same time.)
 * stacks THREADS ROUNDS DEPTH_MIB */
#include "common.h"
#include <pthread.h>

static size_t depth;
static pthread_barrier_t all_deep;

/* One level keeps a page on the stack, checked on the way back. */
static __attribute__((noinline)) uint64_t descend(size_t level, uint64_t seed)
{
	unsigned char local[PAGE];
	make_page(local, level % 3 == 0 ? WORD : TEXT, seed + level);
	__asm__ volatile("" : : "r"(local) : "memory");
	if (level == 0) {
		pthread_barrier_wait(&all_deep);
		usleep(2000);
	}
	uint64_t sum = level > 0 ? descend(level - 1, seed) : seed;
	check_page(local, level % 3 == 0 ? WORD : TEXT, seed + level, "stack");
	return sum * 31 + local[level % PAGE];
}

static void *run(void *argument)
{
	uint64_t *cell = argument;
	*cell = descend(depth, *cell);
	return NULL;
}

int main(int argc, char **argv)
{
	size_t threads = number(argc, argv, 1, 16), rounds = number(argc, argv, 2, 4), mib = number(argc, argv, 3, 12);
	uint64_t sum = 0;
	MUST(threads <= 64);
	MUST(pthread_barrier_init(&all_deep, NULL, threads) == 0);
	depth = mib * MIB / (PAGE + 128);
	for (size_t round = 0; round < rounds; round++) {
		pthread_t handle[64];
		uint64_t cell[64];
		for (size_t i = 0; i < threads; i++) {
			pthread_attr_t attributes;
			cell[i] = mix(round * 100 + i);
			MUST(pthread_attr_init(&attributes) == 0);
			MUST(pthread_attr_setstacksize(&attributes, (mib + 4) * MIB) == 0);
			MUST(pthread_create(&handle[i], &attributes, run, &cell[i]) == 0);
		}
		for (size_t i = 0; i < threads; i++) {
			MUST(pthread_join(handle[i], NULL) == 0);
			sum = sum * 3 + cell[i];
		}
	}
	printf("OK %016llx\n", (unsigned long long)sum);
	return 0;
}
