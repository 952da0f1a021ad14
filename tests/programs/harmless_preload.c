/* A library that a program preloads into its children; built by the tests as a shared object. */
#include <unistd.h>

__attribute__((constructor)) static void say(void)
{
	static const char text[] = "preloaded\n";
	if (write(1, text, sizeof text - 1) < 0)
		_exit(9);
}
