/* Memory that grows by many small mappings, each filled at once: grows MIB THREADS SIGNALS
 * A child of the program sends that many signals to it meanwhile, stops it and continues it; each signal is to come once. */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

enum { PIECE = 256, THREADS = 64 };

static atomic_size_t came;
static size_t pieces;

static void takes(int signal)
{
	(void)signal;
	came++;
}

static void *grow(void *argument)
{
	uint64_t seed = (uint64_t)(size_t)argument << 48;
	unsigned char **piece = calloc(pieces, sizeof *piece);
	MUST(piece != NULL);
	for (size_t i = 0; i < pieces; i++) {
		piece[i] = map_pages(PIECE);
		fill(piece[i], PIECE, "t", seed + (i << 32));
	}
	for (size_t i = 0; i < pieces; i++)
		check(piece[i], PIECE, "t", seed + (i << 32), "grown");
	return NULL;
}

static void send(pid_t parent, size_t signals)
{
	struct timespec pause = { .tv_nsec = 200000 };
	for (size_t i = 0; i < signals; i++) {
		/* Its queue is as long as the user's limit says. */
		while (sigqueue(parent, SIGRTMIN, (union sigval){ 0 }) != 0)
			MUST(errno == EAGAIN);
		if (i % 100 == 50) {
			MUST(kill(parent, SIGSTOP) == 0);
			nanosleep(&pause, NULL);
			MUST(kill(parent, SIGCONT) == 0);
		}
		nanosleep(&pause, NULL);
	}
	_exit(0);
}

int main(int argc, char **argv)
{
	size_t threads = number(argc, argv, 2, 1), signals = number(argc, argv, 3, 0);
	pieces = number(argc, argv, 1, 64) * MIB / (PIECE * PAGE) / threads;
	pthread_t thread[THREADS];
	MUST(threads <= THREADS);
	MUST(signal(SIGRTMIN, takes) != SIG_ERR);
	pid_t parent = getpid(), child = signals > 0 ? fork() : 0;
	MUST(child >= 0);
	if (signals > 0 && child == 0)
		send(parent, signals);
	for (size_t i = 1; i < threads; i++)
		MUST(pthread_create(&thread[i], NULL, grow, (void *)i) == 0);
	grow(NULL);
	for (size_t i = 1; i < threads; i++)
		MUST(pthread_join(thread[i], NULL) == 0);
	if (signals > 0)
		wait_for(child);
	if (came != signals)
		die("%zu of %zu signals", (size_t)came, signals);
	printf("OK %zu\n", pieces * threads);
	return 0;
}
