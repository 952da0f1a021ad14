//! Decides which processes belong to the run: the descendants of this one. `lowtide run` is the
//! subreaper of its tree ([`adopt_orphans`]), so a process whose parent has ended remains a
//! descendant.
//!
//! Data in the run's shared memory never makes a process a member.

use lowtide_config::proc::{Stat, as_pid};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{PidfdFlags, WaitId, WaitIdOptions};

const MAX_GENERATIONS: usize = 4096;
/// Attempts to read a chain that changes because a process in it ends.
const ATTEMPTS: usize = 8;

/// Makes this process the reaper of orphaned descendants.
///
/// # Errors
/// Those of prctl.
pub fn adopt_orphans() -> Result<(), Errno> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
}

/// Whether this process has children, adopted ones included.
pub fn has_children() -> bool {
    // NOWAIT leaves the ended child waitable.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    rustix::process::waitid(WaitId::All, options).is_ok()
}

/// A pidfd of `pid` if it lives and descends from this process.
pub fn member(pid: u32) -> Option<OwnedFd> {
    let pidfd = rustix::process::pidfd_open(as_pid(pid)?, PidfdFlags::empty()).ok()?;
    belongs(pid)?.then_some(())?;
    // The process still lives, so the number was its own during the check.
    is_alive(&pidfd).then_some(pidfd)
}

pub fn is_alive(pidfd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)) == Ok(0)
}

/// Whether the process `pid`, alive or zombie, descends from this one. None: there is no such
/// process.
pub fn belongs(pid: u32) -> Option<bool> {
    let ancestor = std::process::id();
    for _ in 0..ATTEMPTS {
        // Two reads must agree: if a process of the chain ends and another one gets its number, its
        // child has a new parent at the second read.
        let (Some(chain), Some(again)) = (chain(pid, ancestor), chain(pid, ancestor)) else {
            Stat::of(pid)?;
            continue;
        };
        if chain == again {
            return chain.last().map(|last| last.parent == ancestor);
        }
    }
    None
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Link {
    pid: u32,
    start: u64,
    parent: u32,
}

/// From `pid` up to the child of `ancestor`, or to a process without a parent. None: one of them
/// ended during the read.
fn chain(pid: u32, ancestor: u32) -> Option<Vec<Link>> {
    let mut links = Vec::new();
    let mut next = pid;
    while links.len() < MAX_GENERATIONS {
        let stat = Stat::of(next)?;
        links.push(Link { pid: next, start: stat.start, parent: stat.parent });
        if stat.parent == ancestor || stat.parent == 0 {
            break;
        }
        next = stat.parent;
    }
    Some(links)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_and_their_children_are_members_and_nobody_else_is() {
        use std::io::{BufRead, BufReader};
        use std::process::{Command, Stdio};
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 100 & echo $!; wait"]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let grandchild: u32 = line.trim().parse().unwrap();
        let pidfd = member(grandchild).expect("a descendant");
        assert!(member(child.id()).is_some_and(|pidfd| is_alive(&pidfd)));
        for stranger in [std::process::id(), std::os::unix::process::parent_id(), 1, 0, u32::MAX] {
            assert!(member(stranger).is_none(), "{stranger}");
        }
        rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL).unwrap();
        child.wait().unwrap();
        assert!(!is_alive(&pidfd) && member(child.id()).is_none());
    }
}
