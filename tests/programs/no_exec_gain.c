/* Runs a program that may not make memory executable, as a service with MemoryDenyWriteExecute= of systemd may not.
 * no_exec_gain [mdwe][,filter][,read-only-proc][,no-memfd][,no-files] PROGRAM ARGUMENTS...
 * mdwe: by prctl. filter: by the seccomp filter that systemd installs where that prctl is missing. read-only-proc: no file of /proc
 * can be written, /proc/self/mem included (in a mount namespace of its own: takes root). no-memfd: no memory file that may be executed
 * can be made, as by the sysctl vm.memfd_noexec. no-files: files may have no bytes (RLIMIT_FSIZE). */
#include "call_filter.h"
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/shm.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

#ifndef MFD_EXEC
#define MFD_EXEC 0x10U
#endif

/* Call `number` with all bits of `bits` in argument `which` (from 0) is denied, and otherwise allowed. */
#define DENY_CALL(number, which, bits) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 5), LOAD(args[which]), BPF_STMT(BPF_ALU | BPF_AND | BPF_K, bits), \
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, bits, 0, 1), ANSWER(SECCOMP_RET_ERRNO | EPERM), ALLOW

static void filter(void)
{
	struct sock_filter code[] = {
		LOAD(nr),
		DENY_CALL(SYS_mmap, 2, PROT_WRITE | PROT_EXEC),
		DENY_CALL(SYS_mprotect, 2, PROT_EXEC),
		DENY_CALL(SYS_pkey_mprotect, 2, PROT_EXEC),
		DENY_CALL(SYS_shmat, 2, SHM_EXEC),
		ALLOW,
	};
	filter_by(code, sizeof code / sizeof *code);
}

static void no_memfd(void)
{
	struct sock_filter code[] = { LOAD(nr), DENY_CALL(SYS_memfd_create, 1, MFD_EXEC), ALLOW };
	filter_by(code, sizeof code / sizeof *code);
	MUST(memfd_create("test", MFD_EXEC) < 0);
}

static void read_only_proc(void)
{
	MUST(unshare(CLONE_NEWNS) == 0);
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
	MUST(mount("/proc", "/proc", NULL, MS_BIND | MS_REC, NULL) == 0);
	MUST(mount(NULL, "/proc", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) == 0);
	MUST(open("/proc/self/mem", O_RDWR) < 0);
}

int main(int argc, char **argv)
{
	MUST(argc > 2);
	if (strstr(argv[1], "read-only-proc") != NULL)
		read_only_proc();
	if (strstr(argv[1], "mdwe") != NULL)
		MUST(prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) == 0);
	if (strstr(argv[1], "filter") != NULL)
		filter();
	if (strstr(argv[1], "no-memfd") != NULL)
		no_memfd();
	if (strstr(argv[1], "no-files") != NULL)
		MUST(setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, 0}) == 0);
	/* What was asked for holds. */
	unsigned char *page = map_pages(1);
	int denied = strstr(argv[1], "mdwe") != NULL || strstr(argv[1], "filter") != NULL;
	MUST((mprotect(page, PAGE, PROT_READ | PROT_EXEC) != 0) == denied);
	munmap(page, PAGE);
	execv(argv[2], argv + 2);
	die("%s: %s", argv[2], strerror(errno));
}
