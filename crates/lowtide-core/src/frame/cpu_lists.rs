//! The free runs that one CPU keeps at hand: a stack of numbers per length, beside the frames and never in them.
//!
//! There is a list for each length of run. How much may be kept, the high mark,
//! follows the load between a quarter of its bound and the bound: an overflow after an overflow means that frees come in bulk
//! and will not be wanted again, and halves it; a refill means that the lists were too short, and raises it by a batch.

use super::buddy::Buddy;
use super::{MAX_RUN, Run};

/// Kinds of runs, one per length.
pub(super) const KINDS: usize = MAX_RUN as usize;
/// Runs of a kind at most: with their count six cache lines. More than a batch, so that a list just filled has room for frees.
const PLACES: usize = 95;
/// Frames that a refill takes, and that an overflow gives up, at most. So many, because their marks, a byte each, fill a cache
/// line: CPUs that write to the same line were measured to take half as long again.
const MAX_BATCH: u32 = 64;

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
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct List {
    len: u32,
    runs: [ListedRun; PLACES],
}

/// What the lists last had to ask the buddy for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Last {
    Refill,
    Overflow,
}

/// The free runs of one CPU. Not locked.
#[derive(Debug)]
#[repr(C)]
pub struct CpuLists {
    /// Frames in all lists.
    frames: u32,
    /// Most frames that may be in all lists, now ...
    high: u32,
    /// ... and ever.
    bound: u32,
    last: Last,
    lists: [List; KINDS],
}

impl CpuLists {
    /// How often [`CpuLists::take_all`] must be called at most to empty lists that nobody fills.
    pub const MOST_TAKES: usize = (KINDS * PLACES).div_ceil(Runs::ROOM);

    /// Empty lists of at most `bound` frames together; 0 keeps nothing.
    pub fn new(bound: u32) -> CpuLists {
        let list = List { len: 0, runs: [ListedRun(0); PLACES] };
        CpuLists { frames: 0, high: bound.div_ceil(2), bound, last: Last::Refill, lists: [list; KINDS] }
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
        self.frames -= frames_of(kind);
        Some(listed)
    }

    /// Puts a run; false if there is no room below the high mark.
    #[inline]
    pub fn push(&mut self, kind: usize, listed: ListedRun) -> bool {
        let frames = self.frames + frames_of(kind);
        let list = &mut self.lists[kind];
        if frames > self.high {
            return false;
        }
        let Some(place) = list.runs.get_mut(list.len as usize) else { return false };
        *place = listed;
        list.len += 1;
        self.frames = frames;
        true
    }

    /// Most frames that may be in the lists now.
    pub fn high(&self) -> u32 {
        self.high
    }

    /// Frames in the lists.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// For checks: the most frames that may ever be in the lists.
    pub(super) fn bound(&self) -> u32 {
        self.bound
    }

    /// For checks: the runs in all lists, and whether there may be memory behind them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Run, bool)> + '_ {
        let run = |kind, listed: &ListedRun| (Run { start: listed.start(), frames: frames_of(kind) }, listed.is_warm());
        self.lists.iter().enumerate().flat_map(move |(kind, l)| l.runs[..l.len as usize].iter().map(move |e| run(kind, e)))
    }

    fn batch(&self) -> u32 {
        (self.bound / 4).min(MAX_BATCH)
    }

    /// An empty list is to be filled: takes a run for the caller from the buddy and more for the list.
    pub fn refill(&mut self, kind: usize, buddy: &mut Buddy) -> Option<ListedRun> {
        let n = frames_of(kind);
        let wanted = ListedRun::new(buddy.take(n)?, false);
        self.high = (self.high + self.batch()).min(self.bound);
        self.last = Last::Refill;
        let room = self.batch().saturating_sub(n).min(self.high.saturating_sub(self.frames)) / n;
        let list = &mut self.lists[kind];
        let from = list.len as usize;
        for place in list.runs[from..].iter_mut().take(room as usize) {
            let Some(start) = buddy.take(n) else { break };
            *place = ListedRun::new(start, false);
            list.len += 1;
            self.frames += n;
        }
        // The lowest is handed out first: what is in use stays dense.
        list.runs[from..list.len as usize].reverse();
        Some(wanted)
    }

    /// A run of `kind` found no room: moves the oldest runs, a batch of frames at least, into `out`, so that it will. Runs
    /// longer than the bound never find room; nothing happens then.
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
            self.take_oldest(kind, PLACES / 2, out);
        }
        let keep = self.high.saturating_sub(self.batch().max(n));
        while self.frames > keep && out.room() > 0 {
            let fullest = (0..KINDS).max_by_key(|&k| self.lists[k].len * frames_of(k)).unwrap_or(0);
            let runs = (self.frames - keep).div_ceil(frames_of(fullest));
            self.take_oldest(fullest, runs as usize, out);
        }
    }

    /// Frees come in bulk: less is kept.
    fn shrink(&mut self) {
        self.high = (self.high / 2).max(self.bound / 4);
    }

    /// Moves as many runs as fit into `out`.
    pub fn take_all(&mut self, out: &mut Runs) {
        for kind in 0..KINDS {
            self.take_oldest(kind, PLACES, out);
        }
    }

    fn take_oldest(&mut self, kind: usize, most: usize, out: &mut Runs) {
        let list = &mut self.lists[kind];
        let len = list.len as usize;
        let taken = most.min(len).min(out.room());
        for listed in &list.runs[..taken] {
            out.push(Run { start: listed.start(), frames: frames_of(kind) }, listed.is_warm());
        }
        list.runs.copy_within(taken..len, 0);
        list.len -= taken as u32;
        self.frames -= taken as u32 * frames_of(kind);
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
