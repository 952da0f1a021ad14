/* A program that is started as root and becomes another user: changes_user MODE MIB.
 *   forks   with its memory registered, changes, forks a child that stays and forks another; all check what they have
 *   execs   changes, fails to execute something, says what it has open, then executes itself with `show`, by vfork and by exec
 *   alone   may start no more threads for half a second, in which its memory comes to be; another user than root
 *   show    says what it has open, what its environment is, and whether its memory holds */
#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define OTHER 1234

static const char *kinds = "ztwn";
static size_t pages;
static unsigned char *area;

static void change(void)
{
	MUST(setgroups(0, NULL) == 0);
	MUST(setresgid(OTHER, OTHER, OTHER) == 0);
	MUST(setresuid(OTHER, OTHER, OTHER) == 0);
	MUST(open("/proc/1/environ", 0) < 0);
}

/* Numbers of open descriptors, but for the one that reads them. */
static void show(const char *when)
{
	char text[512];
	int n = snprintf(text, sizeof text, "%s:", when);
	DIR *directory = opendir("/proc/self/fd");
	MUST(directory != NULL);
	for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
		if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(directory))
			n += snprintf(text + n, sizeof text - (size_t)n, " %s", entry->d_name);
	closedir(directory);
	const char *own = getenv("OWN");
	dprintf(1, "%s; OWN=%s\n", text, own ? own : "");
}

static void forks(void)
{
	fill(area, pages, kinds, 0);
	check(area, pages, kinds, 0, "as root");
	change();
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		int status;
		check(area, pages, kinds, 0, "inherited");
		fill(area, pages / 2, kinds, 7);
		pid_t grandchild = fork();
		MUST(grandchild >= 0);
		check(area, pages / 2, kinds, 7, "a child's own");
		check(area + pages / 2 * PAGE, pages - pages / 2, kinds, pages / 2 * PAGE, "still inherited");
		if (grandchild != 0)
			MUST(waitpid(grandchild, &status, 0) == grandchild && status == 0);
		_exit(0);
	}
	int status;
	fill(area, pages / 2, kinds, 9);
	check(area, pages / 2, kinds, 9, "the parent's own");
	MUST(waitpid(child, &status, 0) == child);
	MUST(status == 0);
	check(area + pages / 2 * PAGE, pages - pages / 2, kinds, pages / 2 * PAGE, "untouched");
}

static void alone(void)
{
	struct rlimit limit;
	MUST(getrlimit(RLIMIT_NPROC, &limit) == 0);
	MUST(setrlimit(RLIMIT_NPROC, &(struct rlimit){ 1, limit.rlim_max }) == 0);
	fill(area, pages, kinds, 0);
	usleep(500000);
	MUST(setrlimit(RLIMIT_NPROC, &limit) == 0);
	usleep(1000000);
	check(area, pages, kinds, 0, "afterwards");
}

static void execs(const char *size)
{
	int status;
	char *arguments[] = { "changes_user", "show", (char *)size, NULL };
	char *bare[] = { "OWN=1", NULL };
	change();
	MUST(execve("/etc/passwd", arguments, bare) == -1 && errno == EACCES);
	show("after an exec that failed");
	pid_t child = vfork();
	MUST(child >= 0);
	if (child == 0) {
		execve("/proc/self/exe", arguments, bare);
		_exit(8);
	}
	MUST(waitpid(child, &status, 0) == child);
	MUST(status == 0);
	show("after vfork");
	execv("/proc/self/exe", arguments);
	die("exec: %s", strerror(errno));
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "forks";
	pages = number(argc, argv, 2, 96) * MIB / PAGE;
	area = map_pages(pages);
	if (strcmp(mode, "forks") == 0) {
		forks();
	} else if (strcmp(mode, "alone") == 0) {
		alone();
	} else if (strcmp(mode, "execs") == 0) {
		execs(argv[2]);
	} else {
		show(mode);
		fill(area, pages, kinds, 3);
		check(area, pages, kinds, 3, "as another user");
	}
	printf("OK %s\n", mode);
	return 0;
}
