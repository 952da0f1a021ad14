/* System calls on memory that may be swapped out: the kernel reads and writes it as it does any memory.
 * system_calls BALLAST_MIB ROUNDS (run in a directory that may be written) */
#include "common.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

enum { PAGES = 64 };
static unsigned char *ballast;
static size_t ballast_pages;

/* Touches everything else, so that what was touched before is the coldest. */
static void push_out(uint64_t seed)
{
	static uint64_t last;
	for (size_t i = 0; i < ballast_pages; i++) {
		uint64_t *word = (uint64_t *)(ballast + i * PAGE);
		if (last != 0 && word[9] != mix(last + i))
			die("ballast page %zu", i);
		word[9] = mix(seed + i);
	}
	last = seed;
}

static void files(uint64_t seed)
{
	unsigned char *out = map_pages(PAGES), *in = map_pages(PAGES);
	int file = open(".", O_TMPFILE | O_RDWR, 0600);
	fill(out, PAGES, "tn", seed);
	fill(in, PAGES, "w", seed);
	MUST(file >= 0);
	push_out(seed + 1);
	MUST(write(file, out, PAGES * PAGE) == (ssize_t)(PAGES * PAGE));
	push_out(seed + 2);
	MUST(pread(file, in, PAGES * PAGE, 0) == (ssize_t)(PAGES * PAGE));
	check(in, PAGES, "tn", seed, "read()");
	fill(in, PAGES, "w", seed);
	push_out(seed + 3);
	struct iovec parts[PAGES];
	for (size_t i = 0; i < PAGES; i++)
		parts[i] = (struct iovec){ in + (PAGES - 1 - i) * PAGE, PAGE };
	MUST(preadv(file, parts, PAGES, 0) == (ssize_t)(PAGES * PAGE));
	for (size_t i = 0; i < PAGES; i++)
		check_page(in + (PAGES - 1 - i) * PAGE, kind_at("tn", i), seed + i * PAGE, "preadv()");
	close(file);

	/* The kernel pins the pages for O_DIRECT; not every file system has it. */
	file = open(".", O_TMPFILE | O_RDWR | O_DIRECT, 0600);
	if (file >= 0) {
		push_out(seed + 4);
		MUST(pwrite(file, out, PAGES * PAGE, 0) == (ssize_t)(PAGES * PAGE));
		push_out(seed + 5);
		MUST(pread(file, in, PAGES * PAGE, 0) == (ssize_t)(PAGES * PAGE));
		check(in, PAGES, "tn", seed, "O_DIRECT read()");
		close(file);
	}
	check(out, PAGES, "tn", seed, "what was written");
	munmap(in, PAGES * PAGE);
	munmap(out, PAGES * PAGE);
}

struct stream {
	int descriptor;
	const unsigned char *data;
};

static void *send_all(void *argument)
{
	struct stream *s = argument;
	for (size_t done = 0; done < PAGES * PAGE;) {
		ssize_t n = write(s->descriptor, s->data + done, PAGES * PAGE - done);
		MUST(n > 0);
		done += (size_t)n;
	}
	return NULL;
}

static void pipes_and_sockets(uint64_t seed)
{
	for (int socket = 0; socket < 2; socket++) {
		unsigned char *out = map_pages(PAGES), *in = map_pages(PAGES);
		int ends[2];
		pthread_t sender;
		fill(out, PAGES, "tw", seed);
		MUST(socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 : pipe(ends) == 0);
		push_out(seed + 10);
		struct stream stream = { ends[1], out };
		MUST(pthread_create(&sender, NULL, send_all, &stream) == 0);
		for (size_t done = 0; done < PAGES * PAGE;) {
			struct iovec parts[2] = { { in + done, 1000 }, { in + done + 1000, 5000 } };
			if (PAGES * PAGE - done < 6000)
				parts[0].iov_len = PAGES * PAGE - done, parts[1].iov_len = 0;
			ssize_t n = readv(ends[0], parts, 2);
			MUST(n > 0);
			done += (size_t)n;
		}
		MUST(pthread_join(sender, NULL) == 0);
		check(in, PAGES, "tw", seed, socket ? "socket" : "pipe");
		close(ends[0]);
		close(ends[1]);
		munmap(in, PAGES * PAGE);
		munmap(out, PAGES * PAGE);
	}
}

/* Arguments that are themselves in swapped memory: paths, structures, arrays. */
static void arguments(uint64_t seed)
{
	unsigned char *page = map_pages(8);
	struct stat *info = (struct stat *)(page + PAGE - 40); /* across two pages */
	struct pollfd *polls = (struct pollfd *)(page + 3 * PAGE - 12);
	struct timespec *now = (struct timespec *)(page + 5 * PAGE);
	char *path = (char *)(page + 6 * PAGE);
	int ends[2];
	MUST(pipe(ends) == 0);
	strcpy(path, "/proc/self/status");
	memset(page, 1, PAGE);
	for (int i = 0; i < 3; i++)
		polls[i] = (struct pollfd){ .fd = ends[1], .events = POLLOUT };
	push_out(seed + 20);
	MUST(stat(path, info) == 0 && S_ISREG(info->st_mode));
	push_out(seed + 21);
	MUST(poll(polls, 3, 0) == 3 && polls[2].revents == POLLOUT);
	push_out(seed + 22);
	MUST(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, now) == 0 && now->tv_sec > 0);
	MUST(getcwd((char *)page, PAGE) != NULL && page[0] == '/');
	push_out(seed + 23);
	struct iovec here = { page + 7 * PAGE, 64 }, there = { path, 64 };
	MUST(process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 64 || errno == EPERM || errno == ENOSYS);
	close(ends[0]);
	close(ends[1]);
	munmap(page, 8 * PAGE);
}

static _Atomic uint32_t *turn;
static size_t turns;

static void take_turns(uint32_t mine)
{
	for (size_t n = 0; n < turns; n++) {
		uint32_t now;
		while ((now = *turn) % 2 != mine)
			syscall(SYS_futex, turn, FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0);
		if (n % 16 == 0 && mine == 0)
			push_out(1000 + n);
		++*turn;
		MUST(syscall(SYS_futex, turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) >= 0);
	}
}

static void *other_side(void *unused)
{
	(void)unused;
	take_turns(1);
	return NULL;
}

static void futexes(void)
{
	pthread_t other;
	turn = (_Atomic uint32_t *)map_pages(1);
	turns = 64;
	MUST(pthread_create(&other, NULL, other_side, NULL) == 0);
	take_turns(0);
	MUST(pthread_join(other, NULL) == 0);
	MUST(*turn == 2 * turns);
	munmap((void *)turn, PAGE);
}

static unsigned char *seen_by_handler;
static volatile sig_atomic_t handled;

static void handler(int signal, siginfo_t *info, void *context)
{
	unsigned char local[3 * PAGE];
	(void)info;
	(void)context;
	fill(local, 3, "t", (uint64_t)signal);
	check(local, 3, "t", (uint64_t)signal, "alternate stack");
	check(seen_by_handler, PAGES, "tw", 77, "from a signal handler");
	handled++;
}

/* The kernel writes the frame of a signal to a stack that is swapped out; the handler reads memory that is. */
static void signals(uint64_t seed)
{
	stack_t stack = { .ss_sp = map_pages(64), .ss_size = 64 * PAGE };
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	seen_by_handler = map_pages(PAGES);
	fill(seen_by_handler, PAGES, "tw", 77);
	memset(stack.ss_sp, 3, stack.ss_size);
	MUST(sigaltstack(&stack, NULL) == 0);
	MUST(sigaction(SIGUSR1, &action, NULL) == 0);
	handled = 0;
	for (int n = 0; n < 4; n++) {
		push_out(seed + 30 + (uint64_t)n);
		MUST(raise(SIGUSR1) == 0);
	}
	MUST(handled == 4);
	stack.ss_flags = SS_DISABLE;
	MUST(sigaltstack(&stack, NULL) == 0);
	munmap(stack.ss_sp, 64 * PAGE);
	munmap(seen_by_handler, PAGES * PAGE);
}

int main(int argc, char **argv)
{
	ballast_pages = number(argc, argv, 1, 160) * MIB / PAGE;
	size_t rounds = number(argc, argv, 2, 2);
	ballast = map_pages(ballast_pages);
	fill(ballast, ballast_pages, "tw", 3);
	for (uint64_t round = 0; round < rounds; round++) {
		files(round * 100);
		pipes_and_sockets(round * 100);
		arguments(round * 100);
		signals(round * 100);
	}
	futexes();
	printf("OK %zu\n", rounds);
	return 0;
}
