//! Faults, evictions and events, interleaved at random by several threads, against a shadow. `LOWTIDE_SEED` repeats a run as
//! far as threads can be repeated; `LOWTIDE_SECONDS` makes it longer.

use std::ffi::c_void;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use lowtide_pager::pages::{Rights, Worker};
use lowtide_pager::reclaim::swapoff::{Step, Swapoff};
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags};

use crate::forked::Child;
use crate::house::{Config, House, MIB, PAGE, file, get, map, mix, verify, write};

/// Pages of each program thread.
const PAGES: usize = 3000;
const THREADS: usize = 3;

/// What program threads promise by the hooks of the agent: one at a time changes mappings (`changing`), and nobody is in
/// [`lowtide_pager::pager::Pager::removed`] while the page map is collected (`inside`).
#[derive(Default)]
struct Gate {
    changing: Mutex<()>,
    inside: RwLock<()>,
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        (mix(self.0) % n as u64) as usize
    }
}

/// Swap areas that are turned on and off, as a reclaimer does it.
struct Areas {
    /// Of each, bytes of its files; 0: there are none.
    sizes: [usize; 3],
    on: [bool; 3],
    off: Option<Swapoff>,
    /// Swapoffs that were completed, and that were given up.
    done: u64,
    cancelled: u64,
}

impl Areas {
    /// Does one thing at random. (Over 70 lines: an arm for each.)
    fn step(&mut self, house: &House, worker: &mut Worker, random: &mut Random) {
        let number = random.below(3);
        match &mut self.off {
            Some(off) => {
                let number = usize::from(off.number());
                match off.step(house.pager, worker) {
                    Step::Done => {
                        assert_eq!(house.pager.left_in_area(number as u8), 0);
                        self.off = None;
                        self.done += 1;
                    }
                    _ if random.below(60) == 0 => {
                        self.off = None;
                        assert_eq!(house.pager.reopen_area(number as u8), Some(true));
                        self.on[number] = true;
                        self.cancelled += 1;
                    }
                    Step::More | Step::Stuck | Step::Later => {}
                }
            }
            None if self.sizes[number] == 0 => {}
            None if self.on[number] => {
                self.off = Swapoff::begin(house.pager, number as u8).unwrap();
                self.on[number] = self.off.is_none();
            }
            None => {
                let Some(operation) = house.pager.enter() else { return };
                operation.store().add_file(file(number as u8, self.sizes[number])).unwrap();
                self.on[number] = true;
            }
        }
    }
}

/// A thread of the program, its memory and what must be in it.
struct Program<'a> {
    house: &'a House,
    gate: &'a Gate,
    at: *mut u8,
    /// Address space for moves.
    elsewhere: *mut u8,
    shadow: Vec<u64>,
    random: Random,
}

impl Program<'_> {
    fn page(&self, i: usize) -> *mut u8 {
        // SAFETY: inside the region.
        unsafe { self.at.add(i * PAGE) }
    }

    fn step(&mut self) {
        let n = 1 + match self.random.below(4) {
            0 => self.random.below(300),
            1 => self.random.below(40),
            _ => self.random.below(3),
        };
        let first = self.random.below(PAGES - n);
        let (at, len) = (self.page(first).cast::<c_void>(), n * PAGE);
        match self.random.below(20) {
            0..6 => {
                for i in first..first + n {
                    let seed = 1 + self.random.below(1 << 40) as u64;
                    self.shadow[i] = if seed.is_multiple_of(5) { 0 } else { seed };
                    write(self.page(i), self.shadow[i]);
                }
            }
            6..12 => self.check(first, n, "read"),
            // SAFETY: memory of this thread's own region.
            12 => unsafe {
                let _inside = self.gate.inside.read().unwrap();
                rustix::mm::madvise(at, len, Advice::LinuxDontNeed).unwrap();
                self.house.pager.removed(at as usize, len);
                self.shadow[first..first + n].fill(0);
            },
            // SAFETY: memory of this thread's own region.
            13 => unsafe {
                // The bytes may stay or go: afterwards they are written.
                let _inside = self.gate.inside.read().unwrap();
                rustix::mm::madvise(at, len, Advice::LinuxFree).unwrap();
                self.house.pager.removed(at as usize, len);
                for i in first..first + n {
                    self.shadow[i] = 1 + self.random.below(1 << 40) as u64;
                    write(self.page(i), self.shadow[i]);
                }
            },
            14 => {
                let _turn = self.gate.changing.lock().unwrap();
                // Unmapped by what takes its place: in a hole another thread of the test, or lowtide's, could have its memory
                // by then.
                map(at.cast(), n, MapFlags::FIXED);
                self.house.register(at.cast(), n);
                self.shadow[first..first + n].fill(0);
            }
            // SAFETY: memory of this thread's own region.
            15 => unsafe {
                // One call does one mapping, and which these are the kernel decides.
                let turn = self.gate.changing.lock().unwrap();
                let there = self.elsewhere.cast();
                let fixed = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
                if rustix::mm::mremap_fixed(at, len, len, fixed, there).is_ok() {
                    drop(turn);
                    for i in 0..n.min(4) {
                        verify(self.elsewhere.add(i * PAGE), self.shadow[first + i], "moved");
                    }
                    let _turn = self.gate.changing.lock().unwrap();
                    // The address space stays taken, here and there.
                    rustix::mm::mremap_fixed(there, len, len, fixed, at).unwrap();
                }
            },
            16 => {
                // The kernel reads and writes it.
                // SAFETY: initialised memory of this thread's.
                let bytes = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), len) };
                std::fs::File::create("/dev/null").unwrap().write_all(bytes).unwrap();
                if self.random.below(3) == 0 {
                    std::fs::File::open("/dev/zero").unwrap().read_exact(bytes).unwrap();
                    self.shadow[first..first + n].fill(0);
                }
            }
            // SAFETY: memory of this thread's own region.
            17 => unsafe {
                rustix::mm::mprotect(at, len, MprotectFlags::READ).unwrap();
                self.check(first, n.min(8), "read-only");
                rustix::mm::mprotect(at, len, MprotectFlags::READ | MprotectFlags::WRITE).unwrap();
            },
            // SAFETY: memory of this thread's own region.
            18 => unsafe {
                let _ = rustix::mm::madvise(at, len, Advice::LinuxPopulateWrite);
            },
            _ => self.check(first, n, "read"),
        }
    }

    fn check(&self, first: usize, n: usize, what: &str) {
        (first..first + n).for_each(|i| verify(self.page(i), self.shadow[i], what));
    }
}

/// Children come and go.
fn share(house: &House, gate: &Gate, child: &mut Option<Child>, random: &mut Random) {
    if random.below(20) == 0 {
        // Before it is forgotten: a fork waits for its event, and for nobody else.
        *child = None;
        let _turn = gate.changing.lock().unwrap();
        *child = Some(Child::new());
    }
    house.pager.set_sharers(u64::from(child.is_some()));
    if house.pager.wants_writes_watched() {
        let _turn = gate.changing.lock().unwrap();
        house.pager.watch_writes();
    }
}

fn everything_at_once(config: Config, has_children: bool) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = number("LOWTIDE_SEED").unwrap_or(now.as_nanos() as u64);
    let seconds = number("LOWTIDE_SECONDS").unwrap_or(3);
    let has_files = config.file > 0;
    let sizes = if has_files { [config.file, 64 * MIB, 16 * MIB] } else { [0; 3] };
    let Some(house) = House::new(config) else { return };
    eprintln!("LOWTIDE_SEED={seed}");
    let (gate, stop) = (Gate::default(), AtomicBool::new(false));
    // Areas have been taken off, and a swapoff was given up: on a machine that is busy it takes longer.
    let enough = AtomicBool::new(!has_files);
    let areas = Mutex::new(Areas { sizes, on: [has_files, false, false], off: None, done: 0, cancelled: 0 });
    let steps = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut worker, mut random) = (Worker::new(Rights::All).unwrap(), Random(seed ^ 99));
            let pager = house.pager;
            let mut areas = areas.lock().unwrap();
            let mut child = None;
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..random.below(8) {
                    let _ = pager.evict(&mut worker);
                }
                // Now and then the handlers have to make room themselves.
                pager.budget().set_limit(if random.below(8) == 0 { 1 << 20 } else { 1 << 40 });
                match random.below(16) {
                    0 => pager.drain_frames(),
                    1 => drop(pager.compact(64)),
                    2 => drop(pager.shrink_pool(&mut worker)),
                    3 => pager.maintain(),
                    4 => {
                        let _nobody = gate.inside.write().unwrap();
                        pager.collect_page_map();
                    }
                    5 => pager.measure_rest(),
                    7..12 => {
                        (0..random.below(20)).for_each(|_| areas.step(&house, &mut worker, &mut random));
                        let off = !has_files || areas.done > 2 && areas.cancelled > 0;
                        enough.store(off, Ordering::Relaxed);
                    }
                    6 => std::thread::sleep(Duration::from_micros(random.below(500) as u64)),
                    12..16 if has_children => share(&house, &gate, &mut child, &mut random),
                    _ => {}
                }
            }
        });
        let program = |thread: usize| {
            let (house, gate, enough) = (&house, &gate, &enough);
            move || {
                let at = house.region(PAGES);
                let elsewhere = map(std::ptr::null_mut(), PAGES, MapFlags::empty());
                let shadow = vec![0; PAGES];
                let mut program =
                    Program { house, gate, at, elsewhere, shadow, random: Random(mix(seed) ^ (thread as u64) << 32) };
                let (started, mut steps) = (Instant::now(), 0u64);
                let goes_on = |for_seconds| started.elapsed() < Duration::from_secs(for_seconds);
                while goes_on(seconds) || !enough.load(Ordering::Relaxed) && goes_on(10 * seconds) {
                    program.step();
                    steps += 1;
                }
                program.check(0, PAGES, "at the end");
                steps
            }
        };
        let programs: Vec<_> = (0..THREADS).map(|thread| scope.spawn(program(thread))).collect();
        let ends: Vec<_> = programs.into_iter().map(|program| program.join()).collect();
        stop.store(true, Ordering::Relaxed);
        ends.into_iter().map(|end| end.expect("a thread of the program found what it didn't write")).sum::<u64>()
    });
    let c = house.pager.counters();
    eprintln!("{steps} steps, {} faults, {} pages out", get(&c.faults_total), house.evictions());
    assert!(steps > 100 && house.evictions() > 1000, "it did something");
    let areas = areas.into_inner().unwrap();
    eprintln!("{} areas taken off, {} swapoffs given up", areas.done, areas.cancelled);
    assert!(!has_files || areas.done > 2 && areas.cancelled > 0);
}

#[test]
fn everything_at_once_in_ram() {
    everything_at_once(Config { pool: 64 * MIB, file: 0, handlers: 2 }, false);
}

#[test]
fn everything_at_once_with_a_file() {
    everything_at_once(Config { pool: 2 * MIB, file: 128 * MIB, handlers: 2 }, false);
}

/// What is there is shared with a child now and then, and protected.
#[test]
fn everything_at_once_beside_children() {
    everything_at_once(Config { pool: 64 * MIB, file: 0, handlers: 2 }, true);
}

/// Some of it can't be stored: it goes back where it was.
#[test]
fn everything_at_once_with_too_little_room() {
    everything_at_once(Config { pool: 4 * MIB, file: 0, handlers: 2 }, false);
}
