//! Tracks the processes' progress in emptying a swap area, and whether they can finish.

use super::processes::{alive, is_active, pid};
use lowtide_core::vm::PAGE_SIZE;
use lowtide_wire::segment::{AreaGauges, Order, Proc, Segment};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const PAGE: u64 = PAGE_SIZE as u64;
/// Wait for processes without registered memory: they have nothing there, but may be about to
/// register some.
const WATCHERS: Duration = Duration::from_secs(1);
/// Time without progress after which a process is named.
const SILENT: Duration = Duration::from_secs(3);
/// Pages without room for this long, while nothing else moves, will find none.
const HOMELESS: Duration = Duration::from_secs(2);
/// If only unreadable pages are left for this long, nothing else will move.
const UNREADABLE: Duration = Duration::from_secs(1);

#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    Going,
    Empty,
    /// Bytes without room elsewhere.
    NoRoom(u64),
    Unreadable {
        /// A process with such pages,
        pid: u32,
        /// the address of the first of them,
        address: u64,
        /// and their count, in all processes.
        pages: u64,
    },
}

pub struct Evacuation {
    place: usize,
    order: Order,
    pub total: u64,
    pub left: u64,
    started: Instant,
    fell_at: Instant,
    homeless_since: Option<Instant>,
    unreadable_since: Option<Instant>,
    were_done: bool,
    /// By pid: bytes left, and since when.
    moves: HashMap<u32, (u64, Instant)>,
}

/// Bytes of all processes' pages in a place.
pub fn used(segment: &Segment, place: usize) -> u64 {
    alive(segment).fold(0, |sum, p| sum.saturating_add(p.areas_now[place].used.load(Ordering::Relaxed)))
}

impl Evacuation {
    /// `order` has just been given for this place.
    pub fn new(segment: &Segment, place: usize, order: Order, now: Instant) -> Evacuation {
        let total = used(segment, place);
        Evacuation {
            place,
            order,
            total,
            left: total,
            started: now,
            fell_at: now,
            homeless_since: None,
            unreadable_since: None,
            were_done: false,
            moves: HashMap::new(),
        }
    }

    pub fn moved(&self) -> u64 {
        self.total.saturating_sub(self.left)
    }

    pub fn elapsed(&self, now: Instant) -> Duration {
        now - self.started
    }

    pub fn look(&mut self, segment: &Segment, now: Instant) -> Found {
        let (mut left, mut homeless, mut active_left, mut unreadable) = (0u64, 0u64, 0u64, 0u64);
        let mut first_unreadable = None;
        let mut are_done = true;
        for p in alive(segment) {
            let gauges = &p.areas_now[self.place];
            let get = |gauge: &std::sync::atomic::AtomicU64| gauge.load(Ordering::Relaxed);
            let is_done = self.has_complied(gauges);
            let its = if is_done { 0 } else { left_of(gauges) };
            left = left.saturating_add(its);
            let moved = self.moves.entry(pid(p)).or_insert((its, now));
            if its < moved.0 || is_done {
                *moved = (its, now);
            }
            if is_done {
                continue;
            }
            are_done &= !is_active(p) && self.elapsed(now) >= WATCHERS;
            homeless = homeless.saturating_add(get(&gauges.homeless));
            if is_active(p) {
                active_left = active_left.saturating_add(its);
                let pages = get(&gauges.unreadable);
                unreadable = unreadable.saturating_add(pages);
                if pages > 0 && first_unreadable.is_none() {
                    first_unreadable = Some((pid(p), get(&gauges.unreadable_at)));
                }
            }
        }
        if left < self.left {
            self.fell_at = now;
        }
        // A process forked meanwhile adds its part.
        self.left = left;
        self.total = self.total.max(left);
        if are_done {
            // Twice in a row: a look can miss a process that is just being forked.
            let were_done = std::mem::replace(&mut self.were_done, true);
            return if were_done { Found::Empty } else { Found::Going };
        }
        self.were_done = false;
        since(&mut self.unreadable_since, unreadable > 0 && active_left <= unreadable.saturating_mul(PAGE), now);
        since(&mut self.homeless_since, homeless > 0, now);
        let lasts = |since: Option<Instant>, time| since.is_some_and(|since| now - since >= time);
        match first_unreadable {
            Some((pid, address)) if lasts(self.unreadable_since, UNREADABLE) => {
                Found::Unreadable { pid, address, pages: unreadable }
            }
            _ if lasts(self.homeless_since, HOMELESS) && now - self.fell_at >= HOMELESS => Found::NoRoom(homeless),
            _ => Found::Going,
        }
    }

    /// Processes without progress for a while; perhaps they are stopped.
    pub fn waits_for(&self, segment: &Segment, now: Instant) -> Vec<u32> {
        let is_silent = |p: &&Proc| {
            let last = self.moves.get(&pid(p)).map_or(now, |(_, at)| *at);
            is_active(p) && !self.has_complied(&p.areas_now[self.place]) && now - last >= SILENT
        };
        alive(segment).filter(is_silent).map(pid).collect()
    }

    fn has_complied(&self, gauges: &AreaGauges) -> bool {
        gauges.order.load(Ordering::Acquire) == self.order.raw()
    }
}

/// All that the process has there, until it first reports what is left.
fn left_of(gauges: &AreaGauges) -> u64 {
    match gauges.left.load(Ordering::Relaxed) {
        0 => gauges.used.load(Ordering::Relaxed),
        left => left,
    }
}

/// Since when a condition has held without a break.
fn since(since: &mut Option<Instant>, is_so: bool, now: Instant) {
    match (is_so, &since) {
        (true, None) => *since = Some(now),
        (false, _) => *since = None,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::shared_memory::tests::segment;
    use lowtide_wire::segment::{Phase, proc_state};

    fn process(segment: &Segment, pid: u32, used: u64) -> &Proc {
        let p = segment.claim(pid).unwrap();
        p.state.store(proc_state::ACTIVE, Ordering::Relaxed);
        p.areas_now[2].used.store(used, Ordering::Relaxed);
        p
    }

    const MIB: u64 = 1 << 20;

    struct Scene {
        segment: Box<Segment>,
        start: Instant,
        order: Order,
    }

    impl Scene {
        fn new() -> Scene {
            Scene { segment: segment(), start: Instant::now(), order: Order::from_raw(0).next(Phase::On).next(Phase::Off) }
        }

        fn begin(&self) -> Evacuation {
            Evacuation::new(&self.segment, 2, self.order, self.start)
        }

        fn at(&self, seconds: f64) -> Instant {
            self.start + Duration::from_secs_f64(seconds)
        }
    }

    #[test]
    fn it_is_over_when_all_have_complied_and_watchers_are_not_waited_for_long() {
        let scene = Scene::new();
        let (first, second) = (process(&scene.segment, 10, 6 * MIB), process(&scene.segment, 11, 2 * MIB));
        let watcher = scene.segment.claim(12).unwrap();
        let mut evacuation = scene.begin();
        assert_eq!((evacuation.total, evacuation.look(&scene.segment, scene.at(0.0))), (8 * MIB, Found::Going));
        first.areas_now[2].left.store(MIB, Ordering::Relaxed);
        assert_eq!(evacuation.look(&scene.segment, scene.at(0.1)), Found::Going);
        assert_eq!((evacuation.left, evacuation.moved()), (3 * MIB, 5 * MIB));
        for p in [first, second] {
            p.areas_now[2].order.store(scene.order.raw(), Ordering::Relaxed);
        }
        assert_eq!(evacuation.look(&scene.segment, scene.at(0.2)), Found::Going, "the watcher");
        assert_eq!(evacuation.look(&scene.segment, scene.at(1.1)), Found::Going, "once more");
        assert_eq!(evacuation.look(&scene.segment, scene.at(1.2)), Found::Empty);
        watcher.state.store(proc_state::ACTIVE, Ordering::Relaxed);
        assert_eq!(evacuation.look(&scene.segment, scene.at(1.3)), Found::Going);
    }

    #[test]
    fn a_stopped_process_is_named() {
        let scene = Scene::new();
        let (first, _second) = (process(&scene.segment, 10, 6 * MIB), process(&scene.segment, 11, 2 * MIB));
        let mut evacuation = scene.begin();
        evacuation.look(&scene.segment, scene.at(0.0));
        first.areas_now[2].left.store(MIB, Ordering::Relaxed);
        evacuation.look(&scene.segment, scene.at(2.0));
        assert_eq!(evacuation.waits_for(&scene.segment, scene.at(2.9)), [0; 0]);
        assert_eq!(evacuation.waits_for(&scene.segment, scene.at(3.1)), [11]);
    }

    #[test]
    fn no_room_is_told_when_nothing_moves_any_more() {
        let scene = Scene::new();
        let p = process(&scene.segment, 10, 6 * MIB);
        let mut evacuation = scene.begin();
        p.areas_now[2].homeless.store(MIB, Ordering::Relaxed);
        p.areas_now[2].left.store(5 * MIB, Ordering::Relaxed);
        assert_eq!(evacuation.look(&scene.segment, scene.at(0.1)), Found::Going);
        p.areas_now[2].left.store(4 * MIB, Ordering::Relaxed);
        assert_eq!(evacuation.look(&scene.segment, scene.at(1.5)), Found::Going);
        assert_eq!(evacuation.look(&scene.segment, scene.at(2.5)), Found::Going, "something moved a second ago");
        assert_eq!(evacuation.look(&scene.segment, scene.at(3.6)), Found::NoRoom(MIB));
    }

    #[test]
    fn what_can_not_be_read_is_named_when_nothing_else_is_left() {
        let scene = Scene::new();
        let (p, other) = (process(&scene.segment, 10, 6 * MIB), process(&scene.segment, 11, MIB));
        let mut evacuation = scene.begin();
        let gauges = &p.areas_now[2];
        gauges.left.store(2 * PAGE, Ordering::Relaxed);
        gauges.unreadable.store(2, Ordering::Relaxed);
        gauges.unreadable_at.store(0x7f00_1000, Ordering::Relaxed);
        assert_eq!(evacuation.look(&scene.segment, scene.at(0.1)), Found::Going);
        assert_eq!(evacuation.look(&scene.segment, scene.at(1.5)), Found::Going, "the other one has still to be emptied");
        other.areas_now[2].order.store(scene.order.raw(), Ordering::Relaxed);
        assert_eq!(evacuation.look(&scene.segment, scene.at(2.0)), Found::Going);
        let found = evacuation.look(&scene.segment, scene.at(3.1));
        assert_eq!(found, Found::Unreadable { pid: 10, address: 0x7f00_1000, pages: 2 });
    }
}
