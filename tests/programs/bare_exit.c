/* bare_exit MIB: the only thread ends, with memory out, by the instruction and not by the C library, as strict programs and those of
 * hand-written assembler do. Status 5. */
#include "common.h"

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 96) * MIB / PAGE;
	unsigned char *data = map_pages(pages);
	fill(data, pages, "tn", 1);
	check(data, pages, "tn", 1, "data");
	MUST(write(1, "OK\n", 3) == 3);
	__asm__ volatile("syscall" : : "a"(60), "D"(5) : "rcx", "r11", "memory");
	return 1;
}
