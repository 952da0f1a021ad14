//! Answers requests (`request.rs`) between the reclaimer's steps.

use core::sync::atomic::Ordering;

use lowtide_pager::pager::Pager;
use lowtide_sys::Range;
use rustix::io::Errno;
use rustix::thread::{Timespec, nanosleep};

use crate::fork::{self, inheritance};
use crate::hooks::{LEFT_ALONE, NOT_RELEASED, several};
use crate::process::{agent, thread_end};
use crate::reclaimer::request::{self, Request};
use crate::reclaimer::wake;

pub(super) fn all_there_is() {
    match agent::pager() {
        None => request::answer(|_| {}),
        Some(pager) => all(pager),
    }
}

/// The old mapping may await its unmap event: registration retries with a pause.
const REGISTER_TRIES: usize = 100;
const REGISTER_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };

fn register(pager: &Pager, range: Range) {
    for _ in 0..REGISTER_TRIES {
        if pager.register(range) != Err(Errno::AGAIN) {
            return;
        }
        let _ = nanosleep(&REGISTER_PAUSE);
    }
    wake::look_again();
}

pub(super) fn all(pager: &Pager) {
    request::answer(|request| match request {
        // The child must not copy changing tables, and the asking thread may hold a lock that the
        // forking thread needs: answer at once, and find the mapping later.
        Request::Register(_) if pager.paused() => wake::look_again(),
        Request::Register(range) => LEFT_ALONE.each_other(range, |part| register(pager, part)),
        Request::Mapping(range) => several::answer(range.start, pager.mapping_at(range.start)),
        Request::Replaced(range) => pager.unmapped_without_event(range.start),
        // The kernel refuses the program's use of memory that stays registered.
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
            fork::answered(is_over);
        }
    });
}
