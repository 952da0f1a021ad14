/* A program that serves faults itself, with a userfaultfd of its own, and has seven times as much other memory besides. `early`: it
 * registers its range at once; `late`: half of it when that has been written and all else is allocated. Some pages are dropped and must
 * be asked for again. own_userfaultfd early|late MIB */
#include "common.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

static unsigned char *served;
static size_t served_pages, filled;
static int uffd;

static void *serve(void *nothing)
{
	static unsigned char page[4096] __attribute__((aligned(4096)));
	(void)nothing;
	for (;;) {
		struct pollfd wait = { .fd = uffd, .events = POLLIN };
		struct uffd_msg message;
		MUST(poll(&wait, 1, -1) == 1);
		if (read(uffd, &message, sizeof message) != sizeof message)
			continue;
		if (message.event != UFFD_EVENT_PAGEFAULT)
			die("event %d", message.event);
		size_t index = (message.arg.pagefault.address - (uintptr_t)served) / PAGE;
		if (index >= served_pages)
			die("a fault at %llx, which is not registered here", (unsigned long long)message.arg.pagefault.address);
		make_page(page, TEXT, index);
		struct uffdio_copy copy = { .dst = (uintptr_t)(served + index * PAGE), .src = (uintptr_t)page, .len = PAGE };
		if (ioctl(uffd, UFFDIO_COPY, &copy) != 0 && errno != EEXIST)
			die("UFFDIO_COPY: %s", strerror(errno));
		__atomic_fetch_add(&filled, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void claim(unsigned char *start, size_t pages)
{
	struct uffdio_register claim = { .range = { (uintptr_t)start, pages * PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	if (ioctl(uffd, UFFDIO_REGISTER, &claim) != 0)
		die("UFFDIO_REGISTER: %s", strerror(errno));
}

int main(int argc, char **argv)
{
	int late = argc > 1 && strcmp(argv[1], "late") == 0;
	size_t pages = number(argc, argv, 2, 128) * MIB / PAGE, half = pages / 16;
	uint64_t random = 1;
	pthread_t thread;
	uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	MUST(uffd >= 0);
	struct uffdio_api api = { .api = UFFD_API };
	MUST(ioctl(uffd, UFFDIO_API, &api) == 0);
	served_pages = 2 * half;
	served = map_pages(served_pages);
	claim(served, late ? half : 2 * half);
	if (late)
		for (size_t i = half; i < 2 * half; i++)
			make_page(served + i * PAGE, TEXT, i);
	MUST(pthread_create(&thread, NULL, serve, NULL) == 0);
	unsigned char *plain = map_pages(pages - served_pages);
	fill(plain, pages - served_pages, "tn", 7);
	if (late)
		claim(served + half * PAGE, half);
	for (size_t i = 0; i < served_pages; i++)
		check_page(served + i * PAGE, TEXT, i, "first");
	for (size_t i = 0; i < served_pages / 2; i++) {
		size_t index = next_random(&random) % served_pages;
		MUST(madvise(served + index * PAGE, PAGE, MADV_DONTNEED) == 0);
		check_page(served + index * PAGE, TEXT, index, "again");
	}
	for (size_t i = 0; i < served_pages; i++)
		check_page(served + i * PAGE, TEXT, i, "last");
	check(plain, pages - served_pages, "tn", 7, "plain");
	if (filled < (late ? half : served_pages) + served_pages / 4)
		die("%zu pages were asked for", filled);
	printf("OK %zu\n", pages);
	return 0;
}
