// Goroutines deep in C's stacks, from where they call Go, which collects.

package main

/*
#include <stdint.h>

extern uint64_t fromC(uint64_t seed);

static inline uint64_t downInC(unsigned left, uint64_t seed)
{
	volatile uint64_t here[512];
	for (int i = 0; i < 512; i++)
		here[i] = seed + i;
	uint64_t below = left > 0 ? downInC(left - 1, seed * 31 + 1) : fromC(seed);
	for (int i = 0; i < 512; i++)
		if (here[i] != seed + i)
			__builtin_trap();
	return below * 3 + here[left % 512];
}
*/
import "C"

import "runtime"

//export fromC
func fromC(seed C.uint64_t) C.uint64_t {
	tree := grow(10, uint64(seed))
	runtime.GC()
	return C.uint64_t(check(tree, 10, uint64(seed)))
}

func init() {
	parts["C's stacks"] = func() uint64 {
		var sum uint64
		for round := uint64(0); round < 3; round++ {
			sum = sum*3 + together(8, func(index uint64) uint64 { return uint64(C.downInC(800, C.uint64_t(round<<8|index))) })
		}
		return sum
	}
}
