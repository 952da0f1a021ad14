//! Makes `mremap`, guards and lazy frees (`madvise`) for programs without hooks: a filter reports
//! them to `lowtide run` (`exec/follow.rs`), which passes them to a thread of lowtide's in the
//! process, while the caller waits. So they come one at a time, and the pager can attribute each
//! event (its `mappings/made_move.rs`).
//!
//! That thread lacks the capabilities that raise memory limits, which the program may have given
//! up. Calls that need them stay with their thread.

use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general as sys;
use lowtide_pager::sys::Line;
use lowtide_pager::sys::broker::{Connection, MOVES};
use lowtide_pager::sys::moves::{Call, Made};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::thread::{CapabilitySet, Timespec, capabilities, nanosleep, set_capabilities};

use crate::exec::follow;
use crate::handlers;
use crate::hooks::{self, other_doors};
use crate::process::{agent, broker, say, thread, thread_end};

/// EAGAIN: the calling thread makes its call itself.
const NOT_MADE: isize = -11;

const ASKS_AGAIN: i64 = 5;

const WAITS: usize = 500;
const WAIT_NS: i64 = 200_000;

const NONE: u32 = 0;
const STARTING: u32 = 1;
const READY: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(NONE);

/// Without the thread, others make their own calls. For the reclaimer.
pub fn start() {
    let is_wanted = agent::settings().makes_moves != 0 && follow::is_told();
    if is_wanted && STATE.load(Ordering::Relaxed) == NONE {
        STATE.store(STARTING, Ordering::Relaxed);
        if handlers::spawn_known(run, 0).is_err() {
            STATE.store(NONE, Ordering::Relaxed);
        }
    }
}

/// Lets the thread start before memory is registered. For the reclaimer.
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
            // Too many such processes, or no descriptor left in `lowtide run`.
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

/// Its calls must not be allowed more than the program's.
fn give_up_rights() {
    if let Ok(mut sets) = capabilities(None) {
        // These lift limits on locked memory and overcommit.
        sets.effective.remove(CapabilitySet::IPC_LOCK | CapabilitySet::SYS_ADMIN);
        let _ = set_capabilities(None, sets);
    }
}

fn connect() -> Result<Connection, Errno> {
    let connection = broker::connect()?;
    // No timeout: calls may follow the answer at once.
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(connection.as_fd(), direction, None)?;
    }
    connection.ask_with(MOVES, thread::id().into())?;
    Ok(connection)
}

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
        // This thread's lock limit would be exceeded; the caller's may not be.
        let result = (result != NOT_MADE as i64).then_some(result);
        let made = Made { id, result, own_threads: u64::from(agent::own_threads()) };
        loop {
            match made.send(socket) {
                Ok(()) => break,
                Err(Errno::NOMEM | Errno::NOBUFS | Errno::AGAIN) => {
                    drop(nanosleep(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }))
                }
                Err(_) => lost(),
            }
        }
    }
}

/// The kernel now fails waiting calls with ENOSYS: no thread may go on with that.
fn lost() -> ! {
    say::fatal(b"lowtide run does not ask for moves of memory (mremap) any more")
}

fn make(arguments: [usize; 5]) -> isize {
    if let Some(pager) = agent::active() {
        pager.outlast_changes();
    }
    // SAFETY: the call of a waiting thread of this process, which accepts its effects.
    unsafe {
        hooks::remap(arguments, |asked, call| match (agent::active(), asked) {
            (Some(pager), Some(asked)) => pager.make_move(asked, call),
            _ => call(),
        })
    }
}
