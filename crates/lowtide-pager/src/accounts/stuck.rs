//! Memory that could not be evicted when nothing else was left: how much of it there is, when it is looked at, and when it is
//! tried again. By the reclaimer; what it does about it is the host's.
//!
//! A look finds out how much is in memory, so it costs some milliseconds a GiB. To try is to forget that anything is stuck:
//! then all memory is searched, twice if in vain. It is tried when fewer processes share it than did (a forked child is gone,
//! and its parent has pages alone that could not be moved), and else now and then, because nobody says when memory is not
//! pinned any more. After each try in vain the pause is twice as long.

use lowtide_core::vm::PAGE_SIZE;

/// From one look to the next, in microseconds, ...
const LOOK_EVERY_US: u64 = 1_000_000;
/// ... or this, where processes have come or gone, ...
const SOON_US: u64 = 50_000;
/// ... but so many times as long as a look takes, ...
const REST: u64 = 20;
/// ... up to this.
const LONGEST_REST_US: u64 = 5_000_000;
/// From one try to the next where nothing says that it is worth it, at least.
const UNASKED_US: u64 = 8_000_000;
/// The longest pause after tries in vain.
const LONGEST_PAUSE_US: u64 = 64_000_000;
/// A try after which no more than a part of this many of what was stuck is evicted was in vain.
const VAIN_PART: u64 = 16;

/// What is known of it in one process. Sizes in bytes, times in microseconds.
#[derive(Debug, Default)]
pub struct Stuck {
    bytes: u64,
    /// How many processes of the run had registered memory at the last look.
    active: u64,
    soon_us: u64,
    next_us: u64,
    /// Since the last try, fewer processes have come to share the pages.
    is_shared_by_fewer: bool,
    tried_us: u64,
    pause_us: u64,
    /// What was stuck at the last try, and how many pages had been evicted then; until it is known what came of it.
    tried: Option<(u64, u64)>,
}

impl Stuck {
    /// How much.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fewer processes share pages with this one than did.
    pub fn is_shared_by_fewer(&mut self) {
        self.is_shared_by_fewer = true;
    }

    /// Whether a look is due, in a run in which so many processes have registered memory.
    pub fn is_due(&self, now_us: u64, active: u64) -> bool {
        now_us >= if self.is_shared_by_fewer || active != self.active { self.soon_us } else { self.next_us }
    }

    /// A look was made, from `began_us` to `ended_us`: so much is in memory.
    pub fn looked(&mut self, in_memory: u64, began_us: u64, ended_us: u64, active: u64) {
        let rest = (ended_us.saturating_sub(began_us) * REST).min(LONGEST_REST_US);
        (self.soon_us, self.next_us) = (ended_us + rest.max(SOON_US), ended_us + rest.max(LOOK_EVERY_US));
        self.active = active;
        self.bytes = self.bytes.min(in_memory);
    }

    /// The same after nothing more could be evicted: all that is in memory is stuck. `evicted`: pages evicted so far.
    pub fn exhausted(&mut self, in_memory: u64, evicted: u64) {
        if let Some((before, evicted_then)) = self.tried.take() {
            let is_vain = evicted.saturating_sub(evicted_then) * PAGE_SIZE as u64 <= before / VAIN_PART;
            self.pause_us = if is_vain { (self.pause_us * 2).clamp(SOON_US, LONGEST_PAUSE_US) } else { 0 };
        }
        self.bytes = in_memory;
    }

    /// Whether it is to be tried again.
    pub fn is_worth_a_try(&self, now_us: u64) -> bool {
        let pause = if self.is_shared_by_fewer { self.pause_us.max(SOON_US) } else { self.pause_us.max(UNASKED_US) };
        (self.is_shared_by_fewer || self.bytes > 0) && now_us >= self.tried_us + pause
    }

    /// It is: nothing is stuck until [`Stuck::exhausted`] says so, for which a look is due at once.
    pub fn is_tried(&mut self, now_us: u64, evicted: u64) {
        self.tried = Some((self.bytes, evicted));
        (self.bytes, self.tried_us, self.is_shared_by_fewer, self.next_us) = (0, now_us, false, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000;
    const STUCK: u64 = 100 << 20;
    const PAGES: u64 = STUCK / PAGE_SIZE as u64;

    /// A run of two processes, of which one forks each half second a child that lives for 100 ms, and while it lives nothing can
    /// be evicted. In what part of a minute without a child anything was taken for stuck, per mille, and how often it was tried.
    fn with_children(stays_stuck: bool) -> (u64, u32) {
        let (mut stuck, mut evicted, mut tries, mut wrong, mut without) = (Stuck::default(), 0, 0, 0, 0);
        for now in (1000 * MS..61_000 * MS).step_by(MS as usize) {
            let (is_there, ends) = (now % (500 * MS) < 100 * MS, now % (500 * MS) == 100 * MS);
            if ends {
                stuck.is_shared_by_fewer();
            }
            if stuck.bytes() > 0 && stuck.is_due(now, 2) {
                if stuck.is_worth_a_try(now) {
                    stuck.is_tried(now, evicted);
                    tries += 1;
                }
                stuck.looked(STUCK, now, now + MS / 2, 2);
            }
            let can_go = !is_there && !stays_stuck;
            if stuck.bytes() == 0 && can_go {
                evicted += PAGES / 100;
            }
            if !can_go && stuck.is_due(now, 2) {
                stuck.looked(STUCK, now, now + MS / 2, 2);
                stuck.exhausted(STUCK, evicted);
            }
            without += u64::from(!is_there);
            wrong += u64::from(!is_there && stuck.bytes() > 0);
        }
        (wrong * 1000 / without, tries)
    }

    #[test]
    fn what_is_stuck_while_a_child_lives_is_not_when_it_is_gone() {
        let (wrong, tries) = with_children(false);
        assert!(wrong < 150 && (100..=130).contains(&tries), "{wrong} per mille, {tries} tries");
    }

    #[test]
    fn what_stays_stuck_is_tried_less_and_less_often() {
        let (_, tries) = with_children(true);
        assert!((5..=15).contains(&tries), "{tries} tries in a minute");
    }

    #[test]
    fn it_is_tried_now_and_then_without_a_reason() {
        let mut stuck = Stuck::default();
        stuck.looked(STUCK, MS, 2 * MS, 1);
        stuck.exhausted(STUCK, 0);
        assert!(!stuck.is_due(900 * MS, 1) && stuck.is_due(1002 * MS, 1));
        assert!(stuck.is_due(52 * MS, 2), "a process has come");
        assert!(!stuck.is_worth_a_try(7_000 * MS) && stuck.is_worth_a_try(8_000 * MS));
        stuck.is_tried(8_000 * MS, 0);
        assert!(stuck.bytes() == 0 && stuck.is_due(8_000 * MS, 1) && !stuck.is_worth_a_try(u64::MAX));
        stuck.looked(STUCK, 8_001 * MS, 8_002 * MS, 1);
        stuck.exhausted(STUCK, PAGES / 100);
        assert_eq!(stuck.bytes(), STUCK, "in vain");
        stuck.looked(STUCK / 2, 9_100 * MS, 9_101 * MS, 1);
        assert_eq!(stuck.bytes(), STUCK / 2, "the rest was dropped");
    }

    #[test]
    fn looks_take_a_part_of_a_cpu() {
        let mut stuck = Stuck::default();
        stuck.looked(STUCK, 0, 100 * MS, 1);
        assert!(!stuck.is_due(2_000 * MS, 2) && stuck.is_due(2_100 * MS, 2));
        stuck.looked(STUCK, 3_000 * MS, 4_000 * MS, 1);
        assert!(stuck.is_due(9_000 * MS, 1), "not for ever, however long it took");
    }
}
