/* Removals of so much at once that lowtide does them in parts (large_removals MIB): what was dropped reads as zeros as soon as the call has returned, from the
 * end on, which is done last; what is written there then stays, also in a forked child, and where it is moved to. Another thread works on its own memory all
 * the time. In the end as much is moved to where it was. */
#include "common.h"
#include <pthread.h>
#include <sys/syscall.h>

enum { STEP = 61, OTHERS = 24 * 256 };

static size_t pages;
static volatile int finished;

/* Goes round its memory, so that something must always be evicted. */
static void *works(void *unused)
{
	(void)unused;
	unsigned char *own = map_pages(OTHERS);
	fill(own, OTHERS, "t", 1);
	for (uint64_t lap = 1; !finished; lap++)
		for (size_t i = 0; i < OTHERS; i++) {
			check_page(own + i * PAGE, TEXT, lap + i * PAGE, "of the other thread");
			make_page(own + i * PAGE, TEXT, lap + 1 + i * PAGE);
		}
	return NULL;
}

static uint64_t *word(unsigned char *area, size_t page)
{
	return (uint64_t *)(area + page * PAGE);
}

static void write_all(unsigned char *area)
{
	for (size_t i = 0; i < pages; i++)
		make_page(area + i * PAGE, WORD, i);
}

/* Nothing of what was there is, and what is written is kept. */
static void is_new(unsigned char *area, const char *where)
{
	for (size_t i = pages; i-- > 0;)
		if (i % STEP == 0) {
			check_zero(area + i * PAGE, PAGE, where);
			*word(area, i) = mix(i);
		}
}

static void is_kept(unsigned char *area, const char *where)
{
	for (size_t i = 0; i < pages; i++)
		if (*word(area, i) != (i % STEP == 0 ? mix(i) : 0) || *(word(area, i) + 511) != 0)
			die("%s: page %zu: %llx", where, i, (unsigned long long)*word(area, i));
}

static void forks(unsigned char *area)
{
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		is_kept(area, "in a child");
		_exit(0);
	}
	wait_for(child);
}

struct part {
	unsigned char *start;
	size_t length;
};

static void *drops(void *argument)
{
	struct part *part = argument;
	MUST(madvise(part->start, part->length, MADV_DONTNEED) == 0);
	check_zero(part->start + part->length - PAGE, PAGE, "the end of one of two that overlap");
	return NULL;
}

int main(int argc, char **argv)
{
	pages = number(argc, argv, 1, 384) * MIB / PAGE;
	size_t length = pages * PAGE;
	pthread_t other, droppers[2];
	MUST(pthread_create(&other, NULL, works, NULL) == 0);
	unsigned char *area = map_pages(pages);

	write_all(area);
	MUST(madvise(area, length, MADV_DONTNEED) == 0);
	is_new(area, "after DONTNEED");
	forks(area);
	is_kept(area, "after DONTNEED");

	write_all(area);
	MUST(munmap(area, length) == 0);
	unsigned char *again = mmap(area, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	MUST(again != MAP_FAILED);
	is_new(again, "mapped anew");
	is_kept(again, "mapped anew");

	/* Past the C library, of whose end nobody knows. */
	write_all(again);
	MUST(syscall(SYS_madvise, again, length, MADV_DONTNEED) == 0);
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		is_new(again, "in a child of a fork at once");
		is_kept(again, "in a child of a fork at once");
		_exit(0);
	}
	unsigned char *there = mremap(again, length, length + PAGE, MREMAP_MAYMOVE);
	MUST(there != MAP_FAILED);
	is_new(there, "moved");
	wait_for(child);
	is_kept(there, "moved");

	write_all(there);
	struct part parts[2] = { { there, length / 3 * 2 / PAGE * PAGE }, { there + length / 3 / PAGE * PAGE, length - length / 3 / PAGE * PAGE } };
	for (int i = 0; i < 2; i++)
		MUST(pthread_create(&droppers[i], NULL, drops, &parts[i]) == 0);
	for (int i = 0; i < 2; i++)
		MUST(pthread_join(droppers[i], NULL) == 0);
	is_new(there, "after two that overlap");
	is_kept(there, "after two that overlap");

	/* Onto all of that. */
	write_all(there);
	unsigned char *from = map_pages(pages);
	for (size_t i = 0; i < pages; i++)
		make_page(from + i * PAGE, WORD, pages + i);
	MUST(mremap(from, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, there) == there);
	for (size_t i = pages; i-- > 0;)
		check_page(there + i * PAGE, WORD, pages + i, "moved to a given place");

	finished = 1;
	MUST(pthread_join(other, NULL) == 0);
	puts("OK");
	return 0;
}
