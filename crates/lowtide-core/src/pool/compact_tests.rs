//! Compaction: its gain, and its correctness under threads.

use super::*;
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::string::String;
use std::sync::Mutex;

fn compact(pool: &Pool, handles: &mut [Handle]) -> usize {
    let mut moved = 0;
    loop {
        let before = moved;
        pool.isolate();
        for h in handles.iter_mut() {
            let old = *h;
            moved += (pool.relocate(old, &mut |new| {
                *h = new;
                true
            }) == Relocated::Yes) as usize;
        }
        pool.let_go();
        if moved == before {
            return moved;
        }
    }
}

#[test]
fn what_random_frees_leave_is_packed_again() {
    let mut buf = [0; PAGE_SIZE];
    for (n, keep_of_ten) in [(12_000, 5), (12_000, 1), (30_000, 9)] {
        let pool = Pool::new(256 * MIB, 0, 90).unwrap();
        let all: Vec<Handle> = (0..n).map(|i| pool.insert(&object(i, length(i))).unwrap()).collect();
        let is_kept = |i: usize| i.wrapping_mul(2_654_435_761) >> 16 & 1023 < keep_of_ten * 102;
        let (kept, gone): (Vec<_>, Vec<_>) = (0..n).zip(all).partition(|(i, _)| is_kept(*i));
        gone.iter().for_each(|(_, h)| pool.remove(*h).unwrap());
        let (kept, mut handles): (Vec<usize>, Vec<Handle>) = kept.into_iter().unzip();
        let before = density(&pool);
        compact(&pool, &mut handles);
        let after = density(&pool);
        assert!(before < 0.93 && after > 0.95, "{keep_of_ten} of 10 kept: {before} {after}");
        assert!(!pool.is_sparse());
        pool.validate().unwrap();
        for (i, h) in kept.into_iter().zip(handles) {
            assert_eq!(pool.read(h, &mut buf), Ok(length(i)));
            assert_eq!(&buf[..length(i)], &object(i, length(i))[..]);
            pool.remove(h).unwrap();
        }
        assert_eq!((pool.bytes(), pool.validate()), (0, Ok(())));
    }
}

#[test]
fn objects_whose_handle_was_not_swapped_stay() {
    let pool = Pool::new(64 * MIB, 0, 90).unwrap();
    let all: Vec<_> = (0..2000).map(|i| pool.insert(&object(i, 700)).unwrap()).collect();
    for h in all.iter().skip(1).step_by(2) {
        pool.remove(*h).unwrap();
    }
    assert_eq!(pool.relocate(all[0], &mut |_| true), Relocated::No, "not isolated");
    assert!(pool.isolate() > 0);
    assert!(all.iter().all(|h| pool.relocate(*h, &mut |_| false) == Relocated::No));
    pool.let_go();
    pool.validate().unwrap();
    let mut buf = [0; PAGE_SIZE];
    assert!(all.iter().step_by(2).all(|h| pool.read(*h, &mut buf) == Ok(700)));
}

#[test]
fn each_span_that_was_emptied_goes_back() {
    let pool = Pool::new(64 * MIB, 0, 90).unwrap();
    let mut all: Vec<_> = (0..20_000).map(|i| pool.insert(&object(i, 700)).unwrap()).collect();
    let gone: Vec<_> = all.extract_if(.., |h| h.place() % 4 != 0).collect();
    gone.into_iter().for_each(|h| pool.remove(h).unwrap());
    let isolated = pool.isolate();
    assert!(isolated > 10, "{isolated}");
    for old in &mut all {
        pool.relocate(*old, &mut |new| {
            *old = new;
            true
        });
    }
    let held = pool.bytes();
    pool.let_go();
    assert_eq!(held - pool.bytes(), isolated * MAX_FRAMES * PAGE_SIZE);
    pool.validate().unwrap();
}

const ROUNDS: usize = 20_000;
const OWNERS: usize = 300;
/// Words are a handle and, above it, the generation modulo 1024.
const GENERATION: u32 = Handle::MASK.count_ones();

/// Words name objects, whose bytes are their owner and generation.
struct Words {
    pool: Pool,
    words: Vec<AtomicU64>,
    passes: AtomicU64,
    /// One thread replaces the object of an owner at a time.
    writers: Vec<Mutex<()>>,
}

fn bytes(owner: usize, generation: u64) -> Vec<u8> {
    let len = [40, 400, 900, 1400][owner % 4];
    let mut bytes = object(owner, len);
    bytes[..8].copy_from_slice(&generation.to_ne_bytes());
    bytes[8..16].copy_from_slice(&owner.to_ne_bytes());
    bytes
}

impl Words {
    fn replace(&self, owner: usize, keep: bool) -> Result<(), String> {
        let _one = self.writers[owner].lock().unwrap();
        let word = &self.words[owner];
        let mut old = word.load(Ordering::Acquire);
        // Only the handle may change meanwhile.
        while let Err(now) = word.compare_exchange(old, old >> GENERATION << GENERATION, Ordering::AcqRel, Ordering::Acquire) {
            old = now;
        }
        if old & Handle::MASK != 0 {
            self.pool.remove(Handle::from_raw(old & Handle::MASK)).map_err(|_| String::from("a word named no object"))?;
        }
        let generation = ((old >> GENERATION) + 1) & 1023;
        let mut handle = 0;
        if keep {
            let h = self.pool.insert(&bytes(owner, generation)).ok_or("the pool is full")?;
            handle = h.raw();
        }
        word.store(generation << GENERATION | handle, Ordering::Release);
        Ok(())
    }

    fn check(&self, owner: usize, buf: &mut [u8]) -> Result<(), String> {
        let word = &self.words[owner];
        loop {
            let passes = self.passes.load(Ordering::Acquire);
            let before = word.load(Ordering::Acquire);
            if before & Handle::MASK == 0 {
                return Ok(());
            }
            let read = self.pool.read(Handle::from_raw(before & Handle::MASK), buf);
            if word.load(Ordering::Acquire) == before && self.passes.load(Ordering::Acquire) == passes {
                let want = bytes(owner, before >> GENERATION);
                let Ok(len) = read else { return Err("an object was not where its word says".into()) };
                return if buf[..len] == want[..] { Ok(()) } else { Err("an object has other bytes".into()) };
            }
        }
    }

    fn swap(&self, owner: usize) -> (Handle, impl Fn(Handle) -> bool) {
        let word = &self.words[owner];
        let old = Handle::from_raw(word.load(Ordering::Acquire) & Handle::MASK);
        (old, move |new| {
            // Only the handle is compared, because a store's words have no generation.
            let now = word.load(Ordering::Acquire);
            let with = |h: Handle| now >> GENERATION << GENERATION | h.raw();
            word.compare_exchange(with(old), with(new), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }
}

type Compactor = fn(&Words) -> Result<(), String>;

fn hammer(compactor: Compactor, enough: fn() -> bool) -> Result<(), String> {
    let w = Words {
        pool: Pool::new(8 * MIB, 0, 90).unwrap(),
        passes: AtomicU64::new(0),
        words: (0..OWNERS).map(|_| AtomicU64::new(0)).collect(),
        writers: (0..OWNERS).map(|_| Mutex::new(())).collect(),
    };
    let (stop, wrong) = (AtomicBool::new(false), Mutex::new(Ok(())));
    let note = |result: Result<(), String>| {
        if result.is_err() {
            stop.store(true, Ordering::Relaxed);
            let mut wrong = wrong.lock().unwrap();
            if wrong.is_ok() {
                *wrong = result;
            }
        }
    };
    let (w, stop, note) = (&w, &stop, &note);
    std::thread::scope(|s| {
        s.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                note(compactor(w));
            }
        });
        s.spawn(move || {
            let mut buf = [0; PAGE_SIZE];
            let mut i = 0usize;
            while !stop.load(Ordering::Relaxed) {
                i = i.wrapping_add(1);
                note(w.check(i.wrapping_mul(7919) % OWNERS, &mut buf));
            }
        });
        let writers: Vec<_> = (0..2usize)
            .map(|t| {
                s.spawn(move || {
                    let mut x = t + 1;
                    for round in 0..100 * ROUNDS {
                        if round >= ROUNDS && enough() {
                            break;
                        }
                        // The pool fills up and empties in turn.
                        let keep = if round / 1000 % 2 == 0 { 16 } else { 4 };
                        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        note(w.replace((x >> 33) % OWNERS, x >> 60 < keep));
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|t| t.join().unwrap());
        stop.store(true, Ordering::Relaxed);
    });
    wrong.into_inner().unwrap()?;
    let mut buf = [0; PAGE_SIZE];
    for owner in 0..OWNERS {
        w.check(owner, &mut buf)?;
        w.replace(owner, false)?;
    }
    w.pool.validate().map_err(|b| b.0)?;
    if w.pool.objects() == 0 { Ok(()) } else { Err("objects are left over".into()) }
}

#[test]
fn nobody_notices_that_objects_move() {
    static MOVED: AtomicUsize = AtomicUsize::new(0);
    let enough = || MOVED.load(Ordering::Relaxed) > 1000;
    hammer(
        |w| {
            w.passes.fetch_add(1, Ordering::Release);
            w.pool.isolate();
            for owner in 0..OWNERS {
                let (old, swap) = w.swap(owner);
                let moved = w.pool.relocate(old, &mut { swap });
                MOVED.fetch_add((moved == Relocated::Yes) as usize, Ordering::Relaxed);
            }
            w.pool.let_go();
            Ok(())
        },
        enough,
    )
    .unwrap();
    assert!(enough(), "only {MOVED:?} were moved: the test says nothing");
}

/// A wrong compactor: `step` gets each object to move, and a copy.
fn wrongly(w: &Words, mut step: impl FnMut(usize, Handle, &[u8]) -> Result<(), String>) -> Result<(), String> {
    w.passes.fetch_add(1, Ordering::Release);
    w.pool.isolate();
    let mut copy = [0; PAGE_SIZE];
    let mut result = Ok(());
    for owner in 0..OWNERS {
        let (old, _) = w.swap(owner);
        if w.pool.is_isolated(old)
            && let Ok(len) = w.pool.read(old, &mut copy)
        {
            result = result.and_then(|()| step(owner, old, &copy[..len]));
        }
    }
    w.pool.let_go();
    result
}

fn freed(result: Result<(), Stale>) -> Result<(), String> {
    result.map_err(|_| "an object was gone already".into())
}

fn caught(compactor: Compactor) {
    // A wrong order shows only when threads meet, so it gets 20 runs.
    assert!((0..20).any(|_| hammer(compactor, || true).is_err()), "the bug was not caught");
}

#[test]
fn a_place_that_is_freed_before_the_swap_is_caught() {
    caught(|w| {
        wrongly(w, |owner, old, copy| {
            let Some(new) = w.pool.insert_into_room(copy) else { return Ok(()) };
            let (now, swap) = w.swap(owner);
            freed(w.pool.remove(old))?;
            std::thread::yield_now();
            if now == old && swap(new) { Ok(()) } else { freed(w.pool.remove(new)) }
        })
    });
}

#[test]
fn a_swap_that_does_not_compare_is_caught() {
    caught(|w| {
        wrongly(w, |owner, old, copy| {
            let Some(new) = w.pool.insert_into_room(copy) else { return Ok(()) };
            std::thread::yield_now();
            let word = &w.words[owner];
            word.store(word.load(Ordering::Acquire) >> GENERATION << GENERATION | new.raw(), Ordering::Release);
            freed(w.pool.remove(old))
        })
    });
}

/// Frees an object before the swap, and fills the pool. An error if another object gets its handle.
fn reuse(let_go_first: bool) -> Result<(), String> {
    let pool = Pool::new(MIB, 0, 90).unwrap();
    let all: Vec<_> = (0..1000).map(|i| pool.insert(&object(i, 700)).unwrap()).collect();
    all.iter().enumerate().filter(|(i, _)| i % 3 > 0).for_each(|(_, h)| pool.remove(*h).unwrap());
    pool.isolate();
    let old = *all.iter().step_by(3).find(|h| pool.is_isolated(**h)).ok_or("none is isolated")?;
    pool.read(old, &mut [0; PAGE_SIZE]).unwrap();
    if let_go_first {
        pool.let_go();
    }
    pool.remove(old).unwrap();
    loop {
        match pool.insert(&object(1, 700)) {
            Some(h) if h == old => return Err("another object has the handle of the copied one".into()),
            Some(_) => {}
            None => return Ok(()),
        }
    }
}

#[test]
fn no_handle_comes_again_while_its_span_is_isolated() {
    assert_eq!(reuse(false), Ok(()));
    assert_eq!(reuse(true), Err("another object has the handle of the copied one".into()), "the seeded bug was not caught");
}
