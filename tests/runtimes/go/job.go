// Objects in a map and in a slice, made by two goroutines: passes, jumps with changes, a checksum.
package main

import (
	"fmt"
	"sync"
)

type item struct {
	number uint64
	text   string
	few    []int
}

const count = 1_000_000

func main() {
	all := make([]*item, count)
	var both sync.WaitGroup
	for half := 0; half < 2; half++ {
		both.Add(1)
		go func() {
			defer both.Done()
			for i := half; i < count; i += 2 {
				all[i] = &item{uint64(i), fmt.Sprint(i * 7919), []int{i, i + 1, i + 2}}
			}
		}()
	}
	both.Wait()
	byText := make(map[string]*item)
	for i := 0; i < count; i += 4 {
		byText[all[i].text] = all[i]
	}
	var state, sum uint64 = 1, 0
	for k := 0; k < 60000; k++ {
		state = state*6364136223846793005 + 1442695040888963407
		all[(state>>33)%count].number += uint64(k)
	}
	for pass := 0; pass < 2; pass++ {
		for _, it := range all {
			sum = sum*3 + it.number + uint64(len(it.text)+it.few[2])
		}
	}
	for i := 0; i < count; i += 4 {
		sum = sum*3 + byText[fmt.Sprint(i*7919)].number
	}
	fmt.Println("OK", sum)
}
