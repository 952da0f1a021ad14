/* races_to_exec COUNT PROGRAM ARGUMENTS: so many children, in each of which four threads execute the program at the same time,
   and one does. */
#include "common.h"
#include <pthread.h>

static pthread_barrier_t start;
static char **arguments;

static void *execute(void *unused)
{
	(void)unused;
	pthread_barrier_wait(&start);
	execv(arguments[0], arguments);
	die("%s: %s", arguments[0], strerror(errno));
}

int main(int argc, char **argv)
{
	MUST(argc > 2);
	arguments = argv + 2;
	for (int i = 0; i < atoi(argv[1]); i++) {
		pid_t child = fork();
		MUST(child >= 0);
		if (child == 0) {
			pthread_t thread;
			MUST(pthread_barrier_init(&start, NULL, 4) == 0);
			for (int j = 0; j < 3; j++)
				MUST(pthread_create(&thread, NULL, execute, NULL) == 0);
			execute(NULL);
		}
		wait_for(child);
	}
	puts("OK");
	return 0;
}
