/* A server with workers that come and go, under load: tree_server MIB WORKERS OWN_MIB REQUESTS EACH.
 * A client, forked first, sends REQUESTS requests over 8 connections at a time and checks each answer. The server fills MIB, listens, and forks WORKERS, which
 * accept by themselves. A worker fills OWN_MIB of its own at the start; a request makes it check a part of what it inherited, and check and overwrite a part of
 * its own, and then to wait for 2 ms. After some EACH requests it ends and another is forked; meanwhile the server overwrites a part of its own memory, which new workers inherit. */
#include "common.h"
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#define AT_A_TIME 8

static unsigned char *area;
static size_t pages, own_pages;
static const char *kinds = "twtn";
static struct sockaddr_un where = { .sun_family = AF_UNIX };

/* The shared content does not depend on who looks when: the server's part that changes is the last quarter, which nobody else reads. */
static uint64_t answer(uint64_t request, int checks)
{
	uint64_t sum = request;
	for (size_t i = 0; i < 64; i++) {
		size_t page = mix(request * 64 + i) % (pages / 4 * 3);
		if (checks)
			check_page(area + page * PAGE, kind_at(kinds, page), page, "what a worker inherited");
		sum = mix(sum + page);
	}
	return sum;
}

static void client(size_t requests)
{
	uint64_t total = 0, next = 0, open = 0;
	struct { int fd; uint64_t request; } all[AT_A_TIME];
	for (size_t i = 0; i < AT_A_TIME; i++)
		all[i].fd = -1;
	while (next < requests || open > 0) {
		struct pollfd polled[AT_A_TIME];
		for (size_t i = 0; i < AT_A_TIME; i++) {
			if (all[i].fd < 0 && next < requests) {
				int fd = socket(AF_UNIX, SOCK_STREAM, 0);
				MUST(fd >= 0);
				while (connect(fd, (struct sockaddr *)&where, sizeof where.sun_family + 14) != 0)
					usleep(1000);
				all[i].fd = fd, all[i].request = next++, open++;
				MUST(write(fd, &all[i].request, 8) == 8);
			}
			polled[i] = (struct pollfd){ .fd = all[i].fd, .events = POLLIN };
		}
		MUST(poll(polled, AT_A_TIME, 60000) > 0);
		for (size_t i = 0; i < AT_A_TIME; i++) {
			uint64_t got;
			if (all[i].fd < 0 || !polled[i].revents)
				continue;
			MUST(read(all[i].fd, &got, 8) == 8);
			if (got != answer(all[i].request, 0))
				die("request %llu was answered wrongly", (unsigned long long)all[i].request);
			total ^= mix(got);
			close(all[i].fd);
			all[i].fd = -1, open--;
		}
	}
	printf("OK %016llx\n", (unsigned long long)total);
	fflush(stdout);
	_exit(0);
}

static void work(int listener, size_t most)
{
	uint64_t seed = mix((uint64_t)getpid()), request, got;
	unsigned char *own = map_pages(own_pages);
	fill(own, own_pages, kinds, seed);
	for (size_t served = 0; served < most; served++) {
		int fd = accept(listener, NULL, NULL);
		MUST(fd >= 0 && read(fd, &request, 8) == 8);
		got = answer(request, 1);
		for (size_t i = 0; i < 32; i++) {
			size_t page = mix(request + i) % own_pages;
			check_page(own + page * PAGE, kind_at(kinds, page), seed + page * PAGE, "a worker's own");
			make_page(own + page * PAGE, kind_at(kinds, page), seed + page * PAGE);
		}
		usleep(2000);
		MUST(write(fd, &got, 8) == 8);
		close(fd);
	}
	check(own, own_pages, kinds, seed, "a worker's own, at the end");
	_exit(0);
}

static pid_t start(int listener, size_t each, uint64_t number)
{
	pid_t worker = fork();
	MUST(worker >= 0);
	if (worker == 0)
		work(listener, each + number % 7 * each / 8);
	return worker;
}

int main(int argc, char **argv)
{
	pages = number(argc, argv, 1, 64) * MIB / PAGE;
	size_t workers = number(argc, argv, 2, 8), requests = number(argc, argv, 4, 2000), each = number(argc, argv, 5, 400);
	own_pages = number(argc, argv, 3, 8) * MIB / PAGE;
	/* An abstract name: nothing is left behind. */
	snprintf(where.sun_path + 1, 14, "lts-%08x", (unsigned)getpid());
	pid_t asks = fork();
	MUST(asks >= 0);
	if (asks == 0)
		client(requests);
	area = map_pages(pages);
	for (size_t i = 0; i < pages; i++)
		make_page(area + i * PAGE, kind_at(kinds, i), i);
	int listener = socket(AF_UNIX, SOCK_STREAM, 0), status;
	MUST(listener >= 0 && bind(listener, (struct sockaddr *)&where, sizeof where.sun_family + 14) == 0 && listen(listener, 64) == 0);
	pid_t *pids = calloc(workers, sizeof *pids);
	uint64_t started = 0;
	for (size_t i = 0; i < workers; i++)
		pids[i] = start(listener, each, started++);
	for (;;) {
		pid_t ended = wait(&status);
		MUST(ended > 0);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
			die("a process of the server ended with status %x", (unsigned)status);
		if (ended == asks)
			break;
		for (size_t i = 0; i < workers; i++)
			if (pids[i] == ended)
				pids[i] = start(listener, each, started++);
		for (size_t i = pages / 4 * 3; i < pages; i += 16)
			make_page(area + i * PAGE, kind_at(kinds, i), i + started);
	}
	for (size_t i = 0; i < workers; i++) {
		MUST(kill(pids[i], SIGKILL) == 0);
		MUST(waitpid(pids[i], &status, 0) == pids[i]);
	}
	for (size_t i = 0; i < pages / 4 * 3; i++)
		check_page(area + i * PAGE, kind_at(kinds, i), i, "the server's own");
	return 0;
}
