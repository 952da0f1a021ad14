/* 64 MiB in 16 MiB of RAM: filled, sorted, checked, and written to a file from memory that stays.
 *
 *     cc larger.c $(pkg-config --cflags --libs lowtide) && ./a.out
 */
#include <lowtide.h>

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int by_value(const void *a, const void *b) {
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static int failed(const char *what) {
	fprintf(stderr, "%s: %s\n", what, lowtide_error());
	return 1;
}

int main(void) {
	size_t len = 64 << 20, n = len / sizeof(uint64_t);
	struct lowtide_options options = {.ram = 16 << 20, .swap = "auto"};
	lowtide_region *region = lowtide_region_new(len, &options);
	if (!region)
		return failed("lowtide_region_new");

	uint64_t *numbers = lowtide_region_data(region), x = 1;
	for (size_t i = 0; i < n; i++) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		numbers[i] = x >> 20;
	}
	/* Runs of 4 MiB, so that it takes seconds and not minutes. */
	size_t run = (4 << 20) / sizeof(uint64_t);
	for (size_t i = 0; i < n; i += run)
		qsort(numbers + i, run, sizeof *numbers, by_value);
	for (size_t i = 1; i < n; i++)
		if (i % run && numbers[i - 1] > numbers[i]) {
			fprintf(stderr, "not sorted at %zu\n", i);
			return 1;
		}

	/* The kernel reads these bytes: they must be in memory, and stay there. */
	FILE *file = tmpfile();
	lowtide_guard *guard = lowtide_resident(region, 0, 1 << 20);
	if (!file || !guard)
		return failed("lowtide_resident");
	ssize_t written = write(fileno(file), numbers, 1 << 20);
	if (lowtide_region_free(region) == 0 || errno != EBUSY)
		return fprintf(stderr, "a region with a guard was freed\n"), 1;
	lowtide_guard_free(guard);
	if (written != 1 << 20)
		return perror("write"), 1;
	fclose(file);

	struct lowtide_stats stats;
	if (lowtide_get_stats(region, &stats))
		return failed("lowtide_get_stats");
	printf("sorted %zu MiB in %llu MiB: %llu pages out, %llu in\n", len >> 20, (unsigned long long)stats.ram_limit >> 20,
	       (unsigned long long)stats.pages_out, (unsigned long long)stats.pages_in);
	return lowtide_region_free(region) ? failed("lowtide_region_free") : stats.pages_out == 0;
}
