/* starved_child MIB: a program that forks when its thread, and so the child, gets next to no CPU: it is SCHED_IDLE, and on each CPU another thread of
   the parent is busy. Those touch memory that is out meanwhile. Every byte is verified, in the child too. */
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>

static unsigned char *memory;
static size_t pages;
static int end, begun;

static void *is_busy(void *cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET((size_t)(uintptr_t)cpu, &set);
	MUST(pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0);
	__atomic_add_fetch(&begun, 1, __ATOMIC_RELEASE);
	for (size_t page = (uintptr_t)cpu; !__atomic_load_n(&end, __ATOMIC_ACQUIRE); page += 101) {
		check_page(memory + page % pages * PAGE, kind_at("tnw", page % pages), 1 + page % pages * PAGE, "a busy thread");
		/* Some milliseconds: while the program forks, what comes in stays. */
		for (int i = 0; i < 20000000; i++)
			__asm__ volatile("" ::: "memory");
	}
	return NULL;
}

static void is_idle(int yes)
{
	struct sched_param none = { 0 };
	MUST(sched_setscheduler(0, yes ? SCHED_IDLE : SCHED_OTHER, &none) == 0);
}

int main(int argc, char **argv)
{
	pages = number(argc, argv, 1, 96) * MIB / PAGE;
	memory = map_pages(pages);
	fill(memory, pages, "tnw", 1);
	cpu_set_t set;
	MUST(sched_getaffinity(0, sizeof set, &set) == 0);
	pthread_t busy[CPU_SETSIZE];
	int threads = 0;
	for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &set))
			MUST(pthread_create(&busy[threads++], NULL, is_busy, (void *)(uintptr_t)cpu) == 0);
	while (__atomic_load_n(&begun, __ATOMIC_ACQUIRE) < threads)
		usleep(1000);
	is_idle(1);
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		is_idle(0);
		check(memory, pages, "tnw", 1, "the child");
		_exit(0);
	}
	is_idle(0);
	__atomic_store_n(&end, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < threads; i++)
		MUST(pthread_join(busy[i], NULL) == 0);
	int status;
	MUST(waitpid(child, &status, 0) == child && status == 0);
	check(memory, pages, "tnw", 1, "the parent");
	printf("OK\n");
	return 0;
}
