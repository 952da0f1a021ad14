//! Writes to what a fork has left shared: they wait for room like any other fault, and nothing is lost or mixed up.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_pager::fault::Worker;
use lowtide_pager::fork::Sharing;
use lowtide_pager::mappings::{Hold, Range};
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags};

use crate::forked::Child;
use crate::house::{Config, House, MIB, PAGE, get, map, mix, verify, within, word, write};

const PAGES: usize = 48 * MIB / PAGE;
const HUGE: usize = 2 * MIB / PAGE;

fn with_file() -> Option<House> {
    House::without_accessed_bits(Config { pool: 8 * MIB, file: 512 * MIB, monitors: 2 })
}

/// Noise, which no pool makes smaller.
fn seed(i: usize, round: usize) -> u64 {
    ((round * PAGES + i) as u64 + 1) * 3
}

fn holds(page: *const u8, seed: u64) -> bool {
    // SAFETY: the caller's page.
    (0..PAGE / 8).all(|i| unsafe { page.cast::<u64>().add(i).read_volatile() } == word(seed, i))
}

/// What the reclaimer does while the program shares so much with so many others, until there is nothing left to do.
fn follow(house: &House, others: u64, bytes: usize) {
    house.pager.set_sharers(others);
    let shared = Sharing { others, may_copy: bytes as u64 };
    // Long after the fork.
    while house.pager.protect_shared(shared, u64::MAX / 2, || {}) != u64::MAX {
        if house.pager.wants_writes_watched() {
            house.pager.watch_writes();
        }
    }
}

/// Whether the kernel has the page write-protected.
fn is_protected(page: *const u8) -> bool {
    let mut entry = [0; 8];
    File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut entry, (page as usize / PAGE * 8) as u64).unwrap();
    u64::from_ne_bytes(entry) >> 57 & 1 != 0
}

fn shared_writes(house: &House) -> u64 {
    get(&house.pager.counters().faults_shared_writes)
}

fn faults(house: &House) -> u64 {
    get(&house.pager.counters().faults_total)
}

/// A region of noise, and a child that will find it as it is.
fn shared_with_a_child(house: &House) -> (usize, Child) {
    let at = house.region(PAGES) as usize;
    let page = move |i: usize| (at + i * PAGE) as *mut u8;
    (0..PAGES).for_each(|i| write(page(i), seed(i, 0)));
    let child = Child::that_checks(move || (0..PAGES).all(|i| holds(page(i), seed(i, 0))));
    // With the lock that a monitor has until the child is whole.
    assert!(house.pager.has_adopted(at));
    (at, child)
}

/// The limit in MiB of a process that has been measured to have its region and nothing else.
fn limit(house: &House, mib: u64) {
    house.pager.budget.set_limit(mib << 20);
    house.pager.budget.measured((PAGES * PAGE) as u64);
}

#[test]
fn who_overwrites_what_it_shares_waits_at_the_limit() {
    let Some(house) = with_file() else { return };
    let (at, child) = shared_with_a_child(&house);
    let page = |i: usize| (at + i * PAGE) as *mut u8;
    limit(&house, 64);
    follow(&house, 1, PAGES * PAGE);
    assert!(house.pager.protects_shared());
    let before = child.bytes_with_parent();
    let (done, mut most) = (AtomicBool::new(false), 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            (0..PAGES).for_each(|i| write(page(i), seed(i, 1)));
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            most = most.max(child.bytes_with_parent());
        }
    });
    let grown = most.saturating_sub(before) >> 20;
    // 16 were left, and the store takes some. Without protection it is all 48.
    assert!(grown < 24, "{grown} MiB more");
    let seen = shared_writes(&house);
    assert!((PAGES / 64..PAGES / 8).contains(&(seen as usize)), "{seen} writes were seen of {PAGES} pages");
    (0..PAGES).for_each(|i| verify(page(i), seed(i, 1), "overwritten"));
    assert!(child.ends_well(), "the child has what was there at the fork");
}

#[test]
fn nothing_is_protected_where_all_copies_have_room() {
    let Some(house) = with_file() else { return };
    let (at, child) = shared_with_a_child(&house);
    limit(&house, 128);
    follow(&house, 1, PAGES * PAGE);
    assert!(!house.pager.protects_shared() && !house.pager.protects() && !is_protected(at as *const u8));
    assert!(child.ends_well());
}

/// Too soon it would be in vain, and is later.
#[test]
fn a_child_that_is_gone_at_once_costs_nothing() {
    let Some(house) = with_file() else { return };
    let (_, child) = shared_with_a_child(&house);
    limit(&house, 64);
    let shared = |others| Sharing { others, may_copy: (PAGES * PAGE) as u64 };
    let now = lowtide_pager::sys::clock::now_us();
    let wait = house.pager.protect_shared(shared(1), now.saturating_sub(1_000_000), || panic!("it begins"));
    assert!(wait >= 900_000 && !house.pager.wants_writes_watched(), "{wait}");
    assert!(child.ends_well());
    assert_eq!(house.pager.protect_shared(shared(0), u64::MAX / 2, || panic!("it begins")), u64::MAX);
}

#[test]
fn what_a_thread_can_t_wait_for_stays_writable() {
    let Some(house) = with_file() else { return };
    let (at, child) = shared_with_a_child(&house);
    let page = |i: usize| (at + i * PAGE) as *mut u8;
    limit(&house, 64);
    // Threads of odd numbers live.
    assert_eq!(house.pager.hold(page(1000) as usize, 7), Hold::Begun);
    assert_eq!(house.pager.hold(page(1001) as usize, 8), Hold::Begun);
    assert!(house.pager.pin(Range { start: page(5000) as usize, end: page(5003) as usize }));
    let mut worker = Worker::new(true).unwrap();
    // SAFETY: the test's own memory.
    unsafe { house.pager.keeping(page(9000) as usize, &mut worker, |_| follow(&house, 1, PAGES * PAGE)) };
    let writable: Vec<usize> = (0..PAGES).filter(|i| !is_protected(page(*i))).collect();
    assert_eq!(writable, [1000, 5000, 5001, 5002, 9000]);
    assert!(child.ends_well());
}

#[test]
fn pages_that_no_other_process_has_any_more_are_written_freely() {
    let Some(house) = with_file() else { return };
    let (at, child) = shared_with_a_child(&house);
    let page = |i: usize| (at + i * PAGE) as *mut u8;
    limit(&house, 64);
    follow(&house, 1, PAGES * PAGE);
    assert!(child.ends_well());
    // The reclaimer does not know yet. At the limit, where each other fault would evict.
    house.pager.budget.measured(64 << 20);
    let before = faults(&house);
    (0..PAGES / 2).for_each(|i| write(page(i), seed(i, 1)));
    let seen = faults(&house) - before;
    assert!((1..=3 * PAGES / HUGE).contains(&(seen as usize)), "{seen} faults");
    assert_eq!((shared_writes(&house), get(&house.pager.counters().evictions_direct)), (0, 0));
    assert!(house.pager.budget.now() <= 64 << 20, "{} bytes", house.pager.budget.now());
    follow(&house, 0, 0);
    assert!(!house.pager.protects_shared() && !(0..PAGES).any(|i| is_protected(page(i))));
    let before = faults(&house);
    (PAGES / 2..PAGES).for_each(|i| write(page(i), seed(i, 1)));
    assert_eq!(faults(&house), before);
    (0..PAGES).for_each(|i| verify(page(i), seed(i, 1), "overwritten"));
}

/// Bytes of huge pages of this process.
fn huge_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[test]
fn huge_pages_stay_huge() {
    let Some(house) = with_file() else { return };
    let others = huge_bytes();
    let all = map(std::ptr::null_mut(), PAGES + HUGE, MapFlags::empty()) as usize;
    let at = all.next_multiple_of(HUGE * PAGE);
    let page = |i: usize| (at + i * PAGE) as *mut u8;
    // SAFETY: the test's own memory.
    let may_be = unsafe { rustix::mm::madvise(at as *mut _, PAGES * PAGE, Advice::LinuxHugepage) };
    (0..PAGES).for_each(|i| write(page(i), seed(i, 0)));
    let huge = huge_bytes() - others;
    if may_be.is_err() || huge < 8 * MIB {
        eprintln!("SKIPPED: the kernel gives no huge pages: {may_be:?}, {huge} bytes");
        return;
    }
    house.adopt_used(at as *mut u8, PAGES);
    let child = Child::that_checks(move || (0..PAGES).all(|i| holds((at + i * PAGE) as *const u8, seed(i, 0))));
    limit(&house, 64);
    follow(&house, 1, PAGES * PAGE);
    assert_eq!(huge_bytes() - others, huge, "protected, and not split");
    assert!(child.ends_well());
    let before = faults(&house);
    (0..PAGES).step_by(5).for_each(|i| write(page(i), seed(i, 1)));
    assert_eq!(huge_bytes() - others, huge, "its own again, and not split");
    let seen = (faults(&house) - before) as usize;
    assert!(seen <= 3 * PAGES / HUGE, "{seen} faults");
    (0..PAGES).for_each(|i| verify(page(i), seed(i, usize::from(i % 5 == 0)), "huge"));
}

/// The reclaimer gives the program its own copies of shared pages, when there is nothing else to evict: it does not wait for a
/// handler thread.
#[test]
fn shared_pages_are_evicted_though_they_are_protected() {
    let Some(house) = with_file() else { return };
    let (at, child) = shared_with_a_child(&house);
    let page = move |i: usize| (at + i * PAGE) as *mut u8;
    limit(&house, 64);
    follow(&house, 1, PAGES * PAGE);
    let before = faults(&house);
    house.evict_all();
    assert!(house.evictions() > PAGES as u64 * 9 / 10, "{} pages are out", house.evictions());
    assert!(faults(&house) - before <= PAGES as u64 / 100, "{} faults", faults(&house) - before);
    (0..PAGES).for_each(|i| verify(page(i), seed(i, 0), "came back"));
    assert!(!is_protected(page(7)), "it is nobody else's");
    assert!(child.ends_well());
}

/// What the kernel writes for the program waits, too; memory that moves keeps its protection; what is dropped loses it.
#[test]
fn system_calls_moves_and_drops_of_protected_pages() {
    within("a system call that writes to what is shared", || {
        let Some(house) = with_file() else { return };
        let (at, child) = shared_with_a_child(&house);
        let page = |i: usize| (at + i * PAGE) as *mut u8;
        limit(&house, 64);
        follow(&house, 1, PAGES * PAGE);
        let before = shared_writes(&house);
        // SAFETY: the test's own memory.
        let bytes = unsafe { std::slice::from_raw_parts_mut(page(100), 64 * PAGE) };
        File::open("/dev/zero").unwrap().read_exact_at(bytes, 0).unwrap();
        assert!((1..=64).contains(&(shared_writes(&house) - before)));
        let there = map(std::ptr::null_mut(), 256, MapFlags::empty()) as usize;
        let fixed = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
        // SAFETY: the test's own memory, both.
        unsafe { rustix::mm::mremap_fixed(page(1024).cast(), 256 * PAGE, 256 * PAGE, fixed, there as *mut _).unwrap() };
        let moved = |i: usize| (there + i * PAGE) as *mut u8;
        (0..256).for_each(|i| verify(moved(i), seed(1024 + i, 0), "moved"));
        let before = shared_writes(&house);
        (0..256).for_each(|i| write(moved(i), seed(i, 2)));
        assert!(shared_writes(&house) > before, "what was moved is watched still");
        // SAFETY: the test's own memory.
        unsafe {
            rustix::mm::madvise(page(3000).cast(), 100 * PAGE, Advice::LinuxDontNeed).unwrap();
            house.pager.removed(page(3000) as usize, 100 * PAGE);
            rustix::mm::mprotect(page(4000).cast(), 64 * PAGE, MprotectFlags::READ).unwrap();
            rustix::mm::mprotect(page(4000).cast(), 64 * PAGE, MprotectFlags::READ | MprotectFlags::WRITE).unwrap();
            rustix::mm::madvise(page(5000).cast(), 64 * PAGE, Advice::LinuxPopulateWrite).unwrap();
            rustix::mm::mlock(page(6000).cast(), 16 * PAGE).unwrap();
        }
        assert!(is_protected(page(4001)) && !is_protected(page(5001)) && !is_protected(page(6001)));
        for i in 0..PAGES {
            match i {
                100..164 | 1024..1280 | 3000..3100 => verify(page(i), 0, "read, moved away or dropped"),
                _ => verify(page(i), seed(i, 0), "as it was"),
            }
        }
        (0..256).for_each(|i| verify(moved(i), seed(i, 2), "moved and written"));
        assert!(child.ends_well());
    });
}

/// Threads write, read, drop and are evicted while children come and go; each child finds what was there when it was forked.
#[test]
fn children_come_and_go_while_threads_write() {
    const THREADS: usize = 3;
    let Some(house) = with_file() else { return };
    let at = house.region(PAGES) as usize;
    let page = move |i: usize| (at + i * PAGE) as *mut u8;
    let seconds = std::env::var("LOWTIDE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    house.pager.budget.set_limit(64 << 20);
    // What each page holds, as (step << 1 | 1) or 0; written by the page's thread, and while a child is forked by nobody.
    let shadow: Vec<AtomicUsize> = (0..PAGES).map(|_| AtomicUsize::new(0)).collect();
    let (turns, stop, children) = (std::sync::RwLock::new(()), AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for part in 0..THREADS {
            let (shadow, turns, stop, house) = (&shadow, &turns, &stop, &house);
            scope.spawn(move || {
                for step in 0u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let _turn = turns.read().unwrap();
                    let random = mix(step * THREADS as u64 + part as u64);
                    let first = random as usize % (PAGES / THREADS - 64);
                    let n = if random >> 40 & 7 == 0 { 64 } else { 1 };
                    for i in (first..first + n).map(|own| own * THREADS + part) {
                        let now = shadow[i].load(Ordering::Relaxed);
                        verify(page(i), now as u64, "own page");
                        if random >> 50 & 31 == 0 {
                            // SAFETY: the test's own page.
                            unsafe { rustix::mm::madvise(page(i).cast(), PAGE, Advice::LinuxDontNeed).unwrap() };
                            house.pager.removed(page(i) as usize, PAGE);
                            shadow[i].store(0, Ordering::Relaxed);
                        } else if random >> 56 & 1 == 0 {
                            let next = (step as usize) << 1 | 1;
                            write(page(i), next as u64);
                            shadow[i].store(next, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        let began = Instant::now();
        let mut worker = Worker::new(true).unwrap();
        let is_enough = || children.load(Ordering::Relaxed) > 5 && shared_writes(&house) > 1000 && house.evictions() > 1000;
        // On a machine that is busy it takes longer.
        let goes_on = |seconds| began.elapsed() < Duration::from_secs(seconds);
        while goes_on(seconds) || !is_enough() && goes_on(20 * seconds) {
            let child = {
                let _nobody = turns.write().unwrap();
                let shadow = &shadow;
                Child::that_checks(move || (0..PAGES).all(|i| holds(page(i), shadow[i].load(Ordering::Relaxed) as u64)))
            };
            house.pager.budget.measured((PAGES * PAGE) as u64);
            let until = Instant::now() + Duration::from_millis(mix(children.load(Ordering::Relaxed) as u64) % 60);
            follow(&house, 1, PAGES * PAGE);
            while Instant::now() < until {
                let _ = house.pager.evict(&mut worker);
                thread::yield_now();
            }
            assert!(child.ends_well(), "child {}", children.load(Ordering::Relaxed));
            if children.fetch_add(1, Ordering::Relaxed) % 3 == 0 {
                follow(&house, 0, 0);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    (0..PAGES).for_each(|i| verify(page(i), shadow[i].load(Ordering::Relaxed) as u64, "at the end"));
    let (seen, out, children) = (shared_writes(&house), house.evictions(), children.into_inner());
    eprintln!("{children} children, {seen} writes to shared pages were seen, {out} pages out");
    assert!(children > 5 && seen > 1000 && out > 1000);
}
