/* fork_signals MIB FORKS: signals half of the time or more, whose handler reads memory here and there, while the program forks. */
#include "common.h"
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

static unsigned char *start;
static size_t pages;
static volatile uint64_t seed;
/* How long the last handler took, in microseconds; shared with the sender, so that where a machine is slow the program still gets on. */
static volatile uint64_t *took;

static uint64_t microseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void handler(int number)
{
	(void)number;
	uint64_t began = microseconds();
	uint64_t random = seed++ * 7919 + (uint64_t)getpid();
	for (int i = 0; i < 4; i++) {
		size_t page = next_random(&random) % pages;
		check_page(start + page * PAGE, kind_at("tnw", page), 1 + page * PAGE, "in a handler");
	}
	*took = microseconds() - began;
}

int main(int argc, char **argv)
{
	pages = number(argc, argv, 1, 80) * MIB / PAGE;
	size_t forks = number(argc, argv, 2, 60);
	/* In a process group of its own, so that nobody else gets the signals. */
	pid_t worker = fork();
	int status;
	MUST(worker >= 0);
	if (worker > 0) {
		MUST(waitpid(worker, &status, 0) == worker && status == 0);
		printf("OK\n");
		return 0;
	}
	took = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(took != MAP_FAILED);
	start = map_pages(pages);
	fill(start, pages, "tnw", 1);
	signal(SIGUSR1, SIG_IGN);
	MUST(setpgid(0, 0) == 0);
	pid_t group = getpid(), sender = fork();
	MUST(sender >= 0);
	if (sender == 0) {
		for (;;) {
			kill(-group, SIGUSR1);
			usleep((useconds_t)(150 + *took));
			if (getppid() != group)
				_exit(0);
		}
	}
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	MUST(sigaction(SIGUSR1, &action, NULL) == 0);
	for (size_t i = 0; i < forks; i++) {
		pid_t child = fork();
		MUST(child >= 0);
		if (child == 0) {
			uint64_t random = mix(i);
			for (int n = 0; n < 50; n++) {
				size_t page = next_random(&random) % pages;
				check_page(start + page * PAGE, kind_at("tnw", page), 1 + page * PAGE, "in the child");
			}
			_exit(0);
		}
		MUST(waitpid(child, &status, 0) == child && status == 0);
	}
	MUST(kill(sender, SIGKILL) == 0 && waitpid(sender, NULL, 0) == sender);
	return 0;
}
