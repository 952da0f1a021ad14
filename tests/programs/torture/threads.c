/* Threads that start and end, with stacks that are written and checked. */
#include "torture.h"
#include <sched.h>
#include <signal.h>

static __attribute__((noinline)) void use_stack(uint64_t content, size_t depth)
{
	unsigned char page[PAGE];
	make_content(page, (struct page){ .seed = content + depth });
	if (depth > 0)
		use_stack(content, depth - 1);
	else
		sched_yield();
	check_content(page, (struct page){ .seed = content + depth }, "stack of a short thread");
}

static void *run(void *content)
{
	use_stack((uint64_t)(uintptr_t)content, 24);
	return content;
}

void short_thread(struct worker *w)
{
	static const size_t STACK[] = { 256 << 10, 1 << 20, 2 << 20 };
	pthread_attr_t attributes;
	pthread_t thread[3];
	size_t threads = 1 + pick(w, 3);
	sigset_t all, old;
	MUST(pthread_attr_init(&attributes) == 0);
	MUST(pthread_attr_setstacksize(&attributes, STACK[pick(w, 3)]) == 0);
	/* They have no memory for handlers. */
	sigfillset(&all);
	MUST(pthread_sigmask(SIG_SETMASK, &all, &old) == 0);
	for (size_t i = 0; i < threads; i++)
		MUST(pthread_create(&thread[i], &attributes, run, (void *)(uintptr_t)fresh(w).seed) == 0);
	MUST(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);
	for (size_t i = 0; i < threads; i++)
		MUST(pthread_join(thread[i], NULL) == 0);
	pthread_attr_destroy(&attributes);
}
