/* Stacks that the kernel lets grow downwards (MAP_GROWSDOWN): small ones are made first, then other memory is filled, then a recursion on
 * each stack makes it many times as large, and finds on its way back what it left on its way down.
 * grows_down STACKS MIB */
#include "common.h"
#include <ucontext.h>

#define APART (32 * MIB)
#define FIRST ((size_t)256 << 10)
#define DEEP (6 * MIB)

static ucontext_t back, there;
static size_t number_of_stack;
static const unsigned char *top;

static __attribute__((noinline)) void descend(uint64_t seed)
{
	unsigned char page[PAGE];
	make_page(page, seed % 3 ? TEXT : NOISE, seed);
	__asm__ volatile("" : : "r"(page) : "memory");
	if ((size_t)(top - page) < DEEP)
		descend(seed + 1);
	check_page(page, seed % 3 ? TEXT : NOISE, seed, "stack");
}

static void on_stack(void)
{
	descend(number_of_stack * 100000);
}

static void run_on(unsigned char *stack)
{
	MUST(getcontext(&there) == 0);
	top = stack + FIRST;
	there.uc_stack.ss_sp = stack;
	there.uc_stack.ss_size = FIRST;
	there.uc_link = &back;
	makecontext(&there, on_stack, 0);
	MUST(swapcontext(&back, &there) == 0);
}

int main(int argc, char **argv)
{
	size_t stacks = number(argc, argv, 1, 20), pages = number(argc, argv, 2, 64) * MIB / PAGE;
	unsigned char **stack = calloc(stacks, sizeof *stack);
	MUST(stack != NULL);
	for (size_t i = 0; i < stacks; i++) {
		/* Far from where the kernel puts mappings by itself: nothing else comes to lie where it will grow. */
		unsigned char *place = (unsigned char *)0x100000000000u + i * APART;
		stack[i] = mmap(place, FIRST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_STACK | MAP_FIXED_NOREPLACE, -1, 0);
		MUST(stack[i] == place);
		memset(stack[i], 1, FIRST);
	}
	unsigned char *plain = map_pages(pages);
	fill(plain, pages, "tn", 7);
	for (unsigned round = 0; round < 2; round++)
		for (size_t i = 0; i < stacks; i++) {
			number_of_stack = i;
			run_on(stack[i]);
		}
	check(plain, pages, "tn", 7, "plain");
	printf("OK %zu\n", stacks);
	return 0;
}
