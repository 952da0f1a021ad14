use super::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

const MIB: usize = 1 << 20;

fn object(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed.wrapping_mul(31) + i * 7) as u8).collect()
}

#[test]
fn objects_of_every_length_come_back_and_pack_well() {
    let pool = Pool::new(128 * MIB, 0, 90).unwrap();
    let mut buf = [0; PAGE_SIZE];
    let handles: Vec<_> = (0..40_000).map(|i| pool.insert(&object(i, i * 5 % MAX_COMPRESSED + 1)).unwrap()).collect();
    for (i, h) in handles.iter().enumerate() {
        let want = object(i, i * 5 % MAX_COMPRESSED + 1);
        assert_eq!(pool.read(*h, &mut buf), Ok(want.len()));
        assert_eq!(&buf[..want.len()], &want[..]);
    }
    let share = pool.stored_bytes() as f64 / pool.bytes() as f64;
    assert!(share >= 0.95, "stored / held = {share}");
    assert_eq!(pool.bytes(), pool.frames.in_use() * PAGE_SIZE);
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
        // Another length of the same class at the same place cannot be told apart; all else is stale.
        if !(h.frame() == kept.frame() && h.place() == kept.place()) {
            assert_eq!((pool.read(h, &mut buf), pool.remove(h)), (Err(Stale), Err(Stale)));
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
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn as_a_map(ops in prop::collection::vec((1usize..=PAGE_SIZE, any::<prop::sample::Index>(), 0..3u8), 1..400)) {
        let pool = Pool::new(80 * PAGE_SIZE, 0, 90).unwrap();
        let mut model: Vec<(Vec<u8>, Handle)> = vec![];
        let mut buf = [0; PAGE_SIZE];
        for (i, (len, which, op)) in ops.into_iter().enumerate() {
            if op < 2 {
                let data = object(i, len);
                if let Some(h) = pool.insert(&data) {
                    prop_assert!(model.iter().all(|(_, other)| *other != h));
                    model.push((data, h));
                }
            } else if !model.is_empty() {
                let (_, h) = model.swap_remove(which.index(model.len()));
                pool.remove(h).unwrap();
                prop_assert_eq!(pool.read(h, &mut buf), Err(Stale));
            }
            prop_assert_eq!(pool.stored_bytes(), model.iter().map(|m| m.0.len()).sum::<usize>());
            prop_assert!(pool.bytes() <= pool.limit() && pool.bytes() == pool.frames.in_use() * PAGE_SIZE);
        }
        for (data, h) in &model {
            prop_assert_eq!(pool.read(*h, &mut buf), Ok(data.len()));
            prop_assert_eq!(&buf[..data.len()], &data[..]);
        }
    }
}
