//! Recompression under shuttle, beside claims, moves, stores, loads and frees. Each program must
//! read its own bytes, and nothing may be left. (Schedules switch at locks; table words change in
//! between.) Workers with one wrong step must be caught.

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::RandomScheduler;
use shuttle::{Config, Runner, thread};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::vec::Vec;

use super::objects::Insert;
use super::table_word::{Made, Object, Word};
use super::tests::{digits, entries};
use super::*;
use crate::codec::Filter;
use crate::slot::{Area, AreaRef, CLUSTER_SLOTS, Row};

const ORDERS_TRIED: usize = 500;

fn page_of(store: &Store, e: Entry, scratch: &mut Scratch) -> Result<Page, StoreError> {
    let mut page = [0; PAGE_SIZE];
    store.load(e, &mut page, scratch).map(|_| page)
}

fn program(store: &Store, me: u64) {
    let mut scratch = Scratch::new().unwrap();
    let mut held: Vec<(Entry, u64)> = Vec::new();
    let check = |held: &[(Entry, u64)], i: usize, scratch: &mut Scratch| {
        let (e, seed) = held[i];
        assert!(page_of(store, e, scratch) == Ok(digits(seed)), "a table word named no object that is the page");
    };
    for step in 0..6 {
        let seeds: Vec<u64> = (0..thread_rng().gen_range(0..3)).map(|i| me << 16 | step << 8 | i).collect();
        let pages: Vec<Page> = seeds.iter().map(|seed| digits(*seed)).collect();
        let mut out = std::vec![Err(StoreError::Full); pages.len()];
        store.store_run(&pages.iter().collect::<Vec<_>>(), &[], &mut out, &mut scratch);
        held.extend(entries(&out).into_iter().zip(seeds));
        if !held.is_empty() {
            check(&held, thread_rng().gen_range(0..held.len()), &mut scratch);
            if thread_rng().gen_bool(0.5) {
                store.free(held.swap_remove(thread_rng().gen_range(0..held.len())).0);
            }
        }
    }
    (0..held.len()).for_each(|i| check(&held, i, &mut scratch));
    held.iter().for_each(|(e, _)| store.free(*e));
}

type Worker = fn(&Store, &mut Scratch, u64) -> usize;

fn model(worker: Worker, at_once: bool) -> usize {
    let recompressed = Arc::new(AtomicUsize::new(0));
    let count = recompressed.clone();
    let f = move || {
        let cfg = StoreConfig { pool_limit: 64 * PAGE_SIZE, accept_percent: 90, codec: Codec::Lz4 };
        let store = Arc::new(Store::new(cfg).unwrap());
        // Work for a worker that comes first.
        let mut scratch = Scratch::new().unwrap();
        let pages: Vec<Page> = (0..4).map(|i| digits(1 << 32 | i)).collect();
        let mut out = [Err(StoreError::Full); 4];
        store.store_run(&pages.iter().collect::<Vec<_>>(), &[], &mut out, &mut scratch);
        let (count, s, t, u) = (count.clone(), store.clone(), store.clone(), store.clone());
        let jobs: [std::boxed::Box<dyn FnOnce() + Send>; 4] = [
            std::boxed::Box::new(move || {
                let mut scratch = Scratch::new().unwrap();
                for i in 1..12 {
                    count.fetch_add(worker(&s, &mut scratch, i * ROUND_US), Ordering::Relaxed);
                }
            }),
            std::boxed::Box::new(move || {
                (0..4).for_each(|_| claims_in_vain(&t));
                while t.compact(4) {}
            }),
            std::boxed::Box::new(move || program(&u, 1)),
            std::boxed::Box::new({
                let store = store.clone();
                move || program(&store, 2)
            }),
        ];
        let mut threads = Vec::new();
        for job in jobs {
            let thread = thread::spawn(job);
            if at_once {
                threads.push(thread);
            } else {
                thread.join().unwrap();
            }
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        for (e, page) in entries(&out).into_iter().zip(&pages) {
            assert!(page_of(&store, e, &mut scratch) == Ok(*page), "a table word named no object that is the page");
            store.free(e);
        }
        // An unfinished pass of a store keeps its spans.
        while store.compact(64) {}
        let stats = store.stats();
        let left = (stats.stored_now, stats.pool_bytes, stats.pool_stored_bytes, stats.bad_frees);
        assert_eq!(left, (0, 0, 0, 0), "something is left");
    };
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    config.silence_warnings = true;
    Runner::new(RandomScheduler::new(ORDERS_TRIED), config).run(f);
    recompressed.load(Ordering::Relaxed)
}

fn claims_in_vain(store: &Store) {
    let area = store.areas.get(RAM_AREA).unwrap();
    for slot in slots(&area) {
        if let Some(object) = claim::take(&area, slot, |_| true) {
            let _ = store.pool.read(object.handle, &mut [0; PAGE_SIZE]);
            claim::finish(&mut Row::new(&*area), slot, object, Word::Pool(object));
        }
    }
}

fn slots(area: &Area) -> core::ops::Range<u64> {
    0..(area.opened_clusters() * CLUSTER_SLOTS) as u64
}

fn right(store: &Store, scratch: &mut Scratch, now_us: u64) -> usize {
    store.recompress(8, now_us, scratch).pages
}

fn wrongly(store: &Store, scratch: &mut Scratch, step: fn(&Store, &AreaRef<'_>, u64, [Object; 2])) -> usize {
    let area = store.areas.get(RAM_AREA).unwrap();
    let mut done = 0;
    for slot in slots(&area) {
        let Some(old) = claim::take(&area, slot, |object| object.made == Made::Stored) else { continue };
        let mut page = [0; PAGE_SIZE];
        let new = match store.unpack(old, &mut page, scratch) {
            Ok(true) => Codec::Zstd(1).compress(&page, &mut scratch.workspace).and_then(|len| {
                store.keep(&scratch.workspace.bytes[..len], Made::Recompressed, Some(Filter::None), Insert::Anywhere)
            }),
            _ => None,
        };
        match new {
            Some(new) => step(store, &area, slot, [old, new]),
            None => _ = claim::finish(&mut Row::new(&*area), slot, old, Word::Pool(old)),
        }
        done += usize::from(new.is_some());
    }
    done
}

fn remove(store: &Store, object: Object) {
    let _ = store.pool.remove(object.handle);
}

/// Bug: removes the old object before the word names the new one.
fn removes_first(store: &Store, scratch: &mut Scratch, _: u64) -> usize {
    wrongly(store, scratch, |store, area, slot, [old, new]| {
        remove(store, old);
        claim::finish(&mut Row::new(&**area), slot, old, Word::Pool(new));
    })
}

/// Bug: the word names the new object even if the page was freed.
fn does_not_compare(store: &Store, scratch: &mut Scratch, _: u64) -> usize {
    wrongly(store, scratch, |store, area, slot, [old, new]| {
        area.word(slot).unwrap().store(Word::Pool(new).encode(), Ordering::Release);
        remove(store, old);
    })
}

#[test]
fn programs_find_their_pages_while_these_are_compressed_again() {
    let pages = model(right, true);
    assert!(pages >= ORDERS_TRIED, "only {pages} were compressed again: the model says nothing");
}

#[test]
fn the_bugs_do_not_show_with_one_thread() {
    for worker in [removes_first, does_not_compare] {
        let pages = model(worker, false);
        assert!(pages >= ORDERS_TRIED, "only {pages} were compressed again: the model says nothing");
    }
}

#[test]
// Caught by a load, a free, or the final check.
#[should_panic]
fn an_object_that_is_removed_before_the_swap_is_found() {
    model(removes_first, true);
}

#[test]
// As above.
#[should_panic]
fn a_swap_that_does_not_compare_is_found() {
    model(does_not_compare, true);
}
