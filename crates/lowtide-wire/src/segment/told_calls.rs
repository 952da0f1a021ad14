//! Calls that change memory, of which a system call filter tells ([`crate::call_filter`]): they go
//! on until their process is about to register memory, and are refused from then on. A thread whose
//! call went on may make it later, when it gets a CPU: the process waits for it.

use core::sync::atomic::Ordering;

use super::{Proc, Segment};

/// Calls go on; there was none yet.
const NONE: u32 = 0;
/// Calls go on.
const GO_ON: u32 = 1;
/// Calls are refused; earlier ones may be under way.
const ENDING: u32 = 2;
/// Calls are refused; nobody waits for earlier ones.
const REFUSED: u32 = 3;

impl Segment {
    /// For the reclaimer of `proc`, which calls this until it is true: refuses calls, and tells
    /// whether none is under way.
    pub fn refuse_calls(&self, proc: &Proc) -> bool {
        match proc.told_calls.load(Ordering::Acquire) {
            REFUSED => return true,
            ENDING => return false,
            _ => {}
        }
        // AcqRel: pairs with `may_call_go_on`: whoever finds this state finds the call noted.
        if proc.told_calls.swap(ENDING, Ordering::AcqRel) == NONE {
            proc.waits_no_longer();
            return true;
        }
        self.wake_holder();
        false
    }
}

impl Proc {
    /// For `lowtide run`, of a call that it has noted.
    pub fn may_call_go_on(&self) -> bool {
        // AcqRel: pairs with `refuse_calls`. (Of later calls the note's lock makes sure.)
        match self.told_calls.compare_exchange(NONE, GO_ON, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(state) => state == GO_ON,
        }
    }

    /// Whether it waits for calls under way.
    pub fn waits_for_calls(&self) -> bool {
        self.told_calls.load(Ordering::Acquire) == ENDING
    }

    /// For `lowtide run` once no call is under way, or for the process itself.
    pub fn waits_no_longer(&self) {
        // AcqRel: what the calls did comes before.
        let _ = self.told_calls.compare_exchange(ENDING, REFUSED, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// For a process that registers no memory yet, and of which calls may be under way.
    pub fn lets_calls_go_on(&self) {
        self.told_calls.store(GO_ON, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::super::segment;

    #[test]
    fn calls_are_refused_at_once_and_those_that_went_on_are_waited_for() {
        let run = segment();
        let [quiet, busy] = [10, 11].map(|pid| run.claim(pid).unwrap());
        assert!(run.refuse_calls(quiet) && !quiet.may_call_go_on(), "there was none");
        assert!(busy.may_call_go_on() && busy.may_call_go_on());
        let holds = run.holds();
        assert!(!run.refuse_calls(busy) && run.holds() != holds, "`lowtide run` is told");
        assert!(busy.waits_for_calls() && !busy.may_call_go_on() && !run.refuse_calls(busy));
        busy.waits_no_longer();
        assert!(!busy.waits_for_calls() && run.refuse_calls(busy) && !busy.may_call_go_on());
    }

    #[test]
    fn what_was_not_asked_is_not_answered_and_a_new_program_begins_anew() {
        let run = segment();
        let proc = run.claim(10).unwrap();
        assert!(proc.may_call_go_on());
        proc.waits_no_longer();
        assert!(proc.may_call_go_on(), "from an earlier wait");
        assert!(!run.refuse_calls(proc));
        proc.lets_calls_go_on();
        assert!(proc.may_call_go_on(), "memory could not be registered");
        let again = run.claim(10).unwrap();
        assert!(run.refuse_calls(again), "it executed another program");
    }
}
