/* hands_over: sends lowtide userfaultfds to keep (KEEP) that it should better not believe, closes the connections, and goes on for a
   while. Prints what was answered: that one that is not ready is refused (22), one that waits in reads is taken (0), another of the
   same process is refused (17) as long as the first connection is open, and at some time there are too many (24). */
#include "common.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

enum { KEEP = 15 };

/* Of all sockets that have such a name one answers: the others are of other runs. */
static int hand_over(int file, int *connection)
{
	char line[512];
	FILE *all = fopen("/proc/net/unix", "r");
	MUST(all != NULL);
	while (fgets(line, sizeof line, all) != NULL) {
		char *name = strstr(line, "@lowtide-");
		if (name == NULL)
			continue;
		name[strcspn(name, "\n")] = 0;
		struct sockaddr_un address = { .sun_family = AF_UNIX };
		socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
		memcpy(address.sun_path + 1, name + 1, strlen(name) - 1);
		int to = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		MUST(to >= 0);
		uint32_t word = KEEP, answer;
		char space[CMSG_SPACE(sizeof(int))] = { 0 };
		struct iovec part = { &word, sizeof word };
		struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space };
		struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
		*rights = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)) };
		memcpy(CMSG_DATA(rights), &file, sizeof file);
		if (connect(to, (struct sockaddr *)&address, len) == 0 && sendmsg(to, &message, MSG_NOSIGNAL) > 0
		    && recv(to, &answer, sizeof answer, 0) == sizeof answer) {
			fclose(all);
			*connection = to;
			return (int)answer;
		}
		close(to);
	}
	die("nobody answers");
}

static int userfaultfd(int is_ready)
{
	int file = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = { .api = UFFD_API };
	MUST(file >= 0 && (!is_ready || ioctl(file, UFFDIO_API, &api) == 0));
	return file;
}

int main(void)
{
	int first, other, answer;
	printf("not ready: %d\n", hand_over(userfaultfd(0), &other));
	close(other);
	printf("ready: %d\n", hand_over(userfaultfd(1), &first));
	printf("one more: %d\n", hand_over(userfaultfd(1), &other));
	close(other);
	do {
		close(first);
		/* Its end is seen later than it is there. */
		while ((answer = hand_over(userfaultfd(1), &first)) == 17)
			close(first);
	} while (answer == 0);
	printf("at last: %d\n", answer);
	sleep(1);
	puts("it goes on");
	return 0;
}
