/* whose_calls WHO MIB ROUNDS: a thread fills MIB, gives it back by MADV_DONTNEED and finds zeros, ROUNDS times, while others touch other
   memory, which makes room by evicting, and make calls that lowtide could take for the first thread's. WHO those are:

   thread   a thread that was made without CLONE_SETTLS: it has its creator's data of the C library, where its id is kept
   process  a process that was made with CLONE_VM: the same
   fork     it all happens in a child of `clone`, where the id that the C library keeps is the parent's, and they fork

   All that is counted is pages that are not zeros. */
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>

#define STACK ((size_t)256 << 10)

static const char *who;
static size_t pages, rounds;
static unsigned char *given_back, *other;
static volatile int over;

static int is(const char *name)
{
	return strcmp(who, name) == 0;
}

/* Uses nothing of the C library's that a thread has of its own. */
static int maps(void *unused)
{
	(void)unused;
	for (uint64_t state = 1; !over;) {
		/* So as to come at any moment of the first thread's call. */
		for (volatile uint64_t spins = next_random(&state) % 8000000; spins > 0; spins--)
			;
		void *page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (page == MAP_FAILED || munmap(page, PAGE) != 0)
			die("a mapping");
	}
	return 0;
}

static void *forks(void *unused)
{
	(void)unused;
	while (!over) {
		pid_t child = fork();
		MUST(child >= 0);
		if (child == 0)
			_exit(0);
		wait_for(child);
	}
	return NULL;
}

static void *touches(void *unused)
{
	(void)unused;
	for (size_t i = 0; !over; i = (i + 1) % (2 * pages))
		*(volatile uint64_t *)(other + i * PAGE) += 1;
	return NULL;
}

static void schedule(int policy)
{
	struct sched_param param = { 0 };
	/* (Who may not go back stays as it is, and takes longer.) */
	(void)sched_setscheduler(0, policy, &param);
}

static void *gives_back(void *stack)
{
	volatile pid_t made = 0;
	if (!is("fork")) {
		/* Above this thread's own stack, as a frame further out would be. */
		int flags = is("process") ? CLONE_VM | SIGCHLD : CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
		flags |= CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
		MUST(clone(maps, (char *)stack + 2 * STACK, flags, NULL, &made, NULL, &made) > 0);
	}
	for (size_t round = 1; round <= rounds; round++) {
		for (size_t i = 0; i < pages; i++)
			*(uint64_t *)(given_back + i * PAGE) = mix(round);
		/* The kernel drops the pages when this thread gets a CPU again: some time after it has said that it will. */
		schedule(SCHED_IDLE);
		MUST(madvise(given_back, pages * PAGE, MADV_DONTNEED) == 0);
		schedule(SCHED_OTHER);
		for (size_t i = 0; i < pages; i++)
			if (*(volatile uint64_t *)(given_back + i * PAGE) != 0)
				die("round %zu: page %zu is back", round, i);
	}
	over = 1;
	while (made != 0)
		usleep(1000);
	return NULL;
}

static int all(void *unused)
{
	(void)unused;
	pthread_t threads[3];
	pthread_attr_t own;
	char *stacks = (char *)map_pages(2 * STACK / PAGE);
	MUST(pthread_create(&threads[0], NULL, touches, NULL) == 0);
	if (is("fork")) {
		/* The first thread of the child is the one whose id is not kept. */
		MUST(pthread_create(&threads[1], NULL, forks, NULL) == 0);
		gives_back(NULL);
	} else {
		MUST(pthread_attr_init(&own) == 0 && pthread_attr_setstack(&own, stacks, STACK) == 0);
		MUST(pthread_create(&threads[1], &own, gives_back, stacks) == 0);
	}
	for (int i = 0; i < 2; i++)
		MUST(pthread_join(threads[i], NULL) == 0);
	return 0;
}

int main(int argc, char **argv)
{
	MUST(argc > 1);
	who = argv[1];
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	MUST(sched_setaffinity(0, sizeof one, &one) == 0);
	pages = number(argc, argv, 2, 24) * MIB / PAGE;
	rounds = number(argc, argv, 3, 50);
	given_back = map_pages(pages);
	other = map_pages(2 * pages);
	if (is("fork")) {
		static _Alignas(16) char stack[STACK];
		wait_for(clone(all, stack + STACK, SIGCHLD, NULL));
	} else {
		all(NULL);
		int status = 0;
		MUST(!is("process") || (wait(&status) > 0 && status == 0));
	}
	puts("all zeros");
	return 0;
}
