//! `lowtide run` keeps a copy of this process's userfaultfd. Otherwise the last close, at exit or
//! exec, would drop the registrations: a process that shares the memory (CLONE_VM, `vfork`) would
//! read zeros for evicted pages. Now it waits, and `lowtide run` finds it.

use lowtide_sys::Line;
use lowtide_sys::uffd::Uffd;
use lowtide_wire::broker::KEEP;
use rustix::io::Errno;

use crate::exec::follow;
use crate::process::{agent, broker, say, thread};

/// `lowtide run` may be stopped, and a forked child waits for this.
const PATIENCE_MS: i64 = 100;

pub fn hand_over(uffd: &Uffd) {
    let handed_over = if may_ask() { ask(uffd) } else { Err(Errno::ACCESS) };
    if let Err(error) = handed_over {
        let mut line = Line::new();
        line.push(b"lowtide: process ").number(u64::from(agent::pid()));
        line.push(
            b": one that shares its memory (CLONE_VM) must not outlive it: `lowtide run` can't keep its userfaultfd, error ",
        );
        line.number(error.raw_os_error() as u64);
        say::verbose(&mut line);
    }
}

fn ask(uffd: &Uffd) -> Result<(), Errno> {
    let connection = broker::connect_at_once()?;
    connection.hand_over(KEEP, uffd.as_fd(), PATIENCE_MS)?;
    // Its close tells of this process's end.
    core::mem::forget(connection);
    Ok(())
}

/// Whether the process has only the filters of `lowtide run` and that which reports execs: others
/// could kill it for using a socket.
fn may_ask() -> bool {
    let Some(own) = thread::filters(b"self") else { return false };
    let mut supervisor = Line::new();
    supervisor.number(u64::from(agent::settings().supervisor));
    own == 0 || thread::filters(supervisor.bytes()).is_some_and(|others| own == others + u64::from(follow::is_followed()))
}
