/* Clears the soft-dirty bits by clear_refs, writes some pages, needs more memory than there is, and asks pagemap which pages were
 * written. Prints how many it was not told of: 0. "another": a child, and not the process itself, clears the bits and reads them,
 * as a checkpointer does. Status 77: this kernel has no such bits. soft_dirty MIB MORE own|another */
#include "common.h"
#include <fcntl.h>

static int pages_opened(pid_t pid, const char *file, int flags)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
	int fd = open(path, flags);
	MUST(fd >= 0);
	return fd;
}

static void clear(pid_t pid)
{
	int fd = pages_opened(pid, "clear_refs", O_WRONLY);
	MUST(write(fd, "4", 1) == 1);
	close(fd);
}

/* How many of the written pages the kernel does not call soft-dirty. */
static size_t missed(pid_t pid, const unsigned char *start, size_t pages, const unsigned char *written)
{
	uint64_t bits[512];
	size_t missed = 0;
	int fd = pages_opened(pid, "pagemap", O_RDONLY);
	for (size_t at = 0; at < pages; at += 512) {
		size_t n = pages - at < 512 ? pages - at : 512;
		MUST(pread(fd, bits, n * 8, (off_t)(((uintptr_t)start / PAGE + at) * 8)) == (ssize_t)(n * 8));
		for (size_t i = 0; i < n; i++)
			missed += written[at + i] && !(bits[i] >> 55 & 1);
	}
	close(fd);
	return missed;
}

/* Has a child do something that this process must not do itself. */
static void in_child(int is_another, void (*act)(void *), void *what)
{
	pid_t child = is_another ? fork() : 0;
	if (child == 0)
		act(what);
	if (is_another && child == 0)
		_exit(0);
	if (is_another)
		wait_for(child);
}

struct job {
	pid_t pid;
	unsigned char *start, *written;
	size_t pages, *missed;
};

static void clears(void *what)
{
	clear(((struct job *)what)->pid);
}

static void reads(void *what)
{
	struct job *job = what;
	*job->missed = missed(job->pid, job->start, job->pages, job->written);
}

int main(int argc, char **argv)
{
	MUST(argc == 4);
	size_t pages = (size_t)atol(argv[1]) * MIB / PAGE, more = (size_t)atol(argv[2]) * MIB / PAGE;
	int is_another = strcmp(argv[3], "another") == 0;
	unsigned char *start = mmap(NULL, (pages + more) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t *result = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned char *written = calloc(pages, 1);
	MUST(start != MAP_FAILED && result != MAP_FAILED && written != NULL);
	struct job job = { getpid(), start, written, pages, result };
	memset(written, 1, pages);
	fill(start, pages, "tn", 0);
	reads(&job);
	if (*result == pages)
		return 77;
	memset(written, 0, pages);
	in_child(is_another, clears, &job);
	uint64_t random = 1;
	for (size_t i = 0; i < pages / 4; i++) {
		size_t page = next_random(&random) % pages;
		written[page] = 1;
		start[page * PAGE + i % PAGE]++;
	}
	fill(start + pages * PAGE, more, "tn", 0);
	in_child(is_another, reads, &job);
	printf("OK %zu pages that were written are not soft-dirty\n", *result);
	return 0;
}
