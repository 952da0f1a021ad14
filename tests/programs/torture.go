// Goroutines that do to their memory what Go programs do, and know what every byte must be: the heap with its collector, deep
// stacks, mappings by raw calls, files, pipes, signals and children. What each does follows from the seed and its number.
//
//	torture [--seed S] [--threads N] [--seconds T] [--mib M]: M is for each goroutine.
package main

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	page      = 4096
	slots     = 24
	mayMove   = 1
	dontNeed  = 4
	guardMake = 102
	guardDrop = 103
)

var (
	seed    = flag.Int64("seed", 1, "what is chosen follows from it")
	threads = flag.Int("threads", 4, "goroutines")
	seconds = flag.Int("seconds", 60, "how long")
	mib     = flag.Int("mib", 24, "most of each goroutine")
	child   = flag.String("child", "", "reads its input, and says its sum")
	stop    atomic.Bool
	checked atomic.Int64
	counts  [len(steps)]atomic.Int64
)

// A block is bytes that a content makes, page by page; content 0 is zeros.
type block struct {
	bytes   []byte
	content []uint64
	mapped  bool
}

type worker struct {
	number int
	random *rand.Rand
	blocks [slots]*block
	byName map[string]*block
	used   int
	events []string
}

var steps = [...]struct {
	name string
	take func(*worker)
}{
	{"heap", (*worker).allocate}, {"map", (*worker).mapPages}, {"drop", (*worker).drop}, {"write", (*worker).write},
	{"check", (*worker).check}, {"name", (*worker).name}, {"append", (*worker).enlarge}, {"dontneed", (*worker).dontNeed},
	{"guard", (*worker).guard}, {"mremap", (*worker).remap}, {"recurse", (*worker).recurse}, {"file", (*worker).file},
	{"pipe", (*worker).pipe}, {"collect", (*worker).collect}, {"signal", (*worker).signal}, {"child", (*worker).child},
}

// Of a thousand, up to which a step is taken.
var weights = [len(steps)]int{140, 200, 290, 440, 600, 660, 720, 790, 830, 890, 930, 960, 985, 990, 996, 1000}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Half of each page is words that don't compress, the other half text.
func fill(to []byte, content uint64) {
	if content == 0 {
		clear(to)
		return
	}
	for at := 0; at+8 <= len(to); at += 8 {
		word := uint64(0x746e65746e6f6320)
		if at%16 == 0 {
			word = mix(content + uint64(at))
		}
		binary.LittleEndian.PutUint64(to[at:], word)
	}
}

func (w *worker) fail(where string, at int, b *block) {
	fmt.Printf("FAILED: --seed %d --threads %d, goroutine %d: %s: page %d of %d, content %x, starts %x; %s\n", *seed, *threads,
		w.number, where, at, len(b.content), b.content[at], b.bytes[at*page:at*page+16], strings.Join(w.events, ", "))
	os.Exit(1)
}

func (w *worker) checkPage(b *block, at int, where string) {
	var want [page]byte
	fill(want[:], b.content[at])
	if !bytes.Equal(want[:], b.bytes[at*page:(at+1)*page]) {
		w.fail(where, at, b)
	}
	checked.Add(1)
}

func (w *worker) checkAll(b *block, where string) {
	for at := range b.content {
		w.checkPage(b, at, where)
	}
}

func (w *worker) fillPage(b *block, at int) {
	b.content[at] = w.random.Uint64() | 1
	fill(b.bytes[at*page:(at+1)*page], b.content[at])
}

func (w *worker) slot() int { return w.random.Intn(slots) }

func (w *worker) any() *block {
	for n, at := 0, w.slot(); n < slots; n, at = n+1, (at+1)%slots {
		if w.blocks[at] != nil {
			return w.blocks[at]
		}
	}
	return nil
}

func (w *worker) anyMapped() *block {
	if b := w.any(); b != nil && b.mapped {
		return b
	}
	return nil
}

func (w *worker) put(pages int, mapped bool) {
	at := w.slot()
	if w.blocks[at] != nil || w.used+pages > *mib<<20/page {
		return
	}
	b := &block{content: make([]uint64, pages), mapped: mapped}
	if mapped {
		made, err := syscall.Mmap(-1, 0, pages*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
		must(err)
		b.bytes = made
	} else {
		b.bytes = make([]byte, pages*page)
	}
	for i := range b.content {
		if w.random.Intn(4) != 0 {
			w.fillPage(b, i)
		}
	}
	w.blocks[at] = b
	w.used += pages
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (w *worker) allocate() { w.put(1+w.random.Intn(256), false) }
func (w *worker) mapPages() { w.put(1+w.random.Intn(512), true) }

func (w *worker) drop() {
	at := w.slot()
	b := w.blocks[at]
	if b == nil || w.random.Intn(2) == 0 {
		return
	}
	w.checkAll(b, "before it is dropped")
	if b.mapped {
		unmap(b.bytes)
	}
	w.blocks[at] = nil
	w.used -= len(b.content)
}

// (syscall.Munmap knows only what syscall.Mmap made.)
func unmap(bytes []byte) {
	_, _, errno := syscall.Syscall(syscall.SYS_MUNMAP, uintptr(unsafe.Pointer(&bytes[0])), uintptr(len(bytes)), 0)
	if errno != 0 {
		panic(errno)
	}
}

func (w *worker) write() {
	if b := w.any(); b != nil {
		for n := 0; n < 16; n++ {
			at := w.random.Intn(len(b.content))
			w.checkPage(b, at, "before a write")
			w.fillPage(b, at)
		}
	}
}

func (w *worker) check() {
	if b := w.any(); b != nil {
		for n := 0; n < 32; n++ {
			w.checkPage(b, w.random.Intn(len(b.content)), "looking")
		}
	}
}

// Small objects, of which a map has many.
func (w *worker) name() {
	if len(w.byName) > 400 {
		for name, b := range w.byName {
			w.checkAll(b, name)
		}
		w.byName = map[string]*block{}
	}
	for n := 0; n < 10; n++ {
		b := &block{bytes: make([]byte, page), content: make([]uint64, 1)}
		w.fillPage(b, 0)
		w.byName[fmt.Sprint("object ", b.content[0])] = b
	}
}

// As append does it: the runtime copies.
func (w *worker) enlarge() {
	b := w.any()
	if b == nil || b.mapped || w.used+len(b.content) > *mib<<20/page || len(b.content) > 1024 {
		return
	}
	w.used += len(b.content)
	b.content = append(b.content, make([]uint64, len(b.content))...)
	b.bytes = append(b.bytes, make([]byte, len(b.bytes))...)
	w.checkAll(b, "after append")
}

func (w *worker) part(b *block) (first, pages int) {
	first = w.random.Intn(len(b.content))
	return first, 1 + w.random.Intn(len(b.content)-first)
}

func (w *worker) advise(b *block, first, pages, advice int) syscall.Errno {
	at := uintptr(unsafe.Pointer(&b.bytes[first*page]))
	_, _, errno := syscall.Syscall(syscall.SYS_MADVISE, at, uintptr(pages*page), uintptr(advice))
	return errno
}

func (w *worker) dontNeed() {
	if b := w.anyMapped(); b != nil {
		first, pages := w.part(b)
		if errno := w.advise(b, first, pages, dontNeed); errno != 0 {
			panic(errno)
		}
		clear(b.content[first : first+pages])
		w.checkPage(b, first, "after MADV_DONTNEED")
	}
}

func (w *worker) guard() {
	if b := w.anyMapped(); b != nil {
		first, pages := w.part(b)
		if errno := w.advise(b, first, pages, guardMake); errno == syscall.EINVAL {
			return
		}
		time.Sleep(time.Duration(w.random.Intn(2000)) * time.Microsecond)
		if errno := w.advise(b, first, pages, guardDrop); errno != 0 {
			panic(errno)
		}
		clear(b.content[first : first+pages])
		w.checkPage(b, first, "where a guard was")
	}
}

func (w *worker) remap() {
	b := w.anyMapped()
	if b == nil {
		return
	}
	pages := 1 + w.random.Intn(512)
	if w.used-len(b.content)+pages > *mib<<20/page {
		return
	}
	from := uintptr(unsafe.Pointer(&b.bytes[0]))
	to, _, errno := syscall.Syscall6(syscall.SYS_MREMAP, from, uintptr(len(b.bytes)), uintptr(pages*page), mayMove, 0, 0)
	// lowtide refuses it to one of several threads.
	if errno == syscall.EINTR || errno == syscall.ENOMEM {
		return
	}
	if errno != 0 {
		panic(errno)
	}
	w.used += pages - len(b.content)
	b.bytes = unsafe.Slice(*(**byte)(unsafe.Pointer(&to)), pages*page)
	content := make([]uint64, pages)
	copy(content, b.content)
	b.content = content
	w.checkPage(b, w.random.Intn(pages), "after mremap")
}

// The stack grows to many pages, and is copied.
func (w *worker) recurse() {
	if got, want := deep(w.random.Intn(4000), uint64(w.number)), uint64(w.number); got != want {
		fmt.Printf("FAILED: a stack: %d, not %d\n", got, want)
		os.Exit(1)
	}
}

//go:noinline
func deep(depth int, x uint64) uint64 {
	var here [32]uint64
	for i := range here {
		here[i] = mix(x + uint64(i) + uint64(depth))
	}
	if depth > 0 && deep(depth-1, x) != x {
		return x + 1
	}
	for i := range here {
		if here[i] != mix(x+uint64(i)+uint64(depth)) {
			return x + 1
		}
	}
	return x
}

func (w *worker) file() {
	b := w.any()
	if b == nil {
		return
	}
	first, pages := w.part(b)
	file, err := os.CreateTemp(".", "torture")
	must(err)
	defer file.Close()
	must(os.Remove(file.Name()))
	part := b.bytes[first*page : (first+pages)*page]
	_, err = file.WriteAt(part, 0)
	must(err)
	clear(part)
	_, err = file.ReadAt(part, 0)
	must(err)
	w.checkPage(b, first+pages-1, "from a file")
}

func (w *worker) pipe() {
	b := w.any()
	if b == nil {
		return
	}
	at := w.random.Intn(len(b.content))
	read, write, err := os.Pipe()
	must(err)
	defer read.Close()
	go func(bytes []byte) {
		write.Write(bytes)
		write.Close()
	}(b.bytes[at*page : (at+1)*page])
	var got [page]byte
	for n := 0; n < page; {
		more, err := read.Read(got[n:])
		must(err)
		n += more
	}
	if !bytes.Equal(got[:], b.bytes[at*page:(at+1)*page]) {
		w.fail("through a pipe", at, b)
	}
}

func (w *worker) collect() {
	if w.random.Intn(2) == 0 {
		runtime.GC()
	} else {
		debug.FreeOSMemory()
	}
}

func (w *worker) signal() { must(syscall.Kill(os.Getpid(), syscall.SIGUSR1)) }

func (w *worker) child() {
	b := w.any()
	if b == nil {
		return
	}
	at := w.random.Intn(len(b.content))
	command := exec.Command("/proc/self/exe", "--child", "sum")
	command.Stdin = bytes.NewReader(b.bytes[at*page : (at+1)*page])
	output, err := command.Output()
	must(err)
	if want := fmt.Sprintln(sum(b.bytes[at*page : (at+1)*page])); string(output) != want {
		w.fail("a child's sum is "+string(output)+", not "+want, at, b)
	}
}

func sum(bytes []byte) (all uint64) {
	for _, byte := range bytes {
		all = mix(all + uint64(byte))
	}
	return all
}

func (w *worker) work() {
	w.random = rand.New(rand.NewSource(*seed<<8 + int64(w.number)))
	w.byName = map[string]*block{}
	for !stop.Load() {
		which := 0
		for n := w.random.Intn(1000); n >= weights[which]; {
			which++
		}
		w.events = append(w.events[max(0, len(w.events)-15):], steps[which].name)
		steps[which].take(w)
		counts[which].Add(1)
	}
	for _, b := range w.blocks {
		if b != nil {
			w.checkAll(b, "at the end")
		}
	}
	for name, b := range w.byName {
		w.checkAll(b, name)
	}
}

func main() {
	flag.Parse()
	if *child != "" {
		var all bytes.Buffer
		_, err := all.ReadFrom(os.Stdin)
		must(err)
		fmt.Println(sum(all.Bytes()))
		return
	}
	fmt.Printf("torture --seed %d --threads %d --seconds %d --mib %d\n", *seed, *threads, *seconds, *mib)
	signals := make(chan os.Signal, 100)
	signal.Notify(signals, syscall.SIGUSR1)
	var all sync.WaitGroup
	for n := 0; n < *threads; n++ {
		all.Add(1)
		go func() {
			(&worker{number: n}).work()
			all.Done()
		}()
	}
	time.Sleep(time.Duration(*seconds) * time.Second)
	stop.Store(true)
	all.Wait()
	for i := range steps {
		fmt.Printf("%s %d, ", steps[i].name, counts[i].Load())
	}
	fmt.Printf("%d pages checked\nOK\n", checked.Load())
}
