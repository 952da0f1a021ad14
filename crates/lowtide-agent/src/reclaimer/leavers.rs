//! Threads that have left a hook in another way than by a return, and come back to none: the mark that they have put on the
//! stack may stay as it is (`mark.rs`). What the kernel says of such a thread tells: it has done what nobody does inside a hook.
//! Where it sleeps alone proves nothing: the stack of a signal handler may be anywhere, and the hook goes on after that.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use lowtide_core::visits::{Seen, Visit};
use lowtide_core::vm::PAGE_SIZE;
use lowtide_pager::pager::Pager;
use lowtide_pager::sys::Line;
use lowtide_pager::sys::stat::{Work, parse_stack, parse_state, parse_work};

use crate::{agent, gate, mark, thread};

/// So many visits are followed at a time.
const MOST: usize = 8;
/// Pages that a thread may touch inside a hook: of its stack, and of the C library's data.
const OWN_FAULTS: u64 = 64;

/// See above.
#[derive(Default)]
pub(super) struct Leavers(ArrayVec<(Seen, Option<Work>), MOST>);

impl Leavers {
    /// Forgets who has left. A visit is looked at when it is there for the second time, and by what its thread has done since
    /// then when it is for the third.
    pub(super) fn look(&mut self, pager: &Pager) {
        let before = core::mem::take(&mut self.0);
        for seen in gate::seen().take(MOST) {
            let work = match before.iter().find(|(earlier, _)| *earlier == seen) {
                None => None,
                Some(_) if mark::is_surely_left(seen.visit) && gate::forget(seen) => continue,
                Some((_, Some(then))) if gate::is_awaited(seen) && has_left(pager, seen.visit, *then) && gate::forget(seen) => {
                    continue;
                }
                Some((_, then)) => then.or_else(|| thread::stat(seen.visit.who(), parse_work)),
            };
            self.0.push((seen, work));
        }
    }
}

fn has_left(pager: &Pager, visit: Visit, then: Work) -> bool {
    // The first thread has ended, and others go on.
    if thread::stat(visit.who(), parse_state) == Some(b'Z') {
        return true;
    }
    // (What is locked in memory is brought in by the call.)
    let locked = agent::settings().ram_limit.load(Ordering::Relaxed) / 16 / PAGE_SIZE as u64;
    let has_worked = thread::stat(visit.who(), parse_work).is_some_and(|now| {
        now.faults > then.faults.saturating_add(locked + OWN_FAULTS) || now.user_ticks > then.user_ticks.saturating_add(1)
    });
    // Where it sleeps, a handler may have done that, below the mark or on another stack.
    let may_be_in_handler = || {
        let mut path = Line::new();
        path.push(b"/proc/self/task/").number(visit.who().into()).push(b"/syscall");
        thread::read_stat(path.bytes(), parse_stack)
            .is_some_and(|stack| visit.at().is_none_or(|at| at >= stack || !pager.are_in_one_mapping(at, stack)))
    };
    has_worked && !may_be_in_handler()
}
