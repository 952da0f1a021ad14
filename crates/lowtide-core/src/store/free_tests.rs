use super::super::tests::{entries, file, get, noise, put, store, text};
use super::super::{Page, StoreError, Stored, claim};
use super::*;
use crate::slot::Area;
use proptest::prelude::*;
use std::vec::Vec;

const MIB: u64 = 1 << 20;

fn texts(n: u64) -> Vec<Page> {
    (0..n).map(text).collect()
}

fn cluster_locks(s: &Store) -> u64 {
    s.cluster_locks()
}

#[test]
fn a_row_of_entries_takes_each_clusters_lock_once() {
    for (pool, pages) in [(16 << 20, texts(1024)), (0, (0..1024).map(noise).collect())] {
        let s = store(pool, file(16 * MIB));
        let es = entries(&put(&s, &pages));
        let clusters = es.chunk_by(|a, b| a.offset() + 1 == b.offset() && !b.offset().is_multiple_of(512)).count() as u64;
        assert!(clusters <= 4, "{clusters}");
        let before = cluster_locks(&s);
        s.free_all(es.iter().copied());
        assert_eq!(cluster_locks(&s) - before, clusters, "1024 pages");
        let stats = s.stats();
        assert_eq!((stats.stored_now, stats.on_device_now, stats.pool_stored_bytes, stats.bad_frees), (0, 0, 0, 0));
        assert_eq!(s.areas.get(1).unwrap().used(), 1);
    }
}

#[test]
fn clean_copies_in_a_row_take_each_clusters_lock_once() {
    let s = store(0, file(16 * MIB));
    let es = entries(&put(&s, &(0..512).map(noise).collect::<Vec<_>>()));
    assert!(es.iter().all(|e| s.keep_cached(*e)));
    let before = cluster_locks(&s);
    let mut freer = s.freer();
    es.iter().for_each(|e| freer.drop_cached(*e));
    assert_eq!(s.stats().cached_now, 0, "counted at once");
    drop(freer);
    assert!(cluster_locks(&s) - before <= 2);
    assert_eq!(s.areas.get(1).unwrap().used(), 1);
}

/// A freed slot is not allocated while its row goes on.
#[test]
fn slots_of_a_row_are_free_when_it_has_ended() {
    let s = store(16 << 20, file(2 * MIB));
    let es = entries(&put(&s, &texts(100)));
    let used = |s: &Store| s.areas.get(1).unwrap().used();
    let mut freer = s.freer();
    es[..50].iter().for_each(|e| freer.free(*e));
    assert_eq!((s.stats().stored_now, used(&s)), (50, 101));
    assert_eq!(get(&s, es[0]), Err(StoreError::BadEntry));
    freer.free(es[60]);
    assert_eq!((s.stats().stored_now, used(&s)), (49, 51), "the next row has begun");
    drop(freer);
    assert_eq!(used(&s), 50);
}

#[derive(Debug)]
struct Mixed {
    s: Store,
    es: Vec<Entry>,
    claimed: Vec<(u64, super::super::table_word::Object)>,
}

impl Mixed {
    fn new() -> Mixed {
        let s = store(1 << 20, file(2 * MIB));
        // Pool and device in turn, then pages that do not fit into the file.
        let pages: Vec<Page> = (0..600).map(|i| if i % 16 < 8 { text(i) } else { noise(i) }).collect();
        let es: Vec<Entry> = put(&s, &pages)
            .into_iter()
            .filter_map(|stored| match stored {
                Ok(Stored::Entry(e)) => Some(e),
                _ => None,
            })
            .collect();
        let mut mixed = Mixed { s, es, claimed: Vec::new() };
        for i in 0..mixed.es.len() {
            let e = mixed.es[i];
            let area = mixed.s.areas.get(e.area()).unwrap();
            match i % 37 {
                3 => _ = mixed.s.keep_cached(e),
                5 => area.word(e.offset()).unwrap().store(Word::Bad.encode(), Ordering::Release),
                8 => mixed.claimed.extend(claim::take(&area, e.offset(), |_| true).map(|object| (e.raw(), object))),
                _ => {}
            }
        }
        mixed
    }

    fn end(mut self) -> (Vec<u64>, Vec<(u64, u64)>, super::super::StoreStats) {
        for (raw, object) in core::mem::take(&mut self.claimed) {
            let e = Entry::from_raw(raw).unwrap();
            let area: &Area = &self.s.areas.get(e.area()).unwrap();
            claim::finish(&mut Row::new(area), e.offset(), object, Word::Pool(object));
        }
        let used = self.s.areas.iter().map(|area| area.used()).collect();
        let mut words = Vec::new();
        self.s.areas.iter().for_each(|area| {
            // Only the kind: handles and tags are random.
            area.each_word(|slot, word| words.push((slot, word.load(Ordering::Relaxed) >> 61)));
            area.validate().unwrap();
        });
        let stats = self.s.stats();
        (used, words, stats)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever the entries, their order and repetitions: rows only save locks.
    #[test]
    fn rows_and_single_frees_come_to_the_same(
        parts in prop::collection::vec((0usize..600, 1usize..200, any::<bool>()), 1..12)
    ) {
        let (rows, single) = (Mixed::new(), Mixed::new());
        prop_assert_eq!(&rows.es, &single.es);
        let mut freer = rows.s.freer();
        for (from, n, cached) in parts {
            for e in rows.es.iter().skip(from % rows.es.len()).take(n) {
                if cached {
                    freer.drop_cached(*e);
                    single.s.drop_cached(*e);
                } else {
                    freer.free(*e);
                    single.s.free(*e);
                }
                prop_assert_eq!(rows.s.stats().bad_frees, single.s.stats().bad_frees);
            }
        }
        drop(freer);
        let (rows, single) = (rows.end(), single.end());
        prop_assert_eq!(rows.0, single.0);
        prop_assert_eq!(rows.1, single.1);
        prop_assert_eq!(rows.2, single.2);
    }
}
