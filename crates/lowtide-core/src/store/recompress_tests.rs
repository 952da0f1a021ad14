use super::super::tests::{digits, entries, file, get, noise, put, put_one, store, text};
use super::*;
use crate::store::{Entry, Loaded, StoreConfig};
use std::vec::Vec;

const MIB: u64 = 1 << 20;

fn pages(from: u64, n: u64) -> Vec<Page> {
    (from..from + n).map(digits).collect()
}

/// A whole round at that time, if one is due.
fn round(s: &Store, now_us: u64) -> Recompressed {
    let mut scratch = Scratch::new().unwrap();
    let mut all = Recompressed::default();
    while s.wants_recompression(now_us) {
        let done = s.recompress(7, now_us, &mut scratch);
        assert!(done.looked <= 7 * LOOKS && done.pages <= 7);
        all.looked += done.looked;
        all.pages += done.pages;
        all.bytes_saved += done.bytes_saved;
    }
    all
}

#[test]
fn what_nobody_wants_for_a_round_gets_smaller_and_stays_what_it_was() {
    for file in [None, file(8 * MIB)] {
        let s = store(64 << 20, file);
        let es = entries(&put(&s, &pages(0, 1000)));
        let before = s.stats();
        let mut now = ROUND_US;
        assert_eq!(round(&s, now).pages, 0, "it was stored just now");
        assert_eq!(round(&s, now + ROUND_US - 1), Recompressed::default(), "a round takes its time");
        now += ROUND_US;
        let done = round(&s, now);
        let stats = s.stats();
        assert_eq!((done.pages, done.bytes_saved), (1000, before.pool_stored_bytes - stats.pool_stored_bytes));
        assert!(stats.pool_stored_bytes < before.pool_stored_bytes * 2 / 3, "{before:?} {stats:?}");
        assert_eq!((stats.recompressed, stats.recompressed_bytes), (1000, done.bytes_saved as u64));
        assert_eq!(stats.stored_now, before.stored_now);
        while s.compact(100) {}
        assert!(s.stats().pool_bytes < before.pool_bytes * 3 / 4, "frames go back too");
        for (i, e) in es.iter().enumerate() {
            assert_eq!(get(&s, *e), Ok((Loaded::Pool, digits(i as u64))));
        }
        for _ in 0..3 {
            now += ROUND_US;
            assert_eq!(round(&s, now).pages, 0, "once is enough");
        }
        es.iter().for_each(|e| s.free(*e));
        let stats = s.stats();
        assert_eq!((stats.stored_now, stats.pool_bytes, stats.pool_stored_bytes, stats.bad_frees), (0, 0, 0, 0));
    }
}

#[test]
fn clusters_that_are_used_are_left_alone() {
    crate::percpu::stay_on_cpu_1();
    let s = store(64 << 20, None);
    let clusters: Vec<Vec<Entry>> = (0..3).map(|i| entries(&put(&s, &pages(i * 512, 512)))).collect();
    assert_eq!(round(&s, ROUND_US).pages, 0);
    get(&s, clusters[1][17]).unwrap();
    let done = round(&s, 2 * ROUND_US).pages;
    assert!((1000..=1024).contains(&done), "one cluster was read: {done}");
    assert_eq!(round(&s, 3 * ROUND_US).pages, 3 * 512 - done, "and has its turn when it is cold");
}

#[test]
fn what_does_not_pay_is_tried_once() {
    let s = store(64 << 20, None);
    let mut es = entries(&put(&s, &(0..100).map(text).collect::<Vec<_>>()));
    let before = s.stats();
    let mut now = 0;
    for _ in 0..3 {
        now += ROUND_US;
        assert_eq!(round(&s, now).pages, 0);
    }
    assert_eq!(s.stats().pool_stored_bytes, before.pool_stored_bytes);
    let tried = |e: &Entry| {
        let area = s.areas.get(e.area()).unwrap();
        let word = area.word(e.offset()).unwrap().load(Ordering::Relaxed);
        Word::decode(word).object().unwrap().made == Made::Tried
    };
    assert!(es.iter().all(tried));
    es.push(put_one(&s, text(100)).unwrap());
    assert_eq!(es.iter().filter(|e| tried(e)).count(), 100);
    for (i, e) in es.iter().enumerate() {
        assert_eq!(get(&s, *e).unwrap().1, text(i as u64));
    }
}

#[test]
fn pages_that_lz4_keeps_raw_may_be_made_smaller() {
    let s = store(64 << 20, None);
    let hex = |seed| noise(seed).map(|b| b"0123456789abcdef"[b as usize % 16]);
    let es = entries(&put(&s, &(0..64).map(hex).collect::<Vec<_>>()));
    assert_eq!((s.stats().incompressible, s.stats().pool_stored_bytes), (64, 64 * 4096));
    let noise_too = put_one(&s, noise(9)).unwrap();
    round(&s, ROUND_US);
    assert_eq!(round(&s, 2 * ROUND_US).pages, 64);
    for (i, e) in es.iter().enumerate() {
        assert_eq!(get(&s, *e), Ok((Loaded::Pool, hex(i as u64))));
    }
    assert_eq!(get(&s, noise_too).unwrap().1, noise(9));
}

#[test]
fn with_zstd_there_is_nothing_to_do() {
    let s = Store::new(StoreConfig { pool_limit: 1 << 20, accept_percent: 90, codec: Codec::Zstd(1) }).unwrap();
    put(&s, &pages(0, 100));
    assert_eq!((round(&s, ROUND_US), round(&s, 2 * ROUND_US)), Default::default());
}

#[test]
fn recompressed_pages_are_written_back_and_moved_as_others() {
    let s = store(64 << 20, file(16 * MIB));
    let es = entries(&put(&s, &pages(0, 1024)));
    round(&s, ROUND_US);
    assert_eq!(round(&s, 2 * ROUND_US).pages, 1024);
    let (mut kept, mut gone) = (Vec::new(), Vec::new());
    es.iter().enumerate().for_each(|(i, e)| if i % 8 == 0 { kept.push((i as u64, *e)) } else { gone.push(*e) });
    gone.iter().for_each(|e| s.free(*e));
    let before = s.stats().pool_bytes;
    while s.compact(50) {}
    assert!(s.stats().pool_bytes < before, "objects moved");
    let right = |want| kept.iter().all(|(i, e)| get(&s, *e) == Ok((want, digits(*i))));
    assert!(right(Loaded::Pool));
    let shrunk = s.shrink(usize::MAX, &mut Scratch::new().unwrap());
    assert_eq!((shrunk.pages, s.stats().pool_bytes), (kept.len(), 0));
    assert!(right(Loaded::Device));
}

#[test]
fn a_full_pool_gets_room() {
    let s = store(50 * 4096, None);
    let stored = put(&s, &pages(0, 200));
    let taken = stored.iter().filter(|r| r.is_ok()).count();
    assert!(taken < 200 && put_one(&s, digits(777)).is_err(), "full");
    let before = s.stats();
    // Without a hole in the pool the first pages may find no room for their copy.
    s.free(entries(&stored[..1])[0]);
    for i in 1..=6 {
        round(&s, i * ROUND_US);
    }
    let stats = s.stats();
    assert_eq!(stats.recompressed, taken as u64 - 1);
    assert!(stats.pool_bytes <= before.pool_limit && stats.pool_stored_bytes < before.pool_stored_bytes * 3 / 4);
    let more = put(&s, &pages(1000, 20));
    assert!(more.iter().all(Result::is_ok), "it takes pages again");
    for (i, r) in stored.iter().enumerate().skip(1).take(taken - 1) {
        assert_eq!(get(&s, entries(&[*r])[0]).unwrap().1, digits(i as u64));
    }
}

#[test]
fn damaged_objects_are_left_for_a_load_to_find() {
    let s = store(64 << 20, None);
    let es = entries(&put(&s, &pages(0, 4)));
    let area = s.areas.get(es[0].area()).unwrap();
    let Word::Pool(object) = Word::decode(area.word(es[1].offset()).unwrap().load(Ordering::Relaxed)) else { panic!() };
    // As if memory had been overwritten: the word attributes LZ4's object to zstd.
    let wrong = Word::Pool(Object { made: Made::Recompressed, ..object });
    area.word(es[1].offset()).unwrap().store(wrong.encode(), Ordering::Relaxed);
    round(&s, ROUND_US);
    assert_eq!(round(&s, 2 * ROUND_US).pages, 3);
    assert!(matches!(get(&s, es[1]), Err(crate::store::StoreError::Corrupt { .. })));
}

#[test]
fn an_object_whose_filter_is_unknown_is_not_a_page() {
    let s = store(64 << 20, None);
    let es = entries(&put(&s, &pages(0, 4)));
    let area = s.areas.get(es[0].area()).unwrap();
    let Word::Pool(object) = Word::decode(area.word(es[1].offset()).unwrap().load(Ordering::Relaxed)) else { panic!() };
    let wrong = Word::Pool(Object { filter: None, ..object });
    area.word(es[1].offset()).unwrap().store(wrong.encode(), Ordering::Relaxed);
    assert!(matches!(get(&s, es[1]), Err(crate::store::StoreError::Corrupt { .. })));
    assert!(get(&s, es[2]).is_ok());
}
