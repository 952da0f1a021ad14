/* left_calls WAY TIMES BEFORE LATER: memory calls are left in another way than by a return, TIMES times. BEFORE MiB are filled first, LATER MiB
   afterwards, which a raw system call has mapped: only a look at all mappings finds them. Then another thread maps and unmaps, and counts how
   often it had to sleep for that. WAY:

   jump      siglongjmp out of a handler, from munmap
   altstack  the same from a handler with a stack of its own
   deep      the same, and all later calls come from further down the stack
   ask       the same from mmap: of many small mappings
   drop      the same from madvise(MADV_DONTNEED), of memory that is filled again
   exit      pthread_exit in a handler, from munmap
   gone      the same by a raw system call
   cancel    pthread_cancel
   vfork     a child of vfork is killed that maps, locks and unmaps */
#include "common.h"
#include <link.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <ucontext.h>

/* Sleeps that twenty mappings may cost. Who waits for what was left behind sleeps a thousand times in a second. */
#define MOST_SLEEPS 1500
#define SIZE (4 * MIB)

/* The code of lowtide's in this process, by its name. Natively there is none. */
static uintptr_t agent_start, agent_end;
static const char *way;
static sigjmp_buf back;
static volatile sig_atomic_t armed, left;
static volatile pid_t child;

static int is(const char *name)
{
	return strcmp(way, name) == 0;
}

static int finds_agent(struct dl_phdr_info *info, size_t size, void *unused)
{
	(void)size, (void)unused;
	if (strncmp(info->dlpi_name, "/proc/", 6) != 0)
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		if (part->p_type == PT_LOAD && part->p_flags & PF_X) {
			agent_start = info->dlpi_addr + part->p_vaddr;
			agent_end = agent_start + part->p_memsz;
		}
	}
	return 0;
}

static void handler(int number, siginfo_t *info, void *context)
{
	(void)number, (void)info;
	uintptr_t at = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
	if (!armed || (agent_start != 0 && (at < agent_start || at >= agent_end)))
		return;
	armed = 0;
	left++;
	if (is("exit"))
		pthread_exit(NULL);
	if (is("gone"))
		syscall(SYS_exit, 0);
	siglongjmp(back, 1);
}

/* A signal comes every now and then. */
static void ticks(int us)
{
	struct itimerval timer = { .it_interval = { .tv_usec = us }, .it_value = { .tv_usec = us } };
	MUST(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static unsigned char *filled(size_t bytes)
{
	unsigned char *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(start != MAP_FAILED);
	for (size_t i = 0; i < bytes; i += PAGE)
		start[i] = 1;
	return start;
}

static unsigned char *volatile place;

/* Does again and again what is to be left. */
static void call_until_left(void)
{
	for (;;) {
		if (is("drop")) {
			memset(place, 1, SIZE);
			armed = 1;
			madvise(place, SIZE, MADV_DONTNEED);
		} else if (is("ask")) {
			armed = 1;
			place = mmap(NULL, 128 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			armed = 0;
			munmap(place, 128 << 10);
		} else {
			place = filled(SIZE);
			armed = 1;
			munmap(place, SIZE);
		}
		armed = 0;
	}
}

static void leave_by_jumps(size_t times)
{
	while ((size_t)left < times)
		if (sigsetjmp(back, 1) == 0)
			call_until_left();
}

static void *ends_in_call(void *unused)
{
	(void)unused;
	sigset_t none;
	sigemptyset(&none);
	MUST(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
	MUST(pthread_sigmask(SIG_SETMASK, &none, NULL) == 0);
	call_until_left();
	return NULL;
}

static void leave_by_ends(size_t times)
{
	for (size_t i = 0; i < times; i++) {
		pthread_t thread;
		MUST(pthread_create(&thread, NULL, ends_in_call, NULL) == 0);
		if (is("cancel")) {
			usleep(2000 + i % 7 * 300);
			MUST(pthread_cancel(thread) == 0);
			left++;
		}
		MUST(pthread_join(thread, NULL) == 0);
	}
}

static void *kills(void *unused)
{
	(void)unused;
	while (child == 0)
		;
	usleep(300);
	MUST(kill(child, SIGKILL) == 0);
	return NULL;
}

static void leave_by_kills(size_t times)
{
	static size_t i;
	for (; i < times; i++) {
		pthread_t thread;
		child = 0;
		MUST(pthread_create(&thread, NULL, kills, NULL) == 0);
		pid_t forked = vfork();
		MUST(forked >= 0);
		if (forked == 0) {
			child = getpid();
			for (;;) {
				place = mmap(NULL, 64 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
				mlock(place, PAGE);
				munlock(place, PAGE);
				munmap(place, 64 << 10);
			}
		}
		/* Before the dead child is waited for. */
		MUST(munmap(filled(64 << 10), 64 << 10) == 0);
		MUST(waitpid(forked, NULL, 0) == forked);
		MUST(pthread_join(thread, NULL) == 0);
		left++;
	}
	unsigned char *locked = filled(PAGE);
	MUST(mlock(locked, PAGE) == 0 && munlock(locked, PAGE) == 0);
}

static long sleeps(void)
{
	struct rusage usage;
	MUST(getrusage(RUSAGE_THREAD, &usage) == 0);
	return usage.ru_nvcsw;
}

static void *maps(void *unused)
{
	(void)unused;
	long before = sleeps();
	for (int i = 0; i < 20; i++) {
		unsigned char *more = filled(MIB);
		MUST(munmap(more, MIB) == 0);
	}
	if (sleeps() - before > MOST_SLEEPS)
		die("%ld sleeps", sleeps() - before);
	return NULL;
}

/* The same from further down the stack. */
__attribute__((noinline)) static int maps_deep(void)
{
	volatile unsigned char room[8 * PAGE];
	room[0] = 1;
	maps(NULL);
	return room[0];
}

__attribute__((noinline)) static void go_on(unsigned char *later, size_t pages)
{
	/* No call of the C library's, so that the stack stays as it is. */
	for (size_t pass = 0; pass < 4; pass++)
		for (size_t i = 0; i < pages; i++)
			*(volatile uint64_t *)(later + i * PAGE) = mix(i) + pass;
	for (size_t i = 0; i < pages; i++)
		if (*(volatile uint64_t *)(later + i * PAGE) != mix(i) + 3)
			die("page %zu is wrong", i);
}

int main(int argc, char **argv)
{
	MUST(argc == 5);
	way = argv[1];
	size_t times = number(argc, argv, 2, 20), before = number(argc, argv, 3, 96) * MIB, pages = number(argc, argv, 4, 64) * MIB / PAGE;
	dl_iterate_phdr(finds_agent, NULL);
	static unsigned char stack[64 << 10];
	stack_t other = { .ss_sp = stack, .ss_size = sizeof stack };
	MUST(sigaltstack(&other, NULL) == 0);
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | (is("altstack") ? SA_ONSTACK : 0) };
	MUST(sigaction(SIGALRM, &action, NULL) == 0);
	long mapped = syscall(SYS_mmap, NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(mapped != -1);
	if (before > 0)
		filled(before);
	place = filled(SIZE);
	sigset_t alarm;
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	if (is("exit") || is("gone") || is("cancel") || is("vfork")) {
		/* For other threads. */
		MUST(pthread_sigmask(SIG_BLOCK, &alarm, NULL) == 0);
		if (is("exit") || is("gone"))
			ticks(300);
		is("vfork") ? leave_by_kills(times) : leave_by_ends(times);
		ticks(0);
	} else {
		ticks(150);
		leave_by_jumps(times);
		/* Raw, too: from here to there nothing is called that lowtide sees. */
		syscall(SYS_rt_sigprocmask, SIG_BLOCK, &alarm, NULL, 8);
	}
	go_on((unsigned char *)mapped, pages);
	MUST(!is("deep") || maps_deep());
	pthread_t thread;
	MUST(pthread_sigmask(SIG_BLOCK, &alarm, NULL) == 0);
	MUST(pthread_create(&thread, NULL, maps, NULL) == 0 && pthread_join(thread, NULL) == 0);
	fprintf(stderr, "%d left\n", (int)left);
	printf("OK\n");
	return 0;
}
