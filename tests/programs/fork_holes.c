/* fork_holes MIB: a program of whose memory a part in the middle is not handed on to children (MADV_DONTFORK). The child maps memory there, and
   anew where the part ended, and verifies every byte again and again. */
#include "common.h"
#include <sys/wait.h>

/* Pages that are mapped at a time. */
#define PIECE ((size_t)64)

int main(int argc, char **argv)
{
	size_t pages = number(argc, argv, 1, 64) * MIB / PAGE, part = pages / 4;
	unsigned char *start = map_pages(pages), *hole = start + part * PAGE;
	fill(start, pages, "tnzw", 1);
	MUST(madvise(hole, part * PAGE, MADV_DONTFORK) == 0);
	/* Time to register all of it. */
	check(start, pages, "tnzw", 1, "the parent");
	pid_t child = fork();
	int status;
	MUST(child >= 0);
	if (child == 0) {
		/* In pieces: somebody else may have found the place as well. */
		size_t taken[1024], n = 0;
		for (size_t at = 0; at + PIECE <= part && n < 1024; at += PIECE) {
			void *where = hole + at * PAGE;
			void *piece = mmap(where, PIECE * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
			if (piece == where) {
				check_zero(piece, PIECE * PAGE, "what is new");
				taken[n++] = at;
			}
		}
		MUST(n > 0);
		for (uint64_t i = 0; i < 3; i++) {
			for (size_t k = 0; k < n; k++)
				fill(hole + taken[k] * PAGE, PIECE, "tnw", 5 + i + k);
			check(start, part, "tnzw", 1, "before the hole");
			for (size_t page = 2 * part; page < pages; page++)
				check_page(start + page * PAGE, kind_at("tnzw", page), 1 + page * PAGE, "behind the hole");
			for (size_t k = 0; k < n; k++)
				check(hole + taken[k] * PAGE, PIECE, "tnw", 5 + i + k, "in the hole");
		}
		_exit(0);
	}
	MUST(waitpid(child, &status, 0) == child && status == 0);
	check(start, pages, "tnzw", 1, "the parent, later");
	printf("OK\n");
	return 0;
}
