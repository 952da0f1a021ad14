/* The word that the kernel clears when a thread ends stays in memory: where it is out then, it is not cleared.
 *
 * cleared_word MIB [fork]: fills MIB again and again, and looks whether the word's page is in memory, which nobody touches. Another
 * such page must have been out, or nothing is shown. With `fork` a child does the same. */
#include "common.h"
#include <fcntl.h>
#include <sys/syscall.h>
#include <time.h>

static int is_there(const unsigned char *at)
{
	uint64_t entry = 0;
	int map = open("/proc/self/pagemap", O_RDONLY);
	MUST(map >= 0 && pread(map, &entry, sizeof entry, (off_t)((uintptr_t)at / PAGE * 8)) == sizeof entry);
	close(map);
	return entry >> 63;
}

static void push_out(unsigned char *ballast, size_t pages, uint64_t seed)
{
	for (size_t i = 0; i < pages; i++)
		*(uint64_t *)(ballast + i * PAGE + 8 * (seed % 500)) = mix(seed + i);
}

/* For some seconds, in which a copy of this process gets an agent. */
static void look(unsigned char *word, unsigned char *other, unsigned char *ballast, size_t pages, const char *who)
{
	size_t word_out = 0, other_out = 0;
	time_t end = time(NULL) + 6;
	for (uint64_t n = 1; time(NULL) < end || n < 6; n++) {
		push_out(ballast, pages, n);
		other_out += !is_there(other);
		word_out += !is_there(word);
	}
	MUST(other_out > 0);
	if (word_out != 0)
		die("%s: the word was out %zu times, the other page %zu times", who, word_out, other_out);
}

int main(int argc, char **argv)
{
	MUST(argc >= 2);
	size_t pages = strtoul(argv[1], NULL, 0) * MIB / PAGE;
	/* Far from each other, and from what else is touched. */
	unsigned char *own = map_pages(4096), *ballast = map_pages(pages);
	unsigned char *word = own + 512 * PAGE, *other = own + 2048 * PAGE;
	memset(own, 1, 4096 * PAGE);
	MUST(syscall(SYS_set_tid_address, word) > 0);
	look(word, other, ballast, pages, "this process");
	if (argc > 2) {
		pid_t child = fork();
		if (child == 0) {
			look(word, other, ballast, pages, "a child");
			_exit(0);
		}
		wait_for(child);
	}
	puts("OK");
	return 0;
}
