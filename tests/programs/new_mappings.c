/* A stream of new memory, touched as fast as the machine can, all kept and checked at the end.
 * new_mappings mmap|malloc MIB: mappings of 1-8 MiB, or mallocs of 256 KiB - 1 MiB. */
#include "common.h"

enum { MOST = 8192 };
static unsigned char *starts[MOST];
static size_t lengths[MOST];

/* Fast to write, and LZ4 packs it well: the page's number at its start and a byte all over. */
static void touch(unsigned char *start, size_t length, size_t index)
{
	for (size_t offset = 0; offset < length; offset += PAGE) {
		size_t rest = length - offset < PAGE ? length - offset : PAGE;
		uint64_t tag = mix(index << 32 | offset);
		memset(start + offset, (int)(tag & 0xff), rest);
		memcpy(start + offset, &tag, 8);
	}
}

static uint64_t verify(const unsigned char *start, size_t length, size_t index)
{
	uint64_t sum = 0;
	for (size_t offset = 0; offset < length; offset += PAGE) {
		size_t rest = length - offset < PAGE ? length - offset : PAGE;
		uint64_t tag = mix(index << 32 | offset), found;
		memcpy(&found, start + offset, 8);
		if (found != tag)
			die("block %zu, offset %zu: %llx, not %llx", index, offset, (unsigned long long)found, (unsigned long long)tag);
		for (size_t i = 8; i < rest; i++)
			if (start[offset + i] != (tag & 0xff))
				die("block %zu, offset %zu: %02x", index, offset + i, start[offset + i]);
		sum = sum * 31 + found;
	}
	return sum;
}

int main(int argc, char **argv)
{
	int use_mmap = argc < 2 || strcmp(argv[1], "mmap") == 0;
	size_t wanted = number(argc, argv, 2, 256) * MIB, total = 0, count = 0;
	uint64_t random = 5, sum = 0;
	while (total < wanted) {
		MUST(count < MOST);
		size_t length = use_mmap ? MIB * (1 + next_random(&random) % 8) : 256 * 1024 + next_random(&random) % (768 * 1024) / 16 * 16;
		starts[count] = use_mmap ? map_pages(length / PAGE) : malloc(length);
		MUST(starts[count] != NULL);
		lengths[count] = length;
		touch(starts[count], length, count);
		count++;
		total += length;
	}
	for (size_t i = 0; i < count; i++)
		sum = sum * 3 + verify(starts[i], lengths[i], i);
	for (size_t i = 0; i < count; i++)
		if (use_mmap)
			MUST(munmap(starts[i], lengths[i]) == 0);
		else
			free(starts[i]);
	printf("OK %zu %016llx\n", count, (unsigned long long)sum);
	return 0;
}
