use super::super::tests::{entries, file, get, put, put_one, store, text};
use super::*;
use crate::store::{Entry, Loaded, Page};
use std::boxed::Box;
use std::sync::{Mutex, OnceLock};
use std::vec::Vec;

const MIB: u64 = 1 << 20;

fn texts(from: u64, n: u64) -> Vec<Page> {
    (from..from + n).map(text).collect()
}

fn shrink(s: &Store, bytes: usize) -> Shrunk {
    s.shrink(bytes, &mut Scratch::new().unwrap())
}

/// Without a load, which counts as use.
fn is_on_device(s: &Store, e: Entry) -> bool {
    let area = s.areas.get(e.area()).unwrap();
    matches!(Word::decode(area.word(e.offset()).unwrap().load(Ordering::Relaxed)), Word::Device(_))
}

fn on_device(s: &Store, es: &[Entry]) -> usize {
    es.iter().filter(|e| is_on_device(s, **e)).count()
}

#[test]
fn a_cluster_is_written_with_one_io_and_reads_back() {
    let s = store(16 << 20, file(16 * MIB));
    let es = entries(&put(&s, &texts(0, 512)));
    let before = s.stats();
    let shrunk = shrink(&s, 1);
    let stats = s.stats();
    assert_eq!((shrunk.pages, shrunk.bytes, shrunk.failed), (512, before.pool_stored_bytes, false));
    assert_eq!((stats.pool_bytes, stats.on_device_now, stats.stored_now, stats.written_back), (0, 512, 512, 512));
    assert_eq!((stats.device_write_ios, stats.device_write_bytes), (1, 512 * 4096));
    for (i, e) in es.iter().enumerate() {
        assert_eq!(get(&s, *e).unwrap(), (Loaded::Device, text(i as u64)));
        s.free(*e);
    }
    assert_eq!(shrink(&s, usize::MAX), Shrunk::default(), "nothing is left");
    assert_eq!((s.stats().stored_now, s.stats().on_device_now, s.areas.get(1).unwrap().used()), (0, 0, 1));
}

/// At each report to the ledger: writes so far, bytes counted, bytes present.
#[derive(Debug, Default)]
struct Watch {
    store: OnceLock<&'static Store>,
    seen: Mutex<Vec<(u64, usize, usize)>>,
}

impl Ledger for Watch {
    fn add(&self, _bytes: isize) {
        let Some(s) = self.store.get() else { return };
        let there = s.shrinker.batch.populated_pages() * PAGE_SIZE;
        self.seen.lock().unwrap().push((s.stats().device_write_ios, s.shrinker.held_bytes(), there));
    }
}

#[test]
fn what_it_unpacks_is_counted_before_it_is_written() {
    let watch = Arc::new(Watch::default());
    let mut s = store(16 << 20, file(16 * MIB));
    s.count_in(&(watch.clone() as Arc<dyn Ledger>));
    let s: &'static Store = Box::leak(Box::new(s));
    let es = entries(&put(s, &texts(0, 512)));
    es.iter().skip(63).step_by(64).for_each(|e| s.free(*e));
    watch.store.set(s).unwrap();
    let shrunk = shrink(s, 1);
    let counted: Vec<_> = watch.seen.lock().unwrap().iter().copied().filter(|(writes, ..)| *writes == 0).collect();
    // Without the page of tags, which the write fills in.
    let after = |pages: usize| (0, HEAD + pages * PAGE_SIZE, HEAD + pages * PAGE_SIZE - PAGE_SIZE);
    assert_eq!((shrunk.pages, counted[0], counted.last()), (504, after(COUNTED_AT_ONCE), Some(&after(504))));
}

#[test]
fn a_small_pool_is_written_in_small_parts() {
    let watch = Arc::new(Watch::default());
    let mut s = store(16 << 20, file(16 * MIB));
    s.count_in(&(watch.clone() as Arc<dyn Ledger>));
    let s: &'static Store = Box::leak(Box::new(s));
    let es = entries(&put(s, &texts(0, 512)));
    s.limit_pool(3 << 20);
    watch.store.set(s).unwrap();
    let shrunk = shrink(s, usize::MAX);
    let most = watch.seen.lock().unwrap().iter().map(|(_, counted, there)| *counted.max(there)).max().unwrap();
    // An eighth of 768 pages, in steps of 64.
    assert_eq!((shrunk.pages, s.stats().device_write_ios, most), (512, 4, HEAD + 128 * PAGE_SIZE));
    for (i, e) in es.iter().enumerate() {
        assert_eq!(get(s, *e).unwrap(), (Loaded::Device, text(i as u64)));
    }
    let rows = [(0, 64), (1 << 20, 64), (2 << 20, 64), (4 << 20, 128), (16 << 20, 512), (1 << 40, 512)];
    assert_eq!(rows.map(|(limit, _)| at_a_time(limit)), rows.map(|(_, pages)| pages));
}

#[test]
fn the_oldest_go_first_and_what_was_used_gets_a_second_chance() {
    crate::percpu::stay_on_cpu_1();
    let s = store(64 << 20, file(64 * MIB));
    let clusters: Vec<Vec<Entry>> = (0..5).map(|i| entries(&put(&s, &texts(i * 512, 512)))).collect();
    let written = || -> Vec<usize> { (0..5).filter(|i| clusters[*i].iter().any(|e| is_on_device(&s, *e))).collect() };
    assert_eq!((shrink(&s, 1).pages, written()), (512, std::vec![0]));
    // A load of one page of the next saves that cluster, once.
    get(&s, clusters[1][300]).unwrap();
    assert_eq!((shrink(&s, 1).pages, written()), (512, std::vec![0, 2]));
    assert_eq!((shrink(&s, 1).pages, written()), (512, std::vec![0, 2, 3]));
    put_one(&s, text(0)).unwrap();
    assert_eq!((shrink(&s, 1).pages, written()), (512, std::vec![0, 2, 3, 4]));
    assert_eq!((shrink(&s, 1).pages, written()), (512, std::vec![0, 1, 2, 3, 4]));
}

#[test]
fn a_full_pool_keeps_the_newest_pages() {
    crate::percpu::stay_on_cpu_1();
    let s = store(200 * 4096, file(64 * MIB));
    let es: Vec<Entry> = (0..40).flat_map(|i| entries(&put(&s, &texts(i * 64, 64)))).collect();
    let stats = s.stats();
    assert!(stats.pool_bytes <= 200 * 4096 && stats.written_back > 1000, "{stats:?}");
    let in_pool = |es: &[Entry]| es.len() - on_device(&s, es);
    assert!(in_pool(&es[es.len() - 64..]) > 0 && in_pool(&es[..1024]) == 0, "the newest stay");
    assert!(stats.device_write_bytes / stats.device_write_ios >= 128 << 10, "{stats:?}");
    for (i, e) in es.iter().enumerate() {
        assert_eq!(get(&s, *e).unwrap().1, text(i as u64));
    }
}

#[test]
fn shrinking_stops_at_what_was_asked_and_without_a_device_at_once() {
    let s = store(16 << 20, None);
    let e = put_one(&s, text(1)).unwrap();
    assert_eq!((s.wants_shrinking(), shrink(&s, 1 << 20)), (0, Shrunk::default()));
    assert_eq!(get(&s, e).unwrap(), (Loaded::Pool, text(1)));
    let s = store(16 << 20, file(64 * MIB));
    put(&s, &texts(0, 4000));
    assert_eq!(s.wants_shrinking(), 0, "far below the high mark");
    s.limit_pool(4 << 20);
    let wanted = s.wants_shrinking();
    let held = s.stats().pool_stored_bytes;
    assert!(wanted > held - (4 << 20), "to below the limit");
    let shrunk = shrink(&s, wanted);
    assert!(shrunk.bytes >= wanted && shrunk.bytes < wanted + (1 << 20) && s.wants_shrinking() == 0);
    s.limit_pool(0);
    shrink(&s, s.wants_shrinking());
    assert_eq!((s.stats().pool_bytes, s.stats().on_device_now), (0, 4000));
}

fn nearly_nothing(seed: u64) -> Page {
    let mut page = [b'x'; 4096];
    page[..8].copy_from_slice(&seed.to_ne_bytes());
    page
}

#[test]
fn what_frees_almost_nothing_is_written_last() {
    let s = store(64 << 20, file(64 * MIB));
    let mut small = Vec::new();
    let mut large = Vec::new();
    for i in 0..32 {
        let pages: Vec<Page> = (i * 64..(i + 1) * 64).map(nearly_nothing).collect();
        small.extend(entries(&put(&s, &pages)));
        large.extend(entries(&put(&s, &texts(i * 64, 64))));
    }
    let all = s.stats().pool_stored_bytes;
    let shrunk = shrink(&s, all * 9 / 10);
    assert_eq!((on_device(&s, &small), shrunk.pages), (0, on_device(&s, &large)));
    assert!(shrunk.bytes >= all * 9 / 10, "{shrunk:?}");
    // When nothing else is left, they go as well.
    shrink(&s, usize::MAX);
    assert_eq!((on_device(&s, &small), on_device(&s, &large), s.stats().pool_bytes), (2048, 2048, 0));
    for (i, (small, large)) in small.iter().zip(&large).enumerate() {
        assert_eq!(get(&s, *small).unwrap().1, nearly_nothing(i as u64));
        assert_eq!(get(&s, *large).unwrap().1, text(i as u64));
    }
}
