//! Writes to what a fork has left shared: they wait for room like any other fault, and nothing is lost or mixed up.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_pager::fault::Worker;
use lowtide_pager::fork::Sharing;
use lowtide_pager::mappings::{Hold, Range};
use lowtide_pager::sys::uffd::Watched;
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

/// One step of the reclaimer, as [`follow`] does them, long after the fork; whether there is more to do.
fn step(house: &House, others: u64, looks: impl FnOnce()) -> bool {
    let shared = Sharing { others, may_copy: (PAGES * PAGE) as u64 };
    house.pager.protect_shared(shared, u64::MAX / 2, looks) != u64::MAX
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

/// A region of noise of a process with this limit in MiB, its pages, and a child that will find them as they are.
fn shared_with_a_child(mib: u64) -> Option<(House, impl Fn(usize) -> *mut u8 + Copy, Child)> {
    let house = with_file()?;
    let at = house.region(PAGES) as usize;
    let page = move |i: usize| (at + i * PAGE) as *mut u8;
    (0..PAGES).for_each(|i| write(page(i), seed(i, 0)));
    let child = Child::that_checks(move || (0..PAGES).all(|i| holds(page(i), seed(i, 0))));
    // With the lock that a monitor has until the child is whole.
    assert!(house.pager.has_adopted(at));
    limit(&house, mib);
    Some((house, page, child))
}

/// The limit in MiB of a process that has been measured to have its region and nothing else.
fn limit(house: &House, mib: u64) {
    house.pager.budget.set_limit(mib << 20);
    house.pager.budget.measured((PAGES * PAGE) as u64);
}

#[test]
fn who_overwrites_what_it_shares_waits_at_the_limit() {
    let Some((house, page, child)) = shared_with_a_child(64) else { return };
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
    let Some((house, page, child)) = shared_with_a_child(128) else { return };
    follow(&house, 1, PAGES * PAGE);
    assert!(!house.pager.protects_shared() && !house.pager.protects() && !is_protected(page(0)));
    assert!(child.ends_well());
}

/// Too soon it would be in vain, and is later.
#[test]
fn a_child_that_is_gone_at_once_costs_nothing() {
    let Some((house, _, child)) = shared_with_a_child(64) else { return };
    let shared = |others| Sharing { others, may_copy: (PAGES * PAGE) as u64 };
    let now = lowtide_pager::sys::clock::now_us();
    let wait = house.pager.protect_shared(shared(1), now.saturating_sub(1_000_000), || panic!("it begins"));
    assert!(wait >= 900_000 && !house.pager.wants_writes_watched(), "{wait}");
    assert!(child.ends_well());
    assert_eq!(house.pager.protect_shared(shared(0), u64::MAX / 2, || panic!("it begins")), u64::MAX);
}

#[test]
fn what_a_thread_can_t_wait_for_stays_writable() {
    let Some((house, page, child)) = shared_with_a_child(64) else { return };
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
    let Some((house, page, child)) = shared_with_a_child(64) else { return };
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

/// Every second page of a mapping is adopted: to go through so many ranges takes more than one step of the reclaimer, as it does
/// through many GiB. What it is, a child that has all of it, too, and writes are watched.
fn scattered_with_a_child() -> Option<(House, impl Fn(usize) -> *mut u8 + Copy, Child)> {
    let house = with_file()?;
    let at = map(std::ptr::null_mut(), 2 * RANGES, MapFlags::empty()) as usize;
    let page = move |i: usize| (at + 2 * i * PAGE) as *mut u8;
    for i in 0..RANGES {
        house.adopt(page(i), 1);
        write(page(i), seed(i, 0));
    }
    let child = Child::that_checks(move || (0..RANGES).all(|i| holds(page(i), seed(i, 0))));
    assert!(house.pager.has_adopted(at));
    limit(&house, 64);
    house.pager.set_sharers(1);
    assert!(step(&house, 1, || panic!("nothing can be protected yet")));
    house.pager.watch_writes();
    Some((house, page, child))
}

const RANGES: usize = 4000;

/// Of the pages of [`scattered_with_a_child`], how many are protected.
fn protected(page: impl Fn(usize) -> *mut u8) -> usize {
    (0..RANGES).filter(|i| is_protected(page(*i))).count()
}

#[test]
fn what_is_the_program_s_alone_is_not_protected() {
    let Some((house, page, child)) = shared_with_a_child(64) else { return };
    let own = [0, 1, 700, 701, 702, 1024, PAGES - 1];
    own.iter().for_each(|i| write(page(*i), seed(*i, 1)));
    follow(&house, 1, PAGES * PAGE);
    let writable: Vec<usize> = (0..PAGES).filter(|i| !is_protected(page(*i))).collect();
    assert_eq!(writable, own);
    assert!(child.ends_well());
}

#[test]
fn threads_are_looked_at_before_each_step() {
    let Some((house, _, child)) = scattered_with_a_child() else { return };
    let (mut steps, mut looks) = (0, 0);
    while step(&house, 1, || looks += 1) {
        steps += 1;
    }
    assert!(steps > 0 && looks == steps + 1, "{looks} looks in {steps} steps and the last");
    assert!(child.ends_well());
}

#[test]
fn nothing_stays_protected_where_some_mapping_is_not_watched() {
    let Some((house, page, child)) = shared_with_a_child(64) else { return };
    follow(&house, 1, PAGES * PAGE);
    // In the middle of a huge page's place.
    let at = page(0) as usize;
    let first = (at.next_multiple_of(HUGE * PAGE) - at) / PAGE + 100;
    let missed = page(first) as usize;
    // SAFETY: none of its pages is out.
    unsafe {
        house.pager.uffd().unregister(missed, 50 * PAGE).unwrap();
        house.pager.uffd().register(missed, 50 * PAGE, Watched::Missing).unwrap();
    }
    assert!(is_protected(page(first - 1)) && is_protected(page(first + 50)) && !is_protected(page(first)));
    // The reclaimer's way to give the program its own copies meets it, too.
    let before = faults(&house);
    house.evict_all();
    assert!(faults(&house) - before <= PAGES as u64 / 100, "{} faults", faults(&house) - before);
    assert!(child.ends_well());

    house.pager.budget.set_limit(1 << 40);
    (0..PAGES).for_each(|i| verify(page(i), seed(i, 0), "came back"));
    let child = Child::that_checks(|| true);
    assert!(house.pager.has_adopted(at));
    limit(&house, 64);
    follow(&house, 1, PAGES * PAGE);
    assert!(is_protected(page(first - 1)) && is_protected(page(first + 50)) && !is_protected(page(first)));
    follow(&house, 0, 0);
    assert!(!house.pager.protects_shared());
    let left: Vec<usize> = (0..PAGES).filter(|i| is_protected(page(*i))).collect();
    assert_eq!(left, []);
    assert!(child.ends_well());
}

#[test]
fn protection_that_goes_on_or_ends_half_way_is_whole() {
    let Some((house, page, child)) = scattered_with_a_child() else { return };
    follow(&house, 1, PAGES * PAGE);
    assert_eq!(protected(page), RANGES);
    assert!(step(&house, 0, || {}));
    let left = protected(page);
    assert!((1..RANGES).contains(&left), "{left} of {RANGES} after one step");
    // The child was there all the time.
    follow(&house, 1, PAGES * PAGE);
    assert_eq!(protected(page), RANGES);
    follow(&house, 0, 0);
    assert_eq!(protected(page), 0);
    // The same for what was protected half way.
    assert!(step(&house, 1, || {}) && (1..RANGES).contains(&protected(page)));
    assert!(step(&house, 0, || {}));
    follow(&house, 1, PAGES * PAGE);
    assert_eq!(protected(page), RANGES);
    assert!(child.ends_well());
}

#[test]
fn what_moves_behind_the_end_of_protection_is_not_forgotten() {
    within("memory that is moved while protection ends", || {
        let Some((house, page, child)) = scattered_with_a_child() else { return };
        follow(&house, 1, PAGES * PAGE);
        assert!(step(&house, 0, || {}) && !is_protected(page(0)) && is_protected(page(RANGES - 1)));
        let fixed = MremapFlags::MAYMOVE;
        let between = (page(0) as usize + PAGE) as *mut u8;
        // SAFETY: the test's own memory, both.
        unsafe { rustix::mm::mremap_fixed(page(RANGES - 1).cast(), PAGE, PAGE, fixed, between.cast()).unwrap() };
        assert!(is_protected(between), "the kernel leaves it so");
        follow(&house, 0, 0);
        assert!(!house.pager.protects_shared() && !is_protected(between));
        verify(between, seed(RANGES - 1, 0), "moved");
        assert!(child.ends_well());
    });
}

/// And what was let through before a fork is shared again.
#[test]
fn a_program_that_forks_all_the_time_has_its_memory_protected() {
    let Some((house, page, child)) = scattered_with_a_child() else { return };
    let mut steps = 0;
    while !is_protected(page(RANGES - 1)) {
        assert!(steps < 100, "not protected after {steps} steps, with a fork after each");
        drop(Child::that_checks(|| true));
        assert!(house.pager.has_adopted(page(0) as usize));
        let _ = step(&house, 1, || {});
        steps += 1;
    }
    assert!(steps > 1, "it took one step only");
    write(page(7), seed(7, 1));
    assert!(!is_protected(page(7)));
    let second = Child::that_checks(move || holds(page(7), seed(7, 1)));
    assert!(house.pager.has_adopted(page(0) as usize));
    follow(&house, 1, PAGES * PAGE);
    assert!(is_protected(page(7)) && is_protected(page(8)));
    // In this order: the second one has an end of the pipe by which the first is told to go on.
    assert!(second.ends_well() && child.ends_well());
}

/// Or all forks of the program would cost more from then on, for nothing.
#[test]
fn writes_are_not_watched_for_the_sake_of_a_child_that_is_gone() {
    let Some((house, _, child)) = shared_with_a_child(64) else { return };
    assert!(step(&house, 1, || panic!("it begins")) && house.pager.wants_writes_watched());
    assert!(child.ends_well());
    assert!(!step(&house, 0, || panic!("it begins")) && !house.pager.wants_writes_watched());
    // Nor when there is room by now.
    assert!(step(&house, 1, || panic!("it begins")) && house.pager.wants_writes_watched());
    house.pager.budget.set_limit(1 << 40);
    assert!(!step(&house, 1, || panic!("it begins")) && !house.pager.wants_writes_watched());
}

/// They are none of the copies that a fork brings.
#[test]
fn writes_to_zeros_that_were_only_read_are_seen_beside_a_child() {
    const ZEROS: usize = 8192;
    let Some(house) = with_file() else { return };
    let at = house.region(PAGES) as usize;
    let page = |i: usize| (at + i * PAGE) as *mut u8;
    (0..ZEROS).for_each(|i| write(page(i), 0));
    house.evict_all();
    // Far apart, so that each is a fault.
    (0..ZEROS / 8).for_each(|i| verify(page(i * 8), 0, "read"));
    house.pager.watch_writes();
    house.evict_all();
    (0..ZEROS).for_each(|i| verify(page(i), 0, "read"));
    (ZEROS..PAGES).for_each(|i| write(page(i), seed(i, 0)));
    let child = Child::that_checks(|| true);
    assert!(house.pager.has_adopted(at));
    limit(&house, 60);
    follow(&house, 1, (PAGES - ZEROS) * PAGE);
    assert!(house.pager.protects_shared());
    assert!((0..ZEROS).all(|i| is_protected(page(i))), "all of it is the zero page");
    // In an order that is no stream.
    let writes = ZEROS / 64;
    (0..writes).for_each(|i| write(page(i * 37 % writes * 64 + 5), 7));
    assert_eq!(shared_writes(&house), 0, "nothing was copied that a fork had left shared");
    let open = (0..ZEROS).filter(|i| !is_protected(page(*i))).count();
    assert!((writes..=4 * writes).contains(&open), "{open} pages can be written after {writes} writes");
    // Nor is the zero page let through with a shared page beside it.
    let before = (0..ZEROS).filter(|i| is_protected(page(*i))).count();
    write(page(ZEROS), seed(ZEROS, 1));
    assert_eq!(shared_writes(&house), 1);
    assert_eq!((0..ZEROS).filter(|i| is_protected(page(*i))).count(), before);
    assert!(child.ends_well());
}

/// What is let through may be written without another fault, whoever does it.
#[test]
fn near_the_limit_all_that_is_let_through_is_counted() {
    let Some((house, page, child)) = shared_with_a_child(64) else { return };
    follow(&house, 1, PAGES * PAGE);
    house.pager.budget.measured(62 << 20);
    assert!(house.pager.budget.is_near_limit() && !house.pager.budget.at_limit());
    let before = house.pager.budget.now();
    let far = [5000, 300, 9000, 2000];
    far.iter().for_each(|i| write(page(*i), seed(*i, 1)));
    let open = (0..PAGES).filter(|i| !is_protected(page(*i))).count();
    let counted = (house.pager.budget.now() - before) as usize / PAGE;
    assert!(open > far.len() && counted >= open, "{counted} pages were counted of {open} that may be written");
    assert!(child.ends_well());
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
        crate::skipped::skipped(format_args!("the kernel gives no huge pages: {may_be:?}, {huge} bytes"));
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
    let Some((house, page, child)) = shared_with_a_child(64) else { return };
    follow(&house, 1, PAGES * PAGE);
    let before = faults(&house);
    house.evict_all();
    assert!(house.evictions() > PAGES as u64 * 9 / 10, "{} pages are out", house.evictions());
    assert!(faults(&house) - before <= PAGES as u64 / 100, "{} faults", faults(&house) - before);
    (0..PAGES).for_each(|i| verify(page(i), seed(i, 0), "came back"));
    assert!(!is_protected(page(7)), "it is nobody else's");
    assert!(child.ends_well());
}

/// Nor when the program changes mappings all the time: the kernel does nothing while an event waits.
#[test]
fn shared_pages_are_evicted_while_events_come() {
    let Some((house, page, child)) = shared_with_a_child(64) else { return };
    let other = house.region(16) as usize;
    follow(&house, 1, PAGES * PAGE);
    let before = faults(&house);
    let (done, dropped) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // SAFETY: the test's own memory, in which nothing is.
                unsafe { rustix::mm::madvise(other as *mut _, 16 * PAGE, Advice::LinuxDontNeed).unwrap() };
                house.pager.removed(other, 16 * PAGE);
                dropped.fetch_add(1, Ordering::Relaxed);
            }
        });
        let until = Instant::now() + Duration::from_secs(60);
        while house.evictions() < PAGES as u64 * 9 / 10 && Instant::now() < until {
            house.evict_all();
        }
        done.store(true, Ordering::Relaxed);
    });
    let (out, dropped) = (house.evictions(), dropped.into_inner());
    assert!(out > PAGES as u64 * 9 / 10 && dropped > 100, "{out} pages are out, {dropped} events");
    assert_eq!(faults(&house), before, "the reclaimer came to pages that were protected");
    (0..PAGES).for_each(|i| verify(page(i), seed(i, 0), "came back"));
    assert!(child.ends_well());
}

/// What the kernel writes for the program waits, too; memory that moves keeps its protection; what is dropped loses it.
#[test]
fn system_calls_moves_and_drops_of_protected_pages() {
    within("a system call that writes to what is shared", || {
        let Some((house, page, child)) = shared_with_a_child(64) else { return };
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
                let all = move || (0..PAGES).all(|i| holds(page(i), shadow[i].load(Ordering::Relaxed) as u64));
                let child = Child::that_checks(all);
                // Until it is whole, which takes long in a large process: what is written meanwhile is copied unseen.
                assert!(house.pager.has_adopted(at));
                child
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
