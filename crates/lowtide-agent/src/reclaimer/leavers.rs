//! Threads that left a hook without a return, while the mark on their stack stays intact
//! (`hooks/mark.rs`). By the kernel's numbers they have done what no thread does inside a hook. A
//! sleep elsewhere alone proves nothing: a signal handler's stack may be anywhere.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use lowtide_core::visits::{Seen, Visit};
use lowtide_core::vm::PAGE_SIZE;
use lowtide_pager::pager::Pager;
use lowtide_sys::Line;
use lowtide_sys::stat::{Work, parse_stack, parse_state, parse_work};

use crate::hooks::{gate, mark};
use crate::process::{agent, thread};

const MOST: usize = 8;
/// Pages that a thread may touch inside a hook: its stack and the C library's data.
const OWN_FAULTS: u64 = 64;

#[derive(Default)]
pub(super) struct Leavers(ArrayVec<(Seen, Option<Work>), MOST>);

impl Leavers {
    /// Forgets left visits: by the mark at the second sight, by the thread's work since then at the
    /// third.
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
    // The first thread has ended, others run.
    if thread::stat(visit.who(), parse_state) == Some(b'Z') {
        return true;
    }
    // A lock brings in its pages inside the call.
    let locked = agent::settings().ram_limit.load(Ordering::Relaxed) / 16 / PAGE_SIZE as u64;
    let has_worked = thread::stat(visit.who(), parse_work).is_some_and(|now| {
        now.faults > then.faults.saturating_add(locked + OWN_FAULTS) || now.user_ticks > then.user_ticks.saturating_add(1)
    });
    // A handler may have done that work, below the mark or on another stack.
    let may_be_in_handler = || {
        let mut path = Line::new();
        path.push(b"/proc/self/task/").number(visit.who().into()).push(b"/syscall");
        thread::read_stat(path.bytes(), parse_stack)
            .is_some_and(|stack| visit.at().is_none_or(|at| at >= stack || !pager.are_in_one_mapping(at, stack)))
    };
    has_worked && !may_be_in_handler()
}
