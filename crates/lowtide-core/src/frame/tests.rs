use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

#[test]
fn freed_frames_leave_memory() {
    let frames = Frames::new(2000).unwrap();
    let runs: Vec<_> = (0..200).map(|i| (i % 8 + 1, frames.alloc_run(i % 8 + 1).unwrap())).collect();
    for (n, f) in &runs {
        // SAFETY: the run was just handed out.
        unsafe { frames.ptr(*f).write_bytes(1, *n as usize * PAGE_SIZE) };
    }
    let in_use: u32 = runs.iter().map(|r| r.0).sum();
    assert_eq!((frames.in_use(), frames.arena.populated_pages()), (in_use as usize, in_use as usize));
    for (n, f) in runs {
        frames.free_run(f, n).unwrap();
        assert!(frames.arena.populated_pages() <= frames.in_use() + WARM_FRAMES as usize);
    }
    assert_eq!(frames.in_use(), 0);
    frames.drain();
    assert_eq!(frames.arena.populated_pages(), 0);
    assert!(frames.state.lock().buddy.is_whole());
}

#[test]
fn a_freed_run_is_given_out_again_while_warm() {
    let frames = Frames::new(64).unwrap();
    let a = frames.alloc(2).unwrap();
    frames.free(a, 2).unwrap();
    assert_eq!(frames.alloc(2), Some(a));
    assert_eq!((frames.alloc(10), frames.alloc_run(0), frames.alloc_run(513)), (None, None, None));
}

#[test]
fn warm_frames_are_found_when_nothing_else_is_left() {
    let frames = Frames::new(512).unwrap();
    let singles: Vec<_> = (0..512).map(|_| frames.alloc(0).unwrap()).collect();
    assert_eq!(frames.alloc(0), None);
    for f in singles {
        frames.free(f, 0).unwrap();
    }
    assert!(frames.alloc(9).is_some(), "the last warm frames merge with the rest");
}

#[test]
fn freeing_what_is_free_is_an_error() {
    let frames = Frames::new(100).unwrap();
    assert_eq!(frames.free(FrameNo(0), 0), Err(NotHandedOut));
    assert_eq!(frames.free_run(FrameNo(99), 2), Err(NotHandedOut));
    assert_eq!(frames.free_run(FrameNo(u32::MAX), u32::MAX), Err(NotHandedOut));
    let f = frames.alloc_run(3).unwrap();
    assert_eq!(frames.free_run(f, 4), Err(NotHandedOut));
    assert_eq!((frames.free_run(f, 3), frames.free_run(f, 3)), (Ok(()), Err(NotHandedOut)));
}

#[test]
fn threads_never_share_a_frame() {
    let frames = Frames::new(600).unwrap();
    std::thread::scope(|s| {
        for t in 0..3u8 {
            let frames = &frames;
            s.spawn(move || {
                let mut held: Vec<(FrameNo, u32)> = Vec::new();
                let mut seed = t as u32 + 1;
                for i in 0..4000 {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let n = (seed >> 20) % 12 + 1;
                    if held.len() < 20
                        && let Some(f) = frames.alloc_run(n)
                    {
                        // SAFETY: the run is this thread's.
                        unsafe { frames.ptr(f).write_bytes(t, n as usize * PAGE_SIZE) };
                        held.push((f, n));
                    } else if let Some((f, n)) = held.pop() {
                        // SAFETY: the run is this thread's.
                        let bytes = unsafe { std::slice::from_raw_parts(frames.ptr(f), n as usize * PAGE_SIZE) };
                        assert!(bytes.iter().all(|&b| b == t), "step {i}");
                        frames.free_run(f, n).unwrap();
                    }
                }
                for (f, n) in held {
                    frames.free_run(f, n).unwrap();
                }
            });
        }
    });
    assert_eq!(frames.in_use(), 0);
    frames.drain();
    assert!(frames.state.lock().buddy.is_whole());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn runs_never_overlap_and_merge_fully(
        count in 1usize..1500,
        ops in prop::collection::vec((1u32..=512, any::<bool>(), any::<prop::sample::Index>()), 1..200),
    ) {
        let frames = Frames::new(count).unwrap();
        let mut held: BTreeMap<u32, u32> = BTreeMap::new();
        for (n, small, which) in ops {
            let n = if small { n % 9 + 1 } else { n };
            if n % 3 != 0 || held.is_empty() {
                if let Some(FrameNo(start)) = frames.alloc_run(n) {
                    prop_assert!(start + n <= count as u32);
                    let before = held.range(..start + n).next_back();
                    prop_assert!(before.is_none_or(|(s, len)| s + len <= start), "overlap");
                    held.insert(start, n);
                } else {
                    prop_assert!(!held.is_empty() || n.next_power_of_two() as usize > count);
                }
            } else {
                let (&start, &len) = held.iter().nth(which.index(held.len())).unwrap();
                held.remove(&start);
                frames.free_run(FrameNo(start), len).unwrap();
            }
            prop_assert_eq!(frames.in_use(), held.values().sum::<u32>() as usize);
        }
        for (start, len) in held {
            frames.free_run(FrameNo(start), len).unwrap();
        }
        frames.drain();
        prop_assert!(frames.state.lock().buddy.is_whole());
    }
}
