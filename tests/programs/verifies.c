/* Memory that is checked all the time while part of it is written again. verifies MIB KINDS [FIXED_MIB]
 * Makes the file `ready` when all is written once, and goes on until the file `go` is there. So many FIXED_MIB more are code, which
 * lowtide leaves where it is. At SIGUSR1 it says in the file `latency` how long it has waited for pages since the latest one. */
#include "common.h"
#include <fcntl.h>
#include <signal.h>
#include <time.h>

enum { BLOCK = 64, BUCKETS = 20000 };

static volatile sig_atomic_t asked;
/* Touches by how long they took, in microseconds; those that found the page in memory are left out. */
static unsigned waits[BUCKETS];

static void ask(int signal)
{
	(void)signal;
	asked = 1;
}

static double now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Brings pages in, one after the other. */
static void touch(unsigned char *pages, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		double began = now_us();
		*(volatile unsigned char *)(pages + i * PAGE);
		double took = now_us() - began;
		if (took >= 2)
			waits[took < BUCKETS ? (size_t)took : BUCKETS - 1]++;
	}
}

static size_t quantile(double share, size_t total)
{
	size_t seen = 0, i = 0;
	while (i < BUCKETS - 1 && (double)(seen += waits[i]) < share * (double)total)
		i++;
	return i;
}

static void tell(void)
{
	size_t total = 0;
	for (size_t i = 0; i < BUCKETS; i++)
		total += waits[i];
	FILE *file = fopen("latency.new", "w");
	MUST(file != NULL);
	fprintf(file, "%zu %zu %zu\n", total, quantile(0.5, total), quantile(0.99, total));
	MUST(fclose(file) == 0 && rename("latency.new", "latency") == 0);
	memset(waits, 0, sizeof waits);
	asked = 0;
}

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 64) * MIB / PAGE, fixed = number(argc, argv, 3, 0) * MIB / PAGE;
	const char *kinds = argc > 2 ? argv[2] : "t";
	size_t blocks = pages / BLOCK;
	uint64_t random = 7;
	uint32_t *generation = calloc(blocks, sizeof *generation);
	unsigned char *area = map_pages(pages);
	MUST(generation != NULL && signal(SIGUSR1, ask) != SIG_ERR);
	if (fixed > 0)
		map_code(fixed, "n", 3);
	for (size_t i = 0; i < blocks; i++)
		fill(area + i * BLOCK * PAGE, BLOCK, kinds, ++generation[i] + i * 1000003);
	MUST(close(open("ready", O_CREAT | O_WRONLY, 0600)) == 0);
	while (access("go", F_OK) != 0) {
		for (size_t n = 0; n < 16; n++) {
			size_t i = next_random(&random) % blocks;
			if (asked)
				tell();
			touch(area + i * BLOCK * PAGE, BLOCK);
			check(area + i * BLOCK * PAGE, BLOCK, kinds, generation[i] + i * 1000003, "while it is moved");
			if (next_random(&random) % 4 == 0)
				fill(area + i * BLOCK * PAGE, BLOCK, kinds, ++generation[i] + i * 1000003);
		}
	}
	for (size_t i = 0; i < blocks; i++)
		check(area + i * BLOCK * PAGE, BLOCK, kinds, generation[i] + i * 1000003, "at the end");
	printf("OK\n");
	return 0;
}
