/* The program break: the first worker's. The C library's allocator uses it too, so it gets all that it will want
 * at the start. musl lets nobody else move it: there this does nothing. */
#include "torture.h"
#include <malloc.h>

#ifdef __GLIBC__
static unsigned char *lowest;

void break_init(void)
{
	mallopt(M_TOP_PAD, 16 << 20);
	mallopt(M_TRIM_THRESHOLD, 1 << 30);
	free(malloc(100));
	size_t over = (uintptr_t)sbrk(0) % PAGE;
	MUST(sbrk(over == 0 ? 0 : (intptr_t)(PAGE - over)) != (void *)-1);
	lowest = sbrk(0);
}

void move_break(struct worker *w)
{
	struct region *r = NULL;
	if (w->number != 0)
		return;
	for (size_t i = 0; i < SLOTS; i++)
		if (w->region[i].start != NULL && w->region[i].is_break)
			r = &w->region[i];
	size_t pages = r == NULL ? 0 : r->pages, wanted = pick(w, MOST_PAGES / 2);
	if (r == NULL && (r = free_slot(w)) == NULL)
		return;
	/* Else the allocator uses it after all, and this program must be changed. */
	MUST(sbrk(0) == lowest + pages * PAGE);
	if (wanted > pages && w->used + wanted - pages > w->most)
		return;
	if (wanted < pages)
		make_plain(w, r, wanted, pages - wanted);
	MUST(brk(lowest + wanted * PAGE) == 0);
	r->pages = pages;
	r->is_break = r->patched = 1;
	remember(w, r, "brk", 0, wanted);
	resized(w, r, wanted == 0 ? NULL : lowest, wanted);
}
#else
void break_init(void) {}

void move_break(struct worker *w)
{
	(void)w;
}
#endif
