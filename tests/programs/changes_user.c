/* A program that is started as root and becomes another user: changes_user MODE MIB.
 *   gives   with its memory adopted, changes, and no thread of the process has more than it any more, soon
 *   forks   with its memory adopted, changes, forks a child that stays and forks another; all check what they have
 *   execs   changes, fails to execute something, says what it has open, then executes itself with `show`, by vfork and by exec
 *   show    says what it has open, what its environment is, and whether its memory holds */
#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/prctl.h>
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

/* A thread of this process that is root, or has a capability; 0: none. */
static int privileged(void)
{
	int found = 0;
	DIR *threads = opendir("/proc/self/task");
	MUST(threads != NULL);
	for (struct dirent *thread; (thread = readdir(threads)) != NULL;) {
		char path[300], line[256];
		snprintf(path, sizeof path, "/proc/self/task/%s/status", thread->d_name);
		FILE *status = fopen(path, "r");
		while (status != NULL && fgets(line, sizeof line, status)) {
			unsigned id[4];
			unsigned long long set;
			if ((sscanf(line, "Uid: %u %u %u %u", &id[0], &id[1], &id[2], &id[3]) == 4 ||
			     sscanf(line, "Gid: %u %u %u %u", &id[0], &id[1], &id[2], &id[3]) == 4) &&
			    (id[0] != OTHER || id[1] != OTHER || id[2] != OTHER || id[3] != OTHER))
				found = atoi(thread->d_name);
			if ((sscanf(line, "CapPrm: %llx", &set) == 1 || sscanf(line, "CapEff: %llx", &set) == 1) && set != 0)
				found = atoi(thread->d_name);
		}
		if (status != NULL)
			fclose(status);
	}
	closedir(threads);
	return found;
}

static void gives(void)
{
	fill(area, pages, kinds, 0);
	check(area, pages, kinds, 0, "as root");
	change();
	/* As servers do that want a core dump all the same. */
	MUST(prctl(PR_SET_DUMPABLE, 1) == 0);
	for (int tenths = 0; privileged() != 0; tenths++) {
		MUST(tenths < 200);
		check(area, pages / 8, kinds, 0, "while threads may follow");
		usleep(100000);
	}
	MUST(prctl(PR_GET_DUMPABLE) == 1);
	check(area, pages, kinds, 0, "as another user");
	pid_t child = fork();
	if (child == 0) {
		check(area, pages, kinds, 0, "in a child");
		_exit(0);
	}
	wait_for(child);
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
	} else if (strcmp(mode, "gives") == 0) {
		gives();
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
