/* listens PROGRAM ARGUMENTS: runs a program under a system call filter that has a listener, and lets all calls pass. */
#include "common.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>

int main(int argc, char **argv)
{
	MUST(argc > 1);
	struct sock_filter filter[] = { BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
	struct sock_fprog program = { 1, filter };
	MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program) >= 0);
	pid_t child = fork();
	if (child == 0) {
		execv(argv[1], argv + 1);
		_exit(9);
	}
	wait_for(child);
	return 0;
}
