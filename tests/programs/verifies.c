/* Memory that is checked all the time while part of it is written again. verifies MIB KINDS [FIXED_MIB]
 * Makes the file `ready` when all is written once, and goes on until the file `go` is there. So many FIXED_MIB more are executable, which
 * lowtide leaves where they are. */
#include "common.h"
#include <fcntl.h>

enum { BLOCK = 64 };

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 64) * MIB / PAGE, fixed = number(argc, argv, 3, 0) * MIB / PAGE;
	const char *kinds = argc > 2 ? argv[2] : "t";
	size_t blocks = pages / BLOCK;
	uint64_t random = 7;
	uint32_t *generation = calloc(blocks, sizeof *generation);
	unsigned char *area = map_pages(pages);
	MUST(generation != NULL);
	if (fixed > 0) {
		unsigned char *held = mmap(NULL, fixed * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		MUST(held != MAP_FAILED);
		fill(held, fixed, "n", 3);
	}
	for (size_t i = 0; i < blocks; i++)
		fill(area + i * BLOCK * PAGE, BLOCK, kinds, ++generation[i] + i * 1000003);
	MUST(close(open("ready", O_CREAT | O_WRONLY, 0600)) == 0);
	while (access("go", F_OK) != 0) {
		for (size_t n = 0; n < 16; n++) {
			size_t i = next_random(&random) % blocks;
			check(area + i * BLOCK * PAGE, BLOCK, kinds, generation[i] + i * 1000003, "while it is moved");
			if (next_random(&random) % 4 == 0)
				fill(area + i * BLOCK * PAGE, BLOCK, kinds, ++generation[i] + i * 1000003);
		}
	}
	for (size_t i = 0; i < blocks; i++)
		check(area + i * BLOCK * PAGE, BLOCK, kinds, generation[i] + i * 1000003, "at the end");
	printf("OK\n");
	return 0;
}
