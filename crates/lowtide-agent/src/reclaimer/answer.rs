//! What threads of the program ask of the reclaimer (`request.rs`) is done, between its steps: they wait for it.

use lowtide_pager::pager::Pager;

use crate::request::Request;
use crate::{agent, atfork, inheritance, request, thread_end, wake};

/// Does all that is asked, in whatever state this process is.
pub(super) fn all_there_is() {
    match agent::pager() {
        None => request::answer(|_| {}),
        Some(pager) => all(pager),
    }
}

/// Does all that is asked, with no lock held and in no operation.
pub(super) fn all(pager: &Pager) {
    request::answer(|request| match request {
        // The child's copy of the tables must not be one of tables that change. And the thread that asks may hold a lock that
        // the forking thread waits for: it is answered at once, and what it asks for is found afterwards.
        Request::Adopt(_) | Request::Release(_) if pager.paused() => wake::look_again(),
        // What can't be adopted (a kind of memory, too many ranges) stays with the program.
        Request::Adopt(range) => drop(pager.adopt(range)),
        // What stays adopted the program can't have: it is told so by the kernel.
        Request::Release(range) => drop(pager.release(range)),
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
