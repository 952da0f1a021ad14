//! A forked child takes over: first the thread that forked, then the child's reclaimer.

use core::sync::atomic::Ordering;

use lowtide_core::steps;
use lowtide_pager::fork::{Inheritance, TakenOver};
use lowtide_wire::segment::{NO_PLACE, proc_state};

use super::{BLOCKED, LEAVER, clones, handshake, inheritance};
use crate::HEAP;
use crate::handlers::{self, fault_ring, in_thread, kept};
use crate::hooks::{gate, mlock};
use crate::process::{agent, pid_in_run, resident, say, swap_areas, thread};
use crate::reclaimer::{self, ReclaimerThread, long_nap, request};

/// `announced`: the parent's memory was registered. (Over 70 lines: steps in order.)
pub(super) fn take_over(announced: bool, has_files: bool) {
    gate::reset_after_fork();
    request::reset_after_fork();
    clones::reset_after_fork();
    long_nap::reset_after_fork();
    mlock::reset_after_fork();
    swap_areas::reset_after_fork();
    LEAVER.reset_after_fork();
    // SAFETY: this process has one thread, and the parent's allocating operations were paused (or
    // absent: the closed gate keeps the reclaimer from making a pager).
    unsafe {
        if BLOCKED.load(Ordering::Relaxed) {
            HEAP.reset_after_fork();
        } else {
            // No handler ran: the forking process has no agent, or a bare clone copied the memory.
            HEAP.begin_anew();
        }
        lowtide_core::vm::reset_after_fork();
        thread::retire_stacks();
        fault_ring::reset_after_fork();
        if announced {
            reclaimer::forget_parents();
            handlers::forget_parents();
        }
        in_thread::reset_after_fork(announced, has_files);
    }
    if !agent::present() {
        return;
    }
    let number = pid_in_run::of_child(agent::owner());
    // A parent made by a bare clone, without agent threads, leaves nothing to take over.
    let inherits = announced && agent::active().is_none();
    let parent_reclaimer = agent::RECLAIMER.load(Ordering::Relaxed);
    // Without a reclaimer the child asks for its memory here, on the program's stack, missing pages
    // of which the parent serves meanwhile.
    let alone = || {
        if inherits
            && let Some(pager) = agent::pager()
            && let Err(why) = pager.become_whole(&|| handshake::parent_serves(parent_reclaimer))
        {
            say::fatal(why);
        }
    };
    let Some(proc) = agent::segment().claim(number.there) else {
        alone();
        agent::forget_pager();
        return say::warn(NO_PLACE);
    };
    if inherits {
        // Before the parent is released: from here on the removal of a swap area waits for this
        // process.
        agent::segment().becomes_active(proc);
    } else {
        agent::forget_pager();
    }
    agent::set_proc(proc, number);
    reclaimer::forget_requests(proc);
    resident::in_child(proc);
    steps::taken(steps::Fork::Child);
    handshake::child_begins();
    let entry = if inherits { inherited } else { reclaimer::fresh };
    if let Err(why) = thread::spawn(entry, 0) {
        alone();
        proc.state.store(proc_state::WATCHING, Ordering::Release);
        if inherits {
            handshake::child_is_whole(why)
        } else {
            say::warn(reclaimer::NO_THREAD)
        }
        return;
    }
    if inherits {
        handshake::wait_until_ready();
    }
}

/// In a forked child whose parent had registered memory.
extern "C" fn inherited(_: usize) -> ! {
    let parent_reclaimer = agent::RECLAIMER.load(Ordering::Acquire);
    thread::name(c"lowtide-reclaim");
    // Before the parent lets go: a child without threads of its own gets all its memory at once.
    let able = thread::own_files().and_then(|()| handlers::start());
    agent::RECLAIMER.store(thread::id(), Ordering::Release);
    agent::thread_begins();
    let Some(pager) = agent::pager() else { reclaimer::sleep_for_ever(None) };
    let Some(parent) = handshake::parent_of_child() else { say::fatal(b"a forked child has no parent") };
    let mut reopen = |_area: u8, number: i32| inheritance::reopen(parent, parent_reclaimer, number);
    let inheritance = Inheritance {
        run: agent::segment(),
        proc: agent::proc(),
        parent_serves: &|| handshake::parent_serves(parent_reclaimer),
        reopen: &mut reopen,
        able,
    };
    // SAFETY: the fork handler waits for this thread, and the fault handlers for [`handlers::go`].
    match unsafe { pager.take_over(inheritance) } {
        Ok(TakenOver::Serves) => {}
        Ok(TakenOver::Whole(errno)) => {
            // Release: pairs with the Acquire of `lowtide run`'s search for processes.
            agent::proc().state.store(proc_state::WATCHING, Ordering::Release);
            handshake::child_is_whole(errno);
            handshake::child_is_ready();
            reclaimer::sleep_for_ever(None);
        }
        Err(why) => say::fatal(why),
    }
    // It has one thread.
    agent::segment().refuse_calls(agent::proc());
    kept::hand_over(pager.uffd());
    let Some(operation) = pager.enter() else { say::fatal(b"a forked child was made to wait for itself") };
    swap_areas::add_all(operation.store());
    drop(operation);
    steps::taken(steps::Fork::Child);
    let reclaimer = ReclaimerThread::of_child();
    handlers::go();
    handshake::child_is_ready();
    reclaimer.run()
}
