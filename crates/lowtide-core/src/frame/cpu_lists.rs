//! The free runs of one CPU: a stack of frame numbers per length.
//!
//! In each list, runs that may have memory lie above those without. Only memory is bounded: runs
//! without it number at most [`MOST_COLD`] frames. The high mark on frames with memory moves
//! between a quarter of the bound (at least the longest run) and the bound. Two overflows in a row
//! mean bulk frees that will not be reused: the mark halves. A refill means that the lists were too
//! short: the mark rises by a batch.

use super::buddy::Buddy;
use super::{MAX_RUN, Run};

pub(super) const KINDS: usize = MAX_RUN as usize;
/// With their count six cache lines. More than a batch: a fresh refill leaves room for frees.
const PLACES: usize = 95;
/// Most frames of a refill or an overflow. Their marks, a byte each, fill one cache line: CPUs that
/// write to the same line take half as long again (measured).
const MAX_BATCH: u32 = 64;
/// Most frames without memory. Two batches: a refill takes at most half of the rest, so no kind
/// crowds out another.
pub(super) const MOST_COLD: u32 = 2 * MAX_BATCH;
/// A refill takes one in this many of the buddy's frames, at most.
const REFILL_PART: u32 = 8;

/// The kind of runs of `n` frames, 1 to [`MAX_RUN`].
#[inline]
pub fn kind_of(n: u32) -> Option<usize> {
    (n as usize).checked_sub(1).filter(|kind| *kind < KINDS)
}

#[inline]
fn frames_of(kind: usize) -> u32 {
    kind as u32 + 1
}

/// A free run, and whether it may have memory (handed out since its memory was last returned).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedRun(u32);

impl ListedRun {
    /// A run from frame `start`, below 2^31.
    #[inline]
    pub fn new(start: u32, warm: bool) -> ListedRun {
        ListedRun(start << 1 | u32::from(warm))
    }

    /// The first frame.
    #[inline]
    pub fn start(self) -> u32 {
        self.0 >> 1
    }

    /// Whether the run may have memory.
    #[inline]
    pub fn is_warm(self) -> bool {
        self.0 & 1 == 1
    }

    #[inline]
    fn warm_frames(self, kind: usize) -> u32 {
        // Branchless: the bit is unpredictable.
        frames_of(kind) & 0u32.wrapping_sub(self.0 & 1)
    }
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct List {
    len: u32,
    runs: [ListedRun; PLACES],
}

impl List {
    fn cold(&self) -> u32 {
        self.runs[..self.len as usize].partition_point(|listed| !listed.is_warm()) as u32
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Last {
    Refill = 0,
    Overflow,
}

/// The free runs of one CPU. Not locked.
#[derive(Debug)]
#[repr(C)]
pub struct CpuLists {
    /// Frames that may have memory.
    warm: u32,
    /// Limit of `warm` for now ...
    high: u32,
    /// ... and at any time.
    bound: u32,
    last: Last,
    /// As in `noted.rs`.
    pub(super) is_noted: bool,
    lists: [List; KINDS],
}

impl CpuLists {
    /// Calls of [`CpuLists::take_all`] that empty any lists.
    pub const MOST_TAKES: usize = (KINDS * PLACES).div_ceil(Runs::ROOM);

    /// Empty lists for at most `bound` frames with memory.
    pub fn new(bound: u32) -> CpuLists {
        let lists = [List { len: 0, runs: [ListedRun(0); PLACES] }; KINDS];
        CpuLists { warm: 0, high: bound.div_ceil(2), bound, last: Last::Refill, is_noted: false, lists }
    }

    /// The run that [`CpuLists::pop`] would take.
    #[inline]
    pub fn top(&self, kind: usize) -> Option<ListedRun> {
        let list = &self.lists[kind];
        list.runs.get(list.len.wrapping_sub(1) as usize).copied()
    }

    /// Takes the latest run of `kind`.
    #[inline]
    pub fn pop(&mut self, kind: usize) -> Option<ListedRun> {
        let list = &mut self.lists[kind];
        let len = list.len.wrapping_sub(1);
        // Also `None` if the list was empty.
        let listed = *list.runs.get(len as usize)?;
        list.len = len;
        self.warm -= listed.warm_frames(kind);
        Some(listed)
    }

    /// A run without memory needs a list without any. False if the list or the high mark is full.
    #[inline]
    pub fn push(&mut self, kind: usize, listed: ListedRun) -> bool {
        let warm = self.warm + listed.warm_frames(kind);
        let list = &mut self.lists[kind];
        if warm > self.high {
            return false;
        }
        let Some(place) = list.runs.get_mut(list.len as usize) else { return false };
        *place = listed;
        list.len += 1;
        self.warm = warm;
        true
    }

    /// Most frames with memory for now.
    pub fn high(&self) -> u32 {
        self.high
    }

    /// Frames in the lists.
    pub fn frames(&self) -> u32 {
        (0..KINDS).map(|kind| self.lists[kind].len * frames_of(kind)).sum()
    }

    /// Frames that may have memory.
    #[inline]
    pub fn warm(&self) -> u32 {
        self.warm
    }

    /// Whether all lists are empty.
    pub fn is_empty(&self) -> bool {
        self.lists.iter().all(|list| list.len == 0)
    }

    pub(super) fn bound(&self) -> u32 {
        self.bound
    }

    /// For checks.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Run, bool)> + '_ {
        let run = |kind, listed: &ListedRun| (Run { start: listed.start(), frames: frames_of(kind) }, listed.is_warm());
        self.lists.iter().enumerate().flat_map(move |(kind, l)| l.runs[..l.len as usize].iter().map(move |e| run(kind, e)))
    }

    fn batch(&self) -> u32 {
        self.least().min(MAX_BATCH)
    }

    /// A quarter of the bound, but room for the longest run.
    fn least(&self) -> u32 {
        (self.bound / 4).max(MAX_RUN).min(self.bound)
    }

    /// Takes a run for the caller and more for an empty list from the buddy, a batch at most,
    /// without memory.
    pub fn refill(&mut self, kind: usize, buddy: &mut Buddy) -> Option<ListedRun> {
        let n = frames_of(kind);
        let wanted = ListedRun::new(buddy.take(n)?, false);
        self.high = (self.high + self.batch()).min(self.bound);
        self.last = Last::Refill;
        let room = MOST_COLD.saturating_sub(self.frames() - self.warm) / 2;
        let room = room.min(MAX_BATCH - n).min(buddy.free_frames() / REFILL_PART) / n;
        let list = &mut self.lists[kind];
        let from = list.len as usize;
        for place in list.runs[from..].iter_mut().take(room as usize) {
            let Some(start) = buddy.take(n) else { break };
            *place = ListedRun::new(start, false);
            list.len += 1;
        }
        // The lowest comes out first: frames in use stay dense.
        list.runs[from..list.len as usize].reverse();
        Some(wanted)
    }

    /// Moves the oldest runs with memory, at least a batch, into `out`, to make room for one of
    /// `kind`. No effect for runs longer than the bound.
    pub fn make_room(&mut self, kind: usize, out: &mut Runs) {
        let n = frames_of(kind);
        if n > self.bound {
            return;
        }
        if self.last == Last::Overflow {
            self.shrink();
        }
        self.last = Last::Overflow;
        self.high = self.high.max(n);
        if self.lists[kind].len as usize == PLACES {
            self.take(kind, 0, PLACES / 2, out);
        }
        self.shed(self.high.saturating_sub(self.batch().max(n)), out);
    }

    /// Also moves the oldest runs with memory beyond the bound into `out`, as many as fit.
    pub(super) fn set_bound(&mut self, bound: u32, out: &mut Runs) {
        self.bound = bound;
        self.high = self.high.clamp(self.least(), bound);
        self.shed(bound, out);
    }

    /// Moves the oldest runs with memory into `out` until `keep` such frames remain or `out` is
    /// full.
    fn shed(&mut self, keep: u32, out: &mut Runs) {
        while self.warm > keep && out.room() > 0 {
            let warm_of = |kind: &usize| (self.lists[*kind].len - self.lists[*kind].cold()) * frames_of(*kind);
            let fullest = (0..KINDS).max_by_key(warm_of).unwrap_or(0);
            let runs = (self.warm - keep).div_ceil(frames_of(fullest));
            self.take(fullest, self.lists[fullest].cold() as usize, runs as usize, out);
        }
    }

    fn shrink(&mut self) {
        self.high = (self.high / 2).max(self.least());
    }

    /// Moves as many runs as fit into `out`.
    pub fn take_all(&mut self, out: &mut Runs) {
        for kind in 0..KINDS {
            self.take(kind, 0, PLACES, out);
        }
    }

    /// Moves up to `most` runs from index `from` on.
    fn take(&mut self, kind: usize, from: usize, most: usize, out: &mut Runs) {
        let list = &mut self.lists[kind];
        let len = list.len as usize;
        let to = from + most.min(len - from).min(out.room());
        let warm_before = out.warm_frames();
        for listed in &list.runs[from..to] {
            out.push(Run { start: listed.start(), frames: frames_of(kind) }, listed.is_warm());
        }
        list.runs.copy_within(to..len, from);
        list.len -= (to - from) as u32;
        self.warm -= (out.warm_frames() - warm_before) as u32;
    }
}

impl Default for CpuLists {
    fn default() -> CpuLists {
        CpuLists::new(0)
    }
}

/// Runs on their way from lists to the buddy.
#[derive(Debug)]
pub struct Runs {
    /// With frames that may have memory. One more than `ROOM`: for the run that no list had room
    /// for.
    runs: [(Run, u32); Runs::ROOM + 1],
    len: usize,
    warm_frames: usize,
}

impl Runs {
    const ROOM: usize = 32;

    /// No runs.
    pub fn new() -> Runs {
        Runs { runs: [(Run { start: 0, frames: 0 }, 0); Runs::ROOM + 1], len: 0, warm_frames: 0 }
    }

    pub(super) fn room(&self) -> usize {
        Runs::ROOM.saturating_sub(self.len)
    }

    /// `room` may be 0 once.
    pub(super) fn push(&mut self, run: Run, warm: bool) {
        let warm_frames = if warm { run.frames } else { 0 };
        self.runs[self.len] = (run, warm_frames);
        self.len += 1;
        self.warm_frames += warm_frames as usize;
    }

    pub(super) fn warm_frames(&self) -> usize {
        self.warm_frames
    }

    pub(super) fn merge(&mut self) {
        self.runs[..self.len].sort_unstable_by_key(|(run, _)| run.start);
        let mut last = 0;
        for i in 1..self.len {
            let (run, warm) = self.runs[i];
            let (whole, all_warm) = &mut self.runs[last];
            if whole.start + whole.frames == run.start {
                whole.frames += run.frames;
                *all_warm += warm;
            } else {
                last += 1;
                self.runs[last] = (run, warm);
            }
        }
        self.len = self.len.min(last + 1);
    }

    /// The runs, with their frames that may have memory.
    pub fn iter(&self) -> impl Iterator<Item = (Run, u32)> + '_ {
        self.runs[..self.len].iter().copied()
    }

    /// Whether there are no runs.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Default for Runs {
    fn default() -> Runs {
        Runs::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `Array` makes lists of zeroed memory, so unused lists take none.
    #[test]
    fn zeros_are_lists_that_keep_none() {
        // SAFETY: integers, a bool, an enum with a variant 0, and arrays of these.
        let zeroed: CpuLists = unsafe { core::mem::zeroed() };
        assert_eq!(std::format!("{zeroed:?}"), std::format!("{:?}", CpuLists::default()));
    }
}
