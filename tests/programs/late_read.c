/* A read with O_DIRECT that is answered late, while other memory pushes its buffer out. late_read FILE MIB [BYTE]
 * FILE holds BYTE (171) everywhere, a megabyte of it at least; the buffer lies in the middle of MIB megabytes, which a thread writes
 * to meanwhile. What arrives must be in the buffer afterwards. On standard error: how many of its pages were in memory at least. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static unsigned char *buffer;
static const char *path;
static volatile int done;

static void *reader(void *unused)
{
	int fd = open(path, O_RDONLY | O_DIRECT);
	MUST(fd >= 0);
	MUST(pread(fd, buffer, MIB, 0) == (ssize_t)MIB);
	done = 1;
	return unused;
}

static size_t in_memory(int page_map)
{
	uint64_t bits[MIB / PAGE];
	size_t pages = 0;
	MUST(pread(page_map, bits, sizeof bits, (off_t)((uintptr_t)buffer / PAGE * 8)) == sizeof bits);
	for (size_t i = 0; i < MIB / PAGE; i++)
		pages += bits[i] >> 63;
	return pages;
}

int main(int argc, char **argv)
{
	MUST(argc > 1);
	path = argv[1];
	size_t all = number(argc, argv, 2, 32) * MIB, least = MIB / PAGE, wrong = 0;
	int byte = (int)number(argc, argv, 3, 171), page_map = open("/proc/self/pagemap", O_RDONLY);
	MUST(page_map >= 0);
	unsigned char *start = map_pages(all / PAGE);
	buffer = start + all / 2 / MIB * MIB;
	for (size_t i = 0; i < all; i += 8)
		*(size_t *)(start + i) = i / PAGE;
	pthread_t thread;
	MUST(pthread_create(&thread, NULL, reader, NULL) == 0);
	while (!done) {
		for (size_t i = 0; i < all && !done; i += PAGE) {
			if (start + i < buffer || start + i >= buffer + MIB)
				((volatile unsigned char *)start)[i]++;
			if (i % MIB == 0 && in_memory(page_map) < least)
				least = in_memory(page_map);
		}
	}
	MUST(pthread_join(thread, NULL) == 0);
	for (size_t i = 0; i < MIB; i++)
		wrong += buffer[i] != byte;
	dprintf(2, "at least %zu of %zu pages were in memory\n", least, (size_t)(MIB / PAGE));
	printf("%zu of %zu bytes are wrong\n", wrong, (size_t)MIB);
	return wrong != 0;
}
