/* Memory that the kernel promises, where it promises none that it does not have (vm.overcommit_memory=2). promises FILL_MIB PERCENT ROUNDS
 * Maps so many PERCENT of what may still be promised at its start, fills FILL_MIB of that, and checks them again and again. */
#include "common.h"

static size_t meminfo(const char *field)
{
	char line[128];
	size_t kib = 0;
	FILE *file = fopen("/proc/meminfo", "r");
	MUST(file != NULL);
	while (fgets(line, sizeof line, file) != NULL)
		if (strncmp(line, field, strlen(field)) == 0)
			kib = strtoull(line + strlen(field), NULL, 10);
	MUST(fclose(file) == 0 && kib > 0);
	return kib;
}

int main(int argc, char **argv)
{
	size_t fills = number(argc, argv, 1, 96) * MIB / PAGE, percent = number(argc, argv, 2, 75), rounds = number(argc, argv, 3, 3);
	size_t left = (meminfo("CommitLimit:") - meminfo("Committed_AS:")) * 1024 / 100 * percent / PAGE;
	MUST(left > fills);
	unsigned char *area = map_pages(fills);
	fill(area, fills, "t", 1);
	/* By then lowtide has what it needs. */
	for (size_t mapped = fills; mapped < left; mapped += 16 * MIB / PAGE)
		map_pages(16 * MIB / PAGE);
	for (size_t round = 0; round < rounds; round++)
		check(area, fills, "t", 1, "what it wrote");
	puts("OK");
	return 0;
}
