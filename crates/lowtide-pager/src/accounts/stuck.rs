//! Memory that could not be evicted when nothing else was left: how much of it there is, when it is looked at, and when it is
//! tried again. By the reclaimer; what it does about it is the host's.
//!
//! A look finds out how much is in memory, so it costs some milliseconds a GiB. To try is to forget that anything is stuck:
//! then all memory is searched, twice if in vain. It is tried when fewer processes share it than did: a forked child is gone,
//! and its parent has pages alone that could not be moved. After each try in vain the pause is twice as long.

use lowtide_core::vm::PAGE_SIZE;

/// From one look to the next, in microseconds, ...
const LOOK_EVERY_US: u64 = 1_000_000;
/// ... or this, where processes have come or gone, ...
const SOON_US: u64 = 50_000;
/// ... but so many times the CPU time that a look takes.
const REST: u64 = 20;
/// How often it is tried when fewer share it: what is gone for the others may not be for the kernel yet.
const TRIES: u32 = 3;
/// The pause after a try, and the longest after several in vain.
const PAUSE_US: u64 = 50_000;
const LONGEST_PAUSE_US: u64 = 1_000_000;
/// A try after which all but one of this many parts of what was stuck is in memory was in vain.
const VAIN_PART: u64 = 16;
/// A try of which nothing is known after this has not failed.
const SETTLED_US: u64 = 2_000_000;

/// What is known of it in one process. Sizes in bytes, times in microseconds; `evicted` counts the pages evicted so far.
#[derive(Debug, Default)]
pub struct Stuck {
    bytes: u64,
    /// How many processes of the run had registered memory at the last look.
    active: u64,
    soon_us: u64,
    next_us: u64,
    /// How often it is to be tried, and when the next time may be.
    tries: u32,
    next_try_us: u64,
    pause_us: u64,
    tried: Option<Tried>,
}

/// A try of which is not known yet what comes of it.
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
    /// How much.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How much it may turn out to be after a try that has just begun.
    pub fn bytes_at_most(&self, evicted: u64) -> u64 {
        let tried = self.tried.as_ref().map_or(0, |tried| tried.bytes.saturating_sub(tried.evicted_since(evicted)));
        self.bytes.max(tried)
    }

    /// Fewer processes share pages with this one than did.
    pub fn is_shared_by_fewer(&mut self) {
        self.tries = TRIES;
    }

    /// Whether it was tried, and nothing is known of what came of it.
    pub fn is_being_tried(&self) -> bool {
        self.tried.is_some()
    }

    /// A try ends when all has been evicted, or after a while.
    pub fn settle(&mut self, now_us: u64, evicted: u64) {
        let Some(tried) = &self.tried else { return };
        if tried.evicted_since(evicted) >= tried.in_memory {
            self.pause_us = PAUSE_US;
        } else if now_us < tried.at_us + SETTLED_US {
            return;
        }
        self.tried = None;
    }

    /// Whether a look is due, in a run in which so many processes have registered memory.
    pub fn is_due(&self, now_us: u64, active: u64) -> bool {
        now_us >= if self.is_worth_a_try(now_us) || active != self.active { self.soon_us } else { self.next_us }
    }

    /// A look has just been made, which took the thread `cpu_us`: so much is in memory.
    pub fn looked(&mut self, in_memory: u64, now_us: u64, cpu_us: u64, active: u64) {
        let rest = cpu_us * REST;
        (self.soon_us, self.next_us) = (now_us + rest.max(SOON_US), now_us + rest.max(LOOK_EVERY_US));
        self.active = active;
        self.bytes = self.bytes.min(in_memory);
    }

    /// After a look when nothing more could be evicted: all that is in memory is stuck.
    pub fn exhausted(&mut self, in_memory: u64) {
        if let Some(tried) = self.tried.take()
            && in_memory > tried.bytes - tried.bytes / VAIN_PART
        {
            self.pause_us = (self.pause_us * 2).clamp(PAUSE_US, LONGEST_PAUSE_US);
            self.next_try_us = self.next_try_us.max(tried.at_us + self.pause_us);
        }
        self.bytes = in_memory;
    }

    /// Whether it is to be tried again.
    pub fn is_worth_a_try(&self, now_us: u64) -> bool {
        self.tries > 0 && now_us >= self.next_try_us
    }

    /// It is. `in_memory`, by a look: nothing is stuck until [`Stuck::exhausted`] says so. Without a look it stays as it was.
    pub fn is_tried(&mut self, in_memory: Option<u64>, now_us: u64, evicted: u64) {
        if let Some(in_memory) = in_memory.filter(|_| self.bytes > 0) {
            self.tried = Some(Tried { bytes: core::mem::take(&mut self.bytes), in_memory, evicted, at_us: now_us });
        }
        (self.tries, self.next_try_us) = (self.tries.saturating_sub(1), now_us + PAUSE_US);
    }

    /// It can't be tried now.
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

    /// A process forks a child each half second that lives for 100 ms, and while that lives nothing can be evicted; if it
    /// `stays_stuck`, afterwards neither, but for 30 MiB that it uses all the time. In what part of the time without a child
    /// anything was taken for stuck, per mille, and how often it was tried in a minute.
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
                    // What can be moved goes first, stuck or not.
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

    /// Of which all is known to be stuck at 2 ms.
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
