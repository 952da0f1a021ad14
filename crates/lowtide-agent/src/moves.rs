//! Moves of memory (`mremap`), guards and lazy frees (`madvise`) of programs without hooks are made here: `lowtide run`, which a
//! filter tells of them (`follow.rs`), passes them on to a thread of lowtide's in the process, and the thread that asked waits for
//! the result. So they come one at a time, as hooked ones do, and it is known of each event whose it is (the pager's
//! `mappings/made_move.rs`).
//!
//! That thread has not the capabilities by which the kernel lets somebody have more memory than others: the program may have given
//! them up. Where one that has not would need them, it makes its call itself.

use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general as sys;
use lowtide_pager::sys::Line;
use lowtide_pager::sys::broker::{Connection, MOVES};
use lowtide_pager::sys::moves::{Call, Made};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::thread::{CapabilitySet, Timespec, capabilities, nanosleep, set_capabilities};

use crate::{agent, broker, follow, hooks, monitor, other_doors, say, thread, thread_end};

/// EAGAIN: the thread makes its call itself.
const NOT_MADE: isize = -11;

/// Seconds after which it asks again whether it may make moves.
const ASKS_AGAIN: i64 = 5;

/// How often, and for how many nanoseconds each time, memory is not registered because the thread is not ready yet.
const WAITS: usize = 500;
const WAIT_NS: i64 = 200_000;

const NONE: u32 = 0;
const STARTING: u32 = 1;
/// It makes moves, or `lowtide run` has refused that at least once.
const READY: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(NONE);

/// Starts the thread where `lowtide run` is told of this process's moves, if there is none yet. (Without it they are made by the
/// threads that ask for them.) By the reclaimer.
pub fn start() {
    let is_wanted = agent::settings().makes_moves != 0 && follow::is_told();
    if is_wanted && STATE.load(Ordering::Relaxed) == NONE {
        STATE.store(STARTING, Ordering::Relaxed);
        if monitor::spawn_known(run, 0).is_err() {
            // The next look tries again.
            STATE.store(NONE, Ordering::Relaxed);
        }
    }
}

/// Waits for a while until the thread is asked: before memory is registered, moves of which threads make themselves. By the
/// reclaimer.
pub fn wait() {
    for _ in 0..WAITS {
        if STATE.load(Ordering::Relaxed) != STARTING {
            return;
        }
        let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: WAIT_NS });
    }
}

extern "C" fn run(_: usize) -> ! {
    thread::name(c"lowtide-moves");
    give_up_rights();
    let connection = loop {
        match connect() {
            Ok(connection) => break connection,
            // There are too many such processes, or `lowtide run` has no descriptor left.
            Err(error) => {
                if STATE.swap(READY, Ordering::Relaxed) == STARTING {
                    let mut line = Line::new();
                    line.push(b"lowtide: moves of memory (mremap) in process ").number(agent::pid().into());
                    line.push(b" are not made by lowtide yet: error ").number(error.raw_os_error() as u64);
                    say::verbose(&mut line);
                }
                let _ = nanosleep(&Timespec { tv_sec: ASKS_AGAIN, tv_nsec: 0 });
            }
        }
    };
    STATE.store(READY, Ordering::Relaxed);
    serve(connection.as_fd())
}

/// Its calls are not to be allowed more than those of the program's threads.
fn give_up_rights() {
    if let Ok(mut sets) = capabilities(None) {
        // To lock as much memory as one likes, and to have what is reserved for root where memory can't be overcommitted.
        sets.effective.remove(CapabilitySet::IPC_LOCK | CapabilitySet::SYS_ADMIN);
        let _ = set_capabilities(None, sets);
    }
}

fn connect() -> Result<Connection, Errno> {
    let connection = broker::connect()?;
    // Once it is asked there is no way back: a call may follow the answer at once.
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(connection.as_fd(), direction, None)?;
    }
    connection.ask_with(MOVES, thread::id().into())?;
    Ok(connection)
}

/// Makes what is asked for, as long as the process lives. A thread waits for each answer.
fn serve(socket: BorrowedFd<'_>) -> ! {
    loop {
        let Ok(Call { id, number, arguments }) = Call::receive(socket) else { lost() };
        let arguments = arguments.map(|argument| argument as usize);
        let [first, second, third, fourth, _] = arguments;
        let result = match number {
            sys::__NR_shmat => other_doors::attach(first as i32, second, third as i32),
            sys::__NR_process_madvise => other_doors::advise_for(second, third, fourth as u32),
            sys::__NR_madvise if arguments[2] as u32 == sys::MADV_FREE => hooks::free(arguments[0], arguments[1]),
            sys::__NR_madvise => hooks::make_guards(arguments[0], arguments[1]),
            sys::__NR_set_tid_address => {
                thread_end::clears(arguments[0]);
                0
            }
            _ => make(arguments),
        } as i64;
        // More would be locked than is allowed to this thread. It may be to the one that asks.
        let result = (result != NOT_MADE as i64).then_some(result);
        let made = Made { id, result, own_threads: u64::from(agent::own_threads()) };
        loop {
            match made.send(socket) {
                Ok(()) => break,
                // There is no memory just now.
                Err(Errno::NOMEM | Errno::NOBUFS | Errno::AGAIN) => {
                    drop(nanosleep(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }))
                }
                Err(_) => lost(),
            }
        }
    }
}

/// `lowtide run` is gone, and the kernel tells threads that wait that there is no such call, or will: no thread is to go on with
/// that.
fn lost() -> ! {
    say::fatal(b"lowtide run does not ask for moves of memory (mremap) any more")
}

/// A move.
fn make(arguments: [usize; 5]) -> isize {
    if let Some(pager) = agent::active() {
        pager.outlast_changes();
    }
    // SAFETY: the call of a thread of this process, which waits for it; whatever it does to that thread's memory, the thread has
    // asked for.
    unsafe {
        hooks::remap(arguments, |asked, call| match (agent::active(), asked) {
            (Some(pager), Some(asked)) => pager.make_move(asked, call),
            _ => call(),
        })
    }
}
