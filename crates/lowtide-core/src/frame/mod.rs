//! Page frames of one reserved range: an arena per NUMA node, each a buddy with free lists per CPU
//! in front of it.
//!
//! - `buddy.rs`, `bits.rs`: free blocks; `stock.rs`: their lock.
//! - `cpu_lists.rs`: a CPU's free runs; `share.rs`: their bound; `noted.rs`: which lists may hold
//!   runs.
//! - `arena.rs`: both; the fast path takes one lock, uncontended while threads stay on their CPUs.
//! - `drain.rs`: runs leave the lists, lose their memory, and reach the buddy.
//! - `arrivals.rs`: whether frames came since a search found none.
//! - `nodes.rs`, `places.rs`, `parts.rs`: the NUMA nodes, each CPU's lists, each frame's arena.
//! - `handed.rs`, `validate.rs`: checks.
//!
//! No operation on a frame walks over CPUs, and only one that finds no frame on its node walks over
//! nodes.
//!
//! Freed frames in lists keep their memory (warm); those in the buddy have none. So the memory held
//! is known: [`Frames::held_bytes`].

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

/// The longest run, in frames.
pub const MAX_RUN: u32 = 8;

/// Order of the buddy's largest blocks: 2^9 frames, 2 MiB.
const MAX_ORDER: u32 = 9;

/// Default for [`Layout`]'s `list_frames`: 1 MiB.
pub const LIST_FRAMES: usize = 256;

/// A frame, by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameNo(pub u32);

/// The frames are not a run that is handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotHandedOut;

/// Consecutive frames.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Run {
    /// The first frame.
    pub start: u32,
    /// Number of frames.
    pub frames: u32,
}

/// The division of frames over nodes and CPUs.
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a> {
    /// Frames of each node, rounded up (except the last) to the largest block.
    pub nodes: &'a [usize],
    /// Index into `nodes` by CPU, repeated for further CPUs.
    pub node_of_cpu: &'a [u8],
    /// Most free frames with memory in all lists; [`Frames::keep`] may lower it.
    pub list_frames: usize,
}

/// Page frames. Thread-safe; its locks (`CPU_FRAMES`, then `BUDDY`) are the innermost of lowtide.
#[derive(Debug)]
pub struct Frames {
    memory: Mapping,
    count: usize,
    arenas: Box<[Arena]>,
    parts: Parts,
    places: Places,
    handed: Handed,
    arrivals: Arc<Arrivals>,
    list_frames: usize,
    /// [`CHANGING`] while a thread changes it.
    kept: AtomicUsize,
}

const CHANGING: usize = usize::MAX;

impl Frames {
    /// Reserves `count` frames, divided evenly over this machine's nodes. Frames take memory once
    /// written to.
    ///
    /// # Errors
    /// `NOMEM` from the kernel, `INVAL` for no frames or more than 2^31.
    pub fn new(count: usize) -> Result<Frames, Errno> {
        Frames::with_list_frames(count, LIST_FRAMES)
    }

    /// As [`Frames::new`], with a bound on free frames with memory.
    ///
    /// # Errors
    /// As [`Frames::new`].
    pub fn with_list_frames(count: usize, list_frames: usize) -> Result<Frames, Errno> {
        let frames = Frames::keeping_none(count, list_frames)?;
        frames.keep(list_frames);
        Ok(frames)
    }

    /// As [`Frames::with_list_frames`], but the lists keep none until [`Frames::keep`].
    ///
    /// # Errors
    /// As [`Frames::new`].
    pub fn keeping_none(count: usize, list_frames: usize) -> Result<Frames, Errno> {
        let found = nodes::detect();
        let block = 1usize << MAX_ORDER;
        // Below 64 large blocks per node, dividing does not pay.
        let nodes = found.nodes.min(count / (64 * block)).max(1);
        let each = (count / nodes).next_multiple_of(block);
        let mut counts = [each; nodes::MAX_NODES];
        counts[nodes - 1] = count.saturating_sub(each * (nodes - 1));
        let node_of_cpu = &found.onto(nodes)[..percpu::count()];
        Frames::laid_out(Layout { nodes: &counts[..nodes], node_of_cpu, list_frames })
    }

    /// Most free frames in the lists of `cpus` CPUs: the reserve to allocate without a drain.
    pub fn most_listed(list_frames: usize, cpus: usize) -> usize {
        let sets = cpus.min((list_frames / LEAST_OF_SET).max(nodes::MAX_NODES));
        list_frames + sets * cpu_lists::MOST_COLD as usize
    }

    /// Frames divided as `layout` says.
    ///
    /// # Errors
    /// As [`Frames::new`]; `INVAL` also for an inconsistent layout.
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

    /// Keeps the frames, but not their tables, from forked children.
    ///
    /// # Errors
    /// `NOMEM` from the kernel: children then get copies.
    pub fn keep_from_children(&self) -> Result<(), Errno> {
        self.memory.keep_from_children()
    }

    /// Allocates `n` consecutive frames, 1 to [`MAX_RUN`], aligned to `n` rounded up to a power of
    /// two, preferably of this CPU's node; their bytes are undefined.
    #[inline]
    pub fn alloc_run(&self, n: u32) -> Option<FrameNo> {
        self.alloc_on(percpu::current(), n)
    }

    /// As [`Frames::alloc_run`], for a given CPU.
    #[inline]
    pub fn alloc_on(&self, cpu: usize, n: u32) -> Option<FrameNo> {
        let place = self.places.of(cpu);
        match self.arenas[usize::from(place.node)].take(place.lists.into(), n, &self.handed) {
            None => self.alloc_elsewhere(place, n),
            some => some,
        }
    }

    /// Tries other nodes, then drains all lists.
    #[cold]
    fn alloc_elsewhere(&self, place: Place, n: u32) -> Option<FrameNo> {
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

    #[inline]
    fn arena_of(&self, frame: FrameNo, n: u32) -> Option<&Arena> {
        let (start, end) = (frame.0 as usize, frame.0 as usize + n as usize);
        // With one arena no load from `parts`, which everything after would wait for.
        let first = if self.arenas.len() == 1 { 0 } else { self.parts.first_of(frame.0)? };
        let arena = self.arenas.get(first)?;
        let arena = if start < arena.range().end { arena } else { self.arena_after(first, start)? };
        (end <= arena.range().end).then_some(arena)
    }

    #[cold]
    fn arena_after(&self, first: usize, start: usize) -> Option<&Arena> {
        self.arenas[first + 1..].iter().find(|arena| start < arena.range().end)
    }

    /// Frees `n` frames that the caller owns. Two threads that free the same frame at once may both
    /// succeed.
    ///
    /// # Errors
    /// If one is not handed out, or no run of `n` can begin there; nothing changes.
    #[inline]
    pub fn free_run(&self, frame: FrameNo, n: u32) -> Result<(), NotHandedOut> {
        self.free_on(percpu::current(), frame, n)
    }

    /// As [`Frames::free_run`], for a given CPU.
    ///
    /// # Errors
    /// As [`Frames::free_run`].
    #[inline]
    pub fn free_on(&self, cpu: usize, frame: FrameNo, n: u32) -> Result<(), NotHandedOut> {
        let arena = self.arena_of(frame, n).ok_or(NotHandedOut)?;
        arena.put(self.places.of(cpu).lists.into(), frame, n, &self.handed)
    }

    /// Empties all lists and returns their memory to the kernel. Callable from any thread; locks
    /// only lists that may hold runs. Concurrent frees may stay.
    pub fn drain(&self) {
        self.arenas.iter().for_each(Arena::drain);
    }

    /// Free frames with memory that the lists may keep; `None` while a thread changes it.
    #[inline]
    pub fn kept(&self) -> Option<usize> {
        Some(self.kept.load(Relaxed)).filter(|kept| *kept != CHANGING)
    }

    /// Sets [`Frames::kept()`], at most [`Frames::list_frames()`]; returns the excess to the
    /// kernel. No effect during another such call. Takes all list locks: call it seldom.
    pub fn keep(&self, frames: usize) {
        let frames = frames.min(self.list_frames);
        let Some(before) = self.kept() else { return };
        // Acquire: pairs with the Release below.
        if self.kept.compare_exchange(before, CHANGING, Acquire, Relaxed).is_err() {
            return;
        }
        self.arenas.iter().for_each(|arena| arena.keep(frames / self.arenas.len()));
        self.kept.store(frames, Release);
    }

    /// Reports all changes of [`Frames::held_bytes`] to `ledger`.
    pub fn count_in(&mut self, ledger: &Arc<dyn Ledger>) {
        ledger.add(self.held_bytes() as isize);
        self.arenas.iter_mut().for_each(|arena| arena.ledger = ledger.clone());
    }

    /// Address of a frame; runs are contiguous.
    ///
    /// # Panics
    /// If there is no such frame.
    pub fn ptr(&self, frame: FrameNo) -> *mut u8 {
        assert!((frame.0 as usize) < self.count);
        // SAFETY: inside the mapping.
        unsafe { self.memory.as_ptr().add(frame.0 as usize * PAGE_SIZE) }
    }

    /// Number of nodes.
    #[inline]
    pub fn nodes(&self) -> usize {
        self.arenas.len()
    }

    /// Upper limit of [`Frames::kept()`].
    #[inline]
    pub fn list_frames(&self) -> usize {
        self.list_frames
    }

    /// Frames of all nodes.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Frames handed out; exact if no call is in flight. Sums over all CPUs: for checks.
    pub fn in_use(&self) -> usize {
        self.arenas.iter().map(Arena::in_use).sum::<isize>().max(0) as usize
    }

    /// Bytes of memory behind frames: handed out (written or not), or freed and not yet returned to
    /// the kernel. Exact if no call is in flight. Sums over all CPUs; a ledger has the total in one
    /// load ([`Frames::count_in`]).
    pub fn held_bytes(&self) -> usize {
        let warm: isize = self.arenas.iter().map(Arena::warm).sum();
        self.in_use() * PAGE_SIZE + warm.max(0) as usize * PAGE_SIZE
    }

    /// The frames' addresses.
    pub fn addresses(&self) -> core::ops::Range<usize> {
        self.memory.addr()..self.memory.addr() + self.memory.len()
    }

    /// Bytes of the allocator's tables.
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
            // The parent was changing the bound; some lists keep the old one until the next change.
            self.kept.store(self.list_frames, Relaxed);
        }
        for arena in &self.arenas {
            // SAFETY: the caller's contract.
            unsafe { arena.reset_after_fork() }
        }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        // SAFETY: users of frames also hold the allocator, so no pointer to a frame outlives it.
        unsafe { self.memory.retire() }
    }
}

#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
mod tests;

#[cfg(all(test, any(feature = "loom", feature = "shuttle")))]
mod models;
