//! Page frames of one reserved range of memory: an arena per NUMA node, each a buddy with lists for each CPU of the node in
//! front of it.
//!
//! - `bits.rs`, `buddy.rs`: which frames are free, in blocks of 2^order. `stock.rs`: under a lock, and how many without.
//! - `cpu_lists.rs`: the free runs that a CPU keeps, their high mark and how it adapts. `share.rs`: how much of what all may keep
//!   falls to each. `noted.rs`: which lists may have some.
//! - `arena.rs`: both; the fast path is one CPU's lock, not contended as long as threads stay on their CPUs.
//! - `drain.rs`: runs leave the lists, give their memory back to the kernel in batches, and reach the buddy.
//! - `arrivals.rs`: whether anything came since nothing was found.
//! - `nodes.rs`: the nodes of this machine. `places.rs`: where a CPU has its lists. `parts.rs`: which arena a frame is of.
//! - `handed.rs`: frees of what is not handed out are errors. `validate.rs`: checks.
//!
//! Nothing that is done for one frame walks over CPUs, and over nodes only what finds no frame on its own, as long as there are
//! some elsewhere.
//!
//! Freed frames stay in the lists with the memory behind them (warm). A free frame in the buddy never has memory. So the memory
//! held is known: [`Frames::held_bytes`].

mod arena;
mod arrivals;
mod bits;
mod buddy;
mod cpu_lists;
mod drain;
mod handed;
mod nodes;
mod noted;
mod parts;
mod places;
mod share;
mod stock;
mod validate;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::io::Errno;

use crate::ledger::Ledger;
use crate::percpu;
use crate::sync::atomic::AtomicUsize;
use crate::vm::{self, Mapping, OnFork, PAGE_SIZE};
use arena::Arena;
use arrivals::Arrivals;
use handed::Handed;
use parts::Parts;
use places::{Place, Places};
use share::LEAST_OF_SET;

pub use buddy::Buddy;
pub use cpu_lists::{CpuLists, ListedRun, Runs, kind_of};
pub use validate::Broken;

/// Longest run that is handed out.
pub const MAX_RUN: u32 = 8;

/// Order of the largest blocks in which the buddy keeps free frames: 2^9, 2 MiB.
const MAX_ORDER: u32 = 9;

/// Most free frames with memory in the lists of all CPUs together, unless [`Layout`] says otherwise: 1 MiB.
pub const LIST_FRAMES: usize = 256;

/// A frame, by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameNo(pub u32);

/// The frames that were to be freed are not a run that is handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotHandedOut;

/// Consecutive frames.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Run {
    /// The first.
    pub start: u32,
    /// How many frames the run has.
    pub frames: u32,
}

/// How frames are divided over nodes and CPUs.
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a> {
    /// Frames of each node; all but the last are rounded up to a multiple of the largest block.
    pub nodes: &'a [usize],
    /// The node of each CPU, by index into `nodes`; CPUs beyond the end begin again.
    pub node_of_cpu: &'a [u8],
    /// Most free frames with memory in the lists of all CPUs and nodes together, unless fewer are to be kept
    /// ([`Frames::keep`]): bounds the memory that is held and not used.
    pub list_frames: usize,
}

/// Page frames. All methods are thread-safe; the locks inside (`CPU_FRAMES`, then `BUDDY`) are the innermost of lowtide.
#[derive(Debug)]
pub struct Frames {
    memory: Mapping,
    count: usize,
    arenas: Box<[Arena]>,
    /// Which of these a frame is of.
    parts: Parts,
    places: Places,
    handed: Handed,
    arrivals: Arc<Arrivals>,
    /// See [`Layout`].
    list_frames: usize,
    /// How many of these the lists may keep now; [`CHANGING`] while a thread changes that.
    kept: AtomicUsize,
}

/// In place of how many frames the lists may keep.
const CHANGING: usize = usize::MAX;

impl Frames {
    /// Reserves `count` frames, divided evenly over the nodes of this machine. No memory is used until frames are written to.
    ///
    /// # Errors
    /// `NOMEM` when the kernel refuses the range, `INVAL` for no frames or more than 2^31.
    pub fn new(count: usize) -> Result<Frames, Errno> {
        Frames::with_list_frames(count, LIST_FRAMES)
    }

    /// As [`Frames::new`], with at most `list_frames` free frames with memory in the lists of all CPUs.
    ///
    /// # Errors
    /// As [`Frames::new`].
    pub fn with_list_frames(count: usize, list_frames: usize) -> Result<Frames, Errno> {
        let frames = Frames::keeping_none(count, list_frames)?;
        frames.keep(list_frames);
        Ok(frames)
    }

    /// The same, but none is kept before [`Frames::keep`] says how many: lists take memory when they are used.
    ///
    /// # Errors
    /// As [`Frames::new`].
    pub fn keeping_none(count: usize, list_frames: usize) -> Result<Frames, Errno> {
        let found = nodes::detect();
        let block = 1usize << MAX_ORDER;
        // A node's worth of a small arena would be less than a large block: not worth dividing.
        let nodes = found.nodes.min(count / (64 * block)).max(1);
        let each = (count / nodes).next_multiple_of(block);
        let mut counts = [each; nodes::MAX_NODES];
        counts[nodes - 1] = count.saturating_sub(each * (nodes - 1));
        let node_of_cpu = &found.onto(nodes)[..percpu::count()];
        Frames::laid_out(Layout { nodes: &counts[..nodes], node_of_cpu, list_frames })
    }

    /// Most free frames that the lists of `cpus` CPUs keep, of which `list_frames` with memory. The others are only numbers, but
    /// whoever is to hand out a known number of frames without a drain needs as many more.
    pub fn most_listed(list_frames: usize, cpus: usize) -> usize {
        let sets = cpus.min((list_frames / LEAST_OF_SET).max(nodes::MAX_NODES));
        list_frames + sets * cpu_lists::MOST_COLD as usize
    }

    /// Frames divided as `layout` says, whatever the nodes and CPUs of this machine.
    ///
    /// # Errors
    /// As [`Frames::new`]; `INVAL` also for a layout that contradicts itself.
    pub fn with_layout(layout: Layout<'_>) -> Result<Frames, Errno> {
        let frames = Frames::laid_out(layout)?;
        frames.keep(layout.list_frames);
        Ok(frames)
    }

    fn laid_out(layout: Layout<'_>) -> Result<Frames, Errno> {
        let nodes = layout.nodes.len();
        let known = layout.node_of_cpu.iter().all(|&n| usize::from(n) < nodes);
        if !(1..=nodes::MAX_NODES).contains(&nodes) || !known || layout.node_of_cpu.is_empty() || layout.nodes.contains(&0) {
            return Err(Errno::INVAL);
        }
        let block = 1usize << MAX_ORDER;
        let size = |i: usize, n: usize| if i + 1 < nodes { n.checked_next_multiple_of(block) } else { Some(n) };
        let sizes = layout.nodes.iter().enumerate().map(|(i, &n)| size(i, n));
        let add = |sum: usize, n: Option<usize>| sum.checked_add(n?);
        let count = sizes.clone().try_fold(0, add).filter(|&n| n <= 1 << 31).ok_or(Errno::INVAL)?;
        let cpus = percpu::count().max(layout.node_of_cpu.len());
        let (places, lists) = Places::new(cpus, layout.node_of_cpu, nodes, layout.list_frames / (nodes * LEAST_OF_SET));

        let handed = Handed::new(count)?;
        let memory = vm::map(count * PAGE_SIZE, OnFork::Copy)?;
        let arrivals = Arc::new(Arrivals::new());
        let (list_frames, kept) = (layout.list_frames, AtomicUsize::new(0));
        let (arenas, parts) = (Box::default(), Parts::new(&[]));
        let mut frames = Frames { memory, count, arenas, parts, places, handed, arrivals, list_frames, kept };
        let mut base = 0;
        let mut arenas = Vec::with_capacity(nodes);
        for (size, lists) in sizes.flatten().zip(lists) {
            arenas.push(Arena::new(memory, (base as u32, size as u32), lists, &frames.arrivals)?);
            base += size;
        }
        frames.parts = Parts::new(&Vec::from_iter(arenas.iter().map(|arena| arena.range().end)));
        frames.arenas = arenas.into();
        Ok(frames)
    }

    /// Forked children have no frames, but for the tables of them.
    ///
    /// # Errors
    /// `NOMEM` when the kernel refuses: they get copies.
    pub fn keep_from_children(&self) -> Result<(), Errno> {
        self.memory.keep_from_children()
    }

    /// Hands out `n` consecutive frames, 1 to [`MAX_RUN`], at a multiple of `n` rounded up to a power of two, of this CPU's
    /// node if it has some; `None` when there is no such run. Their bytes are undefined.
    #[inline]
    pub fn alloc_run(&self, n: u32) -> Option<FrameNo> {
        self.alloc_on(percpu::current(), n)
    }

    /// As [`Frames::alloc_run`], on behalf of a CPU.
    #[inline]
    pub fn alloc_on(&self, cpu: usize, n: u32) -> Option<FrameNo> {
        let place = self.places.of(cpu);
        match self.arenas[usize::from(place.node)].take(place.lists.into(), n, &self.handed) {
            None => self.alloc_elsewhere(place, n),
            some => some,
        }
    }

    /// The node of the CPU has no such run at hand: other nodes, and then what other CPUs keep in their lists.
    #[cold]
    fn alloc_elsewhere(&self, place: Place, n: u32) -> Option<FrameNo> {
        // No list has runs of another length.
        kind_of(n)?;
        let arrivals = self.arrivals.count()?;
        let take = |arena: &Arena| arena.may_have(n).then(|| arena.take(place.lists.into(), n, &self.handed)).flatten();
        let (before, from) = self.arenas.split_at(place.node.into());
        let (home, after) = from.split_first()?;
        let found = after.iter().chain(before).find_map(take).or_else(|| {
            self.drain();
            take(home).or_else(|| after.iter().chain(before).find_map(take))
        });
        if found.is_none() && !self.arenas.iter().any(|arena| arena.may_have(1)) {
            self.arrivals.none_after(arrivals);
        }
        found
    }

    /// The arena that holds the `n` frames from `frame` on.
    #[inline]
    fn arena_of(&self, frame: FrameNo, n: u32) -> Option<&Arena> {
        let (start, end) = (frame.0 as usize, frame.0 as usize + n as usize);
        // Of one there is nothing to be looked up: all that is done with it would have to wait for that.
        let first = if self.arenas.len() == 1 { 0 } else { self.parts.first_of(frame.0)? };
        let arena = self.arenas.get(first)?;
        let arena = if start < arena.range().end { arena } else { self.arena_after(first, start)? };
        (end <= arena.range().end).then_some(arena)
    }

    /// The arena of the frame `start`, which is one after `first`.
    #[cold]
    fn arena_after(&self, first: usize, start: usize) -> Option<&Arena> {
        self.arenas[first + 1..].iter().find(|arena| start < arena.range().end)
    }

    /// Frees the run of `n` frames from `frame` on. The caller owns them: two threads that free the same frame at the same
    /// moment may both succeed.
    ///
    /// # Errors
    /// If one of them is not handed out, or no run of that length begins there; nothing changes then.
    #[inline]
    pub fn free_run(&self, frame: FrameNo, n: u32) -> Result<(), NotHandedOut> {
        self.free_on(percpu::current(), frame, n)
    }

    /// As [`Frames::free_run`], on behalf of a CPU.
    ///
    /// # Errors
    /// As [`Frames::free_run`].
    #[inline]
    pub fn free_on(&self, cpu: usize, frame: FrameNo, n: u32) -> Result<(), NotHandedOut> {
        let arena = self.arena_of(frame, n).ok_or(NotHandedOut)?;
        arena.put(self.places.of(cpu).lists.into(), frame, n, &self.handed)
    }

    /// Empties the lists of all CPUs and gives their memory back to the kernel. Any thread may do so, whatever CPUs are up to;
    /// it takes the locks of those lists only that may hold something. Waits for no thread but the holder of a lock, and wakes
    /// none. What other threads free meanwhile may stay.
    pub fn drain(&self) {
        self.arenas.iter().for_each(Arena::drain);
    }

    /// How many free frames with memory the lists may keep together now; `None` while a thread changes that.
    #[inline]
    pub fn kept(&self) -> Option<usize> {
        Some(self.kept.load(Relaxed)).filter(|kept| *kept != CHANGING)
    }

    /// The lists are to keep no more than `frames` free frames with memory together from now on, nor than the [`Layout`] allows;
    /// what is too much goes back to the kernel before this returns. Does nothing while another thread does the same. Takes the
    /// lock of each set of lists: for seldom.
    pub fn keep(&self, frames: usize) {
        let frames = frames.min(self.list_frames);
        let Some(before) = self.kept() else { return };
        // Acquire: pairs with the Release below. What the thread before has set is changed by this one, and not after it.
        if self.kept.compare_exchange(before, CHANGING, Acquire, Relaxed).is_err() {
            return;
        }
        self.arenas.iter().for_each(|arena| arena.keep(frames / self.arenas.len()));
        self.kept.store(frames, Release);
    }

    /// Tells `ledger` what memory is behind frames ([`Frames::held_bytes`]), from now on whenever that changes.
    pub fn count_in(&mut self, ledger: &Arc<dyn Ledger>) {
        ledger.add(self.held_bytes() as isize);
        self.arenas.iter_mut().for_each(|arena| arena.ledger = ledger.clone());
    }

    /// Address of a frame's first byte. A run of frames is contiguous there.
    ///
    /// # Panics
    /// If there is no such frame.
    pub fn ptr(&self, frame: FrameNo) -> *mut u8 {
        assert!((frame.0 as usize) < self.count);
        // SAFETY: inside the mapping.
        unsafe { self.memory.as_ptr().add(frame.0 as usize * PAGE_SIZE) }
    }

    /// How many nodes the frames are divided over.
    #[inline]
    pub fn nodes(&self) -> usize {
        self.arenas.len()
    }

    /// Most free frames with memory that the lists may ever keep: see [`Layout`].
    #[inline]
    pub fn list_frames(&self) -> usize {
        self.list_frames
    }

    /// Frames of all nodes.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Frames handed out. Exact when no other call is in flight. Adds up over all CPUs of all nodes, some of whose figures are
    /// in no cache: for checks.
    pub fn in_use(&self) -> usize {
        self.arenas.iter().map(Arena::in_use).sum::<isize>().max(0) as usize
    }

    /// Bytes of memory behind frames: those handed out, and those freed whose memory was not given back yet. A frame that is
    /// handed out counts before it is written to. Exact when no other call is in flight. Adds up as [`Frames::in_use`] does:
    /// who wants to know it often asks a ledger ([`Frames::count_in`]), which knows the same by one load.
    pub fn held_bytes(&self) -> usize {
        let warm: isize = self.arenas.iter().map(Arena::warm).sum();
        self.in_use() * PAGE_SIZE + warm.max(0) as usize * PAGE_SIZE
    }

    /// Addresses of the frames: the memory that [`Frames::held_bytes`] is about.
    pub fn addresses(&self) -> core::ops::Range<usize> {
        self.memory.addr()..self.memory.addr() + self.memory.len()
    }

    /// Bytes of memory that the allocator's own tables take.
    pub fn table_bytes(&self) -> usize {
        let fixed = size_of_val(&*self.arenas) + self.parts.table_bytes() + self.places.table_bytes();
        fixed + self.handed.table_bytes() + self.arenas.iter().map(Arena::table_bytes).sum::<usize>()
    }

    /// Makes the locks usable in a forked child.
    ///
    /// # Safety
    /// As [`crate::lock::Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        if self.kept().is_none() {
            // A thread of the parent was at it: some lists may keep as many as ever, which the next change sets right.
            self.kept.store(self.list_frames, Relaxed);
        }
        for arena in &self.arenas {
            // SAFETY: the caller answers.
            unsafe { arena.reset_after_fork() }
        }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        // SAFETY: pointers to frames are not used beyond the life of their allocator: whoever holds frames also holds it.
        unsafe { self.memory.retire() }
    }
}

#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
mod tests;

#[cfg(all(test, any(feature = "loom", feature = "shuttle")))]
mod models;
