//! Real forks. The child does only store operations and exits, takes no lock of the harness, and
//! panics nowhere; glibc's allocator works after a fork.

use super::*;

pub(super) fn me() -> Image {
    Image::new(u64::from(std::process::id()))
}

pub(super) fn is_alive(image: Image) -> bool {
    let stat = std::fs::read_to_string(std::format!("/proc/{}/stat", image.number()));
    stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|fields| !fields.starts_with(" Z") && !fields.starts_with(" X")))
}

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
    fn alarm(seconds: u32) -> u32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
}

/// The child exits with the result of `child` (0: success); the parent runs `parent` before it
/// waits.
pub(super) fn in_child(s: &Store, child: impl FnOnce() -> i32, parent: impl FnOnce()) {
    let pid = start(s, child);
    parent();
    assert_eq!(ended(pid), 0, "status of the child (exit code << 8, or signal)");
}

/// The child exits with the result of `child`. Returns its pid.
pub(super) fn start(s: &Store, child: impl FnOnce() -> i32) -> i32 {
    s.fork_add_references(me(), &mut is_alive);
    // SAFETY: the child calls only store operations, which take no lock of the harness.
    let pid = unsafe { fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: no handler is set. Kills a hanging child.
        unsafe { alarm(60) };
        // Keeps a panic out of the harness.
        let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
        // SAFETY: ends the child without the harness's handlers.
        unsafe { _exit(status) }
    }
    pid
}

pub(super) fn ended(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of this process.
    assert_eq!(unsafe { waitpid(pid, &mut status, 0) }, pid);
    status
}

/// Waits through the kernel, so that both see the same moment.
pub(super) struct Gate(OwnedFd, OwnedFd);

impl Gate {
    pub(super) fn new() -> Gate {
        let (r, w) = rustix::pipe::pipe().unwrap();
        Gate(r, w)
    }
    pub(super) fn open(&self) {
        rustix::io::write(&self.1, &[1]).unwrap();
    }
    pub(super) fn wait(&self) {
        while rustix::io::read(&self.0, &mut [0; 1]) != Ok(1) {}
    }
}

pub(super) fn dup(fd: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: the inherited descriptor stays open.
    rustix::io::dup(unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) })
}

pub(super) fn check(s: &Store, es: &[Entry], pages: &[Page], scratch: &mut Scratch) -> bool {
    let mut page = [0; 4096];
    es.iter().zip(pages).all(|(e, want)| s.load(*e, &mut page, scratch).is_ok() && page == *want)
}

#[test]
fn a_child_keeps_what_the_parent_frees_and_overwrites() {
    let s = store(1 << 20, file(4 * MIB));
    let pages: Vec<Page> = (0..600).map(|i| if i % 2 == 0 { text(i) } else { noise(i) }).collect();
    let es = entries(&put(&s, &pages));
    let (freed, freed_by_child) = (Gate::new(), Gate::new());
    let mut scratch = Scratch::new().unwrap();
    let mut own = file(4 * MIB);
    in_child(
        &s,
        || {
            freed.wait();
            let mut reopened = 0;
            let mut reopen = |_: u8, fd: i32| {
                reopened += 1;
                dup(fd)
            };
            // SAFETY: first call in a single-threaded child; no call was in flight.
            if unsafe { s.fork_child(me(), &mut reopen) }.is_err() || reopened != 1 || s.add_file(own.take().unwrap()).is_err()
            {
                return 1;
            }
            if !check(&s, &es, &pages, &mut scratch) {
                return 2;
            }
            let (a, b) = (noise(7777), text(7778));
            let mut out = [Err(StoreError::Full); 2];
            s.store_run(&[&a, &b], &[], &mut out, &mut scratch);
            let [Ok(Stored::Entry(ea)), Ok(Stored::Entry(eb))] = out else { return 3 };
            if ea.area() == es[0].area() || !check(&s, &[ea, eb], &[a, b], &mut scratch) {
                return 4;
            }
            for e in &es {
                s.free(*e);
                s.free(*e);
            }
            let stats = s.stats();
            if stats.stored_now != 2 || stats.bad_frees != 600 || s.load(es[1], &mut [0; 4096], &mut scratch).is_ok() {
                return 5;
            }
            freed_by_child.open();
            0
        },
        || {
            es.iter().for_each(|e| s.free(*e));
            // The file's 1023 slots are too few for 600 more pages without the child's.
            let more: Vec<Page> = (0..600).map(|i| noise(10_000 + i)).collect();
            let stored = put(&s, &more);
            let in_file = |r: &&Result<Stored, StoreError>| matches!(r, Ok(Stored::Entry(e)) if e.area() != RAM_AREA);
            assert_eq!(stored.iter().filter(in_file).count(), 423);
            freed.open();
            freed_by_child.wait();
            let more: Vec<Page> = (0..600).map(|i| noise(20_000 + i)).collect();
            let again = entries(&put(&s, &more));
            assert_eq!(again.iter().filter(|e| e.area() != RAM_AREA).count(), 600);
            assert!(check(&s, &again, &more, &mut Scratch::new().unwrap()));
        },
    );
}

#[test]
fn a_grandchild_and_a_failed_fork() {
    let s = store(0, file(2 * MIB));
    let pages: Vec<Page> = (0..100).map(noise).collect();
    let es = entries(&put(&s, &pages));
    s.fork_add_references(me(), &mut is_alive);
    s.fork_undo_references();
    let mut scratch = Scratch::new().unwrap();
    in_child(
        &s,
        || {
            // SAFETY: first call in a single-threaded child; no call was in flight.
            if unsafe { s.fork_child(me(), &mut |_, fd| dup(fd)) }.is_err() {
                return 1;
            }
            s.fork_add_references(me(), &mut is_alive);
            // SAFETY: as in `start`.
            let pid = unsafe { fork() };
            if pid == 0 {
                // SAFETY: as above, in the grandchild.
                let ok = unsafe { s.fork_child(me(), &mut |_, fd| dup(fd)) }.is_ok() && check(&s, &es, &pages, &mut scratch);
                es.iter().for_each(|e| s.free(*e));
                let empty = s.stats().stored_now == 0;
                // SAFETY: ends the grandchild.
                unsafe { _exit(if ok && empty { 0 } else { 2 }) }
            }
            es.iter().for_each(|e| s.free(*e));
            let mut status = -1;
            // SAFETY: waits for the grandchild.
            unsafe { waitpid(pid, &mut status, 0) };
            if status == 0 { 0 } else { 3 }
        },
        || es.iter().for_each(|e| s.free(*e)),
    );
    let stored = put(&s, &(0..511).map(noise).collect::<Vec<_>>());
    assert_eq!(entries(&stored).len(), 511);
}

#[test]
fn in_ram_a_fork_is_a_copy() {
    let s = store(1 << 20, None);
    let pages: Vec<Page> = (0..100).map(text).collect();
    let es = entries(&put(&s, &pages));
    let mut scratch = Scratch::new().unwrap();
    in_child(
        &s,
        || {
            // SAFETY: first call in a single-threaded child; no call was in flight.
            if unsafe { s.fork_child(me(), &mut |_, _| Err(Errno::BADF)) }.is_err() || !check(&s, &es, &pages, &mut scratch) {
                return 1;
            }
            es.iter().for_each(|e| s.free(*e));
            let mut out = [Err(StoreError::BadEntry)];
            s.store_run(&[&pages[3]], &[], &mut out, &mut scratch);
            if out[0].is_ok() && s.stats().stored_now == 1 { 0 } else { 2 }
        },
        || {},
    );
    assert!(check(&s, &es, &pages, &mut scratch), "the child's frees are its own");
}

#[test]
fn a_child_goes_on_with_a_pass_of_compaction() {
    let s = store(4 << 20, None);
    let pages: Vec<Page> = (0..1500).map(text).collect();
    let (mut es, mut kept) = (Vec::new(), Vec::new());
    for (i, (e, page)) in entries(&put(&s, &pages)).into_iter().zip(pages).enumerate() {
        if i % 3 == 0 {
            es.push(e);
            kept.push(page);
        } else {
            s.free(e);
        }
    }
    let before = s.stats().pool_bytes;
    assert!(s.compact(30) && s.wants_compaction(), "a pass is under way");
    let mut scratch = Scratch::new().unwrap();
    let finish = |scratch: &mut Scratch| {
        while s.compact(100) {}
        !s.wants_compaction() && s.stats().pool_bytes < before / 2 && check(&s, &es, &kept, scratch)
    };
    in_child(
        &s,
        || {
            // SAFETY: first call in a single-threaded child; no call was in flight.
            let taken = unsafe { s.fork_child(me(), &mut |_, _| Err(Errno::BADF)) };
            i32::from(taken.is_err() || !finish(&mut scratch))
        },
        || {},
    );
    assert!(finish(&mut scratch));
}

#[test]
fn a_child_has_what_was_recompressed_and_goes_on_with_the_round() {
    let s = store(8 << 20, file(8 * MIB));
    let pages: Vec<Page> = (0..1000).map(digits).collect();
    let es = entries(&put(&s, &pages));
    let mut scratch = Scratch::new().unwrap();
    while s.wants_recompression(ROUND_US) {
        s.recompress(100, ROUND_US, &mut scratch);
    }
    assert_eq!(s.recompress(300, 2 * ROUND_US, &mut scratch).pages, 300);
    let finish = |scratch: &mut Scratch, by_this_process: u64| {
        while s.wants_recompression(2 * ROUND_US) {
            s.recompress(100, 2 * ROUND_US, scratch);
        }
        s.stats().recompressed == by_this_process && check(&s, &es, &pages, scratch)
    };
    let mut child_scratch = Scratch::new().unwrap();
    in_child(
        &s,
        || {
            // SAFETY: first call in a single-threaded child; no call was in flight.
            let taken = unsafe { s.fork_child(me(), &mut |_, fd| dup(fd)) };
            if taken.is_err() || !finish(&mut child_scratch, 700) {
                return 1;
            }
            es.iter().for_each(|e| s.free(*e));
            if (s.stats().stored_now, s.stats().pool_bytes) == (0, 0) { 0 } else { 2 }
        },
        || assert!(finish(&mut scratch, 1000)),
    );
    assert!(check(&s, &es, &pages, &mut scratch), "the child's are its own");
    es.iter().for_each(|e| s.free(*e));
    let more = entries(&put(&s, &(0..2000).map(digits).collect::<Vec<_>>()));
    assert!(more.iter().all(|e| e.area() != RAM_AREA));
}

#[test]
fn a_child_writes_its_own_pages_and_never_those_of_its_parent_s_slots() {
    let s = store(MIB as usize, file(8 * MIB));
    let es = entries(&put(&s, &(0..64).map(text).collect::<Vec<_>>()));
    let own = tmpfile();
    let area = s.areas.get(1).unwrap().id();
    in_child(
        &s,
        || {
            // SAFETY: single-threaded child; no call was in flight.
            let forked = unsafe { s.fork_child(me(), &mut |_, fd| dup(fd)) };
            let forked = forked.and_then(|()| s.add_file(FileConfig::new(own, 8 * MIB)));
            let mut scratch = Scratch::new().unwrap();
            let mine = entries(&put(&s, &(100..164).map(text).collect::<Vec<_>>()));
            let shrunk = s.shrink(usize::MAX, &mut scratch);
            let loaded = |es: &[Entry], from: u64, want| es.iter().zip(from..).all(|(e, i)| get(&s, *e) == Ok((want, text(i))));
            let right = forked.is_ok()
                && shrunk.pages == 64
                && mine.iter().all(|e| e.area() != area)
                && loaded(&mine, 100, Loaded::Device)
                && loaded(&es, 0, Loaded::Pool);
            i32::from(!right)
        },
        || assert_eq!(s.shrink(usize::MAX, &mut Scratch::new().unwrap()).pages, 64),
    );
    for (i, e) in es.iter().enumerate() {
        assert_eq!(get(&s, *e), Ok((Loaded::Device, text(i as u64))));
    }
}

#[test]
fn a_child_has_an_area_of_its_own_for_each_and_reads_those_of_its_parent() {
    use super::area_tests::area;
    let (small, large) = (512 - 1, 100);
    let s = store(0, [area(0, 5, 1), area(1, 1, 4)]);
    let number = |e: &Entry| s.device_of(*e).number;
    let pages: Vec<Page> = (0..small + large).map(noise).collect();
    let mut es: Vec<Entry> = pages.iter().map(|page| put_one(&s, *page).unwrap()).collect();
    assert!(es[..511].iter().all(|e| number(e) == 0) && es[511..].iter().all(|e| number(e) == 1));
    let mut own = Some([area(0, 5, 1), area(1, 1, 4)]);
    let before = s.area_stats();
    in_child(
        &s,
        || {
            let mut scratch = Scratch::new().unwrap();
            // SAFETY: single-threaded child; no call was in flight.
            if unsafe { s.fork_child(me(), &mut |_, fd| dup(fd)) }.is_err() {
                return 1;
            }
            if s.has_device() || own.take().unwrap().into_iter().any(|file| s.add_file(file).is_err()) {
                return 2;
            }
            let begun = s.area_stats()[..2].iter().all(|a| (a.used, a.reads, a.writes) == (0, 0, 0));
            if !begun || !check(&s, &es, &pages, &mut scratch) {
                return 3;
            }
            let mut mine: Vec<Entry> = pages.iter().map_while(|page| put_one(&s, *page).ok()).collect();
            let in_order = mine.iter().map(number).eq(es.iter().map(number));
            if !in_order || mine.iter().any(|e| es.contains(e)) || !check(&s, &mine, &pages, &mut scratch) {
                return 4;
            }
            let stats = s.area_stats();
            if [0, 1].map(|n| (stats[n].used >> 12, stats[n].writes)) != [(small, small), (large, large)] {
                return 5;
            }
            mine.drain(..).chain(es.iter().copied()).for_each(|e| s.free(e));
            i32::from(s.stats().stored_now != 0)
        },
        || (),
    );
    assert_eq!(s.area_stats(), before, "what the child does is not its parent's");
    assert!(check(&s, &es, &pages, &mut Scratch::new().unwrap()));
    es.drain(..).for_each(|e| s.free(e));
    assert_eq!(put(&s, &pages).iter().filter(|r| r.is_ok()).count(), pages.len(), "all slots can be had again");
}

#[test]
fn a_child_does_not_wait_for_what_threads_of_its_parent_were_using() {
    let s = store(0, file(2 * MIB));
    let in_use = s.areas.get(1);
    in_child(
        &s,
        || {
            // SAFETY: ends a hanging child; first call in a single-threaded child; no changing call
            // was in flight.
            let taken = unsafe {
                alarm(5);
                s.fork_child(me(), &mut |_, fd| dup(fd))
            };
            i32::from(taken.is_err() || s.areas.get(1).is_some())
        },
        || drop(in_use),
    );
}

#[test]
fn a_child_has_not_seen_its_parent_s_pool_become_full() {
    let s = store(10 * 4096, file(8 * MIB));
    let mut n = 0;
    while s.stats().on_device_now == 0 {
        put_one(&s, text(n)).unwrap();
        n += 1;
    }
    assert!(s.stats().pool_full_times > 0 && s.stats().pool_refused > 0, "{:?}", s.stats());
    in_child(
        &s,
        || {
            // SAFETY: first call in a single-threaded child; no call was in flight.
            if unsafe { s.fork_child(me(), &mut |_, fd| dup(fd)) }.is_err() {
                return 1;
            }
            let stats = s.stats();
            i32::from(stats.pool_full_times != 0 || stats.pool_refused != 0) * 2
        },
        || (),
    );
}

#[test]
fn a_pool_that_is_kept_from_children_is_the_parents_alone() {
    let s = store(1 << 20, None);
    let pages: Vec<Page> = (0..100).map(text).collect();
    let es = entries(&put(&s, &pages));
    let has_it = || {
        let mut scratch = Scratch::new().unwrap();
        ended(start(&s, || i32::from(!check(&s, &es, &pages, &mut scratch))))
    };
    assert_eq!(has_it(), 0);
    s.keep_pool_from_children().unwrap();
    assert_eq!(has_it() & 0x7f, 11, "SIGSEGV: there is nothing");
    assert!(check(&s, &es, &pages, &mut Scratch::new().unwrap()));
}
