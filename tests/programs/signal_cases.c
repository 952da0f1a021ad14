/* What a program does with signals, stacks, children and system call filters of its own while its memory is paged:
 * signal_cases CASE MIB [paged]
 *
 * The memory is filled first; under a limit most of it is out then. In the middle of each case more is mapped, filled, and unmapped,
 * and pages of the first memory are looked at (`works`). */
#include "common.h"
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <ucontext.h>

#define KINDS "tw"
extern char **environ;

static unsigned char *memory;
static size_t pages;
static uint64_t state = 1;
static volatile sig_atomic_t caught;

/* A few pages at random, and new ones that are gone again. May be called in a handler, on small stacks, and in a child that borrows
 * its parent's memory. */
static void works(void)
{
	enum { NEW = 4, LOOKS = 6 };
	uint64_t random = mix(__atomic_add_fetch(&state, 1, __ATOMIC_RELAXED));
	unsigned char *fresh = map_pages(NEW);
	for (size_t i = 0; i < NEW; i++) {
		check_zero(fresh + i * PAGE, PAGE, "new memory");
		make_page(fresh + i * PAGE, TEXT, random + i);
	}
	for (size_t i = 0; i < LOOKS; i++) {
		size_t page = next_random(&random) % pages;
		check_page(memory + page * PAGE, kind_at(KINDS, page), page * PAGE, "the first memory");
	}
	MUST(munmap(fresh, NEW * PAGE) == 0);
}

static void works_often(void)
{
	for (int i = 0; i < 300; i++)
		works();
}

static void handler(int signal)
{
	(void)signal;
	works();
	caught++;
}

static void handle(int signal, void (*function)(int), int flags)
{
	struct sigaction action = { .sa_handler = function, .sa_flags = flags };
	MUST(sigaction(signal, &action, NULL) == 0);
}

/* Past the C library, which leaves some signals out. */
static void raw_mask(int how, uint64_t mask)
{
	MUST(syscall(SYS_rt_sigprocmask, how, &mask, NULL, sizeof mask) == 0);
}

static void blocked(void)
{
	raw_mask(SIG_BLOCK, ~(uint64_t)0);
	works_often();
}

static void mask_is_kept(void)
{
	uint64_t all = ~(1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1)), found;
	raw_mask(SIG_SETMASK, ~(uint64_t)0);
	works_often();
	MUST(syscall(SYS_rt_sigprocmask, SIG_SETMASK, NULL, &found, sizeof found) == 0);
	MUST(found == all);
}

static void sigsys_handled(void)
{
	handle(SIGSYS, handler, 0);
	works_often();
	MUST(caught == 0);
	MUST(raise(SIGSYS) == 0 && caught == 1);
}

static void sigsys_default(void)
{
	int status;
	signal(SIGSYS, SIG_DFL);
	works_often();
	pid_t child = fork();
	if (child == 0) {
		raise(SIGSYS);
		_exit(0);
	}
	MUST(child > 0 && waitpid(child, &status, 0) == child);
	MUST(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
	works_often();
}

static void sigsys_ignored(void)
{
	signal(SIGSYS, SIG_IGN);
	works_often();
	MUST(raise(SIGSYS) == 0);
	works_often();
}

static void all_blocked_in_handler(void)
{
	struct sigaction action = { .sa_handler = handler };
	sigfillset(&action.sa_mask);
	MUST(sigaction(SIGUSR1, &action, NULL) == 0);
	for (int i = 1; i <= 100; i++)
		MUST(raise(SIGUSR1) == 0 && caught == i);
}

static void ring_once(int us)
{
	struct itimerval once = { { 0, 0 }, { 0, us } };
	MUST(setitimer(ITIMER_REAL, &once, NULL) == 0);
}

static void all_blocked_but_one(void)
{
	sigset_t but_one, alarm;
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	sigfillset(&but_one);
	sigdelset(&but_one, SIGALRM);
	handle(SIGALRM, handler, 0);
	MUST(sigprocmask(SIG_BLOCK, &alarm, NULL) == 0);
	for (int i = 1; i <= 20; i++) {
		ring_once(2000);
		MUST(ppoll(NULL, 0, NULL, &but_one) == -1 && errno == EINTR && caught == i);
		works();
	}
}

static void on_alternate_stack(void)
{
	static unsigned char area[65536];
	stack_t stack = { .ss_sp = area, .ss_size = sizeof area };
	MUST(sigaltstack(&stack, NULL) == 0);
	handle(SIGUSR1, handler, SA_ONSTACK);
	for (int i = 1; i <= 100; i++)
		MUST(raise(SIGUSR1) == 0 && caught == i);
	works_often();
}

/* Of the least size that there ever was, which no frame of today fits in: nobody may use it. */
static void small_alternate_stack(void)
{
	static unsigned char area[8192];
	memset(area, 0x55, sizeof area);
	stack_t stack = { .ss_sp = area + 2048, .ss_size = 2048 };
	MUST(sigaltstack(&stack, NULL) == 0);
	works_often();
	for (size_t i = 0; i < sizeof area; i++)
		MUST(area[i] == 0x55);
}

static void borrows(void)
{
	for (volatile int i = 0; i < 8; i++) {
		pid_t child = vfork();
		if (child == 0) {
			works();
			execl("/bin/true", "true", (char *)NULL);
			_exit(9);
		}
		wait_for(child);
		works();
	}
}

static void borrows_beside_alternate_stack(void)
{
	on_alternate_stack();
	borrows();
}

static void spawns(void)
{
	char *arguments[] = { "true", NULL };
	for (int i = 0; i < 4; i++) {
		pid_t child;
		MUST(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) == 0);
		wait_for(child);
		works();
		int status = system("exit 3");
		MUST(WIFEXITED(status) && WEXITSTATUS(status) == 3);
		works();
	}
}

static int in_child(void *unused)
{
	(void)unused;
	works();
	_exit(0);
}

static void clones(int flags)
{
	static unsigned char stack[65536] __attribute__((aligned(16)));
	for (int i = 0; i < 10; i++) {
		wait_for(clone(in_child, stack + sizeof stack, flags | SIGCHLD, NULL));
		works();
	}
}

static void clone_with_memory(void)
{
	clones(CLONE_VM);
}

static void clone_on_stack(void)
{
	clones(0);
}

static void *thread(void *unused)
{
	for (int i = 0; i < 40; i++)
		works();
	return unused;
}

static void small_threads(void)
{
	pthread_t all[16];
	pthread_attr_t small;
	MUST(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 24576) == 0);
	for (int i = 0; i < 16; i++)
		MUST(pthread_create(&all[i], &small, thread, NULL) == 0);
	for (int i = 0; i < 16; i++)
		MUST(pthread_join(all[i], NULL) == 0);
}

/* Each asks for the next, so that the program gets on between them however busy the machine is. */
static void again(int signal)
{
	handler(signal);
	ring_once(300);
}

static void storm(void)
{
	handle(SIGALRM, again, 0);
	ring_once(300);
	while (caught < 200)
		works();
	ring_once(0);
}

static sigjmp_buf back;

static void jump(int signal)
{
	(void)signal;
	caught++;
	siglongjmp(back, 1);
}

static void jumps_out(void)
{
	handle(SIGALRM, jump, 0);
	while (caught < 100) {
		if (sigsetjmp(back, 1) == 0) {
			ring_once(700);
			for (;;)
				works();
		}
	}
	works_often();
}

/* The kernel's, which the headers of some C libraries have not. */
struct step {
	uint16_t code;
	uint8_t if_so, if_not;
	uint32_t value;
};

struct filter {
	unsigned short length;
	struct step *steps;
};

#define LOAD_NUMBER { 0x20, 0, 0, 0 }
#define ANSWER(what) { 0x06, 0, 0, what }
#define IF_CALL(number, what) { 0x15, 0, 1, number }, ANSWER(what)
enum { ALLOW = 0x7fff0000, FAIL = 0x00050000, TRAP = 0x00030000 };
#define KILL_PROCESS 0x80000000u

static void install(struct step *steps, size_t count)
{
	struct filter filter = { (unsigned short)count, steps };
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	MUST(prctl(PR_SET_SECCOMP, 2, &filter) == 0);
}

#define INSTALL(...)                                                   \
	do {                                                           \
		struct step steps[] = { LOAD_NUMBER, __VA_ARGS__ };    \
		install(steps, sizeof steps / sizeof *steps);          \
	} while (0)

static void own_filter(void)
{
	INSTALL(IF_CALL(SYS_madvise, FAIL | EAGAIN), ANSWER(ALLOW));
	MUST(madvise(memory, PAGE, MADV_DONTNEED) == -1 && errno == EAGAIN);
	works_often();
}

static volatile sig_atomic_t trapped;

static void on_trap(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	trapped = info->si_syscall;
	works();
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = 4711;
}

static void own_traps(void)
{
	struct sigaction action = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO };
	MUST(sigaction(SIGSYS, &action, NULL) == 0);
	INSTALL(IF_CALL(SYS_getppid, TRAP | 5), ANSWER(ALLOW));
	for (int i = 0; i < 50; i++) {
		trapped = 0;
		MUST(syscall(SYS_getppid) == 4711 && trapped == SYS_getppid);
		works();
	}
}

/* Nothing but what it does itself, not even the return from a handler. */
static void allows_little(void)
{
	INSTALL(IF_CALL(SYS_mmap, ALLOW), IF_CALL(SYS_munmap, ALLOW), IF_CALL(SYS_write, ALLOW), IF_CALL(SYS_writev, ALLOW),
		IF_CALL(SYS_exit_group, ALLOW), IF_CALL(SYS_brk, ALLOW), IF_CALL(SYS_newfstatat, ALLOW), IF_CALL(SYS_fstat, ALLOW),
		IF_CALL(SYS_ioctl, ALLOW), IF_CALL(SYS_getrandom, ALLOW), ANSWER(KILL_PROCESS));
	works_often();
}

static void calls_as_32_bit(void)
{
	for (int i = 0; i < 50; i++) {
		long result;
		__asm__ volatile("int $0x80" : "=a"(result) : "a"(20) : "memory", "r8", "r9", "r10", "r11");
		MUST(result == getpid());
		works();
	}
}

#define CASE(function) { #function, function }

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } cases[] = {
		CASE(blocked), CASE(mask_is_kept), CASE(sigsys_handled), CASE(sigsys_default), CASE(sigsys_ignored),
		CASE(all_blocked_in_handler), CASE(all_blocked_but_one), CASE(on_alternate_stack), CASE(small_alternate_stack),
		CASE(borrows), CASE(borrows_beside_alternate_stack), CASE(spawns), CASE(clone_with_memory),
		CASE(clone_on_stack), CASE(small_threads), CASE(storm), CASE(jumps_out), CASE(own_filter), CASE(own_traps),
		CASE(allows_little), CASE(calls_as_32_bit),
	};
	MUST(argc == 3 || argc == 4);
	pages = number(argc, argv, 2, 0) * MIB / PAGE;
	memory = map_pages(pages);
	fill(memory, pages, KINDS, 0);
	for (int round = 0; round < 1000; round++) {
		check(memory, pages, KINDS, 0, "at first");
		if (argc == 3 || some_are_out(memory, pages))
			break;
	}
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (strcmp(cases[i].name, argv[1]) == 0) {
			cases[i].run();
			check(memory, pages, KINDS, 0, "in the end");
			printf("OK %s\n", argv[1]);
			fflush(stdout);
			_exit(0);
		}
	die("no such case: %s", argv[1]);
}
