/* fork_hindered MIB HOW: a program whose forked children can't have what lowtide needs there. HOW: `root`: its root directory is an empty one, without
   /proc; `threads`: no thread can be started, as with RLIMIT_NPROC or pids.max; `files`: nothing can be opened;
   `limit`: nor can the parent (RLIMIT_NOFILE). Every byte is right, in the parent and
   in the children. */
#include "call_filter.h"
#include <sched.h>
#include <sys/resource.h>

/* For this thread and what it forks: `call` fails with `error`, if one of the bits of its first argument is set. */
static void refuse(unsigned call, unsigned bits, unsigned error)
{
	struct sock_filter code[] = {
		LOAD(nr),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3),
		LOAD(args[0]),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1),
		ANSWER(SECCOMP_RET_ERRNO | error),
		ALLOW,
	};
	filter_by(code, sizeof code / sizeof *code);
}

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 64) * MIB / PAGE;
	const char *how = argc > 2 ? argv[2] : "root";
	unsigned char *start = map_pages(pages);
	fill(start, pages, "tnzw", 1);
	if (strcmp(how, "root") == 0) {
		char directory[] = "/tmp/fork_hindered.XXXXXX";
		MUST(mkdtemp(directory) && chroot(directory) == 0 && chdir("/") == 0);
	} else if (strcmp(how, "threads") == 0) {
		refuse(SYS_clone, CLONE_THREAD, EAGAIN);
	} else if (strcmp(how, "limit") == 0) {
		struct rlimit none = { 1, 1 };
		MUST(setrlimit(RLIMIT_NOFILE, &none) == 0);
	} else {
		/* Paths are never at address 0. */
		refuse(SYS_open, ~0u, EMFILE);
	}
	for (uint64_t i = 0; i < 2; i++) {
		pid_t child = fork();
		int status;
		MUST(child >= 0);
		if (child == 0) {
			check(start, pages, "tnzw", 1, "a child");
			fill(start, pages / 4, "nt", 9 + i);
			unsigned char *more = map_pages(4 * MIB / PAGE);
			fill(more, 4 * MIB / PAGE, "t", 20 + i);
			/* A grandchild as well. */
			pid_t grandchild = fork();
			MUST(grandchild >= 0);
			check(start, pages / 4, "nt", 9 + i, "a child, later");
			check(start + pages / 4 * PAGE, 1024, "tnzw", 1 + pages / 4 * PAGE, "a child, later");
			check(more, 4 * MIB / PAGE, "t", 20 + i, "a child, what is new");
			if (grandchild == 0)
				_exit(0);
			MUST(waitpid(grandchild, &status, 0) == grandchild && status == 0);
			_exit(0);
		}
		fill(start, pages / 8, "tnzw", 1);
		MUST(waitpid(child, &status, 0) == child && status == 0);
		check(start, pages, "tnzw", 1, "the parent");
	}
	printf("OK\n");
	return 0;
}
