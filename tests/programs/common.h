/* What the test programs share: content that can be derived again from a seed, and loud ends. */
#ifndef COMMON_H
#define COMMON_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define MIB ((size_t)1 << 20)

__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char *format, ...)
{
	char text[512];
	va_list list;
	va_start(list, format);
	vsnprintf(text, sizeof text, format, list);
	va_end(list);
	dprintf(2, "FAILED: pid %d: %s\n", (int)getpid(), text);
	_exit(9);
}

#define MUST(condition) ((condition) ? (void)0 : die("%s:%d: %s (%s)", __FILE__, __LINE__, #condition, strerror(errno)))

/* Whether a call has failed as it may under lowtide: without hooks, which only dynamic programs of glibc have, some are refused
 * (docs/limits.md). */
static inline int is_refused(int error)
{
#ifdef __GLIBC__
	return errno == error && getauxval(AT_BASE) == 0;
#else
	return errno == error;
#endif
}

/* Waits for a child, which must end well. */
static inline void wait_for(pid_t child)
{
	int status;
	MUST(child > 0);
	MUST(waitpid(child, &status, 0) == child);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		die("child %d ended with status %x", (int)child, (unsigned)status);
}

/* splitmix64: both a generator (`next_random`) and a hash (`mix`). */
static inline uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static inline uint64_t next_random(uint64_t *state)
{
	return mix((*state)++);
}

/* The kinds of content of a page. */
enum kind { ZERO, WORD, TEXT, NOISE };

static inline enum kind kind_of(char letter)
{
	switch (letter) {
	case 'z': return ZERO;
	case 'w': return WORD;
	case 't': return TEXT;
	case 'n': return NOISE;
	default: die("no such kind of content: %c", letter);
	}
}

/* Makes in `page` the content that belongs to (kind, seed): nothing, one repeated word, text that LZ4 packs about 4:1, noise. */
static inline void make_page(unsigned char *page, enum kind kind, uint64_t seed)
{
	static const char line[8][65] = {
		"level=info  unit=store   event=put      status=200 key=user/0000\n", "level=info  unit=store   event=get      status=404 key=page/0000\n",
		"level=warn  unit=ingest  event=retry    status=503 key=feed/0000\n", "level=debug unit=planner event=split    status=200 key=part/0000\n",
		"level=info  unit=planner event=merge    status=200 key=part/0000\n", "level=error unit=ingest  event=timeout  status=504 key=feed/0000\n",
		"level=info  unit=gateway event=accept   status=101 key=conn/0000\n", "level=info  unit=gateway event=close    status=200 key=conn/0000\n",
	};
	uint64_t words[8];
	switch (kind) {
	case ZERO:
		memset(page, 0, PAGE);
		break;
	case WORD:
		words[0] = mix(seed);
		for (size_t i = 0; i < PAGE; i += 8)
			memcpy(page + i, words, 8);
		break;
	case TEXT:
		for (size_t i = 0; i < PAGE; i += 64) {
			uint64_t random = mix(seed + i);
			memcpy(page + i, line[random & 7], 64);
			for (int digit = 59; digit < 63; digit++)
				page[i + (size_t)digit] = (unsigned char)('0' + (random >> (3 * (digit - 58)) & 7));
		}
		break;
	case NOISE:
		for (size_t i = 0; i < PAGE; i += 64) {
			for (size_t w = 0; w < 8; w++)
				words[w] = mix(seed + i + w);
			memcpy(page + i, words, 64);
		}
		break;
	}
}

/* Compares every byte of `page` with what (kind, seed) makes. Not inlined: its page must not lie in the caller's frame. */
static __attribute__((noinline, unused)) void check_page(const unsigned char *page, enum kind kind, uint64_t seed, const char *where)
{
	unsigned char expected[PAGE];
	make_page(expected, kind, seed);
	if (memcmp(page, expected, PAGE) == 0)
		return;
	for (size_t i = 0; i < PAGE; i++)
		if (page[i] != expected[i])
			die("%s: page %p, byte %zu: %02x, not %02x", where, (const void *)page, i, page[i], expected[i]);
	die("%s: page %p differed for a moment", where, (const void *)page);
}

static inline void check_zero(const unsigned char *start, size_t length, const char *where)
{
	for (size_t i = 0; i < length; i++)
		if (start[i] != 0)
			die("%s: %p, byte %zu of %zu: %02x, not zero", where, (const void *)start, i, length, start[i]);
}

/* The pages of a buffer take the kinds in turn, in runs of 16 pages. */
static inline enum kind kind_at(const char *kinds, size_t page)
{
	return kind_of(kinds[page / 16 % strlen(kinds)]);
}

static inline void fill(unsigned char *start, size_t pages, const char *kinds, uint64_t seed)
{
	for (size_t i = 0; i < pages; i++)
		make_page(start + i * PAGE, kind_at(kinds, i), seed + i * PAGE);
}

static inline void check(const unsigned char *start, size_t pages, const char *kinds, uint64_t seed, const char *where)
{
	for (size_t i = 0; i < pages; i++)
		check_page(start + i * PAGE, kind_at(kinds, i), seed + i * PAGE, where);
}

static inline uint64_t checksum(const unsigned char *start, size_t length, uint64_t sum)
{
	uint64_t word;
	for (size_t i = 0; i + 8 <= length; i += 8) {
		memcpy(&word, start + i, 8);
		sum = (sum ^ word) * 0x100000001b3u;
		sum ^= sum >> 29;
	}
	return sum;
}

static inline unsigned char *map_pages(size_t pages)
{
	void *start = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (start == MAP_FAILED)
		die("mmap of %zu pages: %s", pages, strerror(errno));
	return start;
}

/* The same with this content, as code that a compiler has made: it may be read and executed, and not be written any more. lowtide
 * leaves such memory where it is, and does not register it: of what may be written for a moment, too little lies together. */
static inline unsigned char *map_code(size_t pages, const char *kinds, uint64_t seed)
{
	unsigned char *start = mmap(NULL, pages * PAGE, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(start != MAP_FAILED);
	for (size_t i = 0; i < pages; i++) {
		unsigned char *page = start + i * PAGE;
		MUST(mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == page);
		make_page(page, kind_at(kinds, i), seed + i * PAGE);
		MUST(mprotect(page, PAGE, PROT_READ | PROT_EXEC) == 0);
	}
	return start;
}

static inline size_t number(int argc, char **argv, int index, size_t otherwise)
{
	return argc > index ? strtoull(argv[index], NULL, 0) : otherwise;
}

/* Whether the kernel has some of these pages nowhere in memory. Allocates nothing. */
static inline int some_are_out(unsigned char *start, size_t pages)
{
	unsigned char present[256];
	for (size_t i = 0; i < pages; i += sizeof present) {
		size_t some = pages - i < sizeof present ? pages - i : sizeof present;
		MUST(mincore(start + i * PAGE, some * PAGE, present) == 0);
		for (size_t j = 0; j < some; j++)
			if (!(present[j] & 1))
				return 1;
	}
	return 0;
}

#endif
