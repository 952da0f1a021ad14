//! Which processes belong to the run: those that descend from this one. `lowtide run` is the reaper of orphans among them
//! ([`adopt_orphans`]), so that a process whose parent has ended goes on being one of its descendants.
//!
//! Nothing that a process writes into the shared memory of the run makes it, or another, a member.

use lowtide_config::proc::Stat;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions};

/// Longest chain of parents that is followed.
const MAX_GENERATIONS: usize = 4096;
/// How often the chain is read again when it changes under way: somebody in it has ended.
const ATTEMPTS: usize = 8;

/// Makes this process the parent of orphans among its descendants.
///
/// # Errors
/// Those of prctl.
pub fn adopt_orphans() -> Result<(), Errno> {
    // Any process means yes.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
}

/// Whether this process has children, adopted ones among them: whether anything of the run is left.
pub fn has_children() -> bool {
    // What has ended stays waitable.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    rustix::process::waitid(WaitId::All, options).is_ok()
}

/// A descriptor of the process `pid` if it lives and descends from this process.
pub fn member(pid: u32) -> Option<OwnedFd> {
    let pidfd = rustix::process::pidfd_open(Pid::from_raw(pid as i32)?, PidfdFlags::empty()).ok()?;
    belongs(pid)?.then_some(())?;
    // It is still there, so what was read under its number was about it.
    is_alive(&pidfd).then_some(pidfd)
}

/// Whether the process of a descriptor has not ended.
pub fn is_alive(pidfd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)) == Ok(0)
}

/// Whether the process `pid`, alive or not yet buried, descends from this one. None: there is none.
pub fn belongs(pid: u32) -> Option<bool> {
    let ancestor = std::process::id();
    for _ in 0..ATTEMPTS {
        // Read twice. Were one of the chain gone and its number another process's by the time that it was looked at, its child
        // would have another parent by the second time.
        let (Some(chain), Some(again)) = (chain(pid, ancestor), chain(pid, ancestor)) else {
            // Of many short processes most are gone by now.
            Stat::of(pid)?;
            continue;
        };
        if chain == again {
            return chain.last().map(|last| last.parent == ancestor);
        }
    }
    None
}

/// A process and who its parent is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Link {
    pid: u32,
    start: u64,
    parent: u32,
}

/// From `pid` up to the child of `ancestor`, or to a process without a parent. None: one of them ended meanwhile.
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
