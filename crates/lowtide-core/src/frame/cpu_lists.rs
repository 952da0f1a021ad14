//! The free runs that one CPU keeps at hand: a stack of numbers per length, beside the frames and never in them.
//!
//! There is a list for each length of run, in which those that may have memory behind them lie above those that don't. Only the
//! memory is to be bounded: a refill fetches as much whatever the bound, which is little where many CPUs share a small pool; of
//! what has none there are [`MOST_COLD`] frames at most, for which whoever has a use for a known number of frames must have room.
//! How much memory may be kept, the high mark, follows the load between a quarter of its bound (or what has room for the longest
//! run) and the bound: an overflow after an overflow means that frees come in bulk and will not be wanted again, and halves it; a
//! refill means that the lists were too short, and raises it by a batch.

use super::buddy::Buddy;
use super::{MAX_RUN, Run};

/// Kinds of runs, one per length.
pub(super) const KINDS: usize = MAX_RUN as usize;
/// Runs of a kind at most: with their count six cache lines. More than a batch, so that a list just filled has room for frees.
const PLACES: usize = 95;
/// Frames that a refill takes, and that an overflow gives up, at most. So many, because their marks, a byte each, fill a cache
/// line: CPUs that write to the same line were measured to take half as long again.
const MAX_BATCH: u32 = 64;
/// Frames without memory in the lists of a CPU at most. Two batches: a refill takes no more than half of what is missing, so
/// that no kind crowds out another.
pub(super) const MOST_COLD: u32 = 2 * MAX_BATCH;
/// A refill takes this part of what the buddy has, at most: where little is left, others need it.
const REFILL_PART: u32 = 8;

/// The kind of runs of `n` frames, 1 to [`MAX_RUN`].
#[inline]
pub fn kind_of(n: u32) -> Option<usize> {
    (n as usize).checked_sub(1).filter(|kind| *kind < KINDS)
}

/// Frames of a run of `kind`.
#[inline]
fn frames_of(kind: usize) -> u32 {
    kind as u32 + 1
}

/// A free run of known length: its first frame, and whether there may be memory behind it (it was handed out since its memory
/// was last given back).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedRun(u32);

impl ListedRun {
    /// A run that begins at frame `start`, below 2^31.
    #[inline]
    pub fn new(start: u32, warm: bool) -> ListedRun {
        ListedRun(start << 1 | u32::from(warm))
    }

    /// The first frame.
    #[inline]
    pub fn start(self) -> u32 {
        self.0 >> 1
    }

    /// Whether there may be memory behind it.
    #[inline]
    pub fn is_warm(self) -> bool {
        self.0 & 1 == 1
    }

    /// How many frames of it, a run of `kind`, may have memory behind them.
    #[inline]
    fn warm_frames(self, kind: usize) -> u32 {
        // No branch: which it is can't be foretold.
        frames_of(kind) & 0u32.wrapping_sub(self.0 & 1)
    }
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct List {
    len: u32,
    /// Those without memory below the others.
    runs: [ListedRun; PLACES],
}

impl List {
    /// How many runs have no memory.
    fn cold(&self) -> u32 {
        self.runs[..self.len as usize].partition_point(|listed| !listed.is_warm()) as u32
    }
}

/// What the lists last had to ask the buddy for.
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
    /// Frames in all lists that may have memory behind them.
    warm: u32,
    /// Most of these that there may be as frees come ...
    high: u32,
    /// ... and however they come.
    bound: u32,
    last: Last,
    /// Whether drains know that there may be a run in the lists: see `noted.rs`.
    pub(super) is_noted: bool,
    lists: [List; KINDS],
}

impl CpuLists {
    /// How often [`CpuLists::take_all`] must be called at most to empty lists that nobody fills.
    pub const MOST_TAKES: usize = (KINDS * PLACES).div_ceil(Runs::ROOM);

    /// Empty lists that will keep the memory of at most `bound` frames together; 0 keeps none.
    pub fn new(bound: u32) -> CpuLists {
        let lists = [List { len: 0, runs: [ListedRun(0); PLACES] }; KINDS];
        CpuLists { warm: 0, high: bound.div_ceil(2), bound, last: Last::Refill, is_noted: false, lists }
    }

    /// The run of `kind` that [`CpuLists::pop`] would take.
    #[inline]
    pub fn top(&self, kind: usize) -> Option<ListedRun> {
        let list = &self.lists[kind];
        list.runs.get(list.len.wrapping_sub(1) as usize).copied()
    }

    /// Takes the run of `kind` that was put last.
    #[inline]
    pub fn pop(&mut self, kind: usize) -> Option<ListedRun> {
        let list = &mut self.lists[kind];
        let len = list.len.wrapping_sub(1);
        // Also false when the list was empty.
        let listed = *list.runs.get(len as usize)?;
        list.len = len;
        self.warm -= listed.warm_frames(kind);
        Some(listed)
    }

    /// Puts a run, without memory only where none of its kind has any; false if there is no room, or none below the high mark.
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

    /// Most frames with memory behind them that may be in the lists now.
    pub fn high(&self) -> u32 {
        self.high
    }

    /// Frames in the lists.
    pub fn frames(&self) -> u32 {
        (0..KINDS).map(|kind| self.lists[kind].len * frames_of(kind)).sum()
    }

    /// Those of them that may have memory behind them.
    #[inline]
    pub fn warm(&self) -> u32 {
        self.warm
    }

    /// Whether there is no run in any list.
    pub fn is_empty(&self) -> bool {
        self.lists.iter().all(|list| list.len == 0)
    }

    /// The most frames with memory behind them that may be in the lists.
    pub(super) fn bound(&self) -> u32 {
        self.bound
    }

    /// For checks: the runs in all lists, and whether there may be memory behind them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Run, bool)> + '_ {
        let run = |kind, listed: &ListedRun| (Run { start: listed.start(), frames: frames_of(kind) }, listed.is_warm());
        self.lists.iter().enumerate().flat_map(move |(kind, l)| l.runs[..l.len as usize].iter().map(move |e| run(kind, e)))
    }

    fn batch(&self) -> u32 {
        self.least().min(MAX_BATCH)
    }

    /// The lowest high mark: a quarter of the bound, but room for the longest run.
    fn least(&self) -> u32 {
        (self.bound / 4).max(MAX_RUN).min(self.bound)
    }

    /// An empty list is to be filled: takes a run for the caller from the buddy and more for the list, a batch at most. What the
    /// buddy has is without memory.
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
        // The lowest is handed out first: what is in use stays dense.
        list.runs[from..list.len as usize].reverse();
        Some(wanted)
    }

    /// A run of `kind` found no room: moves the oldest runs with memory, a batch of frames at least, into `out`, so that it will.
    /// Runs longer than the bound never find room; nothing happens then.
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

    /// Changes the bound, and moves the oldest runs with memory that are too much by it into `out`, as many as fit.
    pub(super) fn set_bound(&mut self, bound: u32, out: &mut Runs) {
        self.bound = bound;
        self.high = self.high.clamp(self.least(), bound);
        self.shed(bound, out);
    }

    /// Moves the oldest runs with memory into `out` until no more than `keep` frames with memory are left, as far as they fit.
    fn shed(&mut self, keep: u32, out: &mut Runs) {
        while self.warm > keep && out.room() > 0 {
            let warm_of = |kind: &usize| (self.lists[*kind].len - self.lists[*kind].cold()) * frames_of(*kind);
            let fullest = (0..KINDS).max_by_key(warm_of).unwrap_or(0);
            let runs = (self.warm - keep).div_ceil(frames_of(fullest));
            self.take(fullest, self.lists[fullest].cold() as usize, runs as usize, out);
        }
    }

    /// Frees come in bulk: less is kept.
    fn shrink(&mut self) {
        self.high = (self.high / 2).max(self.least());
    }

    /// Moves as many runs as fit into `out`.
    pub fn take_all(&mut self, out: &mut Runs) {
        for kind in 0..KINDS {
            self.take(kind, 0, PLACES, out);
        }
    }

    /// Moves `most` runs of `kind` into `out`, from the one at `from` on: as many as there are, and fit.
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

/// Of zero bytes.
impl Default for CpuLists {
    fn default() -> CpuLists {
        CpuLists::new(0)
    }
}

/// Runs on their way from lists to the buddy.
#[derive(Debug)]
pub struct Runs {
    /// With how many of its frames may have memory behind them. One place more than there is room: for the run that found no
    /// room in a list.
    runs: [(Run, u32); Runs::ROOM + 1],
    len: usize,
    warm_frames: usize,
}

impl Runs {
    const ROOM: usize = 32;

    /// None.
    pub fn new() -> Runs {
        Runs { runs: [(Run { start: 0, frames: 0 }, 0); Runs::ROOM + 1], len: 0, warm_frames: 0 }
    }

    /// How many more can come out of lists.
    pub(super) fn room(&self) -> usize {
        Runs::ROOM.saturating_sub(self.len)
    }

    /// Adds a run. There must be room, or one place beyond it.
    pub(super) fn push(&mut self, run: Run, warm: bool) {
        let warm_frames = if warm { run.frames } else { 0 };
        self.runs[self.len] = (run, warm_frames);
        self.len += 1;
        self.warm_frames += warm_frames as usize;
    }

    /// Frames that may have memory behind them.
    pub(super) fn warm_frames(&self) -> usize {
        self.warm_frames
    }

    /// Puts neighbours together: afterwards the runs are sorted, and no two touch.
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

    /// The runs, and how many of the frames of each may have memory behind them.
    pub fn iter(&self) -> impl Iterator<Item = (Run, u32)> + '_ {
        self.runs[..self.len].iter().copied()
    }

    /// Whether there are none.
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

    /// Lists are made of zeroed memory, which they take where they are used.
    #[test]
    fn zeros_are_lists_that_keep_none() {
        // SAFETY: integers, a bool, an enum of which 0 is a value, and arrays of such.
        let zeroed: CpuLists = unsafe { core::mem::zeroed() };
        assert_eq!(std::format!("{zeroed:?}"), std::format!("{:?}", CpuLists::default()));
    }
}
