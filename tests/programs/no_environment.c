/* Executes itself with a null pointer for an environment, and fills memory then: no_environment execve|execveat MIB. */
#include "common.h"
#include <fcntl.h>

extern char **environ;

int main(int argc, char **argv)
{
	MUST(argc == 3);
	size_t pages = number(argc, argv, 2, 128) * MIB / PAGE;
	if (argv[1][0] == 'e') {
		char *arguments[] = { argv[0], "filled", argv[2], NULL };
		/* Not known to the compiler, which warns of it. */
		char **volatile none = NULL;
		if (strcmp(argv[1], "execve") == 0)
			execve(argv[0], arguments, none);
		else
			execveat(AT_FDCWD, argv[0], arguments, none, 0);
		die("%s: %s", argv[0], strerror(errno));
	}
	/* lowtide's variables are all that there may be. */
	for (char **variable = environ; variable != NULL && *variable != NULL; variable++)
		MUST(strncmp(*variable, "LD_PRELOAD=", 11) == 0 || strncmp(*variable, "LOWTIDE_SEGMENT=", 16) == 0);
	unsigned char *area = map_pages(pages);
	fill(area, pages, "t", 1);
	check(area, pages, "t", 1, "after the exec");
	puts("OK");
	return 0;
}
