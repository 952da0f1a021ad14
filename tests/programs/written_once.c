/* Memory that is written once and mostly left alone: of each MiB one page is read again. written_once MIB KINDS [TIMES]: it
 * executes itself until it has run so many times. */
#include "common.h"

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 64) * MIB / PAGE;
	const char *kinds = argc > 2 ? argv[2] : "n";
	unsigned char *area = map_pages(pages);

	fill(area, pages, kinds, 1);
	for (size_t i = 0; i < pages; i += MIB / PAGE)
		check_page(area + i * PAGE, kind_at(kinds, i), 1 + i * PAGE, "again");
	/* A reclaimer publishes its figures a few times a second. */
	usleep(300000);
	printf("OK %zu\n", pages);
	fflush(stdout);
	if (number(argc, argv, 3, 1) > 1) {
		char times[24];
		snprintf(times, sizeof times, "%zu", number(argc, argv, 3, 1) - 1);
		MUST(execl("/proc/self/exe", argv[0], argv[1], argv[2], times, NULL) == 0);
	}
	return 0;
}
