/* Memory of which the nodes are said: policies WAY MIB ROUNDS
 * bound: each node has a part of the memory, bound to it (mbind), whose threads are anywhere. process: the program executes itself, bound to its last
 * node as by numactl (set_mempolicy). In both each page is there whenever it is looked at, and has its policy in the end.
 * thread: the only thread binds itself to the last node before it touches anything. local: a thread on each node, with a part of its own. How many pages
 * were there is said on standard error. */
#include "common.h"
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>

/* Pages that are checked at a time, and then looked for. */
enum { LOOK = 64, NODES = 64 };

static atomic_size_t looked, right;
static size_t rounds;
static struct part {
	pthread_t thread;
	unsigned char *start;
	size_t pages;
	int node;
} parts[NODES];

static uint64_t nodes(void)
{
	uint64_t all = 0;
	MUST(syscall(SYS_get_mempolicy, NULL, &all, NODES, NULL, MPOL_F_MEMS_ALLOWED) == 0);
	return all;
}

static void bind_thread(int node)
{
	uint64_t only = (uint64_t)1 << node;
	MUST(syscall(SYS_set_mempolicy, MPOL_BIND, &only, NODES) == 0);
}

/* Those that are in memory now. */
static void look(unsigned char *start, size_t pages, int node)
{
	void *addresses[LOOK];
	int found[LOOK];
	for (size_t i = 0; i < pages; i++)
		addresses[i] = start + i * PAGE;
	MUST(syscall(SYS_move_pages, 0, pages, addresses, NULL, found, 0) == 0);
	for (size_t i = 0; i < pages; i++) {
		looked += found[i] >= 0;
		right += found[i] == node;
	}
}

static void *use(void *argument)
{
	struct part *part = argument;
	for (size_t round = 0; round <= rounds; round++)
		for (size_t at = 0; at < part->pages; at += LOOK) {
			size_t pages = part->pages - at < LOOK ? part->pages - at : LOOK;
			unsigned char *start = part->start + at * PAGE;
			if (round == 0)
				fill(start, pages, "t", at);
			else
				check(start, pages, "t", at, "what it wrote");
			look(start, pages, part->node);
		}
	return NULL;
}

/* Keeps the calling thread on a CPU of a node; false: the node has none. */
static int goes_to(int node)
{
	char path[64];
	int cpu;
	snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
	FILE *list = fopen(path, "r");
	MUST(list != NULL);
	int has_any = fscanf(list, "%d", &cpu) == 1;
	MUST(fclose(list) == 0);
	if (has_any) {
		cpu_set_t only;
		CPU_ZERO(&only);
		CPU_SET(cpu, &only);
		MUST(sched_setaffinity(0, sizeof only, &only) == 0);
	}
	return has_any;
}

static void *use_there(void *argument)
{
	struct part *part = argument;
	return goes_to(part->node) ? use(part) : NULL;
}

static void has_policy(unsigned char *start, int node)
{
	uint64_t set = 0;
	int policy;
	MUST(syscall(SYS_get_mempolicy, &policy, &set, NODES, start, MPOL_F_ADDR) == 0);
	if (policy != MPOL_BIND || set != (uint64_t)1 << node)
		die("%p has policy %d of nodes %llx", (void *)start, policy, (unsigned long long)set);
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "bound";
	uint64_t all = nodes();
	int last = 63 - __builtin_clzll(all), count = 0;
	if (strcmp(way, "process") == 0) {
		bind_thread(last);
		argv[1] = "executed";
		execv("/proc/self/exe", argv);
		die("execv: %s", strerror(errno));
	}
	rounds = number(argc, argv, 3, 4);
	size_t pages = number(argc, argv, 2, 64) * MIB / PAGE;
	int is_bound = strcmp(way, "bound") == 0, in_parts = is_bound || strcmp(way, "local") == 0;
	int insists = is_bound || strcmp(way, "executed") == 0;
	if (strcmp(way, "thread") == 0)
		bind_thread(last);
	for (int node = 0; node < NODES; node++)
		if (all >> node & 1 && (in_parts || node == last))
			parts[count++].node = node;
	for (int i = 0; i < count; i++) {
		uint64_t only = (uint64_t)1 << parts[i].node;
		parts[i].pages = pages / (size_t)count;
		parts[i].start = map_pages(parts[i].pages);
		MUST(!is_bound || syscall(SYS_mbind, parts[i].start, parts[i].pages * PAGE, MPOL_BIND, &only, NODES, 0) == 0);
	}
	for (int i = 0; i < count && in_parts; i++)
		MUST(pthread_create(&parts[i].thread, NULL, is_bound ? use : use_there, &parts[i]) == 0);
	for (int i = 0; i < count && in_parts; i++)
		MUST(pthread_join(parts[i].thread, NULL) == 0);
	if (!in_parts)
		use(&parts[0]);
	for (int i = 0; i < count && is_bound; i++)
		has_policy(parts[i].start, parts[i].node);
	fprintf(stderr, "%s: %zu of %zu pages are on their node, of %d\n", way, right, looked, __builtin_popcountll(all));
	if (insists && right != looked)
		die("%s: %zu of %zu pages are elsewhere", way, looked - right, looked);
	printf("OK %d\n", looked > 0);
	return 0;
}
