//! Any sequence of allocations, frees and drains of frames on behalf of several CPUs and nodes, against a plain map of the runs
//! in use, whose bytes say whose they are.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use lowtide_core::frame::{FrameNo, Frames, Layout, MAX_RUN};
use lowtide_core::vm::PAGE_SIZE;

/// One call of the allocator.
#[derive(Arbitrary, Debug)]
enum Op {
    /// From none to one frame too many, by way of the CPU that this thread runs on.
    Alloc {
        n: u8,
    },
    /// The same on behalf of a CPU.
    AllocOn {
        cpu: u8,
        n: u8,
    },
    /// A run in use.
    Free {
        cpu: u8,
        which: u8,
    },
    /// Whatever the numbers name, which may not be in use.
    FreeAny {
        cpu: u8,
        first: u16,
        n: u16,
    },
    Drain,
}

#[derive(Arbitrary, Debug)]
struct Case {
    nodes: [u16; 2],
    two_nodes: bool,
    node_of_cpu: [bool; 3],
    list_frames: u16,
    ops: Vec<Op>,
}

struct World {
    frames: Frames,
    /// Length by first frame; runs don't overlap.
    runs: BTreeMap<u32, u32>,
    /// First frame and length of each node.
    nodes: Vec<(u32, u32)>,
    list_frames: usize,
}

impl World {
    fn new(case: &Case) -> World {
        let sizes = case.nodes.map(|n| usize::from(n) % 2048 + 1);
        let sizes = &sizes[..1 + usize::from(case.two_nodes)];
        let node_of_cpu = case.node_of_cpu.map(|node| u8::from(node && case.two_nodes));
        let list_frames = usize::from(case.list_frames) % 2048;
        let frames = Frames::with_layout(Layout { nodes: sizes, node_of_cpu: &node_of_cpu, list_frames }).unwrap();
        let count = frames.count() as u32;
        // All but the last are rounded up.
        let second = if case.two_nodes { count - sizes[1] as u32 } else { count };
        let nodes = [(0, second), (second, count - second)].into_iter().filter(|node| node.1 > 0).collect();
        World { frames, runs: BTreeMap::new(), nodes, list_frames }
    }

    fn is_free(&self, first: u32, n: u32) -> bool {
        self.runs.range(..first + n).next_back().is_none_or(|(s, len)| s + len <= first)
    }

    fn is_used(&self, first: u32, n: u32) -> bool {
        (first..first + n).all(|frame| !self.is_free(frame, 1))
    }

    /// Whether a whole free block is left that such a run would fit.
    fn has_block(&self, n: u32) -> bool {
        let block = n.next_power_of_two();
        let fits = |(start, len): &(u32, u32)| {
            (*start..(start + len + 1).saturating_sub(block)).step_by(block as usize).any(|first| self.is_free(first, block))
        };
        self.nodes.iter().any(fits)
    }

    fn alloc(&mut self, cpu: usize, n: u32, got: Option<FrameNo>) {
        let Some(FrameNo(first)) = got else {
            // Lists may keep runs that the buddy would not find, but not the other way round.
            assert!(!(1..=MAX_RUN).contains(&n) || !self.has_block(n), "gave up on {n} frames for {cpu}");
            return;
        };
        assert!((1..=MAX_RUN).contains(&n) && first.is_multiple_of(n.next_power_of_two()) && self.is_free(first, n));
        assert!(self.nodes.iter().any(|(start, len)| *start <= first && first + n <= start + len), "not of one node");
        self.runs.insert(first, n);
        (first..first + n).for_each(|frame| self.write(frame));
    }

    /// The bytes at both ends of a frame.
    fn ends(&self, frame: u32) -> [*mut u32; 2] {
        let start = self.frames.ptr(FrameNo(frame)).cast::<u32>();
        [start, start.wrapping_add(PAGE_SIZE / 4 - 1)]
    }

    /// Memory behind each frame in use: what is held is known only if it is.
    fn write(&self, frame: u32) {
        // SAFETY: both ends are inside the frame, which is handed out to this thread, the only one, and aligned.
        self.ends(frame).iter().for_each(|end| unsafe { end.write(!frame) });
    }

    fn assert_kept(&self, frame: u32) {
        // SAFETY: as above.
        let kept = self.ends(frame).iter().all(|end| unsafe { end.read() } == !frame);
        assert!(kept, "frame {frame} has lost its bytes while in use");
    }

    fn forget(&mut self, first: u32, n: u32) {
        for frame in first..first + n {
            let (start, len) = self.runs.range(..=frame).next_back().map(|(s, l)| (*s, *l)).unwrap();
            self.runs.remove(&start);
            for (start, len) in [(start, frame - start), (frame + 1, start + len - frame - 1)] {
                if len > 0 {
                    self.runs.insert(start, len);
                }
            }
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Alloc { n } => {
                let n = u32::from(n) % (MAX_RUN + 2);
                let got = self.frames.alloc_run(n);
                self.alloc(0, n, got);
            }
            Op::AllocOn { cpu, n } => {
                let (cpu, n) = (cpu.into(), u32::from(n) % (MAX_RUN + 2));
                let got = self.frames.alloc_on(cpu, n);
                self.alloc(cpu, n, got);
            }
            Op::Free { cpu, which } => {
                let Some((&first, &n)) = self.runs.iter().nth(usize::from(which) % self.runs.len().max(1)) else { return };
                (first..first + n).for_each(|frame| self.assert_kept(frame));
                self.frames.free_on(cpu.into(), FrameNo(first), n).unwrap();
                self.forget(first, n);
            }
            Op::FreeAny { cpu, first, n } => {
                let (first, n) = (u32::from(first), u32::from(n));
                let in_one_node = self.nodes.iter().any(|(start, len)| *start <= first && first + n <= start + len);
                let begins = (1..=MAX_RUN).contains(&n) && first.is_multiple_of(n.next_power_of_two());
                let right = begins && in_one_node && self.is_used(first, n);
                assert_eq!(self.frames.free_on(cpu.into(), FrameNo(first), n).is_ok(), right);
                if right {
                    self.forget(first, n);
                }
            }
            Op::Drain => {
                self.frames.drain();
                assert_eq!(self.frames.held_bytes(), self.frames.in_use() * PAGE_SIZE, "memory was not given back");
            }
        }
    }

    fn check(&self) {
        self.frames.validate().unwrap();
        let in_use: u32 = self.runs.values().sum();
        assert_eq!(self.frames.in_use(), in_use as usize);
        assert!(self.frames.held_bytes() <= (in_use as usize + self.list_frames) * PAGE_SIZE);
    }
}

fn run(case: Case) {
    let mut world = World::new(&case);
    for op in &case.ops {
        world.apply(op);
        world.check();
    }
    for (first, n) in core::mem::take(&mut world.runs) {
        (first..first + n).for_each(|frame| world.assert_kept(frame));
        world.frames.free_run(FrameNo(first), n).unwrap();
    }
    world.apply(&Op::Drain);
    world.check();
    // All has merged: each node has as many of the longest runs as fit.
    let runs: u32 = world.nodes.iter().map(|(_, len)| len / MAX_RUN).sum();
    (0..runs).for_each(|_| assert!(world.frames.alloc_run(MAX_RUN).is_some(), "frames have not merged"));
    assert_eq!(world.frames.alloc_run(MAX_RUN), None);
}

fuzz_target!(|case: Case| run(case));
