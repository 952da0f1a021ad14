/* What each page must hold, and what is said when it does not. */
#include "torture.h"
#include <fcntl.h>
#include <time.h>


static size_t stamped_word(uint64_t seed_of_page)
{
	return mix(seed_of_page ^ 0x5741) % (PAGE / 8);
}

void make_content(unsigned char *bytes, struct page page)
{
	if (page.seed == 0)
		memset(bytes, 0, PAGE);
	else
		make_page(bytes, kind_of("wtttnttw"[mix(page.seed) % 8]), page.seed);
	if (page.stamp != 0)
		memcpy(bytes + stamped_word(page.seed) * 8, &page.stamp, 8);
}

/* Content that no page has had before, in this process or in one that it comes from or goes to. */
struct page fresh(struct worker *w)
{
	return (struct page){ .seed = (uint64_t)(w->number + 1) << 56 | (uint64_t)w->depth << 52 | ++w->clock };
}

void write_page(struct worker *w, struct region *r, size_t i)
{
	r->page[i] = fresh(w);
	r->state[i] &= (unsigned char)~FREED;
	make_content(r->start + i * PAGE, r->page[i]);
}

/* Changes one word of a page. One that was freed is from then on either what it was or zero; which of them, is looked up. */
__attribute__((noinline)) void stamp_page(struct worker *w, struct region *r, size_t i)
{
	unsigned char *at = r->start + i * PAGE, dropped[PAGE] = { 0 };
	size_t word = stamped_word(r->page[i].seed);
	uint64_t stamp = fresh(w).seed;
	memcpy(at + word * 8, &stamp, 8);
	r->page[i].stamp = stamp;
	if (!(r->state[i] & FREED))
		return;
	r->state[i] &= (unsigned char)~FREED;
	memcpy(dropped + word * 8, &stamp, 8);
	if (memcmp(at, dropped, PAGE) == 0)
		write_page(w, r, i);
	else
		check_content(at, r->page[i], "after MADV_FREE, neither zero nor as it was");
}

static const char *state_of(unsigned char state)
{
	static _Thread_local char text[64];
	snprintf(text, sizeof text, "%s%s%s%s%s", state & FREED ? " freed" : "", state & GUARD ? " guard" : "",
	         state & READ_ONLY ? " read-only" : "", state & NO_ACCESS ? " no access" : "", state & LOCKED ? " locked" : "");
	return text;
}

/* Says all that is known of where `at` is. */
void say_history(const unsigned char *at)
{
	const struct worker *w = self;
	for (size_t slot = 0; w != NULL && slot < SLOTS; slot++) {
		const struct region *r = &w->region[slot];
		if (r->start == NULL || at < r->start || at >= r->start + r->pages * PAGE)
			continue;
		size_t i = (size_t)(at - r->start) / PAGE;
		dprintf(2, "region %zu: %p, %zu pages%s%s; page %zu:%s\n", slot, (void *)r->start, r->pages,
		        r->patched ? ", patched" : "", r->is_break ? ", the break" : "", i, state_of(r->state[i]));
		for (size_t k = r->events > HISTORY ? r->events - HISTORY : 0; k < r->events; k++) {
			const struct event *e = &r->history[k % HISTORY];
			int is_in = i >= e->first && i < e->first + e->pages;
			dprintf(2, "  step %llu: %s, pages %zu to %zu%s\n", (unsigned long long)e->step, e->what, e->first,
			        e->first + e->pages, is_in ? "  <-" : "");
		}
	}
}

/* Says what the kernel has there: the entry of the page map and, where this process may see them, the flags of the page (see
 * linux/kernel-page-flags.h). Without the C library's streams: it may be a child whose parent held their locks. */
void say_place(const unsigned char *at)
{
	uint64_t entry = 0, flags = 0, frame;
	int map = open("/proc/self/pagemap", O_RDONLY), pages = open("/proc/kpageflags", O_RDONLY);
	if (pread(map, &entry, sizeof entry, (off_t)((uintptr_t)at / PAGE * sizeof entry)) != sizeof entry)
		return;
	/* Only where bit 63 says that a page is there is it a frame. */
	frame = entry >> 63 ? entry & ((1ull << 55) - 1) : 0;
	if (frame == 0 || pread(pages, &flags, sizeof flags, (off_t)(frame * sizeof flags)) != sizeof flags)
		flags = 0;
	dprintf(2, "page map %016llx, page flags %016llx\n", (unsigned long long)entry, (unsigned long long)flags);
}

/* Only the first to fail speaks. */
__attribute__((noreturn)) void fail(const char *format, ...)
{
	static atomic_flag spoken = ATOMIC_FLAG_INIT;
	char text[512];
	va_list list;
	while (atomic_flag_test_and_set(&spoken))
		pause();
	va_start(list, format);
	vsnprintf(text, sizeof text, format, list);
	va_end(list);
	dprintf(2, "FAILED: --seed %llu --threads %zu, thread %zu, step %llu, pid %d, %u forks deep: %s\n",
	        (unsigned long long)seed, workers, self ? self->number : MOST_WORKERS,
	        self ? (unsigned long long)self->step : 0, (int)getpid(), self ? self->depth : 0, text);
	_exit(9);
}

static __attribute__((noinline)) void mismatch(const unsigned char *at, const unsigned char *expected, struct page page,
                                               const char *where)
{
	struct timespec moment = { .tv_nsec = 20000000 };
	size_t wrong = 0, first = PAGE;
	uint64_t want = 0, found = 0, later;
	for (size_t i = 0; i < PAGE; i += 8)
		if (memcmp(at + i, expected + i, 8) != 0) {
			wrong++;
			if (first == PAGE) {
				first = i;
				memcpy(&want, expected + i, 8);
				memcpy(&found, at + i, 8);
			}
		}
	nanosleep(&moment, NULL);
	memcpy(&later, at + (first == PAGE ? 0 : first), 8);
	say_history(at);
	say_place(at);
	fail("%s: page %p (seed %llx, stamp %llx), %zu words are wrong, the first at %zu: %016llx, not %016llx; 20 ms later %016llx",
	     where, (const void *)at, (unsigned long long)page.seed, (unsigned long long)page.stamp, wrong, first,
	     (unsigned long long)found, (unsigned long long)want, (unsigned long long)later);
}

/* Compares a page with what it must hold. Not inlined: its page must not lie in the caller's frame. */
__attribute__((noinline)) void check_content(const unsigned char *at, struct page page, const char *where)
{
	unsigned char expected[PAGE];
	make_content(expected, page);
	if (memcmp(at, expected, PAGE) != 0)
		mismatch(at, expected, page, where);
}

void check_region_page(struct worker *w, struct region *r, size_t i, const char *where)
{
	w->checked++;
	if (r->state[i] & (GUARD | NO_ACCESS))
		return;
	if (!(r->state[i] & FREED))
		check_content(r->start + i * PAGE, r->page[i], where);
	else if (!(r->state[i] & READ_ONLY))
		stamp_page(w, r, i);
}

void check_pages(struct worker *w, struct region *r, size_t first, size_t pages, const char *where)
{
	for (size_t i = first; i < first + pages; i++)
		check_region_page(w, r, i, where);
}

/* All of a few pages, some of many. */
void check_sample(struct worker *w, struct region *r, size_t first, size_t pages, const char *where)
{
	if (pages <= 32)
		check_pages(w, r, first, pages, where);
	else
		for (size_t n = 0; n < 16; n++)
			check_region_page(w, r, first + pick(w, pages), where);
}

void set_zero(struct region *r, size_t first, size_t pages)
{
	for (size_t i = first; i < first + pages; i++) {
		r->page[i] = (struct page){ 0 };
		r->state[i] &= (unsigned char)~FREED;
	}
}

void remember(struct worker *w, struct region *r, const char *what, size_t first, size_t pages)
{
	r->history[r->events++ % HISTORY] = (struct event){ w->step, what, first, pages };
}
