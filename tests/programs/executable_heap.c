/* A heap that may be read, written and executed, as those of runtimes that keep code beside data. Each page has a function and text.
 * Threads call what others have written and write anew, while blocks are read-only code, data, or inaccessible for a while: a
 * write there is a SIGSEGV, whose handler opens the block, as collectors do. Blocks are dropped and filled again; forked copies do
 * the same. At the end all bytes are compared. With ROUNDS 0 no more memory may be made executable from when the heap is mapped, and the
 * full heap stays for some seconds, in which lowtide finds that the limit can't be held. executable_heap MIB THREADS ROUNDS */
#include "common.h"
#include <cpuid.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif

enum { BLOCK = 16, SEGMENT = 16 * BLOCK, CALLS = 2000, FORKED_EACH = 3, CLOSED_EACH = 16, WHOLE = PROT_READ | PROT_WRITE | PROT_EXEC };

static unsigned char **segments;
static size_t blocks, threads, rounds;
static pthread_barrier_t barrier;
static volatile size_t violations;

static unsigned char *page_at(size_t page)
{
	return segments[page / SEGMENT] + page % SEGMENT * PAGE;
}

/* How a block may be used in a round; WHOLE for most. */
static int access_in(size_t block, size_t round)
{
	switch ((block + round) % CLOSED_EACH) {
	case 1: return PROT_READ | PROT_EXEC;
	case 6: return PROT_READ | PROT_WRITE;
	case 11: return PROT_NONE;
	default: return WHOLE;
	}
}

static uint32_t value(size_t page, size_t round)
{
	return (uint32_t)mix(page << 16 | round);
}

/* Where the function of a page is. */
static size_t place(size_t page)
{
	return page % 61 * 64 + page % 50;
}

/* A page as it is after a round: text, and in it `mov eax, value; ret`. */
static void make(unsigned char *page, size_t number, size_t round)
{
	uint32_t result = value(number, round);
	unsigned char code[6] = {0xb8, 0, 0, 0, 0, 0xc3};
	memcpy(code + 1, &result, 4);
	make_page(page, TEXT, number);
	memcpy(page + place(number), code, sizeof code);
}

static __attribute__((noinline)) void compare(size_t page, size_t round, const char *where)
{
	unsigned char expected[PAGE];
	make(expected, page, round);
	if (memcmp(page_at(page), expected, PAGE) != 0)
		die("%s: page %zu is not as in round %zu", where, page, round);
}

static void call(size_t page, size_t round, const char *where)
{
	uint32_t (*function)(void);
	unsigned char *at = page_at(page) + place(page);
	memcpy(&function, &at, sizeof at);
	uint32_t result = function();
	if (result != value(page, round))
		die("%s: the function of page %zu says %08x, not %08x", where, page, result, value(page, round));
}

/* Before code is executed that another thread has written. */
static void serialize(void)
{
	unsigned a, b, c, d;
	__cpuid(0, a, b, c, d);
}

static void opened(int number, siginfo_t *info, void *context)
{
	int error = errno;
	(void)number, (void)context;
	for (size_t i = 0; i < blocks * BLOCK / SEGMENT; i++) {
		size_t offset = (size_t)((unsigned char *)info->si_addr - segments[i]);
		if (offset < SEGMENT * PAGE) {
			__atomic_fetch_add(&violations, 1, __ATOMIC_RELAXED);
			MUST(mprotect(segments[i] + offset / (BLOCK * PAGE) * (BLOCK * PAGE), BLOCK * PAGE, WHOLE) == 0);
			errno = error;
			return;
		}
	}
	die("a segmentation fault at %p", info->si_addr);
}

/* Writes a block of the calling thread's anew, as it is to be after `round`. */
static void write_block(size_t block, size_t round)
{
	unsigned char *start = page_at(block * BLOCK);
	/* Closed ones by the handler, which a write of the first page calls. */
	if (access_in(block, round - 1) == (PROT_READ | PROT_WRITE))
		MUST(mprotect(start, BLOCK * PAGE, WHOLE) == 0);
	if ((block + round) % 7 == 0) {
		*(volatile unsigned char *)start = 1;
		MUST(madvise(start, BLOCK * PAGE, MADV_DONTNEED) == 0);
		check_zero(start, BLOCK * PAGE, "dropped");
	}
	for (size_t page = block * BLOCK; page < (block + 1) * BLOCK; page++) {
		make(page_at(page), page, round);
		call(page, round, "just written");
	}
	if (access_in(block, round) != WHOLE)
		MUST(mprotect(start, BLOCK * PAGE, access_in(block, round)) == 0);
}

/* Looks at a page in the way that is allowed in a round. */
static void look(size_t page, size_t round, const char *where)
{
	int access = access_in(page / BLOCK, round);
	if (access & PROT_EXEC)
		call(page, round, where);
	if (access & PROT_READ && page % 4 == 0)
		compare(page, round, where);
}

static void *work(void *number)
{
	size_t own = (size_t)number;
	uint64_t random = own << 32;
	for (size_t round = 1; round <= rounds; round++) {
		serialize();
		for (size_t i = 0; i < CALLS; i++)
			look(next_random(&random) % (blocks * BLOCK), round - 1, "by a thread");
		pthread_barrier_wait(&barrier);
		for (size_t block = own; block < blocks; block += threads)
			write_block(block, round);
		pthread_barrier_wait(&barrier);
		/* The first one forks. */
		if (own == 0 && round % FORKED_EACH == 0) {
			pid_t child = fork();
			if (child == 0) {
				for (size_t page = 0; page < blocks * BLOCK; page += 5)
					look(page, round, "in a child");
				for (size_t block = 0; block < blocks; block += 9)
					write_block(block, round + 1);
				for (size_t block = 0; block < blocks; block += 9)
					look(block * BLOCK, round + 1, "written by a child");
				_exit(0);
			}
			wait_for(child);
		}
		pthread_barrier_wait(&barrier);
	}
	return NULL;
}

static void map_segment(size_t number)
{
	void *segment = mmap(NULL, SEGMENT * PAGE, WHOLE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(segment != MAP_FAILED);
	segments[number] = segment;
}

int main(int argc, char **argv)
{
	size_t mib = number(argc, argv, 1, 96);
	threads = number(argc, argv, 2, 4);
	rounds = number(argc, argv, 3, 6);
	blocks = mib * MIB / (BLOCK * PAGE);
	struct sigaction action = {.sa_sigaction = opened, .sa_flags = SA_SIGINFO};
	MUST(sigaction(SIGSEGV, &action, NULL) == 0);
	MUST((segments = calloc(blocks * BLOCK / SEGMENT, sizeof *segments)) != NULL);
	for (size_t i = 0; i < blocks * BLOCK / SEGMENT && rounds == 0; i++)
		map_segment(i);
	if (rounds == 0)
		/* Not before Linux 6.3. */
		MUST(prctl(PR_SET_MDWE, 1, 0, 0, 0) == 0);
	for (size_t page = 0; page < blocks * BLOCK; page++) {
		if (page % SEGMENT == 0 && rounds > 0)
			map_segment(page / SEGMENT);
		make(page_at(page), page, 0);
	}
	if (rounds == 0)
		sleep(4);
	for (size_t block = 0; block < blocks && rounds > 0; block++)
		if (access_in(block, 0) != WHOLE)
			MUST(mprotect(page_at(block * BLOCK), BLOCK * PAGE, access_in(block, 0)) == 0);
	pthread_t thread[threads];
	MUST(pthread_barrier_init(&barrier, NULL, (unsigned)threads) == 0);
	for (size_t i = 0; i < threads; i++)
		MUST(pthread_create(&thread[i], NULL, work, (void *)i) == 0);
	for (size_t i = 0; i < threads; i++)
		MUST(pthread_join(thread[i], NULL) == 0);
	for (size_t block = 0; block < blocks; block++) {
		if (rounds > 0)
			MUST(mprotect(page_at(block * BLOCK), BLOCK * PAGE, WHOLE) == 0);
		for (size_t page = block * BLOCK; page < (block + 1) * BLOCK; page++)
			compare(page, rounds, "at the end"), call(page, rounds, "at the end");
	}
	printf("OK %zu MiB, %zu blocks were opened by a signal handler\n", mib, violations);
	return 0;
}
