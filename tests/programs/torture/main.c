/* torture [--seed S] [--threads N] [--seconds T] [--mib M] [--steps K]: see torture.h. M is for each thread. With K, each
 * thread ends after so many steps, whatever the time. With the same seed, number of threads and M, each thread does the same
 * again. */
#include "torture.h"
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

static uint64_t option(int argc, char **argv, const char *name, uint64_t otherwise)
{
	for (int i = 1; i + 1 < argc; i += 2)
		if (strcmp(argv[i], name) == 0)
			return strtoull(argv[i + 1], NULL, 0);
	return otherwise;
}

int main(int argc, char **argv)
{
	char steps[1024];
	struct timespec now;
	uint64_t checked = 0;
	if (argc == 3 && strcmp(argv[1], "--executed") == 0)
		return executed(argv[2]);
	clock_gettime(CLOCK_REALTIME, &now);
	seed = option(argc, argv, "--seed", mix((uint64_t)now.tv_nsec) >> 32);
	workers = option(argc, argv, "--threads", 4);
	last_step = option(argc, argv, "--steps", 0);
	uint64_t seconds = option(argc, argv, "--seconds", 60), mib = option(argc, argv, "--mib", 24);
	if (argc % 2 == 0 || workers == 0 || workers > MOST_WORKERS || mib == 0)
		die("torture [--seed S] [--threads 1..%d] [--seconds T] [--mib M] [--steps K]", MOST_WORKERS);
	dprintf(1, "torture --seed %llu --threads %zu --seconds %llu --mib %llu --steps %llu\n", (unsigned long long)seed, workers,
	        (unsigned long long)seconds, (unsigned long long)mib, (unsigned long long)last_step);
	/* Its children read its memory (process_vm_readv). */
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	break_init();
	counters_init();
	faults_init();
	signals_init();
	for (size_t i = 0; i < workers; i++) {
		struct worker *w = &worker[i];
		w->number = i;
		w->most = mib * MIB / PAGE;
		pthread_mutex_init(&w->turn, NULL);
	}
	for (size_t i = 0; i < workers; i++)
		MUST(pthread_create(&worker[i].handle, NULL, work, &worker[i]) == 0);
	for (uint64_t ms = 0; ms < seconds * 1000 && last_step == 0; ms += 10)
		usleep(10000);
	if (last_step == 0)
		stop = 1;
	for (size_t i = 0; i < workers; i++) {
		MUST(pthread_join(worker[i].handle, NULL) == 0);
		checked += worker[i].checked;
	}
	count_steps(steps, sizeof steps);
	dprintf(1, "%s; %lu regions that mremap refuses; %llu pages checked\nOK\n", steps, refused, (unsigned long long)checked);
	return 0;
}
