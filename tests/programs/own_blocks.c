/* Threads that grow, shrink, move, give back and map anew blocks of their own, as fast as they can: each takes at once the
 * place that another has just left. Every page is checked whenever its block has moved. Statically linked, so that all of this
 * is past the C library's hooks. own_blocks THREADS ROUNDS MIB_EACH [SEED] */
#include "common.h"
#include <pthread.h>

enum { BLOCKS = 24, LEAST = 32, STEP = 8 };

struct block {
	unsigned char *start; /* NULL: none */
	size_t pages;
	int from_malloc;
	uint64_t id;
};

struct thread {
	pthread_t handle;
	uint64_t random, next_id;
	size_t rounds, most_pages;
	struct block block[BLOCKS];
};

static uint64_t seed_of(const struct block *b, size_t page)
{
	return b->id << 20 ^ page;
}

/* Some pages of a mapping are never written, and read zeros wherever it goes. */
static int is_zero(const struct block *b, size_t page)
{
	return !b->from_malloc && page % 7 == 3;
}

static void write_pages(struct block *b, size_t from)
{
	for (size_t i = from; i < b->pages; i++)
		if (!is_zero(b, i))
			make_page(b->start + i * PAGE, TEXT, seed_of(b, i));
}

static void check_pages(const struct block *b, size_t pages, const char *where)
{
	for (size_t i = 0; i < pages; i++)
		if (is_zero(b, i))
			check_zero(b->start + i * PAGE, PAGE, where);
		else
			check_page(b->start + i * PAGE, TEXT, seed_of(b, i), where);
}

/* Sizes of a few kinds: what one leaves fits the next. */
static size_t some_pages(struct thread *t)
{
	size_t most = t->most_pages / BLOCKS / STEP * STEP;
	size_t pages = LEAST + next_random(&t->random) % (most / STEP) * STEP;
	return pages < most ? pages : most;
}

static void make_block(struct thread *t, struct block *b)
{
	*b = (struct block){ .pages = some_pages(t), .from_malloc = next_random(&t->random) % 2 != 0, .id = t->next_id++ };
	if (b->from_malloc)
		MUST((b->start = malloc(b->pages * PAGE)) != NULL);
	else
		b->start = map_pages(b->pages);
	write_pages(b, 0);
}

static void give_up(struct block *b)
{
	check_pages(b, b->pages, "before it goes");
	if (b->from_malloc)
		free(b->start);
	else
		MUST(munmap(b->start, b->pages * PAGE) == 0);
	b->start = NULL;
}

/* mremap, or what malloc does where that fails: threads without hooks are refused, and of memory that grew in the microseconds
 * in which it was registered it may fail (docs/limits.md). */
static unsigned char *moved(const struct block *b, size_t pages)
{
	unsigned char *start = mremap(b->start, b->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
	if (start != MAP_FAILED)
		return start;
	MUST(errno == EFAULT || is_refused(ENOMEM));
	start = map_pages(pages);
	for (size_t i = 0; i < pages && i < b->pages; i++)
		if (!is_zero(b, i))
			memcpy(start + i * PAGE, b->start + i * PAGE, PAGE);
	MUST(munmap(b->start, b->pages * PAGE) == 0);
	return start;
}

static void resize(struct thread *t, struct block *b)
{
	size_t old = b->pages, pages = some_pages(t);
	if (b->from_malloc)
		MUST((b->start = realloc(b->start, pages * PAGE)) != NULL);
	else
		b->start = moved(b, pages);
	b->pages = pages;
	check_pages(b, old < pages ? old : pages, "after it has moved");
	write_pages(b, old);
}

static void *run(void *argument)
{
	struct thread *t = argument;
	for (size_t round = 0; round < t->rounds; round++) {
		struct block *b = &t->block[next_random(&t->random) % BLOCKS];
		if (b->start == NULL)
			make_block(t, b);
		else if (next_random(&t->random) % 4 == 0)
			give_up(b);
		else
			resize(t, b);
	}
	for (size_t i = 0; i < BLOCKS; i++)
		if (t->block[i].start != NULL)
			give_up(&t->block[i]);
	return NULL;
}

int main(int argc, char **argv)
{
	size_t threads = number(argc, argv, 1, 4), rounds = number(argc, argv, 2, 2000), mib = number(argc, argv, 3, 32);
	uint64_t seed = number(argc, argv, 4, 1);
	struct thread *all = calloc(threads, sizeof *all);
	MUST(all != NULL);
	for (size_t i = 0; i < threads; i++) {
		all[i].random = mix(seed * 1000 + i);
		all[i].next_id = (uint64_t)i << 24;
		all[i].rounds = rounds;
		all[i].most_pages = mib * MIB / PAGE;
		MUST(pthread_create(&all[i].handle, NULL, run, &all[i]) == 0);
	}
	for (size_t i = 0; i < threads; i++)
		MUST(pthread_join(all[i].handle, NULL) == 0);
	free(all);
	printf("OK threads=%zu rounds=%zu\n", threads, rounds);
	return 0;
}
