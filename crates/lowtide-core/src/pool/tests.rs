//! The pool without compaction (`compact_tests.rs`).

use super::*;
use crate::frame::Layout;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

#[path = "compact_tests.rs"]
mod compact_tests;

const MIB: usize = 1 << 20;

pub(super) fn object(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed.wrapping_mul(31) + i * 7) as u8).collect()
}

/// As of programs' pages, from a few bytes to raw.
pub(super) fn length(seed: usize) -> usize {
    let x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    match x % 10 {
        0 => x / 10 % 100 + 20,
        1 => PAGE_SIZE,
        2..6 => x / 10 % 900 + 500,
        _ => x / 10 % MAX_COMPRESSED + 1,
    }
}

fn density(pool: &Pool) -> f64 {
    pool.stored_bytes() as f64 / pool.bytes() as f64
}

#[test]
fn objects_of_every_length_come_back_and_pack_well() {
    let mut buf = [0; PAGE_SIZE];
    for (n, least) in [(500, 0.93), (12_000, 0.97)] {
        let pool = Pool::new(128 * MIB, 0, 90).unwrap();
        let len = |i: usize| i * 5 % MAX_COMPRESSED + 1;
        let handles: Vec<_> = (0..n).map(|i| pool.insert(&object(i, len(i))).unwrap()).collect();
        for (i, h) in handles.iter().enumerate() {
            let want = object(i, len(i));
            assert_eq!(pool.read(*h, &mut buf), Ok(want.len()));
            assert_eq!(&buf[..want.len()], &want[..]);
        }
        assert!(density(&pool) >= least, "{n} objects: {}", density(&pool));
        pool.validate().unwrap();
        for h in &handles {
            pool.remove(*h).unwrap();
            assert_eq!(pool.remove(*h), Err(Stale));
            assert_eq!(pool.read(*h, &mut buf), Err(Stale));
        }
        assert_eq!((pool.bytes(), pool.stored_bytes(), pool.objects(), pool.frames.in_use()), (0, 0, 0, 0));
        assert!(pool.held_bytes() > 0, "some memory stays at hand");
        pool.drain_frames();
        assert_eq!(pool.held_bytes(), 0);
    }
}

#[test]
fn objects_of_one_length_lose_less_than_one_in_each_span() {
    for len in (24..=MAX_COMPRESSED).step_by(89) {
        let pool = Pool::new(8 * MIB, 0, 90).unwrap();
        for i in 0..4 * SPAN_BYTES / len {
            pool.insert(&object(i, len)).unwrap();
        }
        let lost = pool.bytes() - pool.stored_bytes() - pool.objects() * (need(len) - len);
        assert!(lost < 5 * (need(len) + 64) + SPAN_BYTES, "{len}: {lost}");
    }
}

#[test]
fn never_above_its_limit() {
    let pool = Pool::new(10 * PAGE_SIZE, MIB, 90).unwrap();
    let page = object(1, PAGE_SIZE);
    let handles: Vec<_> = (0..10).map(|_| pool.insert(&page).unwrap()).collect();
    assert_eq!((pool.bytes(), pool.insert(&page), pool.accepts()), (10 * PAGE_SIZE, None, false));
    pool.remove(handles[0]).unwrap();
    assert!(!pool.accepts(), "9 of 10 frames: not below 90 %");
    pool.remove(handles[1]).unwrap();
    assert!(pool.accepts());
    pool.set_limit(20 * PAGE_SIZE);
    for _ in 0..12 {
        pool.insert(&page).unwrap();
    }
    assert_eq!((pool.bytes(), pool.insert(&page)), (20 * PAGE_SIZE, None));
    assert_eq!((pool.insert(&[]), pool.insert(&[0; PAGE_SIZE + 1])), (None, None));
    pool.validate().unwrap();
}

/// Frames in the lists of many CPUs do not reduce the limit.
#[test]
fn no_frame_is_missing_below_the_limit_while_many_cpus_keep_some() {
    const CPUS: usize = 32;
    for limit in [2 * MIB, 64 * MIB] {
        let layout = Layout { nodes: &[arena_frames(limit, CPUS)], node_of_cpu: &[0; CPUS], list_frames: list_frames(limit) };
        let pool = Pool::of(Frames::with_layout(layout).unwrap(), limit, 90).unwrap();
        pool.frames.keep(usize::MAX);
        let alloc = |cpu| pool.limit.reserve(1).then(|| pool.frames.alloc_on(cpu, 1).unwrap());
        let first: Vec<_> = (0..CPUS).map(|cpu| alloc(cpu).unwrap()).collect();
        while pool.limit.left() >= CPUS {
            alloc(0).unwrap();
        }
        for (cpu, first) in (0..CPUS).zip(first).skip(1) {
            assert_eq!(alloc(cpu), Some(FrameNo(first.0 + 1)), "the list of CPU {cpu} was emptied");
        }
        assert_eq!((pool.bytes(), pool.frames.in_use(), alloc(0)), (limit, limit / PAGE_SIZE, None));
    }
}

#[test]
fn a_pool_that_holds_little_keeps_little_at_hand() {
    for cpus in [2, 16, 256] {
        let (limit, node_of_cpu) = (1 << 30, vec![0; cpus]);
        let layout = Layout { nodes: &[arena_frames(limit, cpus)], node_of_cpu: &node_of_cpu, list_frames: list_frames(limit) };
        let pool = Pool::of(Frames::with_layout(layout).unwrap(), limit, 90).unwrap();
        let mut held = Vec::new();
        for most in [100, 5_000, 30_000, 300, 40, 20_000, 0] {
            while held.len() < most {
                held.push(pool.frames_for(1).unwrap());
            }
            while held.len() > most {
                let frame = held.swap_remove(held.len() * 7 / 10);
                let freed = pool.frames.free_on(frame as usize * 13 % cpus, FrameNo(frame), 1);
                assert_eq!(freed, Ok(()));
                pool.limit.release(1);
                pool.keep_less();
                let idle = pool.held_bytes() - pool.bytes();
                assert!(idle <= (pool.bytes() / 4).max(MIB / 4), "{idle} bytes idle of {}, {cpus} CPUs", pool.bytes());
            }
            pool.frames.validate().unwrap();
        }
        assert!(pool.held_bytes() > 0, "some memory stays at hand");
    }
}

/// Whatever the limit's remainder modulo the size of a span.
#[test]
fn the_last_frames_of_a_limit_are_used() {
    for frames in 1..20 {
        let pool = Pool::new(frames * PAGE_SIZE, 0, 90).unwrap();
        while pool.insert(&object(1, 250)).is_some() {}
        assert_eq!((pool.bytes(), pool.objects() >= frames * 15), (frames * PAGE_SIZE, true));
        assert!(!pool.accepts());
        pool.validate().unwrap();
    }
}

/// The least density under random inserts and frees.
fn churn(n: usize, rounds: usize, len: fn(usize) -> usize) -> f64 {
    let pool = Pool::new(256 * MIB, 0, 90).unwrap();
    let mut held: Vec<Handle> = (0..n).map(|i| pool.insert(&object(i, len(i))).unwrap()).collect();
    let mut worst = 1f64;
    let mut x = 1usize;
    for i in n..n + rounds {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let old = held.swap_remove((x >> 33) % held.len());
        pool.remove(old).unwrap();
        held.push(pool.insert(&object(i, len(i))).unwrap());
        worst = worst.min(density(&pool));
    }
    pool.validate().unwrap();
    worst
}

fn hash(seed: usize) -> usize {
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

#[test]
fn a_pool_stays_dense_while_objects_come_and_go() {
    for (n, rounds, len, least) in [
        // About 3:1: most gaps are a bit too short.
        (20_000, 100_000, (|i| 1200 + hash(i) % 120) as fn(usize) -> usize, 0.95),
        (20_000, 100_000, |i| 500 + hash(i) % 900, 0.95),
        // A small pool has fewer gaps to choose from.
        (20_000, 100_000, |i| 100 + hash(i) % 3400, 0.94),
        (20_000, 100_000, |i| length(i).min(MAX_COMPRESSED), 0.94),
        (4000, 40_000, |i| length(i).min(MAX_COMPRESSED), 0.9),
    ] {
        let worst = churn(n, rounds, len);
        assert!(worst >= least, "{n} objects: {worst}");
    }
}

#[test]
fn any_number_is_a_safe_handle() {
    let pool = Pool::new(MIB, MIB, 90).unwrap();
    let kept = pool.insert(&object(5, 100)).unwrap();
    let mut buf = [0; PAGE_SIZE];
    let mut seed = 88_172_645_463_325_252u64;
    for i in 0..200_000 {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let near = if i % 2 == 0 { kept.raw() ^ (1 << (seed % 54)) } else { seed };
        let h = Handle::from_raw(near);
        if h != kept {
            let relocated = pool.relocate(h, &mut |_| true);
            assert_eq!((pool.read(h, &mut buf), pool.remove(h), relocated), (Err(Stale), Err(Stale), Relocated::No));
        }
    }
    assert_eq!(pool.read(kept, &mut buf[..99]), Err(Stale), "no room");
    assert_eq!(pool.read(kept, &mut buf), Ok(100));
}

#[test]
fn threads() {
    let pool = Pool::new(2 * MIB, 0, 90).unwrap();
    std::thread::scope(|s| {
        for t in 0..3 {
            let pool = &pool;
            s.spawn(move || {
                let mut held: Vec<(usize, Handle)> = vec![];
                let mut buf = [0; PAGE_SIZE];
                for i in 0..20_000usize {
                    let len = (i * 37 + t) % 9 * 450 + 1;
                    let seed = i * 3 + t;
                    match pool.insert(&object(seed, len)) {
                        Some(h) if held.len() < 200 => held.push((seed, h)),
                        Some(h) => pool.remove(h).unwrap(),
                        None => {}
                    }
                    if i % 3 == 0 && !held.is_empty() {
                        let (seed, h) = held.swap_remove(i * 7 % held.len());
                        assert_eq!(pool.read(h, &mut buf), Ok(h.object_len()));
                        assert_eq!(&buf[..h.object_len()], &object(seed, h.object_len())[..]);
                        pool.remove(h).unwrap();
                    }
                }
                for (_, h) in held {
                    pool.remove(h).unwrap();
                }
            });
        }
    });
    assert_eq!((pool.bytes(), pool.stored_bytes(), pool.frames.in_use()), (0, 0, 0));
    pool.validate().unwrap();
}

#[derive(Clone, Debug)]
enum Op {
    Insert(usize),
    Remove(prop::sample::Index),
    Isolate,
    Relocate(usize),
    LetGo,
    Limit(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1usize..=PAGE_SIZE).prop_map(Op::Insert),
        2 => (1usize..80).prop_map(Op::Insert),
        4 => any::<prop::sample::Index>().prop_map(Op::Remove),
        1 => Just(Op::Isolate),
        2 => (1usize..40).prop_map(Op::Relocate),
        1 => Just(Op::LetGo),
        1 => (0usize..200).prop_map(|frames| Op::Limit(frames * PAGE_SIZE)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn as_a_map(ops in prop::collection::vec(op(), 1..300)) {
        let pool = Pool::new(80 * PAGE_SIZE, MIB, 90).unwrap();
        let mut model: Vec<(Vec<u8>, Handle)> = vec![];
        let mut buf = [0; PAGE_SIZE];
        let mut isolated = 0;
        for (i, op) in ops.into_iter().enumerate() {
            match op {
                Op::Insert(len) => {
                    let data = object(i, len);
                    if let Some(h) = pool.insert(&data) {
                        prop_assert!(!pool.is_isolated(h) && model.iter().all(|(_, other)| *other != h));
                        model.push((data, h));
                    }
                }
                Op::Remove(which) if !model.is_empty() => {
                    let (_, h) = model.swap_remove(which.index(model.len()));
                    pool.remove(h).unwrap();
                    prop_assert_eq!(pool.read(h, &mut buf), Err(Stale));
                }
                Op::Isolate if isolated == 0 => isolated = pool.isolate(),
                Op::Relocate(most) => {
                    let before = pool.bytes();
                    for (k, (_, h)) in model.iter_mut().enumerate().filter(|(_, m)| pool.is_isolated(m.1)).take(most) {
                        let old = *h;
                        let agrees = k % 7 != 3;
                        let moved = pool.relocate(old, &mut |new| {
                            if agrees {
                                *h = new;
                            }
                            agrees
                        });
                        prop_assert_eq!(moved == Relocated::Yes, *h != old);
                        prop_assert!(moved != Relocated::Yes || pool.read(old, &mut buf) == Err(Stale));
                    }
                    prop_assert!(pool.bytes() == before);
                }
                Op::LetGo => {
                    let before = pool.bytes();
                    pool.let_go();
                    isolated = 0;
                    prop_assert!(pool.bytes() <= before);
                }
                Op::Limit(bytes) => pool.set_limit(bytes),
                Op::Remove(_) | Op::Isolate => {}
            }
            prop_assert_eq!(pool.objects(), model.len());
            prop_assert_eq!(pool.stored_bytes(), model.iter().map(|m| m.0.len()).sum::<usize>());
            prop_assert_eq!(pool.bytes(), pool.frames.in_use() * PAGE_SIZE);
            if isolated == 0 {
                prop_assert_eq!(pool.validate(), Ok(()));
            }
            if i % 16 == 0 {
                for (data, h) in &model {
                    prop_assert_eq!(pool.read(*h, &mut buf), Ok(data.len()));
                    prop_assert!(buf[..data.len()] == data[..]);
                }
            }
        }
        for (data, h) in &model {
            prop_assert_eq!(pool.read(*h, &mut buf), Ok(data.len()));
            prop_assert_eq!(&buf[..data.len()], &data[..]);
            pool.remove(*h).unwrap();
        }
        pool.let_go();
        prop_assert_eq!((pool.bytes(), pool.validate()), (0, Ok(())));
    }
}
