/* mremap: regions that grow, shrink and move. */
#include "torture.h"

atomic_ulong refused;

/* Whether a region is one mapping. Parts that had another protection while the process forked may stay mappings of their
 * own; then the kernel refuses to make it longer before it looks whether there is room. */
static int is_one_mapping(const struct region *r)
{
	size_t length = r->pages * PAGE;
	if (mremap(r->start, length, length + PAGE, 0) != MAP_FAILED)
		MUST(mremap(r->start, length + PAGE, length, 0) == r->start);
	else if (errno != ENOMEM) {
		MUST(errno == EFAULT);
		return 0;
	}
	return 1;
}

/* A region that mremap takes: one mapping, without locks and protection. NULL: none was found. Guards stay now and then:
 * they move along. */
static struct region *movable(struct worker *w)
{
	struct region *r = any_region(w);
	if (r == NULL || r->patched || r->is_break)
		return NULL;
	for (size_t i = 0; i < r->pages; i++)
		if (r->state[i] & ~GUARD) {
			make_plain(w, r, 0, r->pages);
			break;
		}
	if (is_one_mapping(r))
		return r;
	r->patched = 1;
	refused++;
	return NULL;
}

/* Gives a region its new place and length; what is new is zero, and most of it is written. */
void resized(struct worker *w, struct region *r, unsigned char *start, size_t pages)
{
	size_t old = r->pages;
	r->start = start;
	r->pages = pages;
	w->used = w->used - old + pages;
	if (pages <= old)
		return;
	memset(r->state + old, 0, pages - old);
	set_zero(r, old, pages - old);
	check_sample(w, r, old, pages - old, "grown tail");
	for (size_t i = old; i < pages; i++)
		if (pick(w, 4) != 0)
			write_page(w, r, i);
}

/* Shrinks, or grows: in place if there is room, or wherever there is. */
void resize(struct worker *w)
{
	struct region *r = movable(w);
	if (r == NULL)
		return;
	size_t old = r->pages, pages = 1 + pick(w, pick(w, 2) ? MOST_PAGES : old), may_move = pick(w, 3);
	if (w->used + pages > w->most + old)
		return;
	unsigned char *start = mremap(r->start, old * PAGE, pages * PAGE, may_move ? MREMAP_MAYMOVE : 0);
	if (start == MAP_FAILED && !may_move && errno == ENOMEM)
		return;
	if (start == MAP_FAILED && is_refused(ENOMEM))
		return;
	MUST(start != MAP_FAILED);
	remember(w, r, start == r->start ? "mremap" : "mremap, moved", 0, pages);
	resized(w, r, start, pages);
	check_sample(w, r, 0, pages, "after mremap");
}

/* Moves a region over the beginning of another one, or over a new mapping. */
void move_over(struct worker *w)
{
	struct region *r = movable(w), *under = any_region(w);
	if (r == NULL)
		return;
	unsigned char *to;
	if (under == r || under->pages < r->pages || under->is_break) {
		to = map_pages(r->pages);
		memset(to, 0x5a, r->pages * PAGE);
	} else {
		to = under->start;
		make_plain(w, under, 0, r->pages);
		under->pages -= r->pages;
		under->start = under->pages == 0 ? NULL : to + r->pages * PAGE;
		memmove(under->page, under->page + r->pages, under->pages * sizeof *under->page);
		memmove(under->state, under->state + r->pages, under->pages);
		remember(w, under, "the beginning was moved over", 0, r->pages);
		w->used -= r->pages;
	}
	if (mremap(r->start, r->pages * PAGE, r->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) {
		MUST(is_refused(ENOMEM));
		MUST(munmap(to, r->pages * PAGE) == 0);
		return;
	}
	r->start = to;
	remember(w, r, "MREMAP_FIXED", 0, r->pages);
	check_sample(w, r, 0, r->pages, "after MREMAP_FIXED");
	if (under != r && under->start != NULL)
		check_sample(w, under, 0, under->pages, "what was moved over in part");
}

/* Moves the pages, and leaves the old place mapped and empty: a region of its own, if there is a slot. */
void move_and_leave(struct worker *w)
{
	struct region *r = movable(w), *left = free_slot(w);
	if (r == NULL || left == NULL || w->used + r->pages > w->most)
		return;
	unsigned char *start = mremap(r->start, r->pages * PAGE, r->pages * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	if (start == MAP_FAILED && is_refused(ENOMEM))
		return;
	MUST(start != MAP_FAILED);
	left->start = r->start;
	left->pages = r->pages;
	left->patched = left->is_break = 0;
	memset(left->state, 0, sizeof left->state);
	set_zero(left, 0, left->pages);
	w->used += left->pages;
	r->start = start;
	remember(w, r, "MREMAP_DONTUNMAP", 0, r->pages);
	remember(w, left, "left by MREMAP_DONTUNMAP", 0, left->pages);
	check_sample(w, left, 0, left->pages, "left by MREMAP_DONTUNMAP");
	check_sample(w, r, 0, r->pages, "after MREMAP_DONTUNMAP");
}

/* The last part of a region moves away and becomes one of its own, which may be longer or shorter. */
void move_tail(struct worker *w)
{
	struct region *r = movable(w), *tail = free_slot(w);
	if (r == NULL || tail == NULL || r->pages < 2)
		return;
	size_t first = 1 + pick(w, r->pages - 1), pages = r->pages - first, length = 1 + pick(w, 2 * pages);
	if (length > MOST_PAGES || w->used + length > w->most)
		return;
	/* To a place that is not the old one. */
	unsigned char *to = map_pages(length);
	if (mremap(r->start + first * PAGE, pages * PAGE, length * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) {
		MUST(is_refused(ENOMEM));
		MUST(munmap(to, length * PAGE) == 0);
		return;
	}
	tail->pages = pages;
	tail->patched = tail->is_break = 0;
	memset(tail->state, 0, sizeof tail->state);
	memcpy(tail->page, r->page + first, pages * sizeof *tail->page);
	memcpy(tail->state, r->state + first, pages);
	r->pages = first;
	remember(w, r, "its tail moved away", first, pages);
	remember(w, tail, "was a tail", 0, length);
	resized(w, tail, to, length);
	check_sample(w, tail, 0, length, "moved tail");
	check_sample(w, r, 0, first, "whose tail moved");
}
