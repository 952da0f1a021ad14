/* A worker: which step comes next, and the table of them. */
#include "torture.h"

struct worker worker[MOST_WORKERS];
size_t workers;
uint64_t seed, last_step;
_Thread_local struct worker *self;
atomic_int stop;

static void write_some(struct worker *w)
{
	struct region *r = any_region(w);
	if (r == NULL)
		return;
	size_t pages, first = part_of(w, r, 64, &pages);
	make_plain(w, r, first, pages);
	check_sample(w, r, first, pages, "before a write");
	remember(w, r, "write", first, pages);
	for (size_t i = first; i < first + pages; i++)
		write_page(w, r, i);
}

static void stamp_some(struct worker *w)
{
	struct region *r = any_region(w);
	if (r == NULL)
		return;
	size_t pages, first = part_of(w, r, 64, &pages);
	remember(w, r, "stamp", first, pages);
	for (size_t i = first; i < first + pages; i += 1 + pick(w, 4))
		if (!(r->state[i] & (GUARD | READ_ONLY | NO_ACCESS))) {
			check_region_page(w, r, i, "before a stamp");
			stamp_page(w, r, i);
		}
}

static void check_some(struct worker *w)
{
	struct region *r = any_region(w);
	if (r == NULL)
		return;
	size_t pages, first = part_of(w, r, 64, &pages);
	check_pages(w, r, first, pages, "later");
}

/* What one may do in a child of fork, where other threads of its parent may have held any lock, comes first. */
static const struct {
	void (*take)(struct worker *w);
	unsigned weight;
	const char *name;
} STEPS[] = {
	{ write_some, 120, "write" },
	{ stamp_some, 120, "stamp" },
	{ check_some, 180, "check" },
	{ create, 90, "mmap" },
	{ unmap, 15, "munmap" },
	{ unmap_part, 20, "munmap of a part" },
	{ map_fixed, 20, "MAP_FIXED" },
	{ protect, 30, "mprotect" },
	{ lock, 8, "mlock" },
	{ resize, 30, "mremap" },
	{ move_over, 12, "MREMAP_FIXED" },
	{ move_and_leave, 12, "MREMAP_DONTUNMAP" },
	{ move_tail, 12, "mremap of a tail" },
	{ drop, 40, "MADV_DONTNEED" },
	{ free_lazily, 20, "MADV_FREE" },
	{ populate, 20, "MADV_POPULATE" },
	{ cool, 20, "MADV_COLD, PAGEOUT" },
	{ huge, 10, "MADV_HUGEPAGE, COLLAPSE" },
	{ guard, 20, "guard pages" },
	{ touch_what_is_forbidden, 20, "SIGSEGV" },
	{ transfer, 60, "transfer" },
	{ futex, 20, "futex" },
	{ random_bytes, 10, "getrandom" },
	{ count, 60, "count" },
	{ check_wiped, 20, "check of what is wiped in children" },
	{ attach, 12, "shmat" },
	{ advise_itself, 20, "process_madvise" },
	{ move_by_userfaultfd, 6, "UFFDIO_MOVE" },
	{ refused_by_overcommit, 30, "refused for overcommit" },
	{ refused_by_a_seal, 8, "refused for a seal" },
#define IN_CHILDREN 30
	{ share_memory, 4, "CLONE_VM" },
	{ move_break, 40, "brk" },
	{ signal_another, 30, "tgkill" },
	{ new_alternate_stack, 4, "sigaltstack" },
	{ short_thread, 8, "thread" },
	{ fork_child, 2, "fork" },
	{ fork_reader, 2, "process_vm_readv" },
	{ execute, 2, "exec" },
};
enum { KINDS = sizeof STEPS / sizeof *STEPS };

static atomic_ulong taken[KINDS];

size_t pick(struct worker *w, size_t below)
{
	return next_random(&w->random) % below;
}

struct region *any_region(struct worker *w)
{
	size_t at = pick(w, SLOTS);
	for (size_t n = 0; n < SLOTS; n++, at = (at + 1) % SLOTS)
		if (w->region[at].start != NULL)
			return &w->region[at];
	return NULL;
}

struct region *free_slot(struct worker *w)
{
	for (size_t i = 0; i < SLOTS; i++)
		if (w->region[i].start == NULL) {
			w->region[i].events = 0;
			return &w->region[i];
		}
	return NULL;
}

/* A random part of a region, `most` pages long at most. */
size_t part_of(struct worker *w, const struct region *r, size_t most, size_t *pages)
{
	size_t first = pick(w, r->pages), rest = r->pages - first;
	*pages = 1 + pick(w, rest < most ? rest : most);
	return first;
}

/* Each step draws its numbers from its own source, so what one finds does not change what the next one is. */
static void one_step(struct worker *w)
{
	size_t kinds = w->depth > 0 ? IN_CHILDREN : KINDS, all = 0, which = 0;
	w->step++;
	w->random = mix(mix(mix(mix(seed) ^ w->number) ^ w->depth) ^ w->step);
	for (size_t i = 0; i < kinds; i++)
		all += STEPS[i].weight;
	for (size_t at = pick(w, all); at >= STEPS[which].weight; which++)
		at -= STEPS[which].weight;
	STEPS[which].take(w);
	taken[which]++;
	/* What was evicted meanwhile comes back only here. */
	if (w->step % 2048 == 0)
		check_all(w, "looking at all");
}

void some_steps(struct worker *w, size_t steps)
{
	while (steps-- > 0)
		one_step(w);
}

void check_all(struct worker *w, const char *where)
{
	for (size_t i = 0; i < SLOTS; i++)
		if (w->region[i].start != NULL)
			check_pages(w, &w->region[i], 0, w->region[i].pages, where);
	check_counters(w, where);
}

void *work(void *argument)
{
	struct worker *w = argument;
	self = w;
	signals_worker(w);
	wiped_init(w);
	while (!stop && (last_step == 0 || w->step < last_step)) {
		pthread_mutex_lock(&w->turn);
		one_step(w);
		pthread_mutex_unlock(&w->turn);
	}
	reap_all(w);
	check_all(w, "at the end");
	return NULL;
}

void count_steps(char *text, size_t length)
{
	size_t at = 0;
	for (size_t i = 0; i < KINDS && at < length; i++)
		at += (size_t)snprintf(text + at, length - at, "%s%s %lu", i == 0 ? "" : ", ", STEPS[i].name, taken[i]);
}
