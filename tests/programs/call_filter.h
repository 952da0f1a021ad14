/* System call filters (seccomp) that test programs set up. */
#ifndef CALL_FILTER_H
#define CALL_FILTER_H
#include "common.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define LOAD(member) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, member))
#define ANSWER(action) BPF_STMT(BPF_RET | BPF_K, action)
#define ALLOW ANSWER(SECCOMP_RET_ALLOW)

/* For this thread, and what it forks and executes. */
static inline void filter_by(const struct sock_filter *code, size_t instructions)
{
	struct sock_fprog program = { (unsigned short)instructions, (struct sock_filter *)code };
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* The same: `call` has this answer, and all others pass. */
static inline void filter_call(unsigned call, unsigned action)
{
	struct sock_filter code[] = { LOAD(nr), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), ANSWER(action), ALLOW };
	filter_by(code, sizeof code / sizeof *code);
}
#endif
