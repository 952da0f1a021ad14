/* What is refused, and how: each with NULL or -1, an errno, and a line. Ends with 0 if all of it is. */
#include <lowtide.h>

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static int bad;

static void refused(const char *what, int is_refused, int expected) {
	int got = errno;
	if (!is_refused || got != expected || !*lowtide_error() || strchr(lowtide_error(), '\n')) {
		fprintf(stderr, "%s: %s, errno %d (%d expected), %s\n", what, is_refused ? "refused" : "ACCEPTED", got, expected, lowtide_error());
		bad = 1;
	}
}

int main(void) {
	struct lowtide_options good = {.ram = 16 << 20, .swap = "ram"};
	if (*lowtide_error())
		return fprintf(stderr, "an error before any call\n"), 1;
	refused("no bytes", !lowtide_region_new(0, &good), EINVAL);
	refused("too many bytes", !lowtide_region_new(SIZE_MAX, &good), ENOMEM);
	refused("no options", !lowtide_region_new(4096, NULL), EINVAL);
	refused("no limit", !lowtide_region_new(4096, &(struct lowtide_options){0}), EINVAL);
	refused("a small limit", !lowtide_region_new(4096, &(struct lowtide_options){.ram = 1}), EINVAL);
	refused("a swap", !lowtide_region_new(4096, &(struct lowtide_options){.ram = 16 << 20, .swap = "tape"}), EINVAL);
	refused("a level", !lowtide_region_new(4096, &(struct lowtide_options){.ram = 16 << 20, .zstd_level = 99}), EINVAL);
	refused("a delivery", !lowtide_region_new(4096, &(struct lowtide_options){.ram = 16 << 20, .delivery = 9}), EINVAL);

	lowtide_region *region = lowtide_region_new(1 << 20, &good);
	if (!region)
		return fprintf(stderr, "%s\n", lowtide_error()), 1;
	refused("both", !lowtide_region_new(4096, &(struct lowtide_options){.ram = 16 << 20, .group_with = region}), EINVAL);
	refused("behind the end", lowtide_evict(region, 1, 1 << 20), ERANGE);
	refused("around the end", lowtide_prefetch(region, 1, SIZE_MAX), ERANGE);
	refused("no bytes of it", lowtide_drop(region, 4096, 0), EINVAL);
	refused("a lower limit", lowtide_set_ram(region, 4096), EINVAL);
	lowtide_region *large = lowtide_region_new(64 << 20, &(struct lowtide_options){.group_with = region});
	refused("too much to stay", !lowtide_resident(large, 0, 9 << 20), ENOBUFS);
	if (lowtide_region_free(large) || lowtide_region_free(region) || lowtide_region_free(NULL))
		return fprintf(stderr, "not freed: %s\n", lowtide_error()), 1;
	lowtide_guard_free(NULL);
	return bad;
}
