/* Locked memory that grows (mremap): where it is, beyond what may be locked, with CAP_IPC_LOCK and by a thread that has given that up;
 * and elsewhere, which the kernel reports when it has brought in what it grows by. What each call says is printed. With a thread that
 * sleeps and MIB of other memory, which push the rest out.
 * locked_moves MIB [MOVES] */
#include "common.h"
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <linux/capability.h>

enum { PAGES = 8, MORE = 64 };

static void *sleeps(void *argument)
{
	while (pause() != 0)
		;
	return argument;
}

static void grow(const char *who, unsigned char *at)
{
	unsigned char *grown = mremap(at, PAGES * PAGE, MORE * PAGE, MREMAP_MAYMOVE);
	printf("%s: %s\n", who, grown == MAP_FAILED ? strerrorname_np(errno) : grown == at ? "grows" : "moves");
	unsigned char *now = grown == MAP_FAILED ? at : grown;
	check(now, PAGES, "wt", 5, who);
	if (grown != MAP_FAILED)
		check_zero(grown + PAGES * PAGE, (MORE - PAGES) * PAGE, who);
}

static void give_up(int capability)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];
	MUST(syscall(SYS_capget, &header, data) == 0);
	data[0].effective &= ~(1u << capability);
	MUST(syscall(SYS_capset, &header, data) == 0);
}

int main(int argc, char **argv)
{
	pthread_t thread;
	unsigned char *block[2];
	size_t pages = number(argc, argv, 1, 64) * MIB / PAGE;
	struct rlimit limit = { 2 * PAGES * PAGE, 2 * PAGES * PAGE };
	MUST(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	MUST(pthread_create(&thread, NULL, sleeps, NULL) == 0);
	for (int i = 0; i < 2; i++) {
		block[i] = map_pages(MORE);
		MUST(munmap(block[i] + PAGES * PAGE, (MORE - PAGES) * PAGE) == 0);
		fill(block[i], PAGES, "wt", 5);
		MUST(mlock(block[i], PAGES * PAGE) == 0);
	}
	unsigned char *ballast = map_pages(pages);
	for (int i = 0; i < 2; i++)
		fill(ballast, pages, "t", 3);
	for (size_t i = number(argc, argv, 2, 4); i > 0; i--) {
		unsigned char *all = map_pages(2 * MORE);
		MUST(mprotect(all + PAGES * PAGE, (2 * MORE - PAGES) * PAGE, PROT_NONE) == 0);
		fill(all, PAGES, "wt", 5);
		MUST(mlock(all, PAGES * PAGE) == 0);
		fill(ballast, pages, "t", 3);
		grow("elsewhere", all);
	}
	grow("may lock more", block[0]);
	give_up(CAP_IPC_LOCK);
	grow("may not", block[1]);
	check(ballast, pages, "t", 3, "the rest");
	printf("OK\n");
	return 0;
}
