//! Random operations against a plain map, and by several threads at once.

use super::*;
use crate::store::table_word::Word;
use core::sync::atomic::AtomicBool;
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Zero,
    Same,
    Text,
    Digits,
    Noise,
}

fn page(kind: Kind, seed: u64) -> Page {
    match kind {
        Kind::Zero => [0; 4096],
        Kind::Same => [seed as u8 | 1; 4096],
        Kind::Text => text(seed),
        Kind::Digits => digits(seed),
        Kind::Noise => noise(seed),
    }
}

#[derive(Clone, Debug)]
enum Op {
    Store(Vec<Kind>),
    Load(prop::sample::Index, usize),
    Free(prop::sample::Index),
    Limit(usize),
    Compact(usize),
    Shrink(usize),
    /// With half a round of time in between.
    Recompress(usize),
    Rest(prop::sample::Index),
    Pass,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let kind = prop_oneof![1 => Just(Kind::Zero), 1 => Just(Kind::Same), 3 => Just(Kind::Text), 3 => Just(Kind::Digits), 2 => Just(Kind::Noise)];
    let op = prop_oneof![
        4 => prop::collection::vec(kind, 1..40).prop_map(Op::Store),
        3 => (any::<prop::sample::Index>(), 1usize..20).prop_map(|(i, n)| Op::Load(i, n)),
        30 => any::<prop::sample::Index>().prop_map(Op::Free),
        1 => (0usize..40).prop_map(|frames| Op::Limit(frames * 4096)),
        2 => (1usize..40).prop_map(Op::Compact),
        2 => (1usize..100_000).prop_map(Op::Shrink),
        6 => (1usize..100).prop_map(Op::Recompress),
        1 => any::<prop::sample::Index>().prop_map(Op::Rest),
        1 => Just(Op::Pass),
    ];
    prop::collection::vec(op, 1..150)
}

#[derive(Default)]
struct Model {
    pages: HashMap<Entry, Page>,
    order: Vec<Entry>,
    seed: u64,
    now_us: u64,
}

impl Model {
    fn perform(&mut self, s: &Store, ops: &[Op]) -> Result<(), TestCaseError> {
        let mut scratch = Scratch::new().unwrap();
        for op in ops {
            match op {
                Op::Store(kinds) => {
                    let pages: Vec<Page> = kinds.iter().map(|k| (self.seed += 1, page(*k, self.seed)).1).collect();
                    for (r, page) in put_with(s, &pages, &mut scratch).into_iter().zip(pages) {
                        match r {
                            Ok(Stored::Zero) => prop_assert!(page == [0; 4096]),
                            Ok(Stored::Entry(e)) => {
                                prop_assert!(self.pages.insert(e, page).is_none(), "an entry was given out twice");
                                self.order.push(e);
                            }
                            Err(error) => prop_assert_eq!(error, StoreError::Full),
                        }
                    }
                }
                Op::Load(at, n) if !self.order.is_empty() => {
                    let at = at.index(self.order.len());
                    let es = &self.order[at..(at + n).min(self.order.len())];
                    let mut into = std::vec![[0; 4096]; es.len()];
                    let mut out = std::vec![Err(StoreError::Full); es.len()];
                    s.load_run(es, &mut into, &mut out, &mut scratch);
                    for ((e, page), r) in es.iter().zip(&into).zip(&out) {
                        prop_assert!(r.is_ok() && self.pages[e] == *page);
                    }
                }
                Op::Free(at) if !self.order.is_empty() => {
                    let e = self.order.swap_remove(at.index(self.order.len()));
                    self.pages.remove(&e);
                    s.free(e);
                    prop_assert_eq!(s.load(e, &mut [0; 4096], &mut scratch), Err(StoreError::BadEntry));
                }
                Op::Limit(bytes) => s.limit_pool(*bytes),
                Op::Compact(pages) => drop(s.compact(*pages)),
                Op::Shrink(bytes) => {
                    let shrunk = s.shrink(*bytes, &mut scratch);
                    prop_assert!(!shrunk.failed && (shrunk.pages == 0) == (shrunk.bytes == 0));
                }
                Op::Recompress(pages) => {
                    self.now_us += ROUND_US / 2;
                    let before = s.stats().pool_stored_bytes;
                    let done = s.recompress(*pages, self.now_us, &mut scratch);
                    prop_assert!(done.pages <= *pages && (s.codec == Codec::Lz4 || done == Recompressed::default()));
                    prop_assert_eq!(s.stats().pool_stored_bytes + done.bytes_saved, before);
                }
                Op::Rest(at) => {
                    let own: Vec<_> = s.areas.iter().filter(|a| a.device.is_some() && !a.is_inherited()).collect();
                    if !own.is_empty() {
                        own[at.index(own.len())].failed(Errno::IO);
                    }
                }
                Op::Pass => pass_rests(s),
                _ => {}
            }
            prop_assert_eq!(s.stats().stored_now, self.pages.len() as u64);
            let objects = self.pages.keys().map(|e| object_len(s, *e));
            prop_assert_eq!(s.stats().pool_stored_bytes, objects.sum::<usize>());
        }
        Ok(())
    }

    fn finish(self, s: &Store) -> Result<(), TestCaseError> {
        while s.compact(100) {}
        for e in self.order {
            prop_assert_eq!(get(s, e).unwrap().1, self.pages[&e]);
            s.free(e);
        }
        let stats = s.stats();
        prop_assert_eq!((stats.stored_now, stats.on_device_now, stats.pool_bytes, stats.pool_stored_bytes), (0, 0, 0, 0));
        prop_assert_eq!((stats.bad_frees, stats.device_errors, stats.corrupt), (0, 0, 0));
        prop_assert!(s.area_stats().iter().all(|area| area.used == 0 && area.errors == 0));
        Ok(())
    }
}

fn run(s: &Store, ops: Vec<Op>) -> Result<(), TestCaseError> {
    let mut model = Model::default();
    model.perform(s, &ops)?;
    model.finish(s)
}

fn files() -> impl Strategy<Value = Vec<(u64, i16)>> {
    prop::collection::vec((512u64..1200, -2i16..2), 2..4)
}

fn add(s: &Store, files: Vec<FileConfig>) {
    files.into_iter().for_each(|file| s.add_file(file).unwrap());
}

fn make(files: &[(u64, i16)]) -> Vec<FileConfig> {
    let file = |(number, (slots, priority)): (usize, &(u64, i16))| FileConfig {
        name: DeviceName { number: number as u8, ..Default::default() },
        priority: *priority,
        ..FileConfig::new(tmpfile(), slots * 4096)
    };
    files.iter().enumerate().map(file).collect()
}

fn object_len(s: &Store, e: Entry) -> usize {
    let area = s.areas.get(e.area()).unwrap();
    let word = Word::decode(area.word(e.offset()).unwrap().load(Ordering::Relaxed));
    word.object().map_or(0, |object| object.handle.object_len())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn as_a_map_in_ram(ops in ops(), frames in 0usize..200) {
        run(&store(frames * 4096, None), ops)?;
    }

    #[test]
    fn as_a_map_with_a_file(ops in ops(), frames in 0usize..60, slots in 512u64..1200, zstd: bool) {
        let codec = if zstd { Codec::Zstd(1) } else { Codec::Lz4 };
        let s = Store::new(StoreConfig { pool_limit: frames * 4096, accept_percent: 80, codec }).unwrap();
        add(&s, make(&[(slots, 0)]));
        run(&s, ops)?;
    }

    #[test]
    fn as_a_map_with_several_files(ops in ops(), frames in 0usize..60, files in files()) {
        run(&store(frames * 4096, make(&files)), ops)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// Parent and child both go on from the fork, each with files of its own.
    #[test]
    fn as_two_maps_after_a_fork(before in ops(), after in [ops(), ops()], frames in 0usize..60, files in files()) {
        let s = store(frames * 4096, make(&files));
        let mut model = Model::default();
        model.perform(&s, &before)?;
        let mut in_parent = Model { pages: model.pages.clone(), order: model.order.clone(), seed: model.seed, now_us: model.now_us };
        let [child, parent] = after;
        let mut own = Some(make(&files));
        fork_tests::in_child(
            &s,
            || {
                // SAFETY: the child has one thread, and nothing of the store was in flight. It does
                // not use other harness threads' mappings.
                let forked = unsafe {
                    crate::vm::reset_after_fork();
                    s.fork_child(fork_tests::me(), &mut |_, fd| fork_tests::dup(fd))
                };
                add(&s, own.take().unwrap());
                let right = forked.is_ok() && model.perform(&s, &child).and_then(|()| model.finish(&s)).is_ok();
                i32::from(!right)
            },
            || in_parent.perform(&s, &parent).unwrap(),
        );
        in_parent.finish(&s)?;
    }
}

#[test]
fn threads_get_their_own_bytes_back() {
    for file in [file(6 * MIB), None] {
        let with_file = file.is_some();
        let s = store(100 * 4096, file);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (s, stop) = (&s, &stop);
            let compactor = || {
                while !stop.load(Ordering::Relaxed) {
                    s.compact(20);
                }
            };
            let shrinker = || {
                let mut scratch = Scratch::new().unwrap();
                while !stop.load(Ordering::Relaxed) {
                    s.shrink(8 << 10, &mut scratch);
                }
            };
            let recompressor = || {
                let (mut scratch, mut now_us) = (Scratch::new().unwrap(), 0);
                while !stop.load(Ordering::Relaxed) {
                    now_us += ROUND_US;
                    s.recompress(100, now_us, &mut scratch);
                }
            };
            scope.spawn(compactor);
            scope.spawn(shrinker);
            scope.spawn(recompressor);
            let threads: Vec<_> = (0..4u64).map(|t| scope.spawn(move || hammer(s, t))).collect();
            let ends: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
            // Also after a failure: the others would never end.
            stop.store(true, Ordering::Relaxed);
            assert!(ends.iter().all(Result::is_ok), "a thread has failed");
        });
        while s.compact(100) {}
        let stats = s.stats();
        assert_eq!((stats.stored_now, stats.on_device_now, stats.pool_bytes, stats.pool_stored_bytes), (0, 0, 0, 0));
        assert_eq!((stats.bad_frees, stats.device_errors, stats.corrupt), (0, 0, 0));
        assert_eq!(stats.device_write_ios > 100, with_file);
        assert!(stats.recompressed > 0, "nothing was recompressed: the test says nothing about it");
    }
}

/// The pages' content is their own name.
fn hammer(s: &Store, t: u64) {
    let mut scratch = Scratch::new().unwrap();
    let mut held: Vec<(Entry, u64)> = Vec::new();
    let mut x = t + 1;
    for i in 0..1500u64 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let make = |id: u64| match id % 3 {
            0 => noise(id),
            1 => text(id),
            _ => digits(id),
        };
        if held.len() < 250 {
            let ids: Vec<u64> = (0..x >> 60).map(|k| t << 40 | i << 8 | k).collect();
            let pages: Vec<Page> = ids.iter().map(|id| make(*id)).collect();
            for (r, id) in put_with(s, &pages, &mut scratch).into_iter().zip(ids) {
                match r {
                    Ok(Stored::Entry(e)) => held.push((e, id)),
                    Ok(Stored::Zero) => panic!(),
                    Err(error) => assert_eq!(error, StoreError::Full),
                }
            }
        }
        for _ in 0..8.min(held.len()) {
            let (e, id) = held.swap_remove(x as usize % held.len());
            let mut page = [0; 4096];
            s.load(e, &mut page, &mut scratch).unwrap();
            assert!(page == make(id), "thread {t} step {i}");
            s.free(e);
        }
    }
    held.into_iter().for_each(|(e, _)| s.free(e));
}

#[test]
fn a_load_during_a_free_does_no_harm() {
    let s = store(40 * 4096, file(2 * MIB));
    let (shrinking, s) = (AtomicU64::new(0), &s);
    let current = AtomicU64::new(put_one(s, text(0)).unwrap().raw());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut scratch = Scratch::new().unwrap();
            let mut page = [0; 4096];
            while !stop.load(Ordering::Relaxed) {
                let e = Entry::from_raw(current.load(Ordering::Relaxed)).unwrap();
                match s.load(e, &mut page, &mut scratch) {
                    Ok(_) | Err(StoreError::BadEntry) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
        });
        scope.spawn(|| {
            let mut scratch = Scratch::new().unwrap();
            while !stop.load(Ordering::Relaxed) {
                shrinking.fetch_add(s.shrink(1, &mut scratch).pages as u64, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            let (mut scratch, mut now_us) = (Scratch::new().unwrap(), 0);
            while !stop.load(Ordering::Relaxed) {
                now_us += ROUND_US;
                s.recompress(1, now_us, &mut scratch);
            }
        });
        for i in 1..15_000u64 {
            let make = [text, noise, digits, text][i as usize % 39 % 4];
            let e = put_one(s, make(i)).unwrap();
            s.free(Entry::from_raw(current.swap(e.raw(), Ordering::Relaxed)).unwrap());
        }
        stop.store(true, Ordering::Relaxed);
    });
    let stats = s.stats();
    assert_eq!((stats.stored_now, stats.bad_frees, stats.written_back), (1, 0, shrinking.into_inner()));
}
