/* What a process that shares a program's memory, and is none of its threads, can do for it; and what a fault costs that it serves, against one that a
 * thread serves. Nothing of lowtide's is in it: docs/design/decisions.md tells what is to be learnt. As root: keeper [exec]
 *
 * The process is a child of a child, which ends at once: so it is nobody's whom the program waits for. */
#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>

#ifndef UFFDIO_MOVE
struct uffdio_move { uint64_t dst, src, len, mode; int64_t move; };
#define UFFDIO_MOVE _IOWR(UFFDIO, 0x05, struct uffdio_move)
#define UFFD_FEATURE_MOVE (1 << 16)
#endif

enum { PAGES = 4096, ROUNDS = 9 };

static unsigned char *memory, *frames;
static int uffd, program_lives[2];
static volatile pid_t keeper;

/* Serves faults by MOVE, until `program` is gone; -1: for ever. */
static void serve(int program)
{
	for (;;) {
		struct pollfd wait[2] = {{.fd = uffd, .events = POLLIN}, {.fd = program, .events = POLLIN}};
		struct uffd_msg message;
		MUST(poll(wait, 2, -1) > 0);
		if (wait[1].revents != 0)
			return;
		if (read(uffd, &message, sizeof message) != sizeof message)
			continue;
		uintptr_t at = message.arg.pagefault.address & -PAGE;
		size_t page = (at - (uintptr_t)memory) / PAGE;
		memset(frames + page * PAGE, (int)(page % 251), PAGE);
		struct uffdio_move move = {.dst = at, .src = (uintptr_t)(frames + page * PAGE), .len = PAGE};
		MUST(ioctl(uffd, UFFDIO_MOVE, &move) == 0);
	}
}

static void *thread(void *nothing)
{
	serve(-1);
	return nothing;
}

static int process(void *nothing)
{
	(void)nothing;
	/* No signal of a terminal comes there. */
	MUST(setsid() > 0);
	MUST(close(program_lives[1]) == 0);
	keeper = (pid_t)syscall(SYS_getpid);
	serve(program_lives[0]);
	_exit(0);
}

static int between(void *nothing)
{
	static unsigned char stack[1 << 18] __attribute__((aligned(16)));
	MUST(clone(process, stack + sizeof stack, CLONE_VM, nothing) > 0);
	return 0;
}

static void start_process(void)
{
	static unsigned char stack[1 << 16] __attribute__((aligned(16)));
	int status;
	/* Closed by exec and by the program's end, of whatever kind. */
	MUST(pipe2(program_lives, O_CLOEXEC) == 0);
	pid_t child = clone(between, stack + sizeof stack, CLONE_VM, NULL);
	MUST(child > 0 && waitpid(child, &status, __WCLONE) == child && status == 0);
	while (keeper == 0)
		usleep(100);
}

static double us_a_fault(void)
{
	struct timespec start, end;
	MUST(madvise(memory, PAGES * PAGE, MADV_DONTNEED) == 0);
	MUST(clock_gettime(CLOCK_MONOTONIC, &start) == 0);
	for (size_t page = 0; page < PAGES; page++)
		MUST(memory[page * PAGE + 7] == page % 251);
	MUST(clock_gettime(CLOCK_MONOTONIC, &end) == 0);
	return ((double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec)) / 1000 / PAGES;
}

/* In a process of its own, served by one or the other. */
static double measured(int by_thread)
{
	int result[2];
	double us;
	MUST(pipe(result) == 0);
	pid_t child = fork();
	if (child == 0) {
		pthread_t server;
		struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_MOVE};
		struct uffdio_register all = {.range = {(uintptr_t)memory, PAGES * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
		uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
		MUST(uffd >= 0 && ioctl(uffd, UFFDIO_API, &api) == 0 && ioctl(uffd, UFFDIO_REGISTER, &all) == 0);
		if (by_thread)
			MUST(pthread_create(&server, NULL, thread, NULL) == 0);
		else
			start_process();
		us_a_fault();
		us = us_a_fault();
		MUST(write(result[1], &us, sizeof us) == sizeof us);
		_exit(0);
	}
	wait_for(child);
	MUST(read(result[0], &us, sizeof us) == sizeof us);
	MUST(close(result[0]) == 0 && close(result[1]) == 0);
	return us;
}

static int threads(void)
{
	int count = 0;
	DIR *all = opendir("/proc/self/task");
	MUST(all != NULL);
	for (struct dirent *one; (one = readdir(all)) != NULL;)
		count += one->d_name[0] != '.';
	closedir(all);
	return count;
}

static int order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	double ratio[ROUNDS];
	memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	frames = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(memory != MAP_FAILED && frames != MAP_FAILED);
	for (int round = 0; round < ROUNDS; round++) {
		double by_thread = measured(1);
		ratio[round] = measured(0) / by_thread;
	}
	qsort(ratio, ROUNDS, sizeof *ratio, order);
	printf("a fault: %.2f of the time with a thread (%.2f to %.2f)\n", ratio[ROUNDS / 2], ratio[0], ratio[ROUNDS - 1]);
	start_process();
	printf("threads of the program: %d; children: %s\n", threads(), waitpid(-1, NULL, __WALL) == -1 ? "none" : "some");
	fflush(stdout);
	/* In either case there is no such process a moment later. */
	if (argc > 1 && strcmp(argv[1], "exec") == 0) {
		char test[96];
		snprintf(test, sizeof test, "sleep 0.2; readlink /proc/%d/exe || echo exec: it has ended", (int)keeper);
		execl("/bin/sh", "sh", "-c", test, NULL);
	}
	printf("unshare of a user namespace: %s\n", unshare(CLONE_NEWUSER) == 0 ? "done" : strerror(errno));
	return 0;
}
