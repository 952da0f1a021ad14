/* thread_mix whose own calls that change memory are system calls of its own, as those of a runtime without the C library. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static long raw(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long r;
	__asm__ volatile("syscall"
	                 : "=a"(r)
	                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
	                 : "rcx", "r11", "memory");
	if (r < 0 && r > -4096) {
		errno = (int)-r;
		return -1;
	}
	return r;
}

#define mmap(a, l, p, f, d, o) ((void *)raw(SYS_mmap, (long)(a), (long)(l), p, f, d, o))
#define munmap(a, l) ((int)raw(SYS_munmap, (long)(a), (long)(l), 0, 0, 0, 0))
#define mremap(a, l, ...) moved((long)(a), (long)(l), __VA_ARGS__, (void *)0)
#define moved(a, l, n, f, ...) ((void *)raw(SYS_mremap, a, l, (long)(n), f, (long)FIRST(__VA_ARGS__, 0), 0))
#define FIRST(a, ...) a
#define madvise(a, l, v) ((int)raw(SYS_madvise, (long)(a), (long)(l), v, 0, 0, 0))
#define mprotect(a, l, p) ((int)raw(SYS_mprotect, (long)(a), (long)(l), p, 0, 0, 0))

#include "thread_mix.c"
