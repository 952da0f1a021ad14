/* What is refused, and how: each with NULL or -1, an errno, and a line. Ends with 0 if all of it is. */
#include <lowtide.h>

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int bad;

static void refused(const char *what, int is_refused, int expected) {
	int got = errno;
	if (!is_refused || got != expected || !*lowtide_error() || strchr(lowtide_error(), '\n')) {
		fprintf(stderr, "%s: %s, errno %d (%d expected), %s\n", what, is_refused ? "refused" : "ACCEPTED", got, expected, lowtide_error());
		bad = 1;
	}
}

/* From here on the kernel has no userfaultfd, as it seems to this process. */
static int without_userfaultfd(void) {
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* A forked child has no region of its parent's. */
static void refused_in_child(lowtide_region *region) {
	struct lowtide_stats stats;
	int status;
	pid_t child = fork();
	if (child == 0) {
		refused("a parent's region", lowtide_evict(region, 0, 4096), ECHILD);
		refused("figures of a parent's region", lowtide_get_stats(region, &stats), ECHILD);
		_exit(bad);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status))
		bad = 1;
}

int main(void) {
	struct lowtide_options good = {.ram = 16 << 20, .swap = "ram"};
	if (*lowtide_error())
		return fprintf(stderr, "an error before any call\n"), 1;
	refused("no bytes", !lowtide_region_new(0, &good), EINVAL);
	refused("too many bytes", !lowtide_region_new(SIZE_MAX, &good), ENOMEM);
	refused("no options", !lowtide_region_new(4096, NULL), EINVAL);
	refused("no limit", !lowtide_region_new(4096, &(struct lowtide_options){0}), EINVAL);
	refused("a small limit", !lowtide_region_new(4096, &(struct lowtide_options){.ram = 1}), EINVAL);
	refused("a swap", !lowtide_region_new(4096, &(struct lowtide_options){.ram = 16 << 20, .swap = "tape"}), EINVAL);
	refused("a level", !lowtide_region_new(4096, &(struct lowtide_options){.ram = 16 << 20, .zstd_level = 99}), EINVAL);
	refused("a delivery", !lowtide_region_new(4096, &(struct lowtide_options){.ram = 16 << 20, .delivery = 9}), EINVAL);

	lowtide_region *region = lowtide_region_new(1 << 20, &good);
	if (!region)
		return fprintf(stderr, "%s\n", lowtide_error()), 1;
	refused("both", !lowtide_region_new(4096, &(struct lowtide_options){.ram = 16 << 20, .group_with = region}), EINVAL);
	refused("behind the end", lowtide_evict(region, 1, 1 << 20), ERANGE);
	refused("around the end", lowtide_prefetch(region, 1, SIZE_MAX), ERANGE);
	refused("no bytes of it", lowtide_drop(region, 4096, 0), EINVAL);
	refused("a lower limit", lowtide_set_ram(region, 4096), EINVAL);
	lowtide_region *large = lowtide_region_new(64 << 20, &(struct lowtide_options){.group_with = region});
	refused("too much to stay", !lowtide_resident(large, 0, 9 << 20), ENOBUFS);
	lowtide_guard *guard = lowtide_resident(large, 0, 4096);
	if (!guard)
		return fprintf(stderr, "%s\n", lowtide_error()), 1;
	refused("free while a guard lives", lowtide_region_free(large), EBUSY);
	refused("drop what a guard keeps", lowtide_drop(large, 0, 1 << 20), EBUSY);
	lowtide_guard_free(guard);
	refused_in_child(large);
	if (lowtide_region_free(large) || lowtide_region_free(region) || lowtide_region_free(NULL))
		return fprintf(stderr, "not freed: %s\n", lowtide_error()), 1;
	lowtide_guard_free(NULL);
	if (without_userfaultfd())
		return perror("seccomp"), 1;
	refused("no userfaultfd", !lowtide_region_new(4096, &(struct lowtide_options){.ram = 16 << 20, .zstd_level = 2}), ENOSYS);
	return bad;
}
