/* Threads that do to their memory all that Linux lets them do, and know what every byte must be. (The idea is that of the
 * kernel's uffd-stress.)
 *
 * Each worker (worker.c) has regions of its own, and a shadow that says what each of their pages holds (shadow.c). A step is
 * one of the steps of the table in worker.c; what it does follows from the seed, the worker's number and the step's, and not
 * from the time. */
#ifndef TORTURE_H
#define TORTURE_H
#include "../common.h"
#include <stdatomic.h>
#include <pthread.h>
#include <signal.h>
#include <sys/types.h>

enum { SLOTS = 40, MOST_PAGES = 1024, HISTORY = 16, MOST_WORKERS = 16, MOST_CHILDREN = 2, HELD_PAGES = 8, WIPED_PAGES = 4 };

/* What else is so of a page; more than one may be. */
enum {
	FREED = 1,     /* MADV_FREE: it is as it was, or zero, until it is written */
	GUARD = 2,     /* MADV_GUARD_INSTALL: zero, and an access is a SIGSEGV */
	READ_ONLY = 4, /* PROT_READ */
	NO_ACCESS = 8, /* PROT_NONE */
	LOCKED = 16,   /* mlock */
};

/* What a page holds: what the seed makes (0: zeros), and one word of it replaced by the stamp, if that is not 0. */
struct page {
	uint64_t seed, stamp;
};

struct event {
	uint64_t step;
	const char *what;
	size_t first, pages;
};

struct region {
	unsigned char *start; /* NULL: there is none */
	size_t pages;
	int patched;  /* maybe several mappings for good, which mremap refuses */
	int is_break; /* the program break: only its end moves */
	size_t events;
	struct event history[HISTORY];
	struct page page[MOST_PAGES];
	unsigned char state[MOST_PAGES];
};

struct worker {
	pthread_t handle;
	pthread_mutex_t turn; /* held during a step */
	size_t number;
	pid_t tid;
	uint64_t step, random, clock;
	size_t most, used, locked; /* pages */
	unsigned depth;            /* forks between this process and the first one */
	uint64_t checked;          /* pages */
	pid_t child[MOST_CHILDREN];
	struct region region[SLOTS];
	/* What only this worker's signal handler uses. */
	unsigned char *held;
	struct page held_page[HELD_PAGES];
	uint64_t held_clock;
	/* Zeros in children. */
	unsigned char *wiped;
	struct page wiped_page[WIPED_PAGES];
	void *alternate_stack;
};

extern struct worker worker[MOST_WORKERS];
extern size_t workers;
extern uint64_t seed;
extern _Thread_local struct worker *self; /* NULL: not a worker */

/* shadow.c */
void make_content(unsigned char *bytes, struct page page);
struct page fresh(struct worker *w);
void write_page(struct worker *w, struct region *r, size_t i);
void stamp_page(struct worker *w, struct region *r, size_t i);
void check_content(const unsigned char *at, struct page page, const char *where);
void check_region_page(struct worker *w, struct region *r, size_t i, const char *where);
void check_pages(struct worker *w, struct region *r, size_t first, size_t pages, const char *where);
void check_sample(struct worker *w, struct region *r, size_t first, size_t pages, const char *where);
void set_zero(struct region *r, size_t first, size_t pages);
void say_history(const unsigned char *at);
void say_place(const unsigned char *at);
void remember(struct worker *w, struct region *r, const char *what, size_t first, size_t pages);
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);

/* worker.c */
size_t pick(struct worker *w, size_t below);
struct region *any_region(struct worker *w);
struct region *free_slot(struct worker *w);
size_t part_of(struct worker *w, const struct region *r, size_t most, size_t *pages);
void *work(void *w);
void some_steps(struct worker *w, size_t steps);
void check_all(struct worker *w, const char *where);
void count_steps(char *text, size_t length);
extern atomic_int stop;
extern uint64_t last_step;

/* mappings.c: the steps are the functions that take a worker only, here and below. */
void make_plain(struct worker *w, struct region *r, size_t first, size_t pages);
int is_plain(const struct region *r, size_t first, size_t pages);
void create(struct worker *w);
void unmap(struct worker *w);
void unmap_part(struct worker *w);
void map_fixed(struct worker *w);
void protect(struct worker *w);
void lock(struct worker *w);
/* moves.c */
extern atomic_ulong refused; /* regions that mremap would not take */
void resize(struct worker *w);
void move_over(struct worker *w);
void move_and_leave(struct worker *w);
void move_tail(struct worker *w);
void resized(struct worker *w, struct region *r, unsigned char *start, size_t pages);
/* break.c */
void break_init(void);
void move_break(struct worker *w);
/* advice.c */
void drop(struct worker *w);
void free_lazily(struct worker *w);
void populate(struct worker *w);
void cool(struct worker *w);
void huge(struct worker *w);
void guard(struct worker *w);
/* faults.c */
void faults_init(void);
void expect_fault(unsigned char *at, int is_write, const char *where);
void touch_what_is_forbidden(struct worker *w);
/* calls.c */
void transfer(struct worker *w);
void futex(struct worker *w);
void random_bytes(struct worker *w);
/* uring.c */
int uring_fixed(int file, unsigned char *from, unsigned char *to, size_t pages);
/* signals.c */
void signals_init(void);
void signals_worker(struct worker *w);
void signal_another(struct worker *w);
void new_alternate_stack(struct worker *w);
/* processes.c */
void fork_child(struct worker *w);
void fork_reader(struct worker *w);
void execute(struct worker *w);
void reap_all(struct worker *w);
int executed(const char *text);
/* threads.c */
void short_thread(struct worker *w);
/* refusals.c */
void refused_by_a_seal(struct worker *w);
void refused_by_overcommit(struct worker *w);
void attach(struct worker *w);
void advise_itself(struct worker *w);
void move_by_userfaultfd(struct worker *w);
void share_memory(struct worker *w);
void wiped_init(struct worker *w);
void check_wiped(struct worker *w);
void forget_wiped(struct worker *w);
/* counters.c */
void counters_init(void);
void count(struct worker *w);
void check_counters(const struct worker *w, const char *where);
#endif
