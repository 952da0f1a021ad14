/* Executes its arguments: executes PROGRAM ARGUMENTS. */
#include "common.h"

int main(int argc, char **argv)
{
	MUST(argc > 1);
	execvp(argv[1], argv + 1);
	die("%s: %s", argv[1], strerror(errno));
}
