// What the plugin brings: a tree that is kept in its memory.

package main

var tree *node

// Grow checks the tree that it has kept, and keeps another.
func Grow(depth int, seed, last uint64) uint64 {
	var sum uint64
	if tree != nil {
		sum = check(tree, depth, last)
	}
	tree = grow(depth, seed)
	return sum
}

func main() {}
