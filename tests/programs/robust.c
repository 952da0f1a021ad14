/* Robust mutexes whose owner ends while memory is short: who takes them next learns it (EOWNERDEAD).
 * robust threads|process BALLAST_MIB
 * threads: a thread ends that owns some, on pages that are long out. process: an idle thread of a child owns one that both
 * share, and the child is killed.
 * The kernel goes through a thread's list of them when the thread has ended, and waits for no userfaultfd then. */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

enum { MOST = 16 };

static unsigned char *ballast;
static size_t ballast_pages;
static volatile int finished;
static pthread_mutex_t *mutex[MOST];
static size_t mutexes;

/* Pages anywhere. */
static void *press(void *argument)
{
	uint64_t random = 1;
	while (!finished)
		ballast[next_random(&random) % ballast_pages * PAGE + 8] = 1;
	return argument;
}

static void rest(time_t seconds)
{
	struct timespec time = { .tv_sec = seconds };
	MUST(nanosleep(&time, NULL) == 0);
}

static void *own(void *seconds)
{
	for (size_t i = 0; i < mutexes; i++)
		MUST(pthread_mutex_lock(mutex[i]) == 0);
	rest((time_t)(size_t)seconds);
	return NULL;
}

static void make(size_t n, int shared)
{
	pthread_mutexattr_t attributes;
	unsigned char *at = mmap(NULL, n * PAGE, PROT_READ | PROT_WRITE, (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS, -1, 0);
	MUST(at != MAP_FAILED && pthread_mutexattr_init(&attributes) == 0);
	MUST(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
	MUST(pthread_mutexattr_setpshared(&attributes, shared ? PTHREAD_PROCESS_SHARED : PTHREAD_PROCESS_PRIVATE) == 0);
	for (mutexes = 0; mutexes < n; mutexes++) {
		mutex[mutexes] = (void *)(at + mutexes * PAGE);
		MUST(pthread_mutex_init(mutex[mutexes], &attributes) == 0);
	}
}

/* Takes all of them. */
static size_t lost(void)
{
	size_t lost = 0;
	for (size_t i = 0; i < mutexes; i++) {
		struct timespec until;
		MUST(clock_gettime(CLOCK_REALTIME, &until) == 0);
		until.tv_sec += 1;
		lost += pthread_mutex_timedlock(mutex[i], &until) != EOWNERDEAD;
	}
	return lost;
}

int main(int argc, char **argv)
{
	int shared = argc > 1 && strcmp(argv[1], "process") == 0;
	pthread_t owner, presser;
	pid_t child = 0;
	make(shared ? 1 : MOST, shared);
	if (shared)
		MUST((child = fork()) >= 0);
	if (child > 0) {
		int status;
		MUST(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
	} else {
		ballast_pages = number(argc, argv, 2, 64) * MIB / PAGE;
		ballast = map_pages(ballast_pages);
		fill(ballast, ballast_pages, "t", 1);
		MUST(pthread_create(&presser, NULL, press, NULL) == 0);
		MUST(pthread_create(&owner, NULL, own, (void *)(size_t)(shared ? 1000 : 1)) == 0);
		if (shared) {
			rest(2);
			kill(getpid(), SIGKILL);
		}
		MUST(pthread_join(owner, NULL) == 0);
		finished = 1;
		MUST(pthread_join(presser, NULL) == 0);
	}
	size_t n = lost();
	if (n > 0)
		die("%zu of %zu mutexes of an owner that is dead", n, mutexes);
	printf("OK %zu\n", mutexes);
	return 0;
}
