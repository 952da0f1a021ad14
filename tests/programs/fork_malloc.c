/* fork_malloc THREADS FORKS MIB: threads that allocate and free blocks of all sizes, so that the heap and the arenas of malloc grow and are trimmed
   all the time, beside a thread that forks. Every byte is verified, in the children too. `fork` must return though malloc's locks are held by
   threads that change mappings. */
#include "common.h"
#include <malloc.h>
#include <pthread.h>
#include <sys/wait.h>

#define BLOCKS 48

struct block {
	unsigned char *bytes;
	size_t size;
	uint64_t seed;
};

static int end;
static size_t share;

static void fill_block(struct block *block)
{
	uint64_t seed = block->seed;
	for (size_t i = 0; i + 8 <= block->size; i += 8) {
		uint64_t word = mix(seed + i);
		memcpy(block->bytes + i, &word, 8);
	}
}

static void check_block(const struct block *block, const char *where)
{
	for (size_t i = 0; i + 8 <= block->size; i += 8) {
		uint64_t word = mix(block->seed + i), is;
		memcpy(&is, block->bytes + i, 8);
		if (is != word)
			die("%s: %p, byte %zu of %zu: %lx, not %lx", where, (void *)block->bytes, i, block->size, is, word);
	}
}

static void *works(void *number)
{
	uint64_t random = (uintptr_t)number * 1000003;
	struct block blocks[BLOCKS] = { 0 };
	size_t used = 0;
	while (!__atomic_load_n(&end, __ATOMIC_ACQUIRE)) {
		struct block *block = &blocks[next_random(&random) % BLOCKS];
		if (block->bytes) {
			check_block(block, "in a thread");
			used -= block->size;
			free(block->bytes);
			block->bytes = NULL;
		}
		/* Small ones between large ones, and now and then nothing at all, so that the top is trimmed. */
		size_t size = next_random(&random) % 4 ? 64 + next_random(&random) % 400 : 4096 + next_random(&random) % (512 << 10);
		if (used + size > share) {
			for (size_t i = 0; i < BLOCKS; i++) {
				if (!blocks[i].bytes)
					continue;
				check_block(&blocks[i], "in a thread");
				free(blocks[i].bytes);
				blocks[i].bytes = NULL;
			}
			used = 0;
			continue;
		}
		*block = (struct block){ malloc(size), size, next_random(&random) };
		MUST(block->bytes);
		fill_block(block);
		used += size;
	}
	for (size_t i = 0; i < BLOCKS; i++) {
		if (blocks[i].bytes)
			check_block(&blocks[i], "at the end");
		free(blocks[i].bytes);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	size_t threads = number(argc, argv, 1, 4), forks = number(argc, argv, 2, 100), pages = number(argc, argv, 3, 48) * MIB / PAGE;
	/* All from the heap and the arenas, which are trimmed whenever that is possible. */
	MUST(mallopt(M_MMAP_THRESHOLD, 32 << 20) && mallopt(M_TRIM_THRESHOLD, 4096) && mallopt(M_TOP_PAD, 0));
	share = 8 * MIB;
	unsigned char *start = map_pages(pages);
	fill(start, pages, "tnw", 1);
	pthread_t thread[64];
	MUST(threads <= 64);
	for (size_t i = 0; i < threads; i++)
		MUST(pthread_create(&thread[i], NULL, works, (void *)(uintptr_t)(i + 1)) == 0);
	for (size_t i = 0; i < forks; i++) {
		pid_t child = fork();
		int status;
		MUST(child >= 0);
		if (child == 0) {
			struct block block = { malloc(100000), 100000, i };
			MUST(block.bytes);
			fill_block(&block);
			for (size_t page = i % 16; page < pages; page += 61)
				check_page(start + page * PAGE, kind_at("tnw", page), 1 + page * PAGE, "in a child");
			check_block(&block, "in a child");
			free(block.bytes);
			_exit(0);
		}
		MUST(waitpid(child, &status, 0) == child && status == 0);
	}
	__atomic_store_n(&end, 1, __ATOMIC_RELEASE);
	for (size_t i = 0; i < threads; i++)
		MUST(pthread_join(thread[i], NULL) == 0);
	check(start, pages, "tnw", 1, "the parent");
	printf("OK\n");
	return 0;
}
