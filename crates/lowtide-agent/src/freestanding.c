/* The few functions of the C library that compilers call on their own, and that the codecs name: the agent's own, hidden. The agent is
   preloaded, so what it took from elsewhere would be the program's wherever that defines them too (allocators, sanitizers and profilers
   do), and lowtide's threads, which serve the program's faults, would run code that may fault, lock or count threads. */

#include <stddef.h>
#include <stdint.h>

typedef uint64_t u64 __attribute__((may_alias, aligned(1)));
typedef uint32_t u32 __attribute__((may_alias, aligned(1)));
typedef long long v16 __attribute__((vector_size(16), may_alias, aligned(1)));

/* From here on the processor's own loop is as fast as any. */
#define LONG 512

void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
	char *d = to;
	const char *s = from;
	if (n >= LONG) {
		__asm__ volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(n) : : "memory");
		return to;
	}
	if (n >= 16) {
		v16 last = *(const v16 *)(s + n - 16);
		for (size_t i = 0; i + 16 < n; i += 16)
			*(v16 *)(d + i) = *(const v16 *)(s + i);
		*(v16 *)(d + n - 16) = last;
	} else if (n >= 8) {
		u64 first = *(const u64 *)s, last = *(const u64 *)(s + n - 8);
		*(u64 *)d = first;
		*(u64 *)(d + n - 8) = last;
	} else if (n >= 4) {
		u32 first = *(const u32 *)s, last = *(const u32 *)(s + n - 4);
		*(u32 *)d = first;
		*(u32 *)(d + n - 4) = last;
	} else if (n > 0) {
		char first = s[0], middle = s[n / 2], last = s[n - 1];
		d[0] = first;
		d[n / 2] = middle;
		d[n - 1] = last;
	}
	return to;
}

void *memmove(void *to, const void *from, size_t n)
{
	char *d = to;
	const char *s = from;
	if ((uintptr_t)d - (uintptr_t)s >= n)
		for (size_t i = 0; i < n;) {
			if (n - i >= 8) {
				*(u64 *)(d + i) = *(const u64 *)(s + i);
				i += 8;
			} else {
				d[i] = s[i];
				i++;
			}
		}
	else
		while (n > 0) {
			if (n >= 8) {
				n -= 8;
				*(u64 *)(d + n) = *(const u64 *)(s + n);
			} else {
				n--;
				d[n] = s[n];
			}
		}
	return to;
}

void *memset(void *to, int byte, size_t n)
{
	char *d = to;
	u64 word = (unsigned char)byte * 0x0101010101010101u;
	if (n >= LONG) {
		__asm__ volatile("rep stosb" : "+D"(d), "+c"(n) : "a"(byte) : "memory");
		return to;
	}
	if (n >= 8) {
		for (size_t i = 0; i + 8 < n; i += 8)
			*(u64 *)(d + i) = word;
		*(u64 *)(d + n - 8) = word;
	} else {
		for (size_t i = 0; i < n; i++)
			d[i] = (char)byte;
	}
	return to;
}

int memcmp(const void *left, const void *right, size_t n)
{
	const unsigned char *a = left, *b = right;
	size_t i = 0;
	while (i + 8 <= n && *(const u64 *)(a + i) == *(const u64 *)(b + i))
		i += 8;
	for (; i < n; i++)
		if (a[i] != b[i])
			return a[i] < b[i] ? -1 : 1;
	return 0;
}

int bcmp(const void *left, const void *right, size_t n)
{
	return memcmp(left, right, n);
}

size_t strlen(const char *text)
{
	size_t n = 0;
	while (text[n])
		n++;
	return n;
}

/* The codecs name these for contexts that the agent never asks them to make: it gives them its own memory. */
void *malloc(size_t n)
{
	(void)n;
	return NULL;
}

void free(void *p)
{
	(void)p;
}
