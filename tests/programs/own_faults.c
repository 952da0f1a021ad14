/* What a program does with signals, stacks and descriptors while its threads bring their pages in themselves. own_faults CASE MIB
 *
 * The memory is filled first; under a limit most of it is out then. Each case touches it in its own way and checks every byte. */
#include "call_filter.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>

/* What lowtide's signal would be. */
#define SIGNAL SIGSTKFLT
#define KINDS "tw"

static unsigned char *memory;
static size_t pages;
static volatile sig_atomic_t caught;

static void check_at(size_t page, const char *where)
{
	check_page(memory + page * PAGE, kind_at(KINDS, page), page * PAGE, where);
}

/* So many pages at random: others for each seed. (The generator's states are numbers in a row: from 1 it gives what it gives from 2, one later.) */
static void touch(uint64_t seed, size_t times, const char *where)
{
	uint64_t state = mix(seed);
	while (times-- > 0)
		check_at(next_random(&state) % pages, where);
}

/* The memory is touched for so long that a limit holds, and threads serve themselves if they are to. */
static void until_limited(void)
{
	struct timespec start, now;
	MUST(clock_gettime(CLOCK_MONOTONIC, &start) == 0);
	do {
		touch(11, pages / 4, "at first");
		MUST(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	} while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < 300);
}

static void touches(void)
{
	touch(1, 2 * pages, "touched");
}

/* So many faults that `--faults auto` has threads serve theirs, and as many again. */
static void while_worthwhile(void)
{
	touch(2, 16 * pages, "again and again");
}

static void *worthwhile(void *unused)
{
	while_worthwhile();
	return unused;
}

static void *toucher(void *seed)
{
	touch((uint64_t)(uintptr_t)seed, pages, "a thread");
	return NULL;
}

static void in_thread(void *(*run)(void *), void *argument, const pthread_attr_t *attributes)
{
	pthread_t thread;
	MUST(pthread_create(&thread, attributes, run, argument) == 0);
	MUST(pthread_join(thread, NULL) == 0);
}

static void thread_while_worthwhile(void)
{
	in_thread(worthwhile, NULL, NULL);
}

static void threads(void)
{
	pthread_t thread[4];
	for (uintptr_t i = 0; i < 4; i++)
		MUST(pthread_create(&thread[i], NULL, toucher, (void *)(i + 1)) == 0);
	for (int i = 0; i < 4; i++)
		MUST(pthread_join(thread[i], NULL) == 0);
}

/* System calls that meet missing pages. */
static void calls(void)
{
	int end[2];
	unsigned char got[PAGE], other[PAGE];
	uint64_t random = 7;
	MUST(pipe(end) == 0);
	for (size_t i = 0; i < pages; i++) {
		size_t page = next_random(&random) % pages;
		MUST(write(end[1], memory + page * PAGE, PAGE) == (ssize_t)PAGE);
		MUST(read(end[0], got, PAGE) == (ssize_t)PAGE);
		check_page(got, kind_at(KINDS, page), page * PAGE, "written to a pipe");
		page = next_random(&random) % pages;
		make_page(other, kind_at(KINDS, page), page * PAGE);
		MUST(write(end[1], other, PAGE) == (ssize_t)PAGE);
		MUST(read(end[0], memory + page * PAGE, PAGE) == (ssize_t)PAGE);
		check_at(page, "read from a pipe");
	}
}

static void block_all(void)
{
	sigset_t all;
	sigfillset(&all);
	MUST(pthread_sigmask(SIG_BLOCK, &all, NULL) == 0);
}

static void *blocked_toucher(void *seed)
{
	sigset_t pending;
	block_all();
	toucher(seed);
	MUST(sigpending(&pending) == 0);
	MUST(!sigismember(&pending, SIGNAL));
	return NULL;
}

static void blocked(void)
{
	in_thread(blocked_toucher, (void *)3, NULL);
	touches();
}

static void in_handler(int signal)
{
	(void)signal;
	touch((uint64_t)++caught, 16, "in a handler");
}

static void handle(int signal, void (*handler)(int), int flags)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
	sigfillset(&action.sa_mask);
	MUST(sigaction(signal, &action, NULL) == 0);
}

static void handlers(void)
{
	handle(SIGUSR1, in_handler, 0);
	for (int i = 0; i < 200; i++) {
		touch((uint64_t)i, 16, "before a signal");
		MUST(raise(SIGUSR1) == 0);
	}
	MUST(caught == 200);
}

/* Signals at any moment, some on a stack that is too small for one more frame. */
static void storm(void)
{
	static unsigned char small[1 << 16];
	size_t size = (size_t)sysconf(_SC_MINSIGSTKSZ) + 4096 + PAGE;
	stack_t stack = {.ss_sp = small, .ss_size = size < sizeof small ? size : sizeof small};
	struct itimerval every = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
	MUST(sigaltstack(&stack, NULL) == 0);
	handle(SIGALRM, in_handler, SA_ONSTACK | SA_RESTART);
	MUST(setitimer(ITIMER_REAL, &every, NULL) == 0);
	threads();
	touches();
	MUST(setitimer(ITIMER_REAL, &never, NULL) == 0);
	MUST(caught > 0);
}

static void count(int signal)
{
	(void)signal;
	caught++;
}

/* The program has the signal for itself, or resets it, after its threads have begun to serve themselves. */
static void takes_signal(void)
{
	touches();
	handle(SIGNAL, count, SA_RESTART);
	touches();
	MUST(caught == 0);
	MUST(raise(SIGNAL) == 0 && caught == 1);
	signal(SIGNAL, SIG_IGN);
	touches();
	signal(SIGNAL, SIG_DFL);
	touches();
}

/* A signal that somebody sends ends the process, as it would without lowtide. */
static void sent(void)
{
	int status;
	touches();
	pid_t child = fork();
	if (child == 0) {
		touches();
		raise(SIGNAL);
		_exit(0);
	}
	MUST(child > 0 && waitpid(child, &status, 0) == child);
	MUST(WIFSIGNALED(status) && WTERMSIG(status) == SIGNAL);
	touches();
}

static void *waiter(void *done)
{
	struct timespec moment = {0, 1000000};
	sigset_t all;
	block_all();
	sigfillset(&all);
	while (!__atomic_load_n((int *)done, __ATOMIC_ACQUIRE))
		if (sigtimedwait(&all, NULL, &moment) >= 0)
			die("a signal for who waits for signals");
	return NULL;
}

/* Others wait for any signal, or are in a system call that signals interrupt. */
static void waits(void)
{
	int done = 0, end[2];
	pthread_t thread;
	MUST(pthread_create(&thread, NULL, waiter, &done) == 0);
	MUST(pipe(end) == 0);
	pid_t child = fork();
	if (child == 0) {
		char byte;
		close(end[1]);
		touch(5, pages / 2, "before a read");
		MUST(read(end[0], &byte, 1) == 1);
		touch(6, pages / 2, "after a read");
		_exit(0);
	}
	threads();
	touches();
	MUST(write(end[1], "x", 1) == 1);
	wait_for(child);
	__atomic_store_n(&done, 1, __ATOMIC_RELEASE);
	MUST(pthread_join(thread, NULL) == 0);
}

/* ioctl ends the thread that makes it. */
static void *filtered_toucher(void *seed)
{
	filter_call(SYS_ioctl, SECCOMP_RET_KILL_PROCESS);
	return toucher(seed);
}

static void filtered(void)
{
	touches();
	in_thread(filtered_toucher, (void *)9, NULL);
	touches();
}

/* The thread may only read, write and end. */
static void *strict_toucher(void *done)
{
	MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
	toucher((void *)13);
	*(volatile int *)done = 1;
	syscall(SYS_exit, 0);
	return NULL;
}

static void strict(void)
{
	volatile int done = 0;
	touches();
	in_thread(strict_toucher, (void *)&done, NULL);
	MUST(done);
	touches();
}

/* Each system call of the thread becomes SIGSYS, as where Windows programs run. */
static volatile char dispatched;

static void on_system_call(int signal)
{
	(void)signal;
	dispatched = SYSCALL_DISPATCH_FILTER_ALLOW;
	caught++;
}

static void *dispatched_toucher(void *seed)
{
	MUST(prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, &dispatched) == 0);
	dispatched = SYSCALL_DISPATCH_FILTER_BLOCK;
	toucher(seed);
	MUST(caught == 0);
	getppid();
	MUST(caught == 1);
	return NULL;
}

static void dispatch(void)
{
	handle(SIGSYS, on_system_call, 0);
	touches();
	in_thread(dispatched_toucher, (void *)15, NULL);
	touches();
}

/* io_uring reads from pipes into pages that may be out, and the kernel does it at any moment in the thread that asked, also under
 * lowtide's handler. */
#define READS 8u
static int uring, feed[READS][2];
static struct io_uring_params uring_params;
static struct io_uring_sqe *asked_reads;
static unsigned char *uring_queues;
static size_t wanted[READS];
static volatile unsigned to_feed, fed;

static void *feeder(void *rounds)
{
	unsigned char page[PAGE];
	for (unsigned round = 1; round <= (unsigned)(uintptr_t)rounds; round++) {
		while (to_feed != round)
			sched_yield();
		for (unsigned i = 0; i < READS; i++) {
			make_page(page, kind_at(KINDS, wanted[i]), wanted[i] * PAGE);
			MUST(write(feed[i][1], page, PAGE) == (ssize_t)PAGE);
			usleep(200);
		}
		fed = round;
	}
	return NULL;
}

static unsigned *queue_word(unsigned offset)
{
	return (unsigned *)(uring_queues + offset);
}

static void ask_for_reads(void)
{
	unsigned tail = *queue_word(uring_params.sq_off.tail), mask = *queue_word(uring_params.sq_off.ring_mask);
	for (unsigned i = 0; i < READS; i++, tail++) {
		asked_reads[tail & mask] = (struct io_uring_sqe){
			.opcode = IORING_OP_READ, .fd = feed[i][0], .addr = (uintptr_t)(memory + wanted[i] * PAGE), .len = PAGE, .user_data = i,
		};
		queue_word(uring_params.sq_off.array)[tail & mask] = tail & mask;
	}
	__atomic_store_n(queue_word(uring_params.sq_off.tail), tail, __ATOMIC_RELEASE);
	MUST(syscall(SYS_io_uring_enter, uring, READS, 0, 0, NULL, 0) == READS);
}

static void take_reads(void)
{
	unsigned head = *queue_word(uring_params.cq_off.head), mask = *queue_word(uring_params.cq_off.ring_mask);
	for (unsigned i = 0; i < READS; i++, head++) {
		while (__atomic_load_n(queue_word(uring_params.cq_off.tail), __ATOMIC_ACQUIRE) == head)
			MUST(syscall(SYS_io_uring_enter, uring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 0 || errno == EINTR);
		struct io_uring_cqe *done = (struct io_uring_cqe *)(uring_queues + uring_params.cq_off.cqes) + (head & mask);
		MUST(done->res == (int)PAGE);
		check_at(wanted[done->user_data], "read by io_uring");
	}
	__atomic_store_n(queue_word(uring_params.cq_off.head), head, __ATOMIC_RELEASE);
}

static void rings(void)
{
	const unsigned rounds = 50;
	uint64_t random = 21;
	pthread_t thread;
	uring = (int)syscall(SYS_io_uring_setup, 2 * READS, &uring_params);
	MUST(uring >= 0 && uring_params.features & IORING_FEAT_SINGLE_MMAP);
	size_t queues = uring_params.cq_off.cqes + uring_params.cq_entries * sizeof(struct io_uring_cqe);
	size_t array = uring_params.sq_off.array + uring_params.sq_entries * sizeof(unsigned);
	uring_queues = mmap(NULL, queues > array ? queues : array, PROT_READ | PROT_WRITE, MAP_SHARED, uring, IORING_OFF_SQ_RING);
	asked_reads = mmap(NULL, uring_params.sq_entries * sizeof *asked_reads, PROT_READ | PROT_WRITE, MAP_SHARED, uring, IORING_OFF_SQES);
	MUST(uring_queues != MAP_FAILED && asked_reads != MAP_FAILED);
	for (unsigned i = 0; i < READS; i++)
		MUST(pipe(feed[i]) == 0);
	MUST(pthread_create(&thread, NULL, feeder, (void *)(uintptr_t)rounds) == 0);
	for (unsigned round = 1; round <= rounds; round++) {
		for (unsigned i = 0; i < READS; i++)
			wanted[i] = next_random(&random) % pages;
		ask_for_reads();
		to_feed = round;
		while (fed != round)
			touch(next_random(&random), 16, "while io_uring reads");
		take_reads();
	}
	MUST(pthread_join(thread, NULL) == 0);
	in_thread(toucher, (void *)17, NULL);
	touches();
}

/* Zeros that are read, for so long that the zero page is mapped in their places, and then written. */
static void zeros(void)
{
	const size_t places = 8192;
	unsigned char *at = mmap(NULL, places * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(at != MAP_FAILED);
	for (int round = 0; round < 8; round++) {
		uint64_t random = (uint64_t)round;
		for (size_t i = 0; i < places / 2; i++)
			MUST(((volatile unsigned char *)at)[next_random(&random) % places * PAGE + i % PAGE] == 0);
		usleep(20000);
		for (size_t place = (size_t)round; place < places; place += 64)
			make_page(at + place * PAGE, TEXT, place);
		for (size_t place = (size_t)round; place < places; place += 64)
			check_page(at + place * PAGE, TEXT, place, "where zeros were read");
		MUST(madvise(at, places * PAGE, MADV_DONTNEED) == 0);
	}
	MUST(munmap(at, places * PAGE) == 0);
	touches();
}

/* The program serves some memory itself, with a userfaultfd of its own. */
#define SERVED ((size_t)512)
static unsigned char *served;
static int own_uffd;

static void *server(void *nothing)
{
	static unsigned char page[4096] __attribute__((aligned(4096)));
	struct pollfd wait = {.fd = own_uffd, .events = POLLIN};
	struct uffd_msg message;
	(void)nothing;
	for (;;) {
		MUST(poll(&wait, 1, -1) == 1);
		if (read(own_uffd, &message, sizeof message) != sizeof message)
			continue;
		MUST(message.event == UFFD_EVENT_PAGEFAULT);
		size_t index = (message.arg.pagefault.address - (uintptr_t)served) / PAGE;
		MUST(index < SERVED);
		make_page(page, TEXT, index);
		struct uffdio_copy copy = {.dst = (uintptr_t)(served + index * PAGE), .src = (uintptr_t)page, .len = PAGE};
		MUST(ioctl(own_uffd, UFFDIO_COPY, &copy) == 0 || errno == EEXIST);
	}
	return NULL;
}

static void *served_toucher(void *seed)
{
	uint64_t random = (uint64_t)(uintptr_t)seed;
	int end[2];
	unsigned char got[PAGE];
	MUST(pipe(end) == 0);
	for (size_t i = 0; i < 2 * SERVED; i++) {
		size_t page = next_random(&random) % SERVED;
		if (i % 2 == 0) {
			check_page(served + page * PAGE, TEXT, page, "served by the program");
		} else {
			MUST(write(end[1], served + page * PAGE, PAGE) == (ssize_t)PAGE);
			MUST(read(end[0], got, PAGE) == (ssize_t)PAGE);
			check_page(got, TEXT, page, "served by the program for a system call");
		}
		touch(next_random(&random), 2, "beside a userfaultfd of its own");
		page = next_random(&random) % SERVED;
		MUST(madvise(served + page * PAGE, PAGE, MADV_DONTNEED) == 0);
	}
	return NULL;
}

static void serves(void)
{
	struct uffdio_api api = {.api = UFFD_API};
	pthread_t thread, toucher;
	own_uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	MUST(own_uffd >= 0 && ioctl(own_uffd, UFFDIO_API, &api) == 0);
	served = mmap(NULL, SERVED * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(served != MAP_FAILED);
	struct uffdio_register claim = {.range = {(uintptr_t)served, SERVED * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	MUST(ioctl(own_uffd, UFFDIO_REGISTER, &claim) == 0);
	MUST(pthread_create(&thread, NULL, server, NULL) == 0);
	MUST(pthread_create(&toucher, NULL, served_toucher, (void *)23) == 0);
	served_toucher((void *)25);
	MUST(pthread_join(toucher, NULL) == 0);
	touches();
}

/* Down to the end of a small stack, whose pages may be out too. */
static __attribute__((noinline)) void deeper(size_t left)
{
	volatile unsigned char here[512];
	here[0] = here[511] = (unsigned char)left;
	check_at(mix(left) % pages, "deep in a stack");
	if (left > 0)
		deeper(left - 1);
	MUST(here[0] == (unsigned char)left && here[511] == (unsigned char)left);
}

static void *deep(void *levels)
{
	for (int i = 0; i < 20; i++)
		deeper((size_t)(uintptr_t)levels);
	return NULL;
}

static void stacks(void)
{
	pthread_attr_t small;
	size_t size = PTHREAD_STACK_MIN + 32768;
	MUST(pthread_attr_init(&small) == 0);
	MUST(pthread_attr_setstacksize(&small, size) == 0);
	in_thread(deep, (void *)((size - 16384) / 768), &small);
}

/* The first byte of each page, so that little stack is needed to check one. */
static unsigned char *firsts;

static void note_firsts(void)
{
	firsts = mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(firsts != MAP_FAILED);
	for (size_t page = 0; page < pages; page++)
		firsts[page] = memory[page * PAGE];
}

static void touch_lightly(uint64_t seed)
{
	for (int i = 0; i < 8; i++) {
		size_t page = next_random(&seed) % pages;
		if (((volatile unsigned char *)memory)[page * PAGE] != firsts[page])
			die("page %zu where there is little stack", page);
	}
}

/* A stack that the program made for a coroutine: without a guard, and with what it takes and no more. What is below is the program's. */
static ucontext_t before, inside;
static unsigned char *coroutine;
enum { ROOM = 1024, BELOW = 16384 };

static void on_coroutine(void)
{
	for (uint64_t i = 0; i < 2500; i++)
		touch_lightly(1000 * i);
}

static void *run_coroutine(void *looks_like_a_thread)
{
	struct robust_list_head *before_it, *above = (void *)(coroutine + BELOW + ROOM);
	size_t length;
	MUST(syscall(SYS_get_robust_list, 0, &before_it, &length) == 0);
	if (looks_like_a_thread) {
		/* What is at the upper end of a thread's stack is just above. */
		*above = (struct robust_list_head){.list = {&above->list}};
		MUST(syscall(SYS_set_robust_list, above, sizeof *above) == 0);
	}
	MUST(getcontext(&inside) == 0);
	inside.uc_stack.ss_sp = coroutine + BELOW;
	inside.uc_stack.ss_size = ROOM;
	inside.uc_link = &before;
	makecontext(&inside, on_coroutine, 0);
	MUST(swapcontext(&before, &inside) == 0);
	MUST(syscall(SYS_set_robust_list, before_it, length) == 0);
	return NULL;
}

static void coroutines(void)
{
	while_worthwhile();
	note_firsts();
	coroutine = malloc(BELOW + ROOM + sizeof(struct robust_list_head));
	MUST(coroutine);
	memset(coroutine, 0xa5, BELOW + ROOM);
	run_coroutine(NULL);
	run_coroutine(memory);
	in_thread(run_coroutine, NULL, NULL);
	for (size_t i = 0; i < BELOW; i++)
		if (coroutine[i] != 0xa5)
			die("byte %zu below a coroutine's stack was written over", BELOW - i);
	free(coroutine);
	touches();
}

/* Down to where no signal's frame would fit above the end of the stack, which is a guard. */
static __attribute__((noinline)) void to_the_brim(const unsigned char *end, uint64_t seed)
{
	volatile unsigned char here[256];
	here[0] = 1;
	if ((const unsigned char *)here - end > 1000)
		to_the_brim(end, seed + 1);
	touch_lightly(seed);
	MUST(here[0] == 1);
}

static void *brim(void *end)
{
	for (uint64_t i = 0; i < 50; i++)
		to_the_brim(end, 1000 * i);
	return NULL;
}

static void on_small_stack(int signal)
{
	(void)signal;
	touch_lightly((uint64_t)++caught);
}

/* No room for one more frame: on a thread's stack, and on an alternate one. */
static void brims(void)
{
	const size_t size = 1 << 16;
	size_t least = (size_t)sysconf(_SC_MINSIGSTKSZ) + 1024;
	pthread_attr_t own;
	unsigned char *stack = mmap(NULL, size + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(stack != MAP_FAILED && mprotect(stack, PAGE, PROT_NONE) == 0);
	note_firsts();
	MUST(pthread_attr_init(&own) == 0 && pthread_attr_setstack(&own, stack + PAGE, size) == 0);
	in_thread(brim, stack + PAGE, &own);
	stack_t small = {.ss_sp = malloc(least), .ss_size = least}, none = {.ss_flags = SS_DISABLE};
	struct sigaction action = {.sa_handler = on_small_stack, .sa_flags = SA_ONSTACK};
	MUST(sigaltstack(&small, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
	for (int i = 0; i < 200; i++)
		MUST(raise(SIGUSR1) == 0);
	MUST(caught == 200 && sigaltstack(&none, NULL) == 0);
	touches();
}

static void children(void)
{
	for (int i = 0; i < 3; i++) {
		touch((uint64_t)i, pages, "before a fork");
		pid_t child = fork();
		if (child == 0) {
			touch((uint64_t)i, 2 * pages, "a child");
			_exit(0);
		}
		touch((uint64_t)i + 50, pages, "a parent");
		wait_for(child);
	}
	pid_t child = vfork();
	if (child == 0) {
		touch(77, pages / 4, "a child of vfork");
		_exit(0);
	}
	wait_for(child);
	touches();
}

/* A process that shares this one's memory may be killed at any moment. */
static int borrower(void *seed)
{
	for (uint64_t i = 0;; i++)
		touch((uint64_t)(uintptr_t)seed + i, pages, "in another process");
	return 0;
}

static void killed(void)
{
	static unsigned char stack[1 << 16] __attribute__((aligned(16)));
	int status;
	for (int i = 0; i < 100; i++) {
		pid_t child = clone(borrower, stack + sizeof stack, CLONE_VM | SIGCHLD, (void *)(uintptr_t)(1000 * i));
		MUST(child > 0);
		touch((uint64_t)i, 64, "beside another process");
		usleep((unsigned)(i % 7) * 300);
		MUST(kill(child, SIGKILL) == 0);
		MUST(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
	}
	touches();
}

/* All descriptors that it has not opened are closed, and others come in their places. */
static void closes(void)
{
	touches();
	MUST(syscall(SYS_close_range, 3, ~0u, 0) == 0);
	touches();
	int file = open("/proc/self/exe", O_RDONLY);
	MUST(file >= 0);
	while (dup(file) >= 0)
		;
	touches();
	MUST(syscall(SYS_close_range, 3, ~0u, 0) == 0);
	touches();
}

/* Children of a process that has closed them. */
static void closes_and_forks(void)
{
	touches();
	MUST(syscall(SYS_close_range, 3, ~0u, 0) == 0);
	touches();
	children();
}

/* Registers of all kinds are what they were. */
static void registers(void)
{
	uint64_t random = 3;
	for (size_t i = 0; i < 2 * pages; i++) {
		volatile unsigned char *at = memory + next_random(&random) % pages * PAGE;
		uint64_t in[4] = {mix(i), mix(i + 1), mix(i + 2), mix(i + 3)}, out[4];
		unsigned char byte;
		__asm__ volatile("movdqu (%1), %%xmm3; movdqu 16(%1), %%xmm15; std; cld; movb (%3), %0; movdqu %%xmm3, (%2); movdqu %%xmm15, 16(%2)"
				 : "=&q"(byte)
				 : "r"(in), "r"(out), "r"(at)
				 : "xmm3", "xmm15", "memory", "cc");
		MUST(memcmp(in, out, sizeof in) == 0);
	}
}

/* Threads come and go. */
static void ends(void)
{
	for (uintptr_t round = 0; round < 40; round++) {
		pthread_t thread[4];
		for (uintptr_t i = 0; i < 4; i++)
			MUST(pthread_create(&thread[i], NULL, toucher, (void *)(4 * round + i)) == 0);
		for (int i = 0; i < 4; i++)
			MUST(pthread_join(thread[i], NULL) == 0);
	}
}

/* No signal can be queued. */
static void unqueued(void)
{
	struct rlimit none = {0, 0};
	MUST(setrlimit(RLIMIT_SIGPENDING, &none) == 0);
	touches();
}

/* Events while others fault. */
static void *dropper(void *done)
{
	uint64_t random = 1;
	unsigned char *own = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(own != MAP_FAILED);
	while (!__atomic_load_n((int *)done, __ATOMIC_ACQUIRE)) {
		size_t page = next_random(&random) % 1023;
		make_page(own + page * PAGE, TEXT, page);
		MUST(madvise(own + page * PAGE, 2 * PAGE, MADV_DONTNEED) == 0);
		check_zero(own + page * PAGE, 2 * PAGE, "dropped");
		unsigned char *other = mmap(NULL, PAGE * 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		MUST(other != MAP_FAILED);
		make_page(other, TEXT, page);
		other = mremap(other, PAGE * 16, PAGE * 32, MREMAP_MAYMOVE);
		MUST(other != MAP_FAILED);
		check_page(other, TEXT, page, "moved");
		MUST(munmap(other, PAGE * 32) == 0);
	}
	return NULL;
}

static void events(void)
{
	int done = 0;
	pthread_t thread;
	MUST(pthread_create(&thread, NULL, dropper, &done) == 0);
	threads();
	touches();
	__atomic_store_n(&done, 1, __ATOMIC_RELEASE);
	MUST(pthread_join(thread, NULL) == 0);
}

/* A tracer sees no signal that is none of the program's. */
static void traced(void)
{
	int status;
	pid_t child = fork();
	if (child == 0) {
		MUST(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
		raise(SIGSTOP);
		touches();
		_exit(0);
	}
	MUST(child > 0 && waitpid(child, &status, 0) == child && WIFSTOPPED(status));
	MUST(ptrace(PTRACE_CONT, child, NULL, NULL) == 0);
	wait_for(child);
	touches();
}

/* How many of this process's mappings have the size of what a thread borrows to serve a fault: its buffer, and its stack. */
static int lent(void)
{
	char line[512];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "re");
	MUST(maps != NULL);
	while (fgets(line, sizeof line, maps) != NULL) {
		unsigned long start, end;
		char access[5];
		MUST(sscanf(line, "%lx-%lx %4s", &start, &end, access) == 3);
		found += end - start == 256 << 10 && strcmp(access, "rw-p") == 0;
	}
	MUST(fclose(maps) == 0);
	return found;
}

/* A fork while lowtide run, which is this process's parent and is stopped, owes an answer. Says what parent and child have. */
static void asked(void)
{
	pid_t lowtide = getppid(), guard = fork();
	int found, result[2];
	if (guard == 0) {
		/* Whatever becomes of the others. */
		sleep(60);
		kill(lowtide, SIGCONT);
		_exit(0);
	}
	MUST(guard > 0 && pipe(result) == 0);
	MUST(kill(lowtide, SIGSTOP) == 0);
	fill(memory, pages, KINDS, 0);
	until_limited();
	while_worthwhile();
	pid_t child = fork();
	if (child == 0) {
		/* Its threads start. */
		usleep(500000);
		found = lent();
		MUST(write(result[1], &found, sizeof found) == sizeof found);
		_exit(0);
	}
	wait_for(child);
	MUST(read(result[0], &found, sizeof found) == sizeof found);
	printf("%d in the parent, %d in the child\n", lent(), found);
	MUST(kill(lowtide, SIGCONT) == 0 && kill(guard, SIGKILL) == 0);
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } cases[] = {
		{"while_worthwhile", while_worthwhile}, {"thread_while_worthwhile", thread_while_worthwhile}, {"coroutines", coroutines},
		{"touches", touches}, {"threads", threads}, {"calls", calls}, {"blocked", blocked}, {"handlers", handlers}, {"storm", storm},
		{"takes_signal", takes_signal}, {"sent", sent}, {"waits", waits}, {"filtered", filtered}, {"stacks", stacks},
		{"children", children}, {"closes", closes}, {"registers", registers}, {"ends", ends}, {"unqueued", unqueued}, {"events", events},
		{"traced", traced}, {"asked", asked}, {"strict", strict}, {"brims", brims}, {"zeros", zeros},
		{"dispatch", dispatch}, {"rings", rings}, {"serves", serves}, {"killed", killed}, {"closes_and_forks", closes_and_forks},
	};
	MUST(argc == 3);
	pages = strtoul(argv[2], NULL, 10) * MIB / PAGE;
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(memory != MAP_FAILED);
	if (strcmp(argv[1], "asked") != 0) {
		fill(memory, pages, KINDS, 0);
		until_limited();
	}
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (strcmp(cases[i].name, argv[1]) == 0) {
			cases[i].run();
			check(memory, pages, KINDS, 0, "in the end");
			printf("%s: right\n", argv[1]);
			return 0;
		}
	die("no such case: %s", argv[1]);
}
