/* Preloaded into QEMU: its clocks run SLOW times slower than ours. The guest's timers (PIT, APIC, PM timer, RTC) all follow them, and the guest finds that
 * its time stamp counter, which is ours, is that many times faster. So an emulated machine is about as fast, by its own clock, as a real one: naps, deadlines
 * and measurements behave. What QEMU waits for grows by as much. */
#define _GNU_SOURCE
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* SIGNALS: bytes of the kernel's signal set. */
enum { BILLION = 1000000000, SIGNALS = 8 };

/* Other libraries' constructors may ask for the time before ours has run. */
static long factor(void)
{
	static long known;
	if (known == 0) {
		const char *text = getenv("SLOW");
		long asked = text ? atol(text) : 1;
		known = asked > 0 ? asked : 1;
	}
	return known;
}

/* All clocks that go on by themselves are slowed from where they were when they were first read; those of CPU time are not. */
static int is_slowed(clockid_t clock)
{
	return clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC || clock == CLOCK_BOOTTIME || clock == CLOCK_MONOTONIC_RAW;
}

static long long nanoseconds(const struct timespec *t)
{
	return (long long)t->tv_sec * BILLION + t->tv_nsec;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
	/* By system calls, which is slower: what the C library has would be found by dlsym, which may ask for memory. */
	static long long first[CLOCK_BOOTTIME + 1];
	int result = (int)syscall(SYS_clock_gettime, clock, t);
	if (result != 0 || factor() == 1 || !is_slowed(clock))
		return result;
	long long now = nanoseconds(t), none = 0;
	__atomic_compare_exchange_n(&first[clock], &none, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	long long then = first[clock] + (now - first[clock]) / factor();
	t->tv_sec = then / BILLION;
	t->tv_nsec = then % BILLION;
	return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
	(void)zone;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *where)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (where)
		*where = now.tv_sec;
	return now.tv_sec;
}

/* QEMU's main loop sleeps here until its next timer is due. */
int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
	struct timespec longer;
	if (timeout) {
		long long most = LLONG_MAX / factor() / 2, asked = timeout->tv_sec > most / BILLION ? most : nanoseconds(timeout);
		longer.tv_sec = asked * factor() / BILLION;
		longer.tv_nsec = asked * factor() % BILLION;
	}
	return (int)syscall(SYS_ppoll, fds, count, timeout ? &longer : NULL, mask, SIGNALS);
}

int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask, size_t size)
{
	(void)size;
	return ppoll(fds, count, timeout, mask);
}
