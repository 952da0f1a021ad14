/* Runs a program in which madvise fails, in threads that nobody traces, as under strace --seccomp-bpf.
 * without_madvise PROGRAM ARGUMENTS... */
#include "call_filter.h"

int main(int argc, char **argv)
{
	MUST(argc > 1);
	filter_call(SYS_madvise, SECCOMP_RET_ERRNO | ENOSYS);
	execv(argv[1], argv + 1);
	die("%s: %s", argv[1], strerror(errno));
}
