/* Threads that mix everything a program does with its memory, each on its own areas, every byte checked against what was last
 * written. thread_mix THREADS ROUNDS MIB_EACH [SEED]
 *
 * An area is a run of pages, each with a generation: 0 is "reads zero", any other number says which content was written last. */
#include "common.h"
#include <pthread.h>

enum { AREAS = 200, MOST_PAGES = 512 };

struct area {
	unsigned char *start;
	size_t pages;
	int from_malloc;
	int patched;                     /* by MAP_FIXED: maybe several mappings, which mremap refuses */
	uint32_t id;                     /* content is a function of (id, number, generation) */
	uint32_t generation[MOST_PAGES]; /* 0: zero */
	uint32_t number[MOST_PAGES];     /* the page's number when it was written; it moves with the page */
};

struct thread {
	pthread_t handle;
	uint64_t random;
	size_t rounds, most, used;
	uint32_t next_id, clock;
	uint64_t sum;
	struct area area[AREAS];
};

static size_t pick(struct thread *t, size_t below)
{
	return next_random(&t->random) % below;
}

static enum kind kind_for(const struct area *a, size_t i)
{
	return kind_of("wtttnttw"[(a->id + a->number[i]) % 8]);
}

static uint64_t seed_for(const struct area *a, size_t i)
{
	return (uint64_t)a->id << 40 ^ (uint64_t)a->number[i] << 24 ^ a->generation[i];
}

static void write_page(struct thread *t, struct area *a, size_t i)
{
	a->generation[i] = ++t->clock;
	a->number[i] = (uint32_t)i;
	make_page(a->start + i * PAGE, kind_for(a, i), seed_for(a, i));
}

static void check_area_page(const struct area *a, size_t i, const char *where)
{
	if (a->generation[i] == 0)
		check_zero(a->start + i * PAGE, PAGE, where);
	else
		check_page(a->start + i * PAGE, kind_for(a, i), seed_for(a, i), where);
}

static void check_area(const struct area *a, const char *where)
{
	for (size_t i = 0; i < a->pages; i++)
		check_area_page(a, i, where);
}

static void set_zero(struct area *a, size_t first, size_t pages)
{
	for (size_t i = first; i < first + pages; i++)
		a->generation[i] = 0;
}

/* A random part of an area. */
static size_t part(struct thread *t, const struct area *a, size_t *pages)
{
	size_t first = pick(t, a->pages);
	*pages = 1 + pick(t, a->pages - first);
	return first;
}

static void give_up(struct thread *t, struct area *a)
{
	check_area(a, "before the area goes");
	t->used -= a->pages;
	if (a->from_malloc)
		free(a->start);
	else
		MUST(munmap(a->start, a->pages * PAGE) == 0);
	a->start = NULL;
	a->pages = 0;
}

static void create(struct thread *t, struct area *a)
{
	size_t pages = 1 + pick(t, pick(t, 4) == 0 ? MOST_PAGES / 2 : 48);
	if (t->used + pages > t->most)
		return;
	a->from_malloc = pick(t, 3) == 0;
	a->patched = 0;
	a->pages = pages;
	a->id = t->next_id++;
	if (a->from_malloc) {
		MUST((a->start = malloc(pages * PAGE)) != NULL);
	} else {
		a->start = map_pages(pages);
		check_zero(a->start + pick(t, pages) * PAGE, PAGE, "new mapping");
	}
	t->used += pages;
	for (size_t i = 0; i < pages; i++)
		if (a->from_malloc || pick(t, 8) != 0)
			write_page(t, a, i);
		else
			a->generation[i] = 0;
}

/* Gives area `a` the new length `pages`; new pages are written. */
static void resized(struct thread *t, struct area *a, void *start, size_t pages, int fresh_is_zero)
{
	size_t old = a->pages;
	a->start = start;
	a->pages = pages;
	t->used = t->used - old + pages;
	for (size_t i = old; i < pages; i++) {
		if (fresh_is_zero) {
			set_zero(a, i, 1);
			if (i % 5 == 0)
				check_area_page(a, i, "grown tail");
		}
		write_page(t, a, i);
	}
}

static void realloc_area(struct thread *t, struct area *a)
{
	size_t pages = 1 + pick(t, MOST_PAGES / 2);
	void *start = realloc(a->start, pages * PAGE);
	MUST(start != NULL);
	resized(t, a, start, pages, 0);
	check_area(a, "after realloc");
}

static void mremap_area(struct thread *t, struct area *a)
{
	size_t old = a->pages, pages, i;
	void *start;
	switch (pick(t, 5)) {
	case 0: /* shrinks in place */
		pages = 1 + pick(t, old);
		MUST(mremap(a->start, old * PAGE, pages * PAGE, 0) == a->start);
		resized(t, a, a->start, pages, 1);
		break;
	case 1: /* grows, wherever */
		pages = old + pick(t, MOST_PAGES - old + 1);
		start = mremap(a->start, old * PAGE, pages * PAGE, MREMAP_MAYMOVE);
		MUST(start != MAP_FAILED || is_refused(ENOMEM));
		if (start == MAP_FAILED)
			break;
		resized(t, a, start, pages, 1);
		break;
	case 2: /* grows in place if there is room, is checked there, and shrinks back: the same end either way */
		pages = old + pick(t, MOST_PAGES - old + 1);
		if (pages == old || mremap(a->start, old * PAGE, pages * PAGE, 0) == MAP_FAILED)
			break;
		check_zero(a->start + old * PAGE, (pages - old) * PAGE, "tail grown in place");
		for (i = old; i < pages; i++)
			make_page(a->start + i * PAGE, TEXT, i);
		MUST(mremap(a->start, pages * PAGE, old * PAGE, 0) == a->start);
		break;
	case 3: /* moves over a mapping that was written */
		start = map_pages(old);
		memset(start, 0x5a, old * PAGE);
		if (mremap(a->start, old * PAGE, old * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, start) == start) {
			a->start = start;
		} else {
			MUST(is_refused(ENOMEM));
			MUST(munmap(start, old * PAGE) == 0);
		}
		break;
	case 4: /* moves the pages, and leaves the old place mapped and empty */
#ifdef MREMAP_DONTUNMAP
		start = mremap(a->start, old * PAGE, old * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
		MUST(start != MAP_FAILED || is_refused(ENOMEM));
		if (start == MAP_FAILED)
			break;
		check_zero(a->start, old * PAGE, "what DONTUNMAP left");
		memset(a->start, 0xa5, old * PAGE);
		MUST(munmap(a->start, old * PAGE) == 0);
		a->start = start;
#endif
		break;
	}
	check_area(a, "after mremap");
}

/* Unmaps a part: what lies before it stays this area, what lies after it becomes `spare` (or goes too). */
static void unmap_part(struct thread *t, struct area *a, struct area *spare)
{
	size_t pages, first = part(t, a, &pages), after = a->pages - first - pages;
	unsigned char *tail = a->start + (first + pages) * PAGE;
	MUST(munmap(a->start + first * PAGE, pages * PAGE) == 0);
	t->used -= pages;
	if (after > 0 && spare == NULL) {
		MUST(munmap(tail, after * PAGE) == 0);
		t->used -= after;
	} else if (after > 0) {
		*spare = (struct area){ .start = tail, .pages = after, .patched = a->patched, .id = a->id };
		memcpy(spare->generation, a->generation + first + pages, after * sizeof *spare->generation);
		memcpy(spare->number, a->number + first + pages, after * sizeof *spare->number);
		check_area(spare, "tail of a partial munmap");
	}
	a->pages = first;
	if (first == 0)
		a->start = NULL;
	else
		check_area(a, "head of a partial munmap");
}

static struct area *free_area(struct thread *t)
{
	for (size_t i = 0; i < AREAS; i++)
		if (t->area[i].start == NULL)
			return &t->area[i];
	return NULL;
}

static void one_round(struct thread *t)
{
	struct area *a = &t->area[pick(t, AREAS)];
	size_t pages, first;
	if (a->start == NULL) {
		create(t, a);
		return;
	}
	first = part(t, a, &pages);
	switch (pick(t, 16)) {
	case 0:
		give_up(t, a);
		break;
	case 1:
	case 2:
		if (a->from_malloc)
			realloc_area(t, a);
		else if (!a->patched)
			mremap_area(t, a);
		break;
	case 3:
		if (!a->from_malloc)
			unmap_part(t, a, free_area(t));
		break;
	case 4:
	case 5:
		if (a->from_malloc)
			break;
		MUST(madvise(a->start + first * PAGE, pages * PAGE, MADV_DONTNEED) == 0);
		set_zero(a, first, pages);
		check_area(a, "after DONTNEED");
		break;
	case 6: /* a new mapping over a part of the old one */
		if (a->from_malloc)
			break;
		MUST(mmap(a->start + first * PAGE, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
		     a->start + first * PAGE);
		a->patched = 1;
		set_zero(a, first, pages);
		check_area(a, "after MAP_FIXED");
		break;
	case 7: /* read-only, read, and back */
		if (a->from_malloc)
			break;
		MUST(mprotect(a->start + first * PAGE, pages * PAGE, PROT_READ) == 0);
		check_area(a, "read-only");
		MUST(mprotect(a->start + first * PAGE, pages * PAGE, PROT_READ | PROT_WRITE) == 0);
		check_area(a, "writable again");
		break;
	case 8: /* not even readable for a while */
		if (a->from_malloc)
			break;
		MUST(mprotect(a->start + first * PAGE, pages * PAGE, PROT_NONE) == 0);
		sched_yield();
		MUST(mprotect(a->start + first * PAGE, pages * PAGE, PROT_READ | PROT_WRITE) == 0);
		check_area(a, "readable again");
		break;
	case 9: /* MADV_FREE: each page is as it was, or zero */
		if (a->from_malloc)
			break;
		MUST(madvise(a->start + first * PAGE, pages * PAGE, MADV_FREE) == 0 || is_refused(EINVAL));
		for (size_t i = first; i < first + pages; i++) {
			static const unsigned char zero[PAGE];
			if (memcmp(a->start + i * PAGE, zero, PAGE) != 0)
				check_area_page(a, i, "after MADV_FREE");
			write_page(t, a, i);
		}
		break;
	case 10:
	case 11:
	case 12:
		for (size_t i = first; i < first + pages; i++)
			write_page(t, a, i);
		break;
	default:
		for (size_t i = first; i < first + pages; i++)
			check_area_page(a, i, "later");
		break;
	}
}

static void *run(void *argument)
{
	struct thread *t = argument;
	for (size_t round = 0; round < t->rounds; round++)
		one_round(t);
	for (size_t i = 0; i < AREAS; i++) {
		if (t->area[i].start == NULL)
			continue;
		check_area(&t->area[i], "at the end");
		t->sum = checksum(t->area[i].start, t->area[i].pages * PAGE, t->sum);
		give_up(t, &t->area[i]);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	size_t threads = number(argc, argv, 1, 4), rounds = number(argc, argv, 2, 4000), mib = number(argc, argv, 3, 48);
	uint64_t seed = number(argc, argv, 4, 1), sum = 0;
	struct thread *all = calloc(threads, sizeof *all);
	MUST(all != NULL);
	for (size_t i = 0; i < threads; i++) {
		all[i].random = mix(seed * 1000 + i);
		all[i].rounds = rounds;
		all[i].most = mib * MIB / PAGE;
		all[i].next_id = (uint32_t)(i << 20);
		MUST(pthread_create(&all[i].handle, NULL, run, &all[i]) == 0);
	}
	for (size_t i = 0; i < threads; i++) {
		MUST(pthread_join(all[i].handle, NULL) == 0);
		sum = sum * 31 + all[i].sum;
	}
	free(all);
	printf("OK threads=%zu rounds=%zu %016llx\n", threads, rounds, (unsigned long long)sum);
	return 0;
}
