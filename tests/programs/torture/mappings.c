/* Mappings come and go, in part and as a whole; protection and locks. */
#include "torture.h"

static int has(const struct region *r, size_t first, size_t pages, unsigned char states)
{
	for (size_t i = first; i < first + pages; i++)
		if (r->state[i] & states)
			return 1;
	return 0;
}

static void clear(struct region *r, size_t first, size_t pages, unsigned char states)
{
	for (size_t i = first; i < first + pages; i++)
		r->state[i] &= (unsigned char)~states;
}

static void unlock(struct worker *w, struct region *r, size_t first, size_t pages)
{
	for (size_t i = first; i < first + pages; i++)
		w->locked -= (r->state[i] & LOCKED) != 0;
	clear(r, first, pages, LOCKED);
}

int is_plain(const struct region *r, size_t first, size_t pages)
{
	return !has(r, first, pages, 0xff);
}

/* Afterwards these pages can be read and written, are not locked, and there is no doubt what they hold. */
void make_plain(struct worker *w, struct region *r, size_t first, size_t pages)
{
	unsigned char *at = r->start + first * PAGE;
	if (has(r, first, pages, READ_ONLY | NO_ACCESS)) {
		remember(w, r, "writable again", first, pages);
		MUST(mprotect(at, pages * PAGE, PROT_READ | PROT_WRITE) == 0);
		clear(r, first, pages, READ_ONLY | NO_ACCESS);
	}
	if (has(r, first, pages, GUARD)) {
		remember(w, r, "guards away", first, pages);
		MUST(madvise(at, pages * PAGE, 103 /* MADV_GUARD_REMOVE */) == 0);
		clear(r, first, pages, GUARD);
	}
	if (has(r, first, pages, LOCKED)) {
		remember(w, r, "munlock", first, pages);
		MUST(munlock(at, pages * PAGE) == 0);
		unlock(w, r, first, pages);
	}
	for (size_t i = first; i < first + pages; i++)
		if (r->state[i] & FREED)
			stamp_page(w, r, i);
}

/* A new mapping, most of it written. Some are as long as a huge page. */
void create(struct worker *w)
{
	static const size_t LONGEST[] = { 16, 48, 48, 256, 512, MOST_PAGES };
	size_t longest = LONGEST[pick(w, 6)], pages = longest == 512 ? 512 : 1 + pick(w, longest), untouched = pick(w, 8);
	struct region *r = free_slot(w);
	if (r == NULL || w->used + pages > w->most)
		return;
	r->start = map_pages(pages);
	r->pages = pages;
	r->patched = r->is_break = 0;
	memset(r->state, 0, sizeof r->state);
	set_zero(r, 0, pages);
	w->used += pages;
	remember(w, r, "mmap", 0, pages);
	if (untouched < 4)
		check_sample(w, r, 0, pages, "new mapping");
	for (size_t i = 0; i < pages; i++)
		if (pick(w, 8) >= untouched)
			write_page(w, r, i);
}

/* The slot is free afterwards. */
static void forget(struct worker *w, struct region *r)
{
	unlock(w, r, 0, r->pages);
	w->used -= r->pages;
	r->start = NULL;
	r->pages = 0;
}

void unmap(struct worker *w)
{
	struct region *r = any_region(w);
	if (r == NULL || r->is_break)
		return;
	check_sample(w, r, 0, r->pages, "before munmap");
	MUST(munmap(r->start, r->pages * PAGE) == 0);
	forget(w, r);
}

/* What lies before it stays this region, what lies after it becomes another one, or goes too if there is no slot. */
void unmap_part(struct worker *w)
{
	struct region *r = any_region(w), *tail = free_slot(w);
	if (r == NULL || r->is_break)
		return;
	size_t pages, first = part_of(w, r, MOST_PAGES, &pages), after = r->pages - first - pages;
	if (tail == NULL)
		pages += after, after = 0;
	MUST(munmap(r->start + first * PAGE, pages * PAGE) == 0);
	remember(w, r, "munmap of a part", first, pages);
	unlock(w, r, first, pages);
	w->used -= pages;
	if (after > 0) {
		size_t from = first + pages;
		tail->start = r->start + from * PAGE;
		tail->pages = after;
		tail->patched = r->patched;
		tail->is_break = 0;
		memcpy(tail->page, r->page + from, after * sizeof *tail->page);
		memcpy(tail->state, r->state + from, after);
		remember(w, tail, "tail of a partial munmap", 0, after);
		check_sample(w, tail, 0, after, "tail of a partial munmap");
	}
	r->pages = first;
	if (first == 0)
		r->start = NULL;
	else
		check_sample(w, r, 0, first, "head of a partial munmap");
}

/* A new mapping over a part of the old one. */
void map_fixed(struct worker *w)
{
	struct region *r = any_region(w);
	if (r == NULL || r->is_break)
		return;
	size_t pages, first = part_of(w, r, MOST_PAGES, &pages);
	unsigned char *at = r->start + first * PAGE;
	MUST(mmap(at, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
	remember(w, r, "MAP_FIXED", first, pages);
	unlock(w, r, first, pages);
	memset(r->state + first, 0, pages);
	set_zero(r, first, pages);
	if (pages < r->pages)
		r->patched = 1;
	check_sample(w, r, 0, r->pages, "after MAP_FIXED");
}

void protect(struct worker *w)
{
	struct region *r = any_region(w);
	if (r == NULL)
		return;
	size_t pages, first = part_of(w, r, MOST_PAGES, &pages), which = pick(w, 3);
	static const int PROTECTION[] = { PROT_READ, PROT_NONE, PROT_READ | PROT_WRITE };
	static const unsigned char STATE[] = { READ_ONLY, NO_ACCESS, 0 };
	MUST(mprotect(r->start + first * PAGE, pages * PAGE, PROTECTION[which]) == 0);
	remember(w, r, which == 0 ? "read-only" : which == 1 ? "no access" : "read and write", first, pages);
	for (size_t i = first; i < first + pages; i++)
		r->state[i] = (unsigned char)((r->state[i] & ~(READ_ONLY | NO_ACCESS)) | STATE[which]);
	check_sample(w, r, first, pages, "after mprotect");
}

/* Few pages, which lowtide locks, or many, which it does not. */
void lock(struct worker *w)
{
	struct region *r = any_region(w);
	if (r == NULL)
		return;
	size_t pages, first = part_of(w, r, pick(w, 4) == 0 ? 256 : 8, &pages);
	make_plain(w, r, first, pages);
	check_sample(w, r, first, pages, "before mlock");
	if (w->locked + pages > 512 || mlock(r->start + first * PAGE, pages * PAGE) != 0)
		return;
	remember(w, r, "mlock", first, pages);
	w->locked += pages;
	for (size_t i = first; i < first + pages; i++)
		r->state[i] |= LOCKED;
	check_sample(w, r, first, pages, "after mlock");
}
