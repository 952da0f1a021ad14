/* Signals: of a timer, and from thread to thread; handlers that read and write memory of their own, on the thread's stack or
 * another one. */
#include "torture.h"
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>

enum { STACK_PAGES = 32 };

/* Each time another page is what it was, and gets new content. Its own stack is checked too: three pages of it. */
static void handle(int number)
{
	unsigned char local[3 * PAGE];
	struct worker *w = self;
	int saved = errno;
	if (w == NULL)
		return;
	uint64_t turn = ++w->held_clock;
	size_t i = mix(turn) % HELD_PAGES;
	struct page page = { .seed = (uint64_t)(w->number + 1) << 56 | (uint64_t)15 << 52 | turn };
	make_content(local + (turn % 3) * PAGE, page);
	check_content(w->held + i * PAGE, w->held_page[i], number == SIGALRM ? "in the timer's handler" : "in a handler");
	w->held_page[i] = page;
	make_content(w->held + i * PAGE, page);
	check_content(local + (turn % 3) * PAGE, page, "stack of a handler");
	errno = saved;
}

static void set_mask(int how, sigset_t *old)
{
	sigset_t all;
	sigemptyset(&all);
	sigaddset(&all, SIGALRM);
	sigaddset(&all, SIGUSR1);
	sigaddset(&all, SIGUSR2);
	MUST(pthread_sigmask(how, &all, old) == 0);
}

/* Called before there are workers: the first thread gets none of the signals. */
void signals_init(void)
{
	struct sigaction action = { .sa_handler = handle, .sa_flags = SA_RESTART | SA_ONSTACK };
	struct itimerval timer = { { 0, 20000 }, { 0, 20000 } };
	set_mask(SIG_BLOCK, NULL);
	sigaddset(&action.sa_mask, SIGALRM);
	sigaddset(&action.sa_mask, SIGUSR1);
	sigaddset(&action.sa_mask, SIGUSR2);
	MUST(sigaction(SIGUSR1, &action, NULL) == 0);
	MUST(sigaction(SIGALRM, &action, NULL) == 0);
	action.sa_flags = SA_RESTART;
	MUST(sigaction(SIGUSR2, &action, NULL) == 0);
	MUST(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

/* Half of the workers have an alternate stack, in memory that is as any other. */
void new_alternate_stack(struct worker *w)
{
	void *old = w->alternate_stack;
	if (w->number % 2 != 0)
		return;
	w->alternate_stack = map_pages(STACK_PAGES);
	stack_t stack = { .ss_sp = w->alternate_stack, .ss_size = STACK_PAGES * PAGE };
	memset(stack.ss_sp, 3, stack.ss_size);
	MUST(sigaltstack(&stack, NULL) == 0);
	if (old != NULL)
		MUST(munmap(old, STACK_PAGES * PAGE) == 0);
}

void signals_worker(struct worker *w)
{
	/* And two pages for lists that system calls read (calls.c). */
	w->held = map_pages(HELD_PAGES + 2);
	w->tid = (pid_t)syscall(SYS_gettid);
	new_alternate_stack(w);
	set_mask(SIG_UNBLOCK, NULL);
}

void signal_another(struct worker *w)
{
	const struct worker *other = &worker[pick(w, workers)];
	int number = pick(w, 2) ? SIGUSR1 : SIGUSR2;
	/* It may not have begun yet, or have ended already. */
	if (other->tid != 0 && syscall(SYS_tgkill, getpid(), other->tid, number) != 0)
		MUST(errno == ESRCH || errno == EAGAIN);
}
