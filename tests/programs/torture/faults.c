/* Accesses that must be faults: SIGSEGV for the program, EFAULT for the kernel. */
#include "torture.h"
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/random.h>

static _Thread_local sigjmp_buf back;
static _Thread_local unsigned char *volatile expected;

static void segmentation_fault(int signal, siginfo_t *info, void *context)
{
	(void)context;
	unsigned char *at = info->si_addr;
	if (expected == NULL || (size_t)(at - expected) >= PAGE) {
		say_history(at);
		say_place(at);
		fail("signal %d at %p, code %d", signal, (void *)at, info->si_code);
	}
	expected = NULL;
	siglongjmp(back, 1);
}

void faults_init(void)
{
	struct sigaction action = { .sa_sigaction = segmentation_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	MUST(sigaction(SIGSEGV, &action, NULL) == 0);
	MUST(sigaction(SIGBUS, &action, NULL) == 0);
}

/* Reads or writes a byte, which must be a segmentation fault. */
void expect_fault(unsigned char *at, int is_write, const char *where)
{
	volatile unsigned char *byte = at;
	if (sigsetjmp(back, 1) != 0)
		return;
	expected = (unsigned char *)((uintptr_t)at & ~(PAGE - 1));
	if (is_write)
		*byte = 1;
	else
		(void)*byte;
	say_history(at);
	fail("%s: %p could be %s", where, (void *)at, is_write ? "written" : "read");
}

/* Looks for a page that may not be written, or not even read, and tries. */
void touch_what_is_forbidden(struct worker *w)
{
	struct region *r = any_region(w);
	size_t offset = pick(w, PAGE - 8);
	if (r == NULL)
		return;
	size_t i = pick(w, r->pages);
	for (size_t n = 0; n < r->pages && !(r->state[i] & (GUARD | READ_ONLY | NO_ACCESS)); n++)
		i = (i + 1) % r->pages;
	unsigned char *at = r->start + i * PAGE;
	if (!(r->state[i] & (GUARD | READ_ONLY | NO_ACCESS)))
		return;
	expect_fault(at + offset, 1, "forbidden");
	MUST(getrandom(at + offset, 8, 0) == -1 && errno == EFAULT);
	if (r->state[i] & (GUARD | NO_ACCESS)) {
		int file = open(".", O_TMPFILE | O_RDWR, 0600);
		expect_fault(at + offset, 0, "forbidden");
		MUST(file >= 0 && write(file, at + offset, 8) == -1 && errno == EFAULT);
		close(file);
	}
	check_region_page(w, r, i, "read-only");
}
