/* Memory that would be recognised on a disk: every line of every page begins with the same words. marked MIB [wait]
 * With `wait`: makes the file `ready` when all is written and checked, then waits for its end. */
#include "common.h"
#include <fcntl.h>

static void mark(char *page, size_t number)
{
	for (size_t i = 0; i < PAGE; i += 64) {
		char line[96] = "";
		snprintf(line, sizeof line, "nobody may read this on a disk: page %8zu, line %4zu", number, i / 64);
		line[63] = '\n';
		memcpy(page + i, line, 64);
	}
}

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 64) * MIB / PAGE;
	char *area = (char *)map_pages(pages), expected[PAGE];
	for (size_t i = 0; i < pages; i++)
		mark(area + i * PAGE, i);
	for (size_t i = 0; i < pages; i++) {
		mark(expected, i);
		if (memcmp(area + i * PAGE, expected, PAGE) != 0)
			die("page %zu is another one", i);
	}
	if (argc > 2 && strcmp(argv[2], "wait") == 0) {
		MUST(close(open("ready", O_CREAT | O_WRONLY, 0600)) == 0);
		for (;;)
			pause();
	}
	printf("OK %zu\n", pages);
	return 0;
}
