/* Pages that all workers write at the same time, each its own words: no write is lost. */
#include "torture.h"

enum { PAGES = 512, WORDS = PAGE / 8 };

static _Atomic uint64_t *words;
static uint32_t counted[MOST_WORKERS][PAGES];

void counters_init(void)
{
	words = (_Atomic uint64_t *)map_pages(PAGES);
}

static _Atomic uint64_t *word_of(const struct worker *w, size_t page)
{
	return words + page * WORDS + (w->number * 31 + page) % WORDS;
}

static void check_counter(const struct worker *w, size_t page, const char *where)
{
	uint64_t found = *word_of(w, page);
	if (found != counted[w->number][page])
		fail("%s: counter of page %zu, %p: %llu, not %u", where, page, (void *)word_of(w, page), (unsigned long long)found,
		     counted[w->number][page]);
}

void count(struct worker *w)
{
	for (size_t n = 0; n < 16; n++) {
		size_t page = pick(w, PAGES);
		check_counter(w, page, "before counting");
		++*word_of(w, page);
		counted[w->number][page]++;
	}
}

void check_counters(const struct worker *w, const char *where)
{
	for (size_t page = 0; page < PAGES; page++)
		check_counter(w, page, where);
}
