// Four goroutines make garbage beside trees that they keep, check and renew, so that the collector is always at work, and give memory back to the
// kernel now and then: the runtime's mapping calls are raw system calls, of several threads.
package main

import (
	"fmt"
	"runtime/debug"
	"sync"
)

type node struct {
	left, right *node
	payload     [6]uint64
}

func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}

func grow(depth int, seed uint64) *node {
	n := &node{}
	for i := range n.payload {
		n.payload[i] = seed + uint64(i)
	}
	if depth > 0 {
		n.left, n.right = grow(depth-1, mix(seed)), grow(depth-1, mix(seed+1))
	}
	return n
}

func check(n *node, depth int, seed uint64) uint64 {
	for i, word := range n.payload {
		if word != seed+uint64(i) {
			panic(fmt.Sprintf("depth %d, word %d: %x, not %x", depth, i, word, seed+uint64(i)))
		}
	}
	if depth == 0 {
		return seed
	}
	return check(n.left, depth-1, mix(seed))*31 + check(n.right, depth-1, mix(seed+1))
}

const (
	workers = 4
	trees   = 8
	depth   = 15
	rounds  = 24
)

func work(worker uint64) uint64 {
	var kept [trees]*node
	var seeds [trees]uint64
	var sum uint64
	for round := uint64(0); round < rounds; round++ {
		i := mix(worker<<32|round) % trees
		if kept[i] != nil {
			sum = sum*3 + check(kept[i], depth, seeds[i])
		}
		seeds[i] = mix(worker*rounds + round)
		kept[i] = grow(depth, seeds[i])
		block := make([]byte, 8<<20)
		for at := 0; at < len(block); at += 4096 {
			if block[at] != 0 {
				panic("fresh memory is not zero")
			}
			block[at] = byte(round)
		}
		if round%8 == 7 {
			debug.FreeOSMemory()
		}
	}
	for i, n := range kept {
		if n != nil {
			sum = sum*3 + check(n, depth, seeds[i])
		}
	}
	return sum
}

func main() {
	var sums [workers]uint64
	var all sync.WaitGroup
	for worker := range sums {
		all.Add(1)
		go func() {
			defer all.Done()
			sums[worker] = work(uint64(worker))
		}()
	}
	all.Wait()
	fmt.Println("OK", sums)
}
