/* A server that forks its workers ahead. prefork MIB WORKERS OWN_MIB ROUNDS
 * The parent fills MIB and forks WORKERS. Each worker fills OWN_MIB of its own, overwrites its part of what it inherited, and goes on checking
 * and overwriting both, a little at a time, until it is told to end. In each round the eldest tenth of the workers ends, as many new ones
 * are forked, and half a second passes. The parent overwrites a part of its memory between the rounds. */
#include "common.h"
#include <signal.h>
#include <sys/wait.h>

static unsigned char *area;
static size_t pages, workers, own_pages;
static volatile sig_atomic_t is_over;
static const char *kinds = "twtt";

static void end(int unused)
{
	(void)unused;
	is_over = 1;
}

/* Checks or makes a worker's part of the inherited pages: every `workers`th run of 16. */
static void part(size_t index, int makes, uint64_t seed)
{
	for (size_t run = index; run * 16 < pages; run += workers * 2)
		for (size_t i = run * 16; i < run * 16 + 16 && i < pages; i++)
			if (makes)
				make_page(area + i * PAGE, kind_at(kinds, i), seed + i * PAGE);
			else
				check_page(area + i * PAGE, kind_at(kinds, i), seed + i * PAGE, "a worker's part");
}

static void work(size_t index, uint64_t inherited)
{
	uint64_t seed = 1000 + (uint64_t)getpid();
	unsigned char *own = map_pages(own_pages);
	part(index, 0, inherited);
	part(index, 1, seed);
	fill(own, own_pages, kinds, seed);
	for (size_t lap = 0; !is_over; lap++) {
		size_t first = lap % 16 * (own_pages / 16);
		for (size_t i = first; i < first + own_pages / 16; i++) {
			check_page(own + i * PAGE, kind_at(kinds, i), seed + i * PAGE, "a worker's own");
			make_page(own + i * PAGE, kind_at(kinds, i), seed + i * PAGE);
		}
		usleep(200 * 1000);
	}
	part(index, 0, seed);
	check(own, own_pages, kinds, seed, "a worker's own, at the end");
	_exit(0);
}

static pid_t start(size_t index, uint64_t content)
{
	pid_t worker = fork();
	MUST(worker >= 0);
	if (worker == 0)
		work(index, content);
	return worker;
}

int main(int argc, char **argv)
{
	pages = number(argc, argv, 1, 64) * MIB / PAGE;
	workers = number(argc, argv, 2, 80);
	own_pages = number(argc, argv, 3, 4) * MIB / PAGE;
	size_t rounds = number(argc, argv, 4, 5);
	pid_t *pids = calloc(workers, sizeof *pids);
	MUST(pids != NULL);
	MUST(signal(SIGTERM, end) != SIG_ERR);
	area = map_pages(pages);
	fill(area, pages, kinds, 0);
	for (size_t i = 0; i < workers; i++)
		pids[i] = start(i, 0);
	sleep(2);
	for (size_t round = 0; round <= rounds; round++) {
		/* In the last round all end. */
		size_t first = round == rounds ? 0 : round * (workers / 10), last = round == rounds ? workers : first + workers / 10;
		for (size_t i = first; i < last; i++)
			MUST(kill(pids[i % workers], SIGTERM) == 0);
		for (size_t i = first; i < last; i++) {
			wait_for(pids[i % workers]);
			if (round < rounds)
				pids[i % workers] = start(i % workers, 0);
		}
		/* The second half of the runs is nobody's part but the parent's. */
		for (size_t run = workers; run * 16 < pages; run += workers * 2)
			for (size_t i = run * 16; i < run * 16 + 16 && i < pages; i++)
				make_page(area + i * PAGE, kind_at(kinds, i), i * PAGE);
		usleep(500 * 1000);
	}
	check(area, pages, kinds, 0, "the parent's own");
	printf("OK %016llx\n", (unsigned long long)checksum(area, pages * PAGE, 1));
	return 0;
}
