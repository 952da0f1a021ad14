/* clones HOW MIB [BEFORE]: fills BEFORE MiB (an eighth of MIB), and makes a child by HOW, past the C library's fork; the child
   fills MIB, checks it and what its parent had, and says so. HOW: clone (the C library's function, on a stack of its own), syscall (SYS_clone), fork (SYS_fork), clone3, stack
   (SYS_clone with a stack, on which the child returns), user (SYS_clone with CLONE_NEWUSER), files (with CLONE_FILES), ids (with
   CLONE_CHILD_SETTID and CLONE_CHILD_CLEARTID), pid (with CLONE_NEWPID), tls (with CLONE_SETTLS, for what is no memory), parent
   (with CLONE_PARENT), exits (clone, from among threads, and the child ends by pthread_exit), bare (no function of the C library's), bare-daemon (the same, and the parent ends), bare-filtered (and the child has a system call
   filter), bare-forks (and has a child, as all that are not bare),
   bare-descriptors (and its parent has a userfaultfd and a page map where lowtide has them that serve faults in threads). `shares` makes no such child: threads and vforks by clone are to work, and errors to be the kernel's. */
#include "common.h"
#include <asm/prctl.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

static size_t pages, pages_before;
static unsigned char *before;
static int file;
/* What nobody announces takes a moment to be found. */
static int is_bare, is_filtered, forks, has_descriptors;

static int work(void *argument)
{
	MUST(argument == &pages);
	if (is_filtered) {
		struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
		struct sock_fprog program = { 1, &all };
		MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	}
	check(before, pages_before, "t", 1, "its parent's");
	unsigned char *own = map_pages(pages);
	fill(own, pages, "t", 2);
	if (is_bare) {
		/* Who has had less of a CPU may be about to be limited as all others are. */
		while (clock() < CLOCKS_PER_SEC / 10)
			check(own, pages, "t", 2, "its own");
		sleep(3);
	}
	if (has_descriptors)
		puts(fcntl(1022, F_GETFD) < 0 && fcntl(1023, F_GETFD) < 0 ? "the two are closed" : "the two are open");
	check(own, pages, "t", 2, "its own");
	check(before, pages_before, "t", 1, "its parent's, later");
	/* By the function of the C library's: what has just been made has children as any process. */
	if (!is_bare || forks) {
		pid_t grandchild = fork();
		MUST(grandchild >= 0);
		if (grandchild == 0) {
			check(own, pages, "t", 2, "its grandparent's");
			_exit(0);
		}
		wait_for(grandchild);
	}
	MUST(fcntl(file, F_GETFD) >= 0);
	puts("the child is right");
	fflush(stdout);
	return 0;
}

static long bare(long number, long a, long b, long c, long d, long e)
{
	long result;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
	return result;
}

static _Alignas(16) char stack[256 << 10];
#define TOP (stack + sizeof stack)

/* Where a child returns from `syscall` that has a stack: only what stands there is its own. */
__attribute__((noreturn, used)) static void begins(void)
{
	_exit(work(&pages));
}
__asm__(".globl lands\nlands:\n\tand $-16, %rsp\n\tcall begins\n");
void lands(void);

static volatile int ran;
static int notes(void *argument)
{
	ran += *(int *)argument;
	return 7;
}

static void shares(void)
{
	int one = 1, status;
	pid_t child = clone(notes, TOP, CLONE_VM | SIGCHLD, &one);
	MUST(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7 && ran == 1);
	child = clone(notes, TOP, CLONE_VM | CLONE_VFORK | SIGCHLD, &one);
	MUST(child > 0 && ran == 2 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
	pid_t thread = 0, flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
	MUST(clone(notes, TOP, flags | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID, &one, &thread, NULL, &thread) > 0);
	for (int i = 0; i < 10000 && *(volatile pid_t *)&thread != 0; i++)
		usleep(1000);
	MUST(ran == 3);
	errno = 0;
	MUST(clone(NULL, TOP, SIGCHLD, NULL) == -1 && errno == EINVAL);
	MUST(clone(notes, NULL, SIGCHLD, NULL) == -1 && errno == EINVAL);
	MUST(clone(notes, TOP, CLONE_SIGHAND | SIGCHLD, NULL) == -1 && errno == EINVAL);
	MUST(clone(notes, TOP, CLONE_VM | CLONE_THREAD, NULL) == -1 && errno == EINVAL);
	MUST(syscall(SYS_clone, CLONE_SIGHAND, 0, 0, 0, 0) == -1 && errno == EINVAL);
	MUST(syscall(SYS_clone3, NULL, 0) == -1 && errno == EINVAL);
	MUST(syscall(SYS_clone3, (void *)8, sizeof(struct clone_args)) == -1 && errno == EFAULT);
	struct clone_args no_size = { .exit_signal = SIGCHLD, .stack = (uintptr_t)stack }, no_stack = { .exit_signal = SIGCHLD, .stack_size = 4096 };
	MUST(syscall(SYS_clone3, &no_size, sizeof no_size) == -1 && errno == EINVAL);
	MUST(syscall(SYS_clone3, &no_stack, sizeof no_stack) == -1 && errno == EINVAL);
	MUST(syscall(SYS_munmap, 1, 1) == -1 && errno == EINVAL);
	MUST(syscall(SYS_mmap, NULL, 0, 0, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == -1 && errno == EINVAL);
	MUST(syscall(SYS_mremap, 1, 1, 1, 0, 0) == -1 && errno == EINVAL);
	MUST(syscall(100000) == -1 && errno == ENOSYS);
	MUST(syscall(SYS_getpid) == getpid());
	/* All six arguments arrive. */
	unsigned char *page = (void *)syscall(SYS_mmap, NULL, PAGE, PROT_READ, MAP_PRIVATE, file, PAGE);
	MUST(page != MAP_FAILED && page[0] == 'x');
	MUST(syscall(SYS_munmap, page, PAGE) == 0);
	puts("all as natively");
}

/* It shares its maker's memory, not its parent's, and is busy long enough to be found. */
static volatile int seconds_over;
static int is_busy(void *argument)
{
	(void)argument;
	struct timespec began, now;
	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &began);
	do
		syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
	while (now.tv_sec < began.tv_sec + 2);
	seconds_over = 1;
	return 0;
}

/* What a process makes that is its parent's child. */
static void shares_with_maker(void)
{
	pid_t maker = fork();
	MUST(maker >= 0);
	if (maker == 0) {
		MUST(clone(is_busy, TOP, CLONE_VM | CLONE_PARENT | SIGCHLD, NULL) > 0);
		for (int i = 0; i < 10000 && !seconds_over; i++)
			usleep(1000);
		_exit(!seconds_over);
	}
	int status;
	for (int i = 0; i < 2; i++)
		MUST(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	puts("the two have ended well");
}

static void *sleeps(void *nothing)
{
	pause();
	return nothing;
}

static int works_and_exits(void *argument)
{
	MUST(work(argument) == 0);
	pthread_exit(NULL);
}

/* Waits for the end of a child of the caller's parent. */
static void wait_elsewhere(pid_t child)
{
	while (kill(child, 0) == 0) {
		char path[64], text[256] = "";
		snprintf(path, sizeof path, "/proc/%d/stat", (int)child);
		int stat = open(path, O_RDONLY | O_CLOEXEC);
		if (stat >= 0 && read(stat, text, sizeof text - 1) > 0 && strstr(text, ") Z ") != NULL)
			break;
		close(stat);
		usleep(1000);
	}
}

static pid_t make(const char *how)
{
	const char *ways[] = { "clone", "syscall", "fork", "clone3", "stack", "user", "files", "ids", "pid", "tls", "parent", "exits" };
	const size_t count = sizeof ways / sizeof ways[0];
	size_t way = 0;
	while (way < count && strcmp(ways[way], how) != 0)
		way++;
	static pid_t id = 0;
	unsigned long tls;
	pthread_t thread;
	pid_t by_pid = 0;
	struct clone_args arguments = { .exit_signal = SIGCHLD, .flags = CLONE_PARENT_SETTID, .parent_tid = (uintptr_t)&by_pid };
	pid_t child;
	switch (way) {
	case 0: return clone(work, TOP, SIGCHLD, &pages);
	case 1: return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	case 2: return (pid_t)syscall(SYS_fork);
	case 3:
		child = (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
		MUST(child <= 0 || by_pid == child);
		return child;
	case 4:
		memcpy(TOP - 16, &(void *){ (void *)lands }, sizeof(void *));
		return (pid_t)syscall(SYS_clone, SIGCHLD, TOP - 16, 0, 0, 0);
	case 5: return (pid_t)syscall(SYS_clone, SIGCHLD | CLONE_NEWUSER, 0, 0, 0, 0);
	case 6: return (pid_t)syscall(SYS_clone, SIGCHLD | CLONE_FILES, 0, 0, 0, 0);
	case 7:
		child = (pid_t)syscall(SYS_clone, SIGCHLD | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID, 0, 0, &id, 0);
		MUST(child != 0 || id == getpid());
		return child;
	case 8:
		child = (pid_t)syscall(SYS_clone, SIGCHLD | CLONE_NEWPID, 0, 0, 0, 0);
		MUST(child != 0 || getpid() == 1);
		return child;
	case 9:
		MUST(syscall(SYS_arch_prctl, ARCH_GET_FS, &tls) == 0);
		child = (pid_t)syscall(SYS_clone, SIGCHLD | CLONE_SETTLS, 0, 0, 0, PAGE);
		if (child == 0) {
			unsigned long set;
			bare(SYS_arch_prctl, ARCH_GET_FS, (long)&set, 0, 0, 0);
			bare(SYS_arch_prctl, ARCH_SET_FS, (long)tls, 0, 0, 0);
			MUST(set == PAGE);
		}
		return child;
	case 10: return (pid_t)syscall(SYS_clone, SIGCHLD | CLONE_PARENT, 0, 0, 0, 0);
	case 11:
		MUST(pthread_create(&thread, NULL, sleeps, NULL) == 0);
		return clone(works_and_exits, TOP, SIGCHLD, &pages);
	default: return (pid_t)bare(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	}
}

int main(int argc, char **argv)
{
	MUST(argc > 1);
	const char *how = argv[1];
	file = memfd_create("two pages", 0);
	MUST(file >= 0 && ftruncate(file, 2 * PAGE) == 0 && pwrite(file, "x", 1, PAGE) == 1);
	if (strcmp(how, "shares") == 0) {
		shares();
		return 0;
	}
	if (strcmp(how, "shares-with-maker") == 0) {
		shares_with_maker();
		return 0;
	}
	int is_parents = strcmp(how, "parent") == 0, status;
	if (is_parents && fork() != 0) {
		while (wait(&status) > 0)
			MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
		return 0;
	}
	pages = number(argc, argv, 2, 96) * MIB / PAGE;
	pages_before = number(argc, argv, 3, pages * PAGE / MIB / 8) * MIB / PAGE;
	before = map_pages(pages_before);
	fill(before, pages_before, "t", 1);
	is_bare = strncmp(how, "bare", 4) == 0;
	is_filtered = strcmp(how, "bare-filtered") == 0;
	forks = strcmp(how, "bare-forks") == 0;
	if (strcmp(how, "bare-descriptors") == 0) {
		has_descriptors = 1;
		int userfaultfd = (int)syscall(SYS_userfaultfd, O_CLOEXEC), map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
		struct rlimit most = { 1024, 1024 };
		MUST(setrlimit(RLIMIT_NOFILE, &most) == 0 && dup2(userfaultfd, 1022) == 1022 && dup2(map, 1023) == 1023);
	}
	pid_t child = make(how);
	MUST(child >= 0);
	if (child == 0)
		_exit(work(&pages));
	if (strcmp(how, "bare-daemon") == 0)
		_exit(0);
	if (is_parents)
		wait_elsewhere(child);
	else
		wait_for(child);
	check(before, pages_before, "t", 1, "the parent's");
	puts("the parent is right");
	return 0;
}
