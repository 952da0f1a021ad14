// What a Go program does that a pager must get right, whatever the settings of its runtime: goroutines that keep, check and renew trees while the
// collector is at work; stacks that grow deep and shrink; loops without calls, which only a signal preempts; children. Each part prints a checksum.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"sort"
	"strconv"
	"strings"
	"sync"
)

var parts = map[string]func() uint64{"trees": keepTrees, "stacks": growStacks, "loops": loop, "children": start}

const (
	workers = 4
	kept    = 8
	depth   = 13
)

// The sum of what so many goroutines return.
func together(count int, work func(index uint64) uint64) uint64 {
	sums := make([]uint64, count)
	var all sync.WaitGroup
	for i := range sums {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			sums[i] = work(uint64(i))
		}(i)
	}
	all.Wait()
	var sum uint64
	for _, one := range sums {
		sum = sum*3 + one
	}
	return sum
}

func keepTrees() uint64 {
	return together(workers, func(worker uint64) uint64 {
		var trees [kept]*node
		var seeds [kept]uint64
		var sum uint64
		for round := uint64(0); round < 3*kept; round++ {
			i := mix(worker<<32|round) % kept
			if round < kept {
				i = round
			}
			if trees[i] != nil {
				sum = sum*3 + check(trees[i], depth, seeds[i])
			}
			seeds[i] = mix(worker<<16 | round)
			trees[i] = grow(depth, seeds[i])
			block := make([]byte, 2<<20)
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
		for i := range trees {
			sum = sum*3 + check(trees[i], depth, seeds[i])
		}
		return sum
	})
}

// Its frame is a large part of a page, so a stack of so many is a MiB.
func down(left, seed uint64) uint64 {
	var here [128]uint64
	for i := range here {
		here[i] = seed + uint64(i)
	}
	below := seed
	if left > 0 {
		below = down(left-1, mix(seed))
	}
	for i := range here {
		if here[i] != seed+uint64(i) {
			panic("a stack's word is wrong")
		}
	}
	return below*3 + here[left%128]
}

func growStacks() uint64 {
	var sum uint64
	for round := uint64(0); round < 3; round++ {
		sum = sum*3 + together(24, func(index uint64) uint64 { return down(900, round<<8|index) })
		// Stacks that are mostly unused are halved.
		runtime.GC()
	}
	return sum
}

func loop() uint64 {
	done := make(chan bool)
	go func() {
		// Each wants all goroutines to stop.
		for i := 0; i < 20; i++ {
			runtime.GC()
		}
		done <- true
	}()
	sum := together(4, func(index uint64) uint64 {
		x := index
		for i := 0; i < 60_000_000; i++ {
			x = x*6364136223846793005 + 1442695040888963407
		}
		return x
	})
	<-done
	return sum
}

func start() uint64 {
	return together(6, func(index uint64) uint64 {
		seed := strconv.FormatUint(index, 10)
		out, err := exec.Command(os.Args[0], "child", seed).Output()
		if err != nil {
			panic(err)
		}
		sum, err := strconv.ParseUint(strings.TrimSpace(string(out)), 10, 64)
		if err != nil || sum != check(grow(12, index), 12, index) {
			panic("a child's answer is wrong: " + string(out))
		}
		if out, err := exec.Command("/bin/sh", "-c", "exec echo "+seed).Output(); err != nil || string(out) != seed+"\n" {
			panic(fmt.Sprint("a shell's answer is wrong: ", string(out), err))
		}
		return sum
	})
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == "child" {
		seed, _ := strconv.ParseUint(os.Args[2], 10, 64)
		fmt.Println(check(grow(12, seed), 12, seed))
		return
	}
	var names []string
	for name := range parts {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		fmt.Println("OK", name, parts[name]())
	}
}
