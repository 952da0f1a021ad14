//! The swap areas of a run: on, being emptied, or past.
//!
//! The settings have [`MAX_AREAS`] places. A place is reused once no process refers to its area;
//! until then the place keeps the area's counts, and afterwards this module does.

use crate::supervisor::shared_memory::Shared;
use crate::swap::area::Swap;
use crate::swap::name::Which;
use lowtide_core::store::MAX_AREAS;
use lowtide_remote::counts as remote;
use lowtide_wire::segment::{Order, Phase, Segment, Settings, proc_state};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Removed areas with counts of their own; further ones share one entry.
const MAX_GONE: usize = 64;
const OTHERS: &str = "(others)";

/// I/Os on a swap area by all processes, dead and alive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)] // docs/statistics.md says what they are
pub struct Counts {
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub errors: u64,
}

impl Counts {
    fn plus(self, other: Counts) -> Counts {
        Counts {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            read_bytes: self.read_bytes + other.read_bytes,
            write_bytes: self.write_bytes + other.write_bytes,
            errors: self.errors + other.errors,
        }
    }

    fn since(self, before: Counts) -> Counts {
        Counts {
            reads: self.reads.saturating_sub(before.reads),
            writes: self.writes.saturating_sub(before.writes),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            write_bytes: self.write_bytes.saturating_sub(before.write_bytes),
            errors: self.errors.saturating_sub(before.errors),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    On,
    Emptying,
    Off,
}

pub struct Area {
    /// Its files; dropped when it is off, which unlocks them.
    swap: Option<Arc<Swap>>,
    pub spec: String,
    remote: Option<Arc<remote::Counts>>,
    pub prio: i16,
    /// Most bytes of its files.
    pub size: u64,
    pub state: State,
    /// Earlier counts of its place.
    before: Counts,
    /// Its number in the order of addition.
    turn: u64,
}

pub struct Listed {
    /// None: its place was reused.
    pub place: Option<usize>,
    pub spec: String,
    pub prio: i16,
    /// Most bytes of its files.
    pub size: u64,
    pub state: State,
    pub counts: Counts,
    /// Traffic of an area on servers, while it has its place.
    pub remote: Option<Arc<remote::Counts>>,
}

pub struct Areas {
    places: [Option<Area>; MAX_AREAS],
    /// Areas without a place: name, priority, size and counts.
    gone: Vec<(String, i16, u64, Counts)>,
    turns: u64,
    settings: &'static Settings,
    segment: &'static Segment,
}

impl Areas {
    /// The initial areas, which [`Shared`] has described and turned on.
    pub fn new(swap: Vec<Swap>, settings: &'static Settings, segment: &'static Segment) -> Areas {
        let mut areas = Areas { places: Default::default(), gone: Vec::new(), turns: 0, settings, segment };
        for (place, swap) in swap.into_iter().enumerate().take(MAX_AREAS) {
            areas.put(place, swap, Counts::default());
        }
        areas
    }

    fn put(&mut self, place: usize, swap: Swap, before: Counts) {
        let (spec, remote, prio, size) = (swap.spec(), swap.counts(), swap.prio, swap.size);
        let area = Area { swap: Some(Arc::new(swap)), spec, remote, prio, size, state: State::On, before, turn: self.turns };
        self.turns += 1;
        if let Some(old) = self.places[place].replace(area) {
            self.keep(old, before);
        }
    }

    /// Keeps the counts of an area whose place is reused.
    fn keep(&mut self, old: Area, now: Counts) {
        let counts = now.since(old.before);
        let is_full = self.gone.len() >= MAX_GONE;
        if let Some(same) = self.gone.iter_mut().find(|(spec, ..)| *spec == old.spec) {
            (same.1, same.2, same.3) = (old.prio, old.size, same.3.plus(counts));
        } else if !is_full {
            self.gone.push((old.spec, old.prio, old.size, counts));
        } else if let Some(last) = self.gone.last_mut() {
            *last = (OTHERS.to_owned(), 0, 0, last.3.plus(counts));
        }
    }

    /// The files of all areas that are not off.
    pub fn in_use(&self) -> Vec<Arc<Swap>> {
        self.iter().filter_map(|(_, area)| area.swap.clone()).collect()
    }

    /// New warnings of the areas that are not off.
    pub fn warnings(&self) -> Vec<String> {
        self.iter().filter_map(|(_, area)| area.swap.as_ref()).flat_map(|swap| swap.warnings()).collect()
    }

    /// All areas that have a place, with its number.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Area)> {
        self.places.iter().enumerate().filter_map(|(place, area)| Some((place, area.as_ref()?)))
    }

    pub fn on(&self) -> impl Iterator<Item = (usize, &Area)> {
        self.iter().filter(|(_, area)| area.state == State::On)
    }

    pub fn names(&self) -> String {
        let names: Vec<&str> = self.on().map(|(_, area)| area.spec.as_str()).collect();
        if names.is_empty() {
            "there is none, only compressed RAM".to_owned()
        } else {
            format!("there is {}", names.join(", "))
        }
    }

    /// The place of this area, unless it is off.
    pub fn find(&self, which: &Which) -> Option<(usize, &Area)> {
        self.iter().find(|(_, area)| area.swap.as_ref().is_some_and(|swap| which.is(swap)))
    }

    /// A place that was never used or whose area is off.
    pub fn free_place(&self) -> Option<usize> {
        let is_off = |area: &Option<Area>| area.as_ref().is_some_and(|area| area.state == State::Off);
        self.places.iter().position(Option::is_none).or_else(|| self.places.iter().position(is_off))
    }

    /// Describes an area to the processes, in a free place, and turns it on.
    ///
    /// # Errors
    /// `NOSPC`: no place is free; those of describing it.
    pub fn turn_on(&mut self, swap: Swap, shared: &Shared) -> Result<(), Errno> {
        let place = self.free_place().ok_or(Errno::NOSPC)?;
        let (area, budget) = (&self.settings.swap[place], &self.segment.areas[place]);
        let spec = shared.describe(&swap)?;
        // SAFETY: the place is free: it was never on, or all processes have complied with the order
        // that turned it off (`State::Off`).
        unsafe { area.rewrite(&spec) };
        // No process has a file of it.
        budget.used.store(0, Ordering::Relaxed);
        budget.claimed.store(0, Ordering::Relaxed);
        area.give(Phase::On);
        let before = counts(self.segment)[place];
        self.put(place, swap, before);
        Ok(())
    }

    pub fn empty(&mut self, place: usize) -> Order {
        self.give(place, State::Emptying, Phase::Off)
    }

    pub fn keep_on(&mut self, place: usize) {
        self.give(place, State::On, Phase::On);
    }

    fn give(&mut self, place: usize, state: State, phase: Phase) -> Order {
        if let Some(area) = &mut self.places[place] {
            area.state = state;
        }
        self.settings.swap[place].give(phase)
    }

    /// Closes the files of an area after all processes have complied.
    pub fn is_empty_now(&mut self, place: usize) {
        if let Some(area) = &mut self.places[place] {
            (area.swap, area.state) = (None, State::Off);
        }
        self.segment.areas[place].claimed.store(0, Ordering::Release);
    }

    pub fn swap(area: &Area) -> Option<&Swap> {
        area.swap.as_deref()
    }

    /// Areas in use in the order of addition, then past ones.
    pub fn list(&self) -> Vec<Listed> {
        let totals = counts(self.segment);
        let mut placed: Vec<(usize, &Area)> = self.iter().collect();
        placed.sort_by_key(|(_, area)| (area.state == State::Off, area.turn));
        let placed = placed.into_iter().map(|(place, area)| Listed {
            place: Some(place),
            spec: area.spec.clone(),
            prio: area.prio,
            size: area.size,
            state: area.state,
            counts: totals[place].since(area.before),
            remote: area.remote.clone(),
        });
        let gone = self.gone.iter().map(|(spec, prio, size, counts)| Listed {
            place: None,
            spec: spec.clone(),
            prio: *prio,
            size: *size,
            state: State::Off,
            counts: *counts,
            remote: None,
        });
        placed.chain(gone).collect()
    }
}

/// I/Os in each place by all processes, dead and alive.
fn counts(segment: &Segment) -> [Counts; MAX_AREAS] {
    let mut sums = [Counts::default(); MAX_AREAS];
    let alive = segment.used_procs().iter().filter(|p| p.state.load(Ordering::Acquire) != proc_state::FREE);
    for areas in alive.map(|p| &p.areas).chain([&segment.dead_areas]) {
        for (sum, area) in sums.iter_mut().zip(areas) {
            let [reads, writes, read_bytes, write_bytes, errors] = area.words().map(|word| word.load(Ordering::Relaxed));
            *sum = sum.plus(Counts { reads, writes, read_bytes, write_bytes, errors });
        }
    }
    sums
}
