use super::*;
use crate::sync::atomic::AtomicIsize;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

fn is_whole(frames: &Frames) -> bool {
    frames.arenas.iter().all(|a| a.stock.with(|buddy| buddy.is_whole()))
}

fn node_of(frames: &Frames, frame: FrameNo) -> Option<usize> {
    frames.arenas.iter().position(|arena| arena.range().contains(&(frame.0 as usize)))
}

/// One node, two CPUs, `list_frames` in the lists of both.
fn two_cpus(count: usize, list_frames: usize) -> Frames {
    Frames::with_layout(Layout { nodes: &[count], node_of_cpu: &[0, 0], list_frames }).unwrap()
}

fn fill(frames: &Frames, f: FrameNo, n: u32, byte: u8) {
    // SAFETY: callers own the run.
    unsafe { frames.ptr(f).write_bytes(byte, n as usize * PAGE_SIZE) };
}

#[derive(Debug, Default)]
struct Counted(AtomicIsize);

impl Counted {
    fn bytes(&self) -> usize {
        self.0.load(Relaxed) as usize
    }
}

impl Ledger for Counted {
    fn add(&self, bytes: isize) {
        self.0.fetch_add(bytes, Relaxed);
    }
}

#[test]
fn memory_held_is_known_exactly() {
    let mut frames = Frames::new(2000).unwrap();
    let counted = Arc::new(Counted::default());
    frames.count_in(&(counted.clone() as Arc<dyn Ledger>));
    let runs: Vec<_> = (0..200).map(|i| (i % 8 + 1, frames.alloc_run(i % 8 + 1).unwrap())).collect();
    for (n, f) in &runs {
        fill(&frames, *f, *n, 1);
    }
    let in_use: u32 = runs.iter().map(|r| r.0).sum();
    assert_eq!((frames.in_use(), frames.memory.populated_pages()), (in_use as usize, in_use as usize));
    for (n, f) in runs {
        frames.free_run(f, n).unwrap();
        assert_eq!((frames.held_bytes(), counted.bytes()), (frames.memory.populated_pages() * PAGE_SIZE, frames.held_bytes()));
        assert!(frames.held_bytes() <= (frames.in_use() + LIST_FRAMES) * PAGE_SIZE);
    }
    assert_eq!(frames.in_use(), 0);
    assert!(frames.held_bytes() > 0, "some frames stay warm");
    frames.drain();
    assert_eq!((frames.held_bytes(), counted.bytes(), frames.memory.populated_pages()), (0, 0, 0));
    assert!(is_whole(&frames));
}

#[test]
fn a_freed_run_is_given_out_again_while_warm() {
    let frames = two_cpus(512, LIST_FRAMES);
    let a = frames.alloc_on(0, 4).unwrap();
    frames.free_on(0, a, 4).unwrap();
    assert_eq!(frames.alloc_on(0, 4), Some(a));
    frames.free_on(0, a, 4).unwrap();
    let cold = frames.alloc_on(1, 2).unwrap();
    assert_ne!(cold, a, "there is no such run with memory");
    assert_eq!(frames.alloc_on(1, 4), Some(a), "the other CPU has one with memory");
    assert_ne!(frames.alloc_on(1, 4), Some(a));
    assert_eq!((frames.alloc_run(0), frames.alloc_run(MAX_RUN + 1)), (None, None));
}

#[test]
fn what_is_in_the_lists_of_other_cpus_is_found_when_nothing_else_is_left() {
    let frames = two_cpus(512, LIST_FRAMES);
    let singles: Vec<_> = (0..512).map(|_| frames.alloc_on(0, 1).unwrap()).collect();
    assert_eq!(frames.alloc_on(0, 1), None);
    for (i, f) in singles.into_iter().enumerate() {
        frames.free_on(i % 2, f, 1).unwrap();
    }
    assert!((0..64).all(|_| frames.alloc_on(0, 8).is_some()), "the last listed frames merge with the rest");
}

#[test]
fn freeing_what_is_free_is_an_error() {
    let frames = Frames::new(100).unwrap();
    assert_eq!(frames.free_run(FrameNo(0), 1), Err(NotHandedOut));
    assert_eq!(frames.free_run(FrameNo(99), 2), Err(NotHandedOut));
    assert_eq!(frames.free_run(FrameNo(u32::MAX), u32::MAX), Err(NotHandedOut));
    let f = frames.alloc_run(3).unwrap();
    assert_eq!((frames.free_run(f, 4), frames.free_run(f, 0), frames.in_use()), (Err(NotHandedOut), Err(NotHandedOut), 3));
    assert_eq!((frames.free_run(f, 3), frames.free_run(f, 3)), (Ok(()), Err(NotHandedOut)));
    let f = frames.alloc_run(8).unwrap();
    assert_eq!(frames.free_run(FrameNo(f.0 + 1), 2), Err(NotHandedOut), "no run of two begins there");
    assert_eq!((frames.free_run(f, 8), frames.in_use()), (Ok(()), 0));
}

#[test]
fn all_cpus_together_keep_no_more_than_the_bound() {
    for cpus in [1, 2, 16, 300] {
        let node_of_cpu: Vec<u8> = std::vec![0; cpus];
        let frames = Frames::with_layout(Layout { nodes: &[20_000], node_of_cpu: &node_of_cpu, list_frames: 256 }).unwrap();
        let all: Vec<_> = (0..19_000).map(|i| frames.alloc_on(i % cpus, 1).unwrap()).collect();
        for (i, f) in all.iter().enumerate() {
            frames.free_on(i % cpus, *f, 1).unwrap();
        }
        let kept = frames.held_bytes() / PAGE_SIZE;
        assert!(kept > 0 && kept <= 256, "{kept} frames kept by {cpus} CPUs");
    }
}

/// Idle frames of many small processes on many CPUs must grow with neither.
#[test]
fn fewer_are_kept_from_the_moment_on_that_this_is_asked_for_by_however_many_cpus() {
    for cpus in [1, 2, 16, 300] {
        let (nodes, node_of_cpu) = ([20_000], std::vec![0; cpus]);
        let frames = Frames::with_layout(Layout { nodes: &nodes, node_of_cpu: &node_of_cpu, list_frames: 4096 }).unwrap();
        // All CPUs free runs of all lengths, and take some again.
        let churn = || {
            let all: Vec<_> = (0..12_000).map(|i| (i, frames.alloc_on(i % cpus, i as u32 % MAX_RUN + 1))).collect();
            all.iter().filter_map(|(i, f)| Some((*i, (*f)?))).for_each(|(i, f)| {
                frames.free_on((i + i % 3) % cpus, f, i as u32 % MAX_RUN + 1).unwrap();
            });
            frames.held_bytes() / PAGE_SIZE
        };
        let all = churn();
        for kept in [4096, 256, 33, 8, 0, 64] {
            frames.keep(kept);
            let at_once = frames.held_bytes() / PAGE_SIZE;
            assert!(at_once <= kept, "{at_once} of {kept} frames, {cpus} CPUs");
            frames.validate().unwrap();
            let later = churn();
            assert!(later <= kept && (later > 0 || kept < MAX_RUN as usize), "{later} of {kept} frames, {cpus} CPUs");
            frames.validate().unwrap();
        }
        frames.keep(usize::MAX);
        assert_eq!(frames.kept(), Some(4096));
        assert!(churn() > all / 2, "it is as it was, {cpus} CPUs");
    }
}

#[test]
fn a_freed_run_is_at_hand_for_whichever_cpu_where_little_is_kept() {
    let frames = Frames::laid_out(Layout { nodes: &[4096], node_of_cpu: &[0; 64], list_frames: 256 }).unwrap();
    frames.keep(32);
    for cpu in 0..64 {
        let run = frames.alloc_on(cpu, MAX_RUN).unwrap();
        frames.free_on(cpu, run, MAX_RUN).unwrap();
        assert_eq!((frames.alloc_on(cpu, MAX_RUN), frames.free_on((cpu + 1) % 64, run, MAX_RUN)), (Some(run), Ok(())));
    }
    // In this order: summing reads all sets, which maps the kernel's zero page.
    let lists = frames.arenas[0].cpus.populated_bytes();
    assert!(lists <= 4 * PAGE_SIZE, "{lists} bytes, of four sets: the others are not used");
    assert_eq!(frames.held_bytes(), MAX_RUN as usize * PAGE_SIZE, "all had the same run");
}

#[test]
fn the_high_mark_follows_the_load() {
    let frames = two_cpus(40_000, 512);
    let high = || frames.arenas[0].cpus[0].lists.lock().high();
    let (most, least) = (256, 64);
    let mut held: Vec<FrameNo> = Vec::new();
    for _ in 0..8 {
        held.extend((0..400).map(|_| frames.alloc_on(0, 1).unwrap()));
        held.drain(100..).for_each(|f| frames.free_on(0, f, 1).unwrap());
        held.drain(..).for_each(|f| frames.free_on(0, f, 1).unwrap());
    }
    held.extend((0..5000).map(|_| frames.alloc_on(0, 1).unwrap()));
    assert_eq!(high(), most, "refills raise the mark to the bound");
    held.drain(..2500).for_each(|f| frames.free_on(0, f, 1).unwrap());
    assert_eq!(high(), least, "frees in bulk lower it");
    held.extend((0..5000).map(|_| frames.alloc_on(0, 1).unwrap()));
    held.iter().for_each(|f| frames.free_on(0, *f, 1).unwrap());
    assert_eq!((high(), frames.in_use()), (least, 0));
    assert!(frames.held_bytes() <= most as usize * PAGE_SIZE);
}

#[test]
fn each_node_serves_its_cpus_and_the_others_when_they_have_nothing() {
    let frames = Frames::with_layout(Layout { nodes: &[600, 512], node_of_cpu: &[0, 1, 1], list_frames: 64 }).unwrap();
    assert_eq!((frames.count(), node_of(&frames, FrameNo(1535)), node_of(&frames, FrameNo(1536))), (1536, Some(1), None));
    let mut held = Vec::new();
    for i in 0..1024 {
        let f = frames.alloc_on(0, 1).unwrap();
        assert_eq!(node_of(&frames, f), Some(0), "frame {i}");
        held.push(f);
    }
    let far = frames.alloc_on(0, 1).unwrap();
    assert_eq!((node_of(&frames, far), frames.alloc_on(2, 1).and_then(|f| node_of(&frames, f))), (Some(1), Some(1)));
    frames.free_on(1, far, 1).unwrap();
    frames.free_on(1, held[7], 1).unwrap();
    assert_eq!(frames.alloc_on(1, 1).and_then(|f| node_of(&frames, f)), Some(1));
    frames.drain();
    assert_eq!(frames.alloc_on(0, 1), Some(held[7]));
    // Across both arenas.
    assert_eq!(frames.free_run(FrameNo(1023), 2), Err(NotHandedOut));
}

/// Lists as in the largest pool.
fn many() -> Frames {
    let node_of_cpu: Vec<u8> = (0..256).map(|cpu| (cpu / 32) as u8).collect();
    Frames::with_layout(Layout { nodes: &[1024; 8], node_of_cpu: &node_of_cpu, list_frames: 64 * LIST_FRAMES }).unwrap()
}

/// Acquisitions of list locks, and of buddy locks.
fn locks(frames: &Frames) -> (u32, u32) {
    let lists = frames.arenas.iter().flat_map(|arena| arena.cpus.iter()).map(|cpu| cpu.lists.acquisitions()).sum();
    (lists, frames.arenas.iter().map(|arena| arena.stock.acquisitions()).sum())
}

fn locks_of<T>(frames: &Frames, f: impl FnOnce() -> T) -> (T, (u32, u32)) {
    let before = locks(frames);
    let value = f();
    let after = locks(frames);
    (value, (after.0 - before.0, after.1 - before.1))
}

#[test]
fn many_cpus_fetch_as_many_frames_at_once_as_few() {
    for frames in [two_cpus(1024, 64 * LIST_FRAMES), many()] {
        let (_, taken) = locks_of(&frames, || (0..64).for_each(|_| _ = frames.alloc_on(0, 1).unwrap()));
        assert_eq!(taken, (64, 1));
        frames.validate().unwrap();
    }
}

#[test]
fn who_finds_no_frame_and_who_drains_goes_to_no_lists_that_have_none() {
    let frames = many();
    let all: Vec<FrameNo> = core::iter::from_fn(|| frames.alloc_on(0, 1)).collect();
    assert_eq!(all.len(), 8 * 1024);
    assert_eq!(locks_of(&frames, || frames.alloc_on(0, 1)), (None, (1, 0)), "its own");
    assert_eq!(locks_of(&frames, || frames.alloc_on(255, 1)), (None, (1, 0)));
    assert_eq!(locks_of(&frames, || frames.drain()).1, (0, 0));
    for cpu in [3, 200] {
        frames.free_on(cpu, all[cpu], 1).unwrap();
    }
    assert_eq!(locks_of(&frames, || frames.drain()).1, (2, 2));
    assert_eq!(locks_of(&frames, || frames.drain()).1, (0, 0));
    frames.validate().unwrap();
    // From another node, merged with runs of other CPUs.
    all[..].iter().enumerate().filter(|(i, _)| ![3, 200].contains(i)).for_each(|(i, f)| frames.free_on(i, *f, 1).unwrap());
    let eights: Vec<_> = core::iter::from_fn(|| frames.alloc_on(255, 8)).collect();
    assert_eq!(eights.len(), 1024);
}

#[test]
fn what_is_freed_where_nothing_was_found_is_found_from_another_node() {
    let cpus = percpu::count().max(3);
    // Into lists; into lists that overflow first; and past lists that keep nothing.
    for (list_frames, n) in [(64 * LIST_FRAMES, 1), (8 * cpus, 8), (0, 1)] {
        let frames = Frames::with_layout(Layout { nodes: &[512, 512], node_of_cpu: &[0, 1, 1], list_frames }).unwrap();
        let all: Vec<FrameNo> = core::iter::from_fn(|| frames.alloc_on(0, n)).collect();
        assert_eq!((all.len(), frames.arrivals.count()), (1024 / n as usize, None), "and it is known");
        let far = all.into_iter().find(|f| node_of(&frames, *f) == Some(1)).unwrap();
        frames.free_on(2, far, n).unwrap();
        frames.validate().unwrap();
        assert_eq!(frames.alloc_on(0, n), Some(far), "{list_frames} in lists");
    }
}

#[test]
fn memory_is_found_with_far_cpus_among_many_that_have_none() {
    let layout = Layout { nodes: &[20_000], node_of_cpu: &[0; 200], list_frames: 64 * LIST_FRAMES };
    let frames = Frames::with_layout(layout).unwrap();
    (1..20).for_each(|cpu| _ = frames.alloc_on(cpu, 1).unwrap());
    for far in [30, 150] {
        let f = frames.alloc_on(far, 1).unwrap();
        frames.free_on(far, f, 1).unwrap();
        assert_eq!(frames.alloc_on(0, 1), Some(f), "of CPU {far}");
    }
}

#[test]
fn each_length_has_room_for_several_at_once() {
    let frames = two_cpus(4096, 0);
    for (n, at_once) in [(1, 64), (8, 5), (2, 9), (3, 3)] {
        let (_, taken) = locks_of(&frames, || (0..at_once).for_each(|_| _ = frames.alloc_on(0, n).unwrap()));
        assert_eq!(taken.1, 1, "runs of {n}");
        frames.alloc_on(0, n).unwrap();
        frames.validate().unwrap();
    }
}

#[test]
fn what_other_nodes_free_lies_where_it_is_used_with_its_memory() {
    let frames = many();
    let f = frames.alloc_on(5, 1).unwrap();
    fill(&frames, f, 1, 7);
    // CPU 5 of the last node.
    frames.free_on(7 * 32 + 5, f, 1).unwrap();
    assert_eq!((node_of(&frames, f), frames.alloc_on(5, 1)), (Some(0), Some(f)));
    frames.free_on(7 * 32 + 6, f, 1).unwrap();
    assert_eq!(frames.alloc_on(5, 1), Some(f), "from its neighbour");
    assert_eq!(frames.memory.populated_pages(), 1);
}

/// The call made after each fault must not sum over all CPUs.
#[test]
fn with_many_cpus_and_nodes_one_load_tells_what_all_lists_have() {
    let mut frames = many();
    let sets = frames.arenas.iter().map(|arena| arena.cpus.len()).sum::<usize>();
    assert_eq!(sets, percpu::count().max(256), "not for each CPU on each node");
    let counted = Arc::new(Counted::default());
    frames.count_in(&(counted.clone() as Arc<dyn Ledger>));
    let mut held = Vec::new();
    for step in 0..40_000 {
        let cpu = step * 7919 % 256;
        if step % 5 < 3 && held.len() < 2000 {
            held.extend(frames.alloc_on(cpu, 1 + step as u32 % 3).map(|f| (f, 1 + step as u32 % 3)));
        } else if let Some((f, n)) = held.pop() {
            frames.free_on(cpu, f, n).unwrap();
        }
        if step % 500 == 0 {
            assert_eq!(counted.bytes(), frames.held_bytes(), "step {step}");
        }
    }
    held.into_iter().for_each(|(f, n)| frames.free_on(0, f, n).unwrap());
    assert_eq!(counted.bytes(), frames.held_bytes());
    frames.drain();
    assert_eq!((counted.bytes(), frames.held_bytes()), (0, 0));
}

#[test]
fn layouts_that_make_no_sense_are_refused() {
    for (nodes, node_of_cpu) in
        [(&[][..], &[0][..]), (&[10, 0], &[0]), (&[10], &[1]), (&[10], &[]), (&[usize::MAX, 1], &[0]), (&[1; 65], &[0])]
    {
        assert_eq!(Frames::with_layout(Layout { nodes, node_of_cpu, list_frames: 64 }).err(), Some(Errno::INVAL));
    }
}

#[test]
fn threads_never_share_a_frame_while_one_drains() {
    let frames = Frames::new(600).unwrap();
    let done = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for t in 0..3u8 {
            let (frames, done) = (&frames, &done);
            s.spawn(move || {
                let mut held: Vec<(FrameNo, u32)> = Vec::new();
                let mut seed = t as u32 + 1;
                for i in 0..4000 {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let n = (seed >> 20) % 8 + 1;
                    if held.len() < 20
                        && let Some(f) = frames.alloc_run(n)
                    {
                        fill(frames, f, n, t);
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
                done.fetch_add(1, Release);
            });
        }
        while done.load(Acquire) < 3 {
            frames.drain();
            std::thread::yield_now();
        }
    });
    assert_eq!(frames.in_use(), 0);
    frames.drain();
    assert!(is_whole(&frames));
    assert_eq!((frames.held_bytes(), frames.memory.populated_pages()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn runs_never_overlap_and_merge_fully(
        count in 1usize..1500,
        list_frames in 0usize..1200,
        ops in prop::collection::vec((1u32..=MAX_RUN, any::<prop::sample::Index>(), 0usize..3), 1..200),
    ) {
        let nodes = [count, 700];
        let layout = Layout { nodes: &nodes[..1 + count % 2], node_of_cpu: &[0, (count % 2) as u8, 0], list_frames };
        let mut frames = Frames::with_layout(layout).unwrap();
        let counted = Arc::new(Counted::default());
        frames.count_in(&(counted.clone() as Arc<dyn Ledger>));
        let mut held: BTreeMap<u32, u32> = BTreeMap::new();
        let mut kept = list_frames;
        for (n, which, cpu) in ops {
            if n == 7 {
                kept = which.index(2 * list_frames + 1).min(list_frames);
                frames.keep(kept);
            }
            if n % 3 != 0 || held.is_empty() {
                if let Some(FrameNo(start)) = frames.alloc_on(cpu, n) {
                    prop_assert!(start + n <= frames.count() as u32 && start.is_multiple_of(n.next_power_of_two()));
                    prop_assert_eq!(node_of(&frames, FrameNo(start)), node_of(&frames, FrameNo(start + n - 1)));
                    let before = held.range(..start + n).next_back();
                    prop_assert!(before.is_none_or(|(s, len)| s + len <= start), "overlap");
                    held.insert(start, n);
                } else {
                    prop_assert!(!held.is_empty() || n.next_power_of_two() as usize > count);
                }
            } else if n % 2 == 0 {
                let (&start, &len) = held.iter().nth(which.index(held.len())).unwrap();
                held.remove(&start);
                frames.free_on(cpu, FrameNo(start), len).unwrap();
            } else {
                held.iter().filter(|r| *r.1 == 1).for_each(|r| frames.free_on(cpu, FrameNo(*r.0), 1).unwrap());
                held.retain(|_, len| *len != 1);
            }
            let in_use = held.values().sum::<u32>() as usize;
            prop_assert_eq!(frames.in_use(), in_use);
            prop_assert_eq!(counted.bytes(), frames.held_bytes(), "one load, and the sum over all CPUs");
            prop_assert!(frames.held_bytes() <= (in_use + kept) * PAGE_SIZE);
            prop_assert_eq!(frames.validate(), Ok(()));
        }
        for (start, len) in held {
            frames.free_run(FrameNo(start), len).unwrap();
        }
        frames.drain();
        prop_assert!(is_whole(&frames));
        prop_assert_eq!((frames.in_use(), frames.held_bytes(), counted.bytes()), (0, 0, 0));
    }
}
