/* Compiled into a program before all else (cc -include): its mapping calls are system calls of its own, which no library sees.
 * Guards excepted: lowtide has to know of those. */
#ifndef RAW_CALLS_H
#define RAW_CALLS_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static inline long raw_call(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	if (result < 0 && result > -4096) {
		errno = (int)-result;
		return -1;
	}
	return result;
}

static inline void *raw_mmap(void *at, size_t length, int protection, int flags, int file, off_t offset)
{
	return (void *)raw_call(SYS_mmap, (long)at, (long)length, protection, flags, file, offset);
}

static inline int raw_munmap(void *at, size_t length)
{
	return (int)raw_call(SYS_munmap, (long)at, (long)length, 0, 0, 0, 0);
}

static inline int raw_mprotect(void *at, size_t length, int protection)
{
	return (int)raw_call(SYS_mprotect, (long)at, (long)length, protection, 0, 0, 0);
}

static inline void *raw_mremap(void *from, size_t length, size_t wanted, int flags, ...)
{
	va_list rest;
	va_start(rest, flags);
	void *to = flags & MREMAP_FIXED ? va_arg(rest, void *) : NULL;
	va_end(rest);
	return (void *)raw_call(SYS_mremap, (long)from, (long)length, (long)wanted, flags, (long)to, 0);
}

static inline int raw_madvise(void *at, size_t length, int advice)
{
	enum { GUARD_INSTALL = 102 };
	return advice == GUARD_INSTALL ? madvise(at, length, advice) :
					 (int)raw_call(SYS_madvise, (long)at, (long)length, advice, 0, 0, 0);
}

#define mmap raw_mmap
#define munmap raw_munmap
#define mprotect raw_mprotect
#define mremap raw_mremap
#define madvise raw_madvise
#endif
