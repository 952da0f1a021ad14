/* Millions of small mallocs: written, checked, a third freed and allocated again in other sizes, checked, all freed.
 * small_mallocs COUNT */
#include "common.h"

static size_t size_of(size_t index, unsigned round)
{
	return 16 + mix(index * 4 + round) % 105;
}

static void write_object(unsigned char *object, size_t index, unsigned round)
{
	size_t size = size_of(index, round);
	uint64_t tag = index * 4 + round;
	memcpy(object, &tag, 8);
	memset(object + 8, (int)(index % 7), size - 8);
}

static uint64_t check_object(const unsigned char *object, size_t index, unsigned round)
{
	size_t size = size_of(index, round);
	uint64_t tag;
	memcpy(&tag, object, 8);
	if (tag != index * 4 + round)
		die("object %zu of round %u holds %llx", index, round, (unsigned long long)tag);
	for (size_t i = 8; i < size; i++)
		if (object[i] != index % 7)
			die("object %zu of round %u, byte %zu: %02x", index, round, i, object[i]);
	return tag * size;
}

int main(int argc, char **argv)
{
	size_t count = number(argc, argv, 1, 3000000);
	unsigned char **objects = malloc(count * sizeof *objects);
	uint64_t sum = 0;
	MUST(objects != NULL);
	for (size_t i = 0; i < count; i++) {
		objects[i] = malloc(size_of(i, 0));
		MUST(objects[i] != NULL);
		write_object(objects[i], i, 0);
	}
	for (size_t i = 0; i < count; i++)
		sum += check_object(objects[i], i, 0);
	for (size_t i = 0; i < count; i += 3)
		free(objects[i]);
	for (size_t i = 0; i < count; i += 3) {
		objects[i] = malloc(size_of(i, 1));
		MUST(objects[i] != NULL);
		write_object(objects[i], i, 1);
	}
	for (size_t i = count; i-- > 0;)
		sum = sum * 3 + check_object(objects[i], i, i % 3 == 0);
	for (size_t i = 0; i < count; i++)
		free(objects[i]);
	free(objects);
	printf("OK %016llx\n", (unsigned long long)sum);
	return 0;
}
