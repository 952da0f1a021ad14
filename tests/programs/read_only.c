/* Memory that is read-only most of the time, as a generational collector's heap is behind its write barrier: after each round all
 * of it is made read-only, and a signal handler makes a page writable when it is written. With "halves", every second page stays
 * writable. Its bytes are right in the end. read_only MIB ROUNDS whole|halves */
#include "common.h"
#include <signal.h>

static unsigned char *heap;
static size_t pages;
static volatile size_t barriers;

static void barrier(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	size_t page = ((size_t)info->si_addr - (size_t)heap) / PAGE;
	if (page >= pages)
		die("a fault at %p", info->si_addr);
	barriers++;
	MUST(mprotect(heap + page * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
}

int main(int argc, char **argv)
{
	MUST(argc == 4);
	pages = (size_t)atol(argv[1]) * MIB / PAGE;
	int rounds = atoi(argv[2]);
	size_t step = strcmp(argv[3], "halves") == 0 ? 2 : 1;
	struct sigaction action = { .sa_sigaction = barrier, .sa_flags = SA_SIGINFO | SA_NODEFER };
	MUST(sigaction(SIGSEGV, &action, NULL) == 0);
	heap = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(heap != MAP_FAILED);
	uint64_t *seeds = calloc(pages, sizeof *seeds), random = 1;
	MUST(seeds != NULL);
	fill(heap, pages, "tn", 0);
	for (size_t i = 0; i < pages; i++)
		seeds[i] = i * PAGE;
	for (int round = 0; round < rounds; round++) {
		for (size_t i = 0; i < pages; i += step)
			if (step > 1 || i == 0)
				MUST(mprotect(heap + i * PAGE, step > 1 ? PAGE : pages * PAGE, PROT_READ) == 0);
		for (size_t i = 0; i < 2 * pages; i++) {
			size_t page = next_random(&random) % pages;
			if (i % 16 == 0) {
				seeds[page] = random;
				make_page(heap + page * PAGE, kind_at("tn", page), random);
			} else {
				check_page(heap + page * PAGE, kind_at("tn", page), seeds[page], "in a round");
			}
		}
	}
	for (size_t i = 0; i < pages; i++)
		check_page(heap + i * PAGE, kind_at("tn", i), seeds[i], "in the end");
	printf("OK %zu pages, %zu barriers\n", pages, barriers);
	return 0;
}
