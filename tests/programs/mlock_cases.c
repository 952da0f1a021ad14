/* The lock calls of memory, in all cases that succeed or fail by rule; what each returns is printed.
 * mlock_cases MIB: after filling so much memory, which must be right at the end.
 * To be run with different RLIMIT_MEMLOCK, and with and without CAP_IPC_LOCK. */
#include "common.h"
#include <sys/resource.h>

#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif

/* Prints a call and how it ended. */
#define CASE(call)                                                                                     \
	do {                                                                                           \
		errno = 0;                                                                             \
		long result = (long)(call);                                                            \
		printf("%-58s %ld %s\n", #call, result, result == 0 ? "" : strerrorname_np(errno));    \
	} while (0)

static void *mapped;

/* Maps, and says whether it could: 0 or -1. */
static long map(size_t length, int flags)
{
	mapped = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
	return mapped == MAP_FAILED ? -1 : 0;
}

/* Drops memory of which the second half is locked, then all of it, and none of it. */
static void drops(size_t half)
{
	unsigned char *dropped = map_pages(2 * half / PAGE);
	memset(dropped, 1, 2 * half);
	CASE(mlock(dropped + half, half));
	CASE(madvise(dropped, 2 * half, MADV_DONTNEED));
	printf("left %d %d\n", dropped[half - 1], dropped[half]);
	memset(dropped, 1, 2 * half);
	CASE(mlock(dropped, 2 * half));
	CASE(madvise(dropped, 2 * half, MADV_DONTNEED));
	CASE(madvise(dropped, 2 * half, MADV_FREE));
	printf("left %d %d\n", dropped[0], dropped[2 * half - 1]);
	CASE(munlock(dropped, 2 * half));
	CASE(madvise(dropped, 2 * half, MADV_DONTNEED));
	printf("left %d %d\n", dropped[0], dropped[2 * half - 1]);
	MUST(munmap(dropped, 2 * half) == 0);
}

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 96) * MIB / PAGE;
	struct rlimit limit;
	unsigned char *data = map_pages(pages);
	fill(data, pages, "tz", 4);
	MUST(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	printf("limit %lld\n", (long long)limit.rlim_cur);

	unsigned char *a = map_pages(4 * MIB / PAGE), *b = map_pages(6 * MIB / PAGE), *holed = map_pages(3 * MIB / PAGE);
	fill(a, 4 * MIB / PAGE, "w", 5);
	MUST(munmap(holed + 2 * MIB, PAGE) == 0);

	CASE(mlock(data, PAGE));
	CASE(munlock(data, PAGE));
	CASE(mlock2(a, 4 * MIB, 8));
	CASE(mlock2(a, PAGE, 8));
	CASE(mlock(a, 0));
	CASE(mlock(a + 100, 4 * MIB - 200));
	CASE(mlock(a, 4 * MIB));
	CASE(mlock2(a, 4 * MIB, MLOCK_ONFAULT));
	CASE(mlock(b, 6 * MIB));
	CASE(mlock(b, 4 * MIB));
	CASE(mlock(b, PAGE));
	CASE(munlock(b, 4 * MIB));
	CASE(munlock(a, 4 * MIB));
	CASE(mlock(b, 6 * MIB));
	CASE(munmap(b, 6 * MIB));
	CASE(munlock(b, 6 * MIB));
	CASE(mlock(a, 4 * MIB));
	CASE(map(2 * MIB, MAP_LOCKED));
	CASE(map(6 * MIB, MAP_LOCKED));
	CASE(map(0, MAP_LOCKED));
	CASE(munlock(a, 4 * MIB));
	CASE(map(5 * MIB, MAP_LOCKED));
	if (mapped != MAP_FAILED)
		CASE(munmap(mapped, 5 * MIB));
	CASE(mlock(data, pages * PAGE));
	CASE(mlock(data, pages * PAGE));
	CASE(mlock(a, 4 * MIB));
	CASE(munlock(data, pages * PAGE));
	CASE(mlock(holed, 3 * MIB));
	CASE(munlock(holed, 3 * MIB));
	CASE(mlock(holed + 2 * MIB, 16 * PAGE));
	CASE(mlock((void *)PAGE, 4 * MIB));
	CASE(mlock(a, (size_t)-2 * PAGE));
	CASE(mlock(a, (size_t)-1));
	CASE(munlock(a, (size_t)-1 - 16 * PAGE));
	CASE(munlockall());
	drops(4 * MIB);
	drops(PAGE);
	CASE(mlockall(0));
	CASE(mlockall(MCL_ONFAULT));
	CASE(mlockall(64 | MCL_CURRENT));
	CASE(mlockall(MCL_FUTURE));
	CASE(munlockall());
	CASE(mlockall(MCL_CURRENT));
	CASE(mlock(a, 4 * MIB));
	CASE(munlockall());
	CASE(mlock(a, 4 * MIB));
	check(a, 4 * MIB / PAGE, "w", 5, "a");
	check(data, pages, "tz", 4, "data");
	printf("OK %016llx\n", (unsigned long long)checksum(data, pages * PAGE, 1));
	return 0;
}
