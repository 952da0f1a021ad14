/* fork_moves FORKS MIB: a thread moves a large mapping to and fro, between places that are a page apart modulo 2 MiB, so that the kernel moves page by
   page; another one maps, fills and unmaps; and the first one forks all the while. Every byte is verified, in the children too. */
#include "common.h"
#include <pthread.h>
#include <sys/wait.h>

static unsigned char *place[2];
static size_t pages;
static int end;

/* Whether something is mapped at a place that is nobody else's. */
static int is_mapped(const unsigned char *at)
{
	return msync((void *)(uintptr_t)at, PAGE, MS_ASYNC) == 0;
}

static void check_where_it_is(size_t step, const char *where)
{
	int at = is_mapped(place[1]);
	if (is_mapped(place[0]) == at)
		die("%s: the mapping is at %s", where, at ? "both places" : "none of the places");
	for (size_t page = step % 3; page < pages; page += step)
		check_page(place[at] + page * PAGE, kind_at("tnw", page), 1 + page * PAGE, where);
}

static void *moves(void *unused)
{
	(void)unused;
	for (int at = 0; !__atomic_load_n(&end, __ATOMIC_ACQUIRE); at = !at) {
		void *to = place[!at];
		MUST(mremap(place[at], pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
		check_page(place[!at], kind_at("tnw", 0), 1, "after a move");
	}
	return NULL;
}

static void *unmaps(void *unused)
{
	(void)unused;
	for (uint64_t seed = 1; !__atomic_load_n(&end, __ATOMIC_ACQUIRE); seed++) {
		size_t some = pages / 4;
		unsigned char *start = map_pages(some);
		fill(start, some, "tn", seed);
		check(start, some, "tn", seed, "before it is unmapped");
		MUST(munmap(start, some * PAGE) == 0);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	size_t forks = number(argc, argv, 1, 50);
	pages = number(argc, argv, 2, 48) * MIB / PAGE;
	/* Where nobody else maps anything. */
	unsigned char *room = (unsigned char *)0x100000000000;
	place[0] = room;
	place[1] = room + 2 * pages * PAGE + PAGE;
	MUST(mmap(place[0], pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == place[0]);
	fill(place[0], pages, "tnw", 1);
	pthread_t thread[2];
	MUST(pthread_create(&thread[0], NULL, moves, NULL) == 0 && pthread_create(&thread[1], NULL, unmaps, NULL) == 0);
	for (size_t i = 0; i < forks; i++) {
		pid_t child = fork();
		int status;
		MUST(child >= 0);
		if (child == 0) {
			check_where_it_is(i % 10 ? 61 : 1, "a child");
			_exit(0);
		}
		MUST(waitpid(child, &status, 0) == child && status == 0);
		usleep(next_random(&(uint64_t){ i }) % 5000);
	}
	__atomic_store_n(&end, 1, __ATOMIC_RELEASE);
	MUST(pthread_join(thread[0], NULL) == 0 && pthread_join(thread[1], NULL) == 0);
	check_where_it_is(1, "the parent");
	printf("OK\n");
	return 0;
}
