/* A thread moves memory away, and as soon as nothing is mapped there any more another one moves something else to that place. The kernel reports that a
 * range was unmapped after it was: here much later, because the thread that has to report it gives way to the other, on the same CPU.
 * taken_place MIB ROUNDS */
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/prctl.h>
#include <time.h>

/* Where nobody maps anything who lets the kernel choose. */
#define PLACES ((uintptr_t)1 << 36)

static size_t pages;
static unsigned char *moved, *free_place, *taken_by;
static sem_t go, is_over;

static unsigned char *move(unsigned char *from, unsigned char *to)
{
	void *at = mremap(from, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	MUST(at == to);
	return at;
}

static pid_t mover_id;

static void *mover(void *unused)
{
	mover_id = gettid();
	(void)unused;
	for (;;) {
		MUST(sem_wait(&go) == 0);
		move(moved, free_place);
		MUST(sem_post(&is_over) == 0);
	}
}

static void *taker(void *unused)
{
	(void)unused;
	unsigned char there;
	while (mincore(moved, PAGE, &there) == 0)
		usleep(20);
	MUST(errno == ENOMEM);
	move(taken_by, moved);
	MUST(sem_post(&is_over) == 0);
	return NULL;
}

static void give_way(int policy)
{
	/* Back again: not without privilege, and needed on a busy machine only. */
	int r = sched_setscheduler(mover_id, policy, &(struct sched_param){ 0 });
	MUST(r == 0 || policy != SCHED_IDLE);
}

static void wait_for_both(void)
{
	struct timespec until;
	MUST(clock_gettime(CLOCK_REALTIME, &until) == 0);
	until.tv_sec++;
	for (int n = 0; n < 2; n++) {
		while (sem_timedwait(&is_over, &until) != 0) {
			MUST(errno == ETIMEDOUT);
			give_way(SCHED_OTHER);
			until.tv_sec += 60;
		}
	}
}

int main(int argc, char **argv)
{
	pages = number(argc, argv, 1, 32) * MIB / PAGE;
	size_t rounds = number(argc, argv, 2, 10);
	cpu_set_t cpus, one;
	MUST(sched_getaffinity(0, sizeof cpus, &cpus) == 0);
	CPU_ZERO(&one);
	for (int cpu = 0; CPU_COUNT(&one) == 0; cpu++)
		if (CPU_ISSET(cpu, &cpus))
			CPU_SET(cpu, &one);
	MUST(sched_setaffinity(0, sizeof one, &one) == 0);
	MUST(prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0) == 0);
	MUST(sem_init(&go, 0, 0) == 0 && sem_init(&is_over, 0, 0) == 0);
	unsigned char *place[3];
	for (size_t n = 0; n < 3; n++) {
		/* Not a multiple of what a table of pages covers, and far apart: they are moved page by page. */
		place[n] = (unsigned char *)(PLACES + n * ((uintptr_t)1 << 30) + n * 17 * PAGE);
		if (n == 2)
			break;
		MUST(mmap(place[n], pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == place[n]);
		MUST(madvise(place[n], pages * PAGE, MADV_NOHUGEPAGE) == 0 || errno == EINVAL);
		fill(place[n], pages, "tw", n + 1);
	}
	taken_by = place[0], moved = place[1], free_place = place[2];
	pthread_t threads[2];
	MUST(pthread_create(&threads[0], NULL, mover, NULL) == 0);
	while (*(volatile pid_t *)&mover_id == 0)
		usleep(100);
	for (size_t round = 0; round < rounds; round++) {
		give_way(SCHED_IDLE);
		MUST(pthread_create(&threads[1], NULL, taker, NULL) == 0);
		MUST(sem_post(&go) == 0);
		wait_for_both();
		MUST(pthread_join(threads[1], NULL) == 0);
		unsigned char *left = taken_by;
		taken_by = moved, moved = free_place, free_place = left;
		check(taken_by, pages, "tw", 1, "what took the place");
		check(moved, pages, "tw", 2, "what was moved away");
	}
	printf("OK %zu\n", rounds);
	return 0;
}
