//! What users of a pool rely on, without compaction; with it in `compact_tests.rs`.

use super::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

#[path = "compact_tests.rs"]
mod compact_tests;

const MIB: usize = 1 << 20;

pub(super) fn object(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed.wrapping_mul(31) + i * 7) as u8).collect()
}

/// Lengths as pages of programs have when they are compressed: from a few bytes to what is kept raw.
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
    for (n, least) in [(500, 0.93), (12_000, 0.97), (40_000, 0.97)] {
        let pool = Pool::new(128 * MIB, 0, 90).unwrap();
        let len = |i: usize| i * 5 % MAX_COMPRESSED + 1;
        let handles: Vec<_> = (0..n).map(|i| pool.insert(&object(i, len(i))).unwrap()).collect();
        for (i, h) in handles.iter().enumerate() {
            let want = object(i, len(i));
            assert_eq!(pool.read(*h, None, &mut buf), Ok(want.len()));
            assert_eq!(&buf[..want.len()], &want[..]);
        }
        assert!(density(&pool) >= least, "{n} objects: {}", density(&pool));
        pool.validate().unwrap();
        for h in &handles {
            pool.remove(*h).unwrap();
            assert_eq!(pool.remove(*h), Err(Stale));
            assert_eq!(pool.read(*h, None, &mut buf), Err(Stale));
        }
        assert_eq!((pool.bytes(), pool.stored_bytes(), pool.objects(), pool.frames.in_use()), (0, 0, 0, 0));
    }
}

/// Objects of one length fill a span badly only where less than one of them is lost.
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

/// All of a limit can be used, whatever its remainder modulo the size of a span.
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

/// Room that frees have left is used again before the pool grows, without any compaction.
#[test]
fn a_pool_does_not_grow_while_objects_come_and_go() {
    let pool = Pool::new(64 * MIB, 0, 90).unwrap();
    let small = |seed| length(seed).min(MAX_COMPRESSED);
    let mut held: Vec<Handle> = (0..4000).map(|i| pool.insert(&object(i, small(i))).unwrap()).collect();
    let mut worst = 1f64;
    for i in 4000..40_000usize {
        let old = held.swap_remove(i.wrapping_mul(7919) % held.len());
        pool.remove(old).unwrap();
        held.push(pool.insert(&object(i, small(i))).unwrap());
        worst = worst.min(density(&pool));
    }
    assert!(worst > 0.82, "{worst}");
    pool.validate().unwrap();
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
            let owned = pool.set_owner(h, Owner::new(1).unwrap());
            assert_eq!((pool.read(h, None, &mut buf), pool.remove(h), owned), (Err(Stale), Err(Stale), Err(Stale)));
        }
    }
    assert_eq!(pool.read(kept, None, &mut buf[..99]), Err(Stale), "no room");
    assert_eq!(pool.read(kept, Owner::new(7), &mut buf), Err(Stale), "somebody else's");
    pool.set_owner(kept, Owner::new(7).unwrap()).unwrap();
    assert_eq!((pool.read(kept, Owner::new(7), &mut buf), pool.read(kept, None, &mut buf)), (Ok(100), Ok(100)));
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
                        assert_eq!(pool.read(h, None, &mut buf), Ok(h.object_len()));
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
    Insert(usize, bool),
    Remove(prop::sample::Index),
    Compact(usize),
    Limit(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1usize..=PAGE_SIZE, any::<bool>()).prop_map(|(len, owned)| Op::Insert(len, owned)),
        2 => (1usize..80, Just(true)).prop_map(|(len, owned)| Op::Insert(len, owned)),
        4 => any::<prop::sample::Index>().prop_map(Op::Remove),
        1 => (1usize..60).prop_map(Op::Compact),
        1 => (0usize..200).prop_map(|frames| Op::Limit(frames * PAGE_SIZE)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn as_a_map(ops in prop::collection::vec(op(), 1..500)) {
        let pool = Pool::new(80 * PAGE_SIZE, MIB, 90).unwrap();
        // The owner of an object is its number plus one.
        let mut model: Vec<(usize, Vec<u8>, Handle)> = vec![];
        let mut buf = [0; PAGE_SIZE];
        for (i, op) in ops.into_iter().enumerate() {
            match op {
                Op::Insert(len, owned) => {
                    let data = object(i, len);
                    if let Some(h) = pool.insert(&data) {
                        prop_assert!(model.iter().all(|(.., other)| *other != h));
                        if owned {
                            pool.set_owner(h, Owner::new(i as u64 + 1).unwrap()).unwrap();
                        }
                        model.push((i, data, h));
                    }
                }
                Op::Remove(which) if !model.is_empty() => {
                    let (.., h) = model.swap_remove(which.index(model.len()));
                    pool.remove(h).unwrap();
                    prop_assert_eq!(pool.read(h, None, &mut buf), Err(Stale));
                }
                Op::Compact(budget) => {
                    let before = pool.bytes();
                    pool.compact(budget, &mut |owner, old, new| {
                        let entry = model.iter_mut().find(|m| m.0 as u64 + 1 == owner.raw() && m.2 == old).unwrap();
                        // Some owners' words have changed meanwhile.
                        let agrees = entry.0 % 7 != 3;
                        if agrees {
                            entry.2 = new;
                        }
                        agrees
                    });
                    prop_assert!(pool.bytes() <= before);
                }
                Op::Limit(bytes) => pool.set_limit(bytes),
                Op::Remove(_) => {}
            }
            prop_assert_eq!(pool.objects(), model.len());
            prop_assert_eq!(pool.stored_bytes(), model.iter().map(|m| m.1.len()).sum::<usize>());
            prop_assert_eq!(pool.bytes(), pool.frames.in_use() * PAGE_SIZE);
            if i % 16 == 0 {
                prop_assert_eq!(pool.validate(), Ok(()));
                for (_, data, h) in &model {
                    prop_assert_eq!(pool.read(*h, None, &mut buf), Ok(data.len()));
                    prop_assert!(buf[..data.len()] == data[..]);
                }
            }
        }
        for (_, data, h) in &model {
            prop_assert_eq!(pool.read(*h, None, &mut buf), Ok(data.len()));
            prop_assert_eq!(&buf[..data.len()], &data[..]);
            pool.remove(*h).unwrap();
        }
        prop_assert_eq!((pool.bytes(), pool.validate()), (0, Ok(())));
    }
}
