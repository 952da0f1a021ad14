/* madvise: pages that are dropped now or later, filled, cold, huge, or guards. */
#include "torture.h"

/* musl has no names for them. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

/* Of newer kernels than some C libraries. */
enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103, COLLAPSE = 25 };

/* As a hint: whether it is followed is the kernel's affair, the bytes stay. */
static void hint(struct worker *w, struct region *r, int advice, const char *what, size_t most)
{
	size_t pages, first = part_of(w, r, most, &pages);
	remember(w, r, what, first, pages);
	madvise(r->start + first * PAGE, pages * PAGE, advice);
	check_sample(w, r, first, pages, what);
}

void drop(struct worker *w)
{
	struct region *r = any_region(w);
	if (r == NULL)
		return;
	size_t pages, first = part_of(w, r, MOST_PAGES, &pages);
	for (size_t i = first; i < first + pages; i++)
		if (r->state[i] & LOCKED) {
			make_plain(w, r, first, pages);
			break;
		}
	MUST(madvise(r->start + first * PAGE, pages * PAGE, MADV_DONTNEED) == 0);
	remember(w, r, "MADV_DONTNEED", first, pages);
	set_zero(r, first, pages);
	check_sample(w, r, 0, r->pages, "after MADV_DONTNEED");
}

void free_lazily(struct worker *w)
{
	struct region *r = any_region(w);
	if (r == NULL)
		return;
	size_t pages, first = part_of(w, r, MOST_PAGES, &pages);
	make_plain(w, r, first, pages);
	if (madvise(r->start + first * PAGE, pages * PAGE, MADV_FREE) != 0) {
		MUST(is_refused(EINVAL));
		return;
	}
	remember(w, r, "MADV_FREE", first, pages);
	for (size_t i = first; i < first + pages; i++)
		r->state[i] |= FREED;
	/* Some are written at once, others stay in doubt. */
	for (size_t i = first; i < first + pages; i += 1 + pick(w, 8))
		check_region_page(w, r, i, "after MADV_FREE");
}

void populate(struct worker *w)
{
	struct region *r = any_region(w);
	if (r == NULL)
		return;
	if (pick(w, 2))
		hint(w, r, MADV_POPULATE_READ, "MADV_POPULATE_READ", MOST_PAGES);
	else
		hint(w, r, MADV_POPULATE_WRITE, "MADV_POPULATE_WRITE", MOST_PAGES);
}

void cool(struct worker *w)
{
	struct region *r = any_region(w);
	if (r == NULL)
		return;
	if (pick(w, 2))
		hint(w, r, MADV_COLD, "MADV_COLD", MOST_PAGES);
	else
		hint(w, r, MADV_PAGEOUT, "MADV_PAGEOUT", MOST_PAGES);
}

/* Of a whole region, because it is a property of mappings, and parts with another one can't be moved together. */
void huge(struct worker *w)
{
	struct region *r = any_region(w);
	if (r == NULL || r->is_break)
		return;
	size_t which = pick(w, 4);
	static const int ADVICE[] = { MADV_HUGEPAGE, MADV_HUGEPAGE, MADV_NOHUGEPAGE, COLLAPSE };
	static const char *const NAME[] = { "MADV_HUGEPAGE", "MADV_HUGEPAGE", "MADV_NOHUGEPAGE", "MADV_COLLAPSE" };
	madvise(r->start, r->pages * PAGE, ADVICE[which]);
	remember(w, r, NAME[which], 0, r->pages);
	check_sample(w, r, 0, r->pages, NAME[which]);
}

/* Guards come, and at times go: what was there is gone either way. */
void guard(struct worker *w)
{
	struct region *r = any_region(w);
	if (r == NULL)
		return;
	size_t pages, first = part_of(w, r, 64, &pages);
	if (pick(w, 3) == 0) {
		make_plain(w, r, first, pages);
		check_sample(w, r, first, pages, "without guards");
		return;
	}
	for (size_t i = first; i < first + pages; i++)
		if (r->state[i] & LOCKED) {
			make_plain(w, r, first, pages);
			break;
		}
	if (madvise(r->start + first * PAGE, pages * PAGE, GUARD_INSTALL) != 0) {
		/* Linux before 6.13. */
		MUST(errno == EINVAL);
		return;
	}
	remember(w, r, "guards", first, pages);
	set_zero(r, first, pages);
	for (size_t i = first; i < first + pages; i++)
		r->state[i] |= GUARD;
	check_sample(w, r, 0, r->pages, "beside guards");
}
