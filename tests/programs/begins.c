/* begins: what a program sees of itself when it begins: descriptors, signals, who traces it, arguments, environment but for what
   lowtide adds, and what the kernel has told it. */
#include "common.h"
#include <dirent.h>
#include <sys/auxv.h>

int main(int argc, char **argv)
{
	char line[256];
	DIR *directory = opendir("/proc/self/fd");
	struct dirent *entry;
	MUST(directory != NULL);
	while ((entry = readdir(directory)) != NULL)
		if (entry->d_name[0] != '.')
			printf("fd %s\n", entry->d_name);
	closedir(directory);
	FILE *status = fopen("/proc/self/status", "r");
	MUST(status != NULL);
	while (fgets(line, sizeof line, status) != NULL)
		if (strncmp(line, "SigBlk", 6) == 0 || strncmp(line, "SigIgn", 6) == 0 || strncmp(line, "SigPnd", 6) == 0 ||
		    strncmp(line, "TracerPid", 9) == 0 || strncmp(line, "Cap", 3) == 0)
			fputs(line, stdout);
	fclose(status);
	for (int i = 0; i < argc; i++)
		printf("argument %s\n", argv[i]);
	for (char **variable = environ; *variable != NULL; variable++)
		if (strncmp(*variable, "LD_PRELOAD=", 11) != 0 && strncmp(*variable, "LOWTIDE_", 8) != 0 && strncmp(*variable, "ASAN_OPTIONS=", 13) != 0)
			printf("variable %s\n", *variable);
	printf("executed as %s, secure %lu\n", (char *)getauxval(AT_EXECFN), getauxval(AT_SECURE));
	printf("OK\n");
	return 0;
}
