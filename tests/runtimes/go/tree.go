// Starts what it is told to, three at once, beside a tree that it keeps: each must say the same.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
)

func main() {
	const depth = 18
	tree := grow(depth, 1)
	var said [3]string
	var all sync.WaitGroup
	for i := range said {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			command := exec.Command(os.Args[1], os.Args[2:]...)
			command.Stderr = os.Stderr
			out, err := command.Output()
			if err != nil {
				panic(err)
			}
			said[i] = string(out)
		}(i)
	}
	all.Wait()
	for _, text := range said {
		if text != said[0] {
			panic("not the same: " + text + said[0])
		}
	}
	fmt.Print(said[0], "OK ", check(tree, depth, 1), "\n")
}
