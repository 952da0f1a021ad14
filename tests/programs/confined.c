/* confined: forks a child that sets up a system call filter, by which it dies if anything opens a file in it, and goes on for a
   while. */
#include "call_filter.h"

int main(void)
{
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		filter_call(SYS_openat, SECCOMP_RET_KILL_PROCESS);
		usleep(500000);
		_exit(0);
	}
	wait_for(child);
	puts("OK");
	return 0;
}
