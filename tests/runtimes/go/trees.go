// Trees whose every word follows from a seed, so that each can be checked at any time.

package main

import "fmt"

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
