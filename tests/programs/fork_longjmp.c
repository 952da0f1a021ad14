/* fork_longjmp MIB ROUNDS: a signal comes while the program forks, and its handler leaves fork by siglongjmp. Other threads map memory and fork
   afterwards: nothing that lowtide had closed may still be closed. Where the signal interrupts the C library itself it stays: fork holds locks
   of its own there, which nobody would open again. */
#define _GNU_SOURCE
#include "common.h"
#include <link.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>

struct range {
	uintptr_t start, end;
};
/* The C library and the dynamic linker. */
static struct range library[2];
static size_t libraries;

static int finds_library(struct dl_phdr_info *info, size_t size, void *unused)
{
	(void)size, (void)unused;
	if (strstr(info->dlpi_name, "libc.so") == NULL && strstr(info->dlpi_name, "ld-linux") == NULL)
		return 0;
	MUST(libraries < 2);
	struct range *range = &library[libraries++];
	*range = (struct range){ .start = UINTPTR_MAX };
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		if (part->p_type != PT_LOAD)
			continue;
		uintptr_t start = info->dlpi_addr + part->p_vaddr;
		range->start = start < range->start ? start : range->start;
		range->end = start + part->p_memsz > range->end ? start + part->p_memsz : range->end;
	}
	return 0;
}

static int in_library(uintptr_t address)
{
	for (size_t i = 0; i < libraries; i++)
		if (address >= library[i].start && address < library[i].end)
			return 1;
	return 0;
}

static sigjmp_buf back;
static volatile sig_atomic_t forking;
static int go, jumps;
static pthread_t main_thread;
static size_t pages, rounds, round_now;

static void handler(int number, siginfo_t *info, void *context)
{
	(void)number, (void)info;
	if (forking && !in_library(((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP])) {
		forking = 0;
		siglongjmp(back, 1);
	}
}

/* Not at once, so that it comes while signals are blocked. */
static void *sends(void *unused)
{
	(void)unused;
	while (!__atomic_load_n(&go, __ATOMIC_ACQUIRE))
		;
	struct timespec start, now;
	clock_gettime(CLOCK_MONOTONIC, &start);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while ((now.tv_sec - start.tv_sec) * 1000000 + (now.tv_nsec - start.tv_nsec) / 1000 < 150);
	MUST(pthread_kill(main_thread, SIGUSR1) == 0);
	return NULL;
}

static void *forks(void *unused)
{
	(void)unused;
	int status;
	for (int i = 0; i < 3; i++) {
		unsigned char *more = map_pages(64);
		fill(more, 64, "t", 7);
		pid_t child = fork();
		MUST(child >= 0);
		if (child == 0) {
			check(more, 64, "t", 7, "in a child");
			_exit(0);
		}
		MUST(waitpid(child, &status, 0) == child && status == 0);
		check(more, 64, "t", 7, "in a thread");
		MUST(munmap(more, 64 * PAGE) == 0);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pages = number(argc, argv, 1, 48) * MIB / PAGE;
	rounds = number(argc, argv, 2, 20);
	unsigned char *start = map_pages(pages);
	fill(start, pages, "tnw", 1);
	dl_iterate_phdr(finds_library, NULL);
	MUST(libraries == 2);
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };
	MUST(sigaction(SIGUSR1, &action, NULL) == 0);
	main_thread = pthread_self();
	for (; round_now < rounds; round_now++) {
		static pthread_t sender, other;
		__atomic_store_n(&go, 0, __ATOMIC_RELAXED);
		MUST(pthread_create(&sender, NULL, sends, NULL) == 0);
		if (sigsetjmp(back, 1) == 0) {
			forking = 1;
			__atomic_store_n(&go, 1, __ATOMIC_RELEASE);
			if (fork() == 0)
				_exit(0);
			forking = 0;
		} else {
			jumps++;
		}
		MUST(pthread_join(sender, NULL) == 0);
		while (waitpid(-1, NULL, 0) > 0)
			;
		MUST(pthread_create(&other, NULL, forks, NULL) == 0 && pthread_join(other, NULL) == 0);
	}
	check(start, pages, "tnw", 1, "at the end");
	/* How many they are is a matter of time, under a limit nearly all. */
	fprintf(stderr, "%d jumps\n", jumps);
	printf("OK\n");
	return 0;
}
