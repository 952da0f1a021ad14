/* immovable FIXED MOVABLE ROUNDS: FIXED MiB of code, which lowtide leaves where it is, and MOVABLE MiB that it can page. Both are read
   again and again, a page here and there. */
#include "common.h"

int main(int argc, char **argv)
{
	size_t fixed = number(argc, argv, 1, 100) * MIB / PAGE, movable = number(argc, argv, 2, 20) * MIB / PAGE;
	size_t rounds = number(argc, argv, 3, 20);
	unsigned char *code = map_code(fixed, "tn", 1);
	unsigned char *other = map_pages(movable);
	fill(other, movable, "tn", 2);
	uint64_t random = 7;
	for (size_t round = 0; round < rounds; round++) {
		for (size_t i = 0; i < 20000; i++) {
			size_t page = next_random(&random) % fixed;
			check_page(code + page * PAGE, kind_at("tn", page), 1 + page * PAGE, "fixed");
		}
		for (size_t i = 0; i < 500; i++) {
			size_t page = next_random(&random) % movable;
			check_page(other + page * PAGE, kind_at("tn", page), 2 + page * PAGE, "movable");
		}
	}
	printf("OK\n");
	return 0;
}
