//! Memory that could not be evicted: its size, and when to look and retry. For the reclaimer; its
//! host acts.
//!
//! A look takes milliseconds a GiB. A retry forgets that memory is stuck, so all is scanned, twice
//! if in vain. It happens when fewer processes share the memory: a dead child leaves exclusive
//! pages. Vain retries double the pause.

use lowtide_core::vm::PAGE_SIZE;

/// Interval between looks, in microseconds.
const LOOK_EVERY_US: u64 = 1_000_000;
/// The same after processes have come or gone.
const SOON_US: u64 = 50_000;
/// Least interval, in durations (CPU time) of a look.
const REST: u64 = 20;
/// The kernel may clean up late.
const TRIES: u32 = 3;
/// First and longest pause after a retry.
const PAUSE_US: u64 = 50_000;
const LONGEST_PAUSE_US: u64 = 1_000_000;
/// A retry is vain if all but one in this many parts stays.
const VAIN_PART: u64 = 16;
/// Later a retry has not failed.
const SETTLED_US: u64 = 2_000_000;

/// One process's state, in bytes and microseconds; `evicted` counts pages.
#[derive(Debug, Default)]
pub struct Stuck {
    bytes: u64,
    /// Registered processes at the last look.
    active: u64,
    soon_us: u64,
    next_us: u64,
    /// Retries left, and when.
    tries: u32,
    next_try_us: u64,
    pause_us: u64,
    tried: Option<Tried>,
}

#[derive(Debug)]
struct Tried {
    bytes: u64,
    in_memory: u64,
    evicted: u64,
    at_us: u64,
}

impl Tried {
    fn evicted_since(&self, evicted: u64) -> u64 {
        evicted.saturating_sub(self.evicted) * PAGE_SIZE as u64
    }
}

impl Stuck {
    /// Stuck bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Most bytes that a new retry may prove stuck.
    pub fn bytes_at_most(&self, evicted: u64) -> u64 {
        let tried = self.tried.as_ref().map_or(0, |tried| tried.bytes.saturating_sub(tried.evicted_since(evicted)));
        self.bytes.max(tried)
    }

    /// Fewer processes share pages with this one.
    pub fn is_shared_by_fewer(&mut self) {
        self.tries = TRIES;
    }

    /// Whether a retry's outcome is unknown.
    pub fn is_being_tried(&self) -> bool {
        self.tried.is_some()
    }

    /// Ends a retry when all is evicted, or by time.
    pub fn settle(&mut self, now_us: u64, evicted: u64) {
        let Some(tried) = &self.tried else { return };
        if tried.evicted_since(evicted) >= tried.in_memory {
            self.pause_us = PAUSE_US;
        } else if now_us < tried.at_us + SETTLED_US {
            return;
        }
        self.tried = None;
    }

    /// Whether a look is due, with `active` registered processes.
    pub fn is_due(&self, now_us: u64, active: u64) -> bool {
        now_us >= if self.is_worth_a_try(now_us) || active != self.active { self.soon_us } else { self.next_us }
    }

    /// Records a look of `cpu_us`.
    pub fn looked(&mut self, in_memory: u64, now_us: u64, cpu_us: u64, active: u64) {
        let rest = cpu_us * REST;
        (self.soon_us, self.next_us) = (now_us + rest.max(SOON_US), now_us + rest.max(LOOK_EVERY_US));
        self.active = active;
        self.bytes = self.bytes.min(in_memory);
    }

    /// Records a look without victims: all is stuck.
    pub fn exhausted(&mut self, in_memory: u64) {
        if let Some(tried) = self.tried.take()
            && in_memory > tried.bytes - tried.bytes / VAIN_PART
        {
            self.pause_us = (self.pause_us * 2).clamp(PAUSE_US, LONGEST_PAUSE_US);
            self.next_try_us = self.next_try_us.max(tried.at_us + self.pause_us);
        }
        self.bytes = in_memory;
    }

    /// Whether a retry is due.
    pub fn is_worth_a_try(&self, now_us: u64) -> bool {
        self.tries > 0 && now_us >= self.next_try_us
    }

    /// Starts a retry; with `in_memory`, nothing is stuck until [`Stuck::exhausted`].
    pub fn is_tried(&mut self, in_memory: Option<u64>, now_us: u64, evicted: u64) {
        if let Some(in_memory) = in_memory.filter(|_| self.bytes > 0) {
            self.tried = Some(Tried { bytes: core::mem::take(&mut self.bytes), in_memory, evicted, at_us: now_us });
        }
        (self.tries, self.next_try_us) = (self.tries.saturating_sub(1), now_us + PAUSE_US);
    }

    /// Postpones a retry.
    pub fn is_put_off(&mut self, now_us: u64) {
        self.next_try_us = now_us + LONGEST_PAUSE_US;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000;
    const STUCK: u64 = 100 << 20;
    const PAGES: u64 = STUCK / PAGE_SIZE as u64;

    /// A child lives 100 ms of each half second and prevents eviction; with `stays_stuck` it stays
    /// impossible but for 30 MiB. Returns the per mille of childless time with stuck memory, and
    /// retries a minute.
    fn with_children(stays_stuck: bool) -> (u64, u32) {
        let (mut stuck, mut evicted, mut tries, mut wrong, mut without) = (Stuck::default(), 0, 0, 0, 0);
        let in_memory = STUCK + (30 << 20);
        for now in (1000 * MS..61_000 * MS).step_by(MS as usize) {
            let (is_there, ends) = (now % (500 * MS) < 100 * MS, now % (500 * MS) == 100 * MS);
            if ends {
                stuck.is_shared_by_fewer();
            }
            stuck.settle(now, evicted);
            if stuck.bytes() > 0 && stuck.is_due(now, 2) {
                stuck.looked(in_memory, now, MS / 2, 2);
                if stuck.is_worth_a_try(now) {
                    stuck.is_tried(Some(in_memory), now, evicted);
                    tries += 1;
                    evicted += PAGES * 30 / 100;
                }
            }
            if stuck.bytes() == 0 && stuck.is_worth_a_try(now) {
                stuck.is_tried(None, now, evicted);
            }
            let can_go = !is_there && !stays_stuck;
            if stuck.bytes() == 0 && can_go {
                evicted += PAGES / 100;
            }
            if !can_go && (stuck.is_being_tried() || stuck.is_due(now, 2)) {
                stuck.looked(in_memory, now, MS / 2, 2);
                stuck.exhausted(STUCK);
            }
            without += u64::from(!is_there);
            wrong += u64::from(!is_there && stuck.bytes() > 0);
        }
        (wrong * 1000 / without, tries)
    }

    #[test]
    fn what_is_stuck_while_a_child_lives_is_not_when_it_is_gone() {
        let (wrong, tries) = with_children(false);
        assert!(wrong < 150 && (30..=130).contains(&tries), "{wrong} per mille, {tries} tries");
    }

    #[test]
    fn what_stays_stuck_is_tried_less_often() {
        let (_, tries) = with_children(true);
        assert!((30..=65).contains(&tries), "{tries} tries in a minute");
    }

    fn stuck() -> Stuck {
        let mut stuck = Stuck::default();
        stuck.looked(STUCK, 2 * MS, MS, 1);
        stuck.exhausted(STUCK);
        stuck
    }

    #[test]
    fn a_try_is_followed_by_what_comes_of_it() {
        let mut stuck = stuck();
        assert!(!stuck.is_due(900 * MS, 1) && stuck.is_due(1002 * MS, 1));
        assert!(stuck.is_due(52 * MS, 2), "a process has come");
        assert!(!stuck.is_worth_a_try(u64::MAX), "for no reason");
        stuck.is_shared_by_fewer();
        assert!(!stuck.is_due(51 * MS, 1) && stuck.is_due(52 * MS, 1) && stuck.is_worth_a_try(52 * MS));
        stuck.looked(STUCK, 53 * MS, MS, 1);
        stuck.is_tried(Some(STUCK), 52 * MS, 0);
        assert!(stuck.bytes() == 0 && stuck.is_being_tried());
        assert_eq!(stuck.bytes_at_most(PAGES / 4), STUCK * 3 / 4, "a quarter was not stuck");
        stuck.exhausted(STUCK);
        assert!(stuck.bytes() == STUCK && !stuck.is_being_tried());
        assert!(!stuck.is_worth_a_try(101 * MS) && stuck.is_worth_a_try(102 * MS), "once more, a while later");
        stuck.is_tried(Some(STUCK), 102 * MS, PAGES);
        stuck.exhausted(STUCK);
        assert!(!stuck.is_worth_a_try(201 * MS) && stuck.is_worth_a_try(202 * MS), "and after a longer one");
        stuck.is_tried(Some(STUCK), 202 * MS, PAGES);
        assert!(!stuck.is_worth_a_try(u64::MAX), "three times");
        stuck.exhausted(STUCK);
        stuck.looked(STUCK / 2, 1101 * MS, MS, 1);
        assert_eq!(stuck.bytes(), STUCK / 2, "the rest was dropped");
    }

    #[test]
    fn a_try_ends_without_a_failure() {
        for (at, evicted, ends) in [(100, PAGES / 2, false), (100, PAGES, true), (2_060, 0, true)] {
            let mut stuck = stuck();
            stuck.is_shared_by_fewer();
            stuck.is_tried(Some(STUCK), 52 * MS, 0);
            stuck.settle(at * MS, evicted);
            assert_eq!((stuck.is_being_tried(), stuck.bytes_at_most(evicted) > 0), (!ends, !ends), "{evicted} at {at} ms");
        }
    }

    #[test]
    fn what_can_t_be_tried_now_is_not_looked_at_all_the_time() {
        let mut stuck = stuck();
        stuck.is_shared_by_fewer();
        stuck.looked(STUCK, 60 * MS, MS, 1);
        stuck.is_put_off(60 * MS);
        assert!(!stuck.is_due(1_000 * MS, 1) && stuck.is_due(1_060 * MS, 1) && stuck.is_worth_a_try(1_060 * MS));
    }

    #[test]
    fn looks_take_a_part_of_a_cpu() {
        let mut stuck = Stuck::default();
        stuck.looked(STUCK, 100 * MS, 100 * MS, 1);
        assert!(!stuck.is_due(2_000 * MS, 2) && stuck.is_due(2_100 * MS, 2));
    }
}
