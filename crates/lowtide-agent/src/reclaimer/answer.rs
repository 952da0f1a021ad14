//! What threads of the program ask of the reclaimer (`request.rs`) is done, between its steps: they wait for it.

use core::sync::atomic::Ordering;

use lowtide_pager::mappings::Range;
use lowtide_pager::pager::Pager;
use rustix::io::Errno;
use rustix::thread::{Timespec, nanosleep};

use crate::hooks::{LEFT_ALONE, NOT_RELEASED};
use crate::request::Request;
use crate::{agent, atfork, inheritance, request, several, thread_end, wake};

/// Does all that is asked, in whatever state this process is.
pub(super) fn all_there_is() {
    match agent::pager() {
        None => request::answer(|_| {}),
        Some(pager) => all(pager),
    }
}

/// What was adopted there may have been unmapped by a call whose event was not read yet: so often it is tried again, with a pause.
const ADOPT_TRIES: usize = 100;
const ADOPT_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };

fn adopt(pager: &Pager, range: Range) {
    for _ in 0..ADOPT_TRIES {
        if pager.adopt(range) != Err(Errno::AGAIN) {
            return;
        }
        let _ = nanosleep(&ADOPT_PAUSE);
    }
    wake::look_again();
}

/// Does all that is asked, with no lock held and in no operation.
pub(super) fn all(pager: &Pager) {
    request::answer(|request| match request {
        // The child's copy of the tables must not be one of tables that change. And the thread that asks may hold a lock that
        // the forking thread waits for: it is answered at once, and what it asks for is found afterwards.
        Request::Adopt(_) if pager.paused() => wake::look_again(),
        // What can't be adopted (a kind of memory, too many ranges) stays with the program.
        Request::Adopt(range) => LEFT_ALONE.each_other(range, |part| adopt(pager, part)),
        Request::Mapping(range) => several::answer(range.start, pager.mapping_at(range.start)),
        Request::Replaced(range) => pager.unmapped_without_event(range.start),
        // What stays adopted the program can't have: it is told so by the kernel.
        Request::Release(range) if pager.paused() || pager.release(range).is_err() => {
            NOT_RELEASED.fetch_add(1, Ordering::Relaxed);
        }
        Request::Release(_) => {}
        Request::Ends(thread) => thread_end::ends(pager, thread),
        Request::Fork => {
            inheritance::hand_on(pager);
            pager.announce_fork(agent::segment());
        }
        Request::ForkIsOver => {
            let is_over = pager.fork_is_over();
            if is_over {
                inheritance::take_back();
            }
            atfork::answered(is_over);
        }
    });
}
