//! `lowtide run` keeps this process's userfaultfd too. When this process ends or executes another program, its descriptors are
//! closed, and with the last one the kernel would forget what was registered: a process that shares the memory (`clone` with
//! CLONE_VM, `vfork`) and lives on would read zeros where pages are out. So it waits, and `lowtide run` finds it waiting.

use lowtide_pager::sys::Line;
use lowtide_pager::sys::broker::KEEP;
use lowtide_pager::sys::uffd::Uffd;
use rustix::io::Errno;

use crate::{agent, broker, follow, say, thread};

/// How long the answer is waited for: `lowtide run` may be stopped, and a forked child waits for this.
const PATIENCE_MS: i64 = 100;

/// Hands it over. By the reclaimer, when memory has been adopted.
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
    // Open until this process ends, which that says.
    core::mem::forget(connection);
    Ok(())
}

/// Whether no filter of the program's own can end it for using a socket: it has none but those of `lowtide run`, and the one that
/// tells of execs.
fn may_ask() -> bool {
    let Some(own) = thread::filters(b"self") else { return false };
    let mut supervisor = Line::new();
    supervisor.number(u64::from(agent::settings().supervisor));
    own == 0 || thread::filters(supervisor.bytes()).is_some_and(|others| own == others + u64::from(follow::is_followed()))
}
