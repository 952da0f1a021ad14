/* Threads whose blocks move (mremap, or a copy where that is refused) again and again, to where the kernel likes; each page is checked
 * whenever its block has moved. Statically linked, so that the calls are past the C library's hooks.
 * moves MODE [THREADS ROUNDS PAGES MIB]; MIB of other memory push the rest out meanwhile.
 *   plain       nothing else
 *   signals     a signal each millisecond, whose handler asks for restarts: no call fails
 *   interrupts  the same, whose handler does not: says how many calls failed with EINTR
 *   forks       a child is forked again and again, which checks all blocks that were in no thread's hands */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

enum { MOST_THREADS = 64, HELD = 1, MOVING = 2 };

struct block {
	unsigned char *volatile start;
	volatile int state; /* 0: as `start` and `id` say */
	uint64_t id;
};

static size_t threads, rounds, pages;
static struct block block[MOST_THREADS];
static unsigned char *ballast;
static size_t ballast_pages;
static volatile size_t done;
static uint64_t interrupted;
static int may_be_interrupted;

static void write_block(const struct block *b, size_t from)
{
	for (size_t i = from; i < pages; i++)
		make_page(b->start + i * PAGE, TEXT, b->id << 20 ^ i);
}

static void check_block(const struct block *b, size_t n, const char *where)
{
	for (size_t i = 0; i < n; i++)
		check_page(b->start + i * PAGE, TEXT, b->id << 20 ^ i, where);
}

static int is_mapped(const unsigned char *start, size_t n)
{
	return msync((void *)start, n * PAGE, MS_ASYNC) == 0;
}

static unsigned char *copied(const struct block *b)
{
	unsigned char *to = map_pages(pages);
	memcpy(to, b->start, (pages - 1) * PAGE);
	MUST(munmap(b->start, (pages - 1) * PAGE) == 0);
	return to;
}

/* Gives the last page up, sees that its place is taken, and grows again: that takes the block elsewhere. */
static void move(struct block *b)
{
	b->state = HELD;
	unsigned char *end = b->start + (pages - 1) * PAGE;
	MUST(munmap(end, PAGE) == 0);
	void *guard = mmap(end, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	MUST(guard != MAP_FAILED || errno == EEXIST);
	b->state = MOVING;
	unsigned char *moved;
	while ((moved = mremap(b->start, (pages - 1) * PAGE, pages * PAGE, MREMAP_MAYMOVE)) == MAP_FAILED && errno == EINTR) {
		MUST(may_be_interrupted);
		__atomic_fetch_add(&interrupted, 1, __ATOMIC_RELAXED);
	}
	if (moved == MAP_FAILED) {
		MUST(is_refused(ENOMEM));
		moved = copied(b);
	}
	b->state = HELD;
	MUST(moved != b->start || guard == MAP_FAILED);
	b->start = moved;
	if (guard != MAP_FAILED)
		MUST(munmap(guard, PAGE) == 0);
	check_zero(moved + (pages - 1) * PAGE, PAGE, "what it has grown by");
	write_block(b, pages - 1);
	b->state = 0;
}

static void *run(void *argument)
{
	struct block *b = argument;
	for (size_t round = 0; round < rounds; round++) {
		check_block(b, pages, "after it has moved");
		move(b);
	}
	check_block(b, pages, "in the end");
	__atomic_fetch_add(&done, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

static void handle(int signal)
{
	(void)signal;
}

static void ring(int restarts)
{
	struct sigaction action = { .sa_handler = handle, .sa_flags = restarts ? SA_RESTART : 0 };
	struct itimerval each = { { 0, 1000 }, { 0, 1000 } };
	MUST(sigaction(SIGALRM, &action, NULL) == 0);
	MUST(setitimer(ITIMER_REAL, &each, NULL) == 0);
}

/* Signals come to the other threads. */
static void block_signals(void)
{
	sigset_t alarm;
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	MUST(pthread_sigmask(SIG_BLOCK, &alarm, NULL) == 0);
}

/* Natively a block whose move the kernel has not begun is where it was; with one thread nothing else can be there. */
static void check_child(void)
{
	for (size_t i = 0; i < threads; i++)
		if (block[i].state == 0 || (block[i].state == MOVING && threads == 1 && is_mapped(block[i].start, pages - 1)))
			check_block(&block[i], pages - 1, "in a child");
	_exit(0);
}

static void keep_busy(int forks)
{
	for (uint64_t generation = 1; done < threads; generation++) {
		for (size_t i = 0; i < ballast_pages && done < threads; i++) {
			volatile uint64_t *word = (volatile uint64_t *)(ballast + i * PAGE);
			if (generation > 1 && word[9] != mix(generation - 1 + i))
				die("other memory, page %zu", i);
			word[9] = mix(generation + i);
			if (forks && i % 256 == 0) {
				pid_t child = fork();
				if (child == 0)
					check_child();
				wait_for(child);
			}
		}
	}
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "plain";
	threads = number(argc, argv, 2, 4);
	rounds = number(argc, argv, 3, 500);
	pages = number(argc, argv, 4, 64);
	ballast_pages = number(argc, argv, 5, 32) * MIB / PAGE;
	MUST(threads <= MOST_THREADS && pages > 1);
	ballast = map_pages(ballast_pages);
	for (size_t i = 0; i < threads; i++) {
		block[i].id = i + 1;
		block[i].start = map_pages(pages);
		write_block(&block[i], 0);
	}
	may_be_interrupted = strcmp(mode, "interrupts") == 0;
	if (may_be_interrupted || strcmp(mode, "signals") == 0)
		ring(!may_be_interrupted);
	/* The limit is near when the threads begin. */
	for (size_t i = 0; i < ballast_pages; i++)
		make_page(ballast + i * PAGE, TEXT, i);
	usleep(300000);
	pthread_t handle;
	for (size_t i = 0; i < threads; i++)
		MUST(pthread_create(&handle, NULL, run, &block[i]) == 0);
	block_signals();
	keep_busy(strcmp(mode, "forks") == 0);
	if (may_be_interrupted)
		fprintf(stderr, "%llu calls were interrupted\n", (unsigned long long)interrupted);
	printf("OK threads=%zu rounds=%zu\n", threads, rounds);
	return 0;
}
