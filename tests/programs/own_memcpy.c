/* own_memcpy MIB: a program that defines memcpy and its like itself and exports them, as some allocators and profilers do. They are for its own
   one thread: another one that comes there ends the program. */
#include "common.h"
#include <sys/syscall.h>

static long only_thread;

static void check_caller(void)
{
	if (only_thread && syscall(SYS_gettid) != only_thread) {
		static const char text[] = "FAILED: a thread of somebody else is in the program's memcpy\n";
		syscall(SYS_write, 2, text, sizeof text - 1);
		syscall(SYS_exit_group, 9);
	}
}

__attribute__((visibility("default"), optimize("no-tree-loop-distribute-patterns"))) void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
	check_caller();
	for (size_t i = 0; i < n; i++)
		((char *)to)[i] = ((const char *)from)[i];
	return to;
}

__attribute__((visibility("default"), optimize("no-tree-loop-distribute-patterns"))) void *memset(void *to, int byte, size_t n)
{
	check_caller();
	for (size_t i = 0; i < n; i++)
		((char *)to)[i] = (char)byte;
	return to;
}

__attribute__((visibility("default"), optimize("no-tree-loop-distribute-patterns"))) int memcmp(const void *left, const void *right, size_t n)
{
	check_caller();
	for (size_t i = 0; i < n; i++)
		if (((const unsigned char *)left)[i] != ((const unsigned char *)right)[i])
			return ((const unsigned char *)left)[i] < ((const unsigned char *)right)[i] ? -1 : 1;
	return 0;
}

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 96) * MIB / PAGE;
	only_thread = syscall(SYS_gettid);
	unsigned char *start = map_pages(pages);
	fill(start, pages, "tnz", 1);
	check(start, pages, "tnz", 1, "forwards");
	check(start, pages, "tnz", 1, "again");
	printf("OK\n");
	return 0;
}
