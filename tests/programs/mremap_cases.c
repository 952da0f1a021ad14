/* mremap in all cases that succeed or fail by rule, on memory that may be out: what each returns, what is mapped afterwards and what
 * is there is printed or checked.
 * mremap_cases MIB [THREADS]: with so much other memory, which pushes the rest out, and so many threads that sleep. */
#include "common.h"
#include <pthread.h>

enum { LENGTH = 16 };
static unsigned char *ballast, *source, *target;
static size_t ballast_pages;
static uint64_t generation;

static void push_out(void)
{
	generation++;
	for (size_t i = 0; i < ballast_pages; i++) {
		uint64_t *word = (uint64_t *)(ballast + i * PAGE);
		if (generation > 1 && word[9] != mix(generation - 1 + i))
			die("ballast page %zu", i);
		word[9] = mix(generation + i);
	}
}

/* Pages of `start` that are mapped, as a row of letters. */
static const char *mapped(const unsigned char *start, size_t pages)
{
	static char text[4 * LENGTH + 1];
	for (size_t i = 0; i < pages; i++)
		text[i] = msync((void *)(start + i * PAGE), PAGE, 0) == 0 ? 'm' : '-';
	text[pages] = 0;
	return text;
}

/* Fresh source and target: `LENGTH` pages, and twice as many, all with bytes of their own, and all out, as far as that goes. */
static void set_the_table(void)
{
	unsigned char *all = mmap(NULL, 8 * LENGTH * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(all != MAP_FAILED);
	source = all + LENGTH * PAGE;
	target = all + 4 * LENGTH * PAGE;
	MUST(mprotect(source, LENGTH * PAGE, PROT_READ | PROT_WRITE) == 0);
	MUST(mprotect(target, 2 * LENGTH * PAGE, PROT_READ | PROT_WRITE) == 0);
	fill(source, LENGTH, "tw", 1000);
	fill(target, 2 * LENGTH, "wt", 2000);
	push_out();
}

static void clear_the_table(void)
{
	munmap(source - LENGTH * PAGE, 8 * LENGTH * PAGE);
}

static void *call(const char *name, unsigned char *at, size_t old_length, size_t new_length, int flags, unsigned char *to)
{
	errno = 0;
	unsigned char *result = mremap(at, old_length, new_length, flags, to);
	printf("%-44s ", name);
	if (result == MAP_FAILED)
		printf("%s", strerrorname_np(errno));
	else if (result == at)
		printf("stays");
	else if (result == to && flags & MREMAP_FIXED)
		printf("moves there");
	else
		printf("moves");
	printf("  source %s", mapped(source, LENGTH));
	printf("  target %s\n", mapped(target, 2 * LENGTH));
	return result;
}

/* What is still mapped is what it was. Linux 6.12 unmaps the target before it finds out that a call must fail (which pages are mapped has been printed):
 * what is mapped there next begins with zeros, and keeps its own bytes. */
static void check_kept(unsigned char *start, size_t pages, const char *kinds, uint64_t seed, const char *name)
{
	static unsigned char is_new[2 * LENGTH];
	const char *row = mapped(start, pages);
	for (size_t i = 0; i < pages; i++)
		is_new[i] = row[i] != 'm';
	for (size_t i = 0; i < pages; i++) {
		unsigned char *page = start + i * PAGE;
		if (!is_new[i])
			check_page(page, kind_at(kinds, i), seed + i * PAGE, name);
		else
			MUST(mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == page);
	}
	if (memchr(is_new, 1, pages) == NULL)
		return;
	for (size_t i = 0; i < pages; i++)
		if (is_new[i]) {
			check_zero(start + i * PAGE, PAGE, name);
			make_page(start + i * PAGE, WORD, seed + i);
		}
	push_out();
	for (size_t i = 0; i < pages; i++)
		if (is_new[i])
			check_page(start + i * PAGE, WORD, seed + i, name);
		else
			check_page(start + i * PAGE, kind_at(kinds, i), seed + i * PAGE, name);
}

/* A call that fails: no page has changed. */
static void fails(const char *name, unsigned char *at, size_t old_length, size_t new_length, int flags, unsigned char *to)
{
	set_the_table();
	MUST(call(name, at == NULL ? source : at, old_length, new_length, flags, to == NULL ? target : to) == MAP_FAILED);
	check_kept(source, LENGTH, "tw", 1000, name);
	check_kept(target, 2 * LENGTH, "wt", 2000, name);
	clear_the_table();
}

/* The pages of the target from `first` on are what they were. */
static void check_target(size_t first, const char *name)
{
	for (size_t i = first; i < 2 * LENGTH; i++)
		check_page(target + i * PAGE, kind_at("wt", i), 2000 + i * PAGE, name);
}

/* Moves `pages` pages to the target and makes `new_pages` of them. */
static void moves(const char *name, size_t pages, size_t new_pages, int push)
{
	set_the_table();
	unsigned char *at = call(name, source, pages * PAGE, new_pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target);
	MUST(at == target);
	if (push)
		push_out();
	size_t kept = pages < new_pages ? pages : new_pages;
	check(at, kept, "tw", 1000, name);
	check_zero(at + kept * PAGE, (new_pages - kept) * PAGE, name);
	check_target(new_pages, name);
	for (size_t i = pages; i < LENGTH; i++)
		check_page(source + i * PAGE, kind_at("tw", i), 1000 + i * PAGE, name);
	fill(at, new_pages, "n", 7);
	push_out();
	check(at, new_pages, "n", 7, name);
	check_target(new_pages, name);
	clear_the_table();
}

static void *sleeps(void *argument)
{
	while (pause() != 0)
		;
	return argument;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	for (size_t i = number(argc, argv, 2, 0); i > 0; i--)
		MUST(pthread_create(&thread, NULL, sleeps, NULL) == 0);
	const int move = MREMAP_MAYMOVE, fixed = MREMAP_MAYMOVE | MREMAP_FIXED;
	const size_t all = LENGTH * PAGE, half = LENGTH / 2 * PAGE;
	ballast_pages = number(argc, argv, 1, 128) * MIB / PAGE;
	ballast = map_pages(ballast_pages);
	fill(ballast, ballast_pages, "tz", 3);
	push_out();

	for (int push = 0; push < 2; push++) {
		moves("half of it to a place", LENGTH, LENGTH / 2, push);
		moves("one page of it to a place", LENGTH, 1, push);
		moves("all of it to a place", LENGTH, LENGTH, push);
		moves("more than that to a place", LENGTH, LENGTH + 4, push);
		moves("a part, and half of that", LENGTH / 2, LENGTH / 4, push);
	}
	fails("to a place without MAYMOVE", NULL, all, half, MREMAP_FIXED, NULL);
	fails("unknown flags", NULL, all, half, fixed | 64, NULL);
	fails("from an unaligned place", (unsigned char *)PAGE + 8, all, half, fixed, NULL);
	fails("to an unaligned place", NULL, all, half, fixed, (unsigned char *)PAGE + 8);
	fails("to nothing", NULL, all, 0, fixed, NULL);
	fails("to the end of the world", NULL, all, half, fixed, (unsigned char *)-PAGE);
	fails("from where nothing is", (unsigned char *)PAGE, all, half, fixed, NULL);
	fails("without a mapping left, DONTUNMAP", NULL, all, half, fixed | MREMAP_DONTUNMAP, NULL);
	fails("nothing of private memory", NULL, 0, half, fixed, NULL);
	fails("more than is mapped", NULL, all, 8 * all, 0, NULL);
	fails("more than is mapped, to a place", NULL, all + half, 2 * all, fixed, NULL);

	set_the_table();
	MUST(call("onto itself", source, all, half, fixed, source) == MAP_FAILED);
	MUST(call("onto what is kept", source, all, half, fixed, source + 4 * PAGE) == MAP_FAILED);
	MUST(call("onto what is cut off", source, all, half, fixed, source + half) == MAP_FAILED);
	MUST(call("onto the last page of it", source, all, half, fixed, source + all - PAGE) == MAP_FAILED);
	check(source, LENGTH, "tw", 1000, "overlaps");
	MUST(call("down by half", source, all, half, fixed, source - half) == source - half);
	check(source - half, LENGTH / 2, "tw", 1000, "down by half");
	clear_the_table();

	set_the_table();
	MUST(mprotect(source + 4 * PAGE, 4 * PAGE, PROT_READ) == 0);
	call("two mappings, cut within the second", source, all, 6 * PAGE, fixed, target);
	clear_the_table();
	set_the_table();
	MUST(mprotect(source + half, half, PROT_READ) == 0);
	MUST(call("two mappings, of which the second is cut off", source, all, half, fixed, target) == target);
	check(target, LENGTH / 2, "tw", 1000, "two mappings");
	check_target(LENGTH / 2, "two mappings");
	clear_the_table();
	set_the_table();
	MUST(munmap(source + half, 2 * PAGE) == 0);
	MUST(call("a hole in what is cut off", source, all, half, fixed, target) == target);
	check(target, LENGTH / 2, "tw", 1000, "a hole");
	check_target(LENGTH / 2, "a hole");
	clear_the_table();

	set_the_table();
	MUST(call("shorter", source, all, half, 0, NULL) == source);
	MUST(call("shorter, may move", source, half, PAGE, move, NULL) == source);
	check(source, 1, "tw", 1000, "shorter");
	unsigned char *grown = call("longer, may move", target, 2 * all, 4 * all, move, NULL);
	push_out();
	check(grown, 2 * LENGTH, "wt", 2000, "longer");
	check_zero(grown + 2 * all, 2 * all, "longer");
	munmap(grown, 4 * all);
	clear_the_table();

	set_the_table();
	unsigned char *copy = call("and leave the old place mapped", source, all, all, move | MREMAP_DONTUNMAP, NULL);
	push_out();
	check(copy, LENGTH, "tw", 1000, "DONTUNMAP");
	check_zero(source, all, "DONTUNMAP, the old place");
	munmap(copy, all);
	clear_the_table();
	printf("OK %llu\n", (unsigned long long)generation);
	return 0;
}
