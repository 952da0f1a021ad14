//! Keeps the userfaultfds of the run's processes as long as any process has the memory that they
//! watch.
//!
//! A process with lowtide's threads may end or execute another program while a process that shares
//! its memory (`clone` with CLONE_VM, `vfork`) lives on. Its missing pages are lost then: that
//! memory held the tables, and those threads served the faults. Closing the descriptor would
//! unregister the memory, and the survivor would read zeros. With the descriptor kept, a survivor's
//! fault waits, and the run ends with a message.

use crate::supervisor::ancestry;
use crate::supervisor::enter::is_executing;
use lowtide_config::proc::{self, Status, as_pid};
use lowtide_sys::uffd::{self, Message, Uffd};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Resource, Signal};
use std::time::{Duration, Instant};

/// The range of addresses that a process can map without five levels of page tables.
const FIRST: usize = 1 << 16;
const ALL: usize = (1 << 47) - 4096 - FIRST;
const PAGE: usize = 4096;
/// Looks in a row with a waiting thread before the run ends: a process that is being killed waits,
/// too.
const LOOKS: u32 = 8;
/// Most userfaultfds of one process, which may execute several programs and leave memory to others
/// each time.
const MOST_OF_ONE: usize = 4;
/// Timeout and period of the wait for killed processes.
const PATIENCE: Duration = Duration::from_secs(2);
const EVERY: Duration = Duration::from_millis(10);

#[derive(Default)]
pub struct Kept(Vec<One>);

struct One {
    /// The process with lowtide's threads; it has this socket's other end.
    pid: u32,
    socket: OwnedFd,
    uffd: Uffd,
    /// The process has ended, or executes another program.
    is_left: bool,
    /// Looks in a row with a waiting thread.
    waited: u32,
    /// Userfaultfds of survivors' forked children: closed, they would let those read zeros.
    children: Vec<Uffd>,
}

impl Kept {
    /// Keeps a process's userfaultfd. The process holds the other end of `socket` open as long as
    /// it serves its memory.
    ///
    /// # Errors
    /// `EXIST`: it is kept already. `INVAL`: it had no handshake. `MFILE`: kept ones take half of
    /// this process's descriptors.
    pub fn add(&mut self, pid: u32, uffd: OwnedFd, socket: OwnedFd) -> Result<(), Errno> {
        self.forget_gone();
        let own = || self.0.iter().filter(|one| one.pid == pid);
        if own().any(|one| !one.is_left) {
            return Err(Errno::EXIST);
        }
        // Each takes two.
        let most = rustix::process::getrlimit(Resource::Nofile).current.map_or(usize::MAX, |most| most as usize / 4);
        if self.0.len() >= most || own().count() >= MOST_OF_ONE {
            return Err(Errno::MFILE);
        }
        // A second handshake fails on a ready one. (The kernel would never report the end of memory
        // on an unready one.)
        if uffd::handshake(uffd.as_fd(), 0) != Err(Errno::INVAL) {
            return Err(Errno::INVAL);
        }
        // Nothing is registered or armed with it.
        let uffd = Uffd::ready(uffd);
        self.0.push(One { pid, socket, uffd, is_left: false, waited: 0, children: Vec::new() });
        Ok(())
    }

    /// Drops userfaultfds whose memory is gone. If a thread waits in vain, returns the pid of the
    /// process that would have served it, and a message.
    pub fn look(&mut self) -> Option<(u32, String)> {
        self.forget_gone();
        let served: Vec<u32> = self.0.iter().filter(|one| !one.is_left).map(|one| one.pid).collect();
        self.0.iter_mut().filter(|one| one.is_left).find_map(|one| {
            one.waited = if one.uffd.is_readable() { one.waited + 1 } else { 0 };
            if one.waited < LOOKS {
                return None;
            }
            let (who, pid) = (one.who_waits(&served)?, one.pid);
            let text = format!("process {pid} has ended or executed another program, and nobody can bring back pages of {who}");
            Some((pid, text))
        })
    }

    pub fn have_survivors(&mut self) -> bool {
        self.forget_gone();
        self.0.iter().any(|one| one.is_left)
    }

    /// Kills all processes that have unserved memory, before the last descriptor closes. The
    /// serving processes have been killed already.
    pub fn kill_survivors(&mut self) {
        let started = Instant::now();
        loop {
            self.0.retain(|one| !one.is_gone());
            // An unkillable process in a kernel wait ends after that wait.
            if self.0.is_empty() || started.elapsed() > PATIENCE {
                return;
            }
            of_run().filter(|pid| is_watched(*pid, None)).for_each(|pid| {
                let _ = as_pid(pid).map(|pid| rustix::process::kill_process(pid, Signal::KILL));
            });
            std::thread::sleep(EVERY);
        }
    }

    /// Drops those whose process has ended and whose memory is gone.
    fn forget_gone(&mut self) {
        self.find_left();
        self.0.retain(|one| !(one.is_left && one.is_gone()));
    }

    /// Finds ended processes by the end of their connections.
    fn find_left(&mut self) {
        let mut there: Vec<&mut One> = self.0.iter_mut().filter(|one| !one.is_left).collect();
        let mut polled: Vec<PollFd<'_>> = there.iter().map(|one| PollFd::new(&one.socket, PollFlags::RDHUP)).collect();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if !polled.is_empty() && rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0) {
            let ended: Vec<bool> = polled.iter().map(|one| !one.revents().is_empty()).collect();
            for (one, _) in there.iter_mut().zip(ended).filter(|(_, ended)| *ended) {
                one.is_left = true;
                // Makes the kernel repeat faults that the ended threads had read and not answered.
                one.uffd.wake(FIRST, ALL);
            }
        }
    }
}

impl One {
    fn is_gone(&self) -> bool {
        self.uffd.is_gone(FIRST)
    }

    /// Names a process that waits for a lost page. None: no such process, or none worth a message.
    /// `served`: the pids with live threads.
    fn who_waits(&mut self, served: &[u32]) -> Option<String> {
        // Before Linux 6.10 a read may block, but a poll has just found this one readable.
        let message = self.uffd.read_at_once().or_else(|why| if why == Errno::OPNOTSUPP { self.uffd.read() } else { Err(why) });
        match message.ok()? {
            Message::Fault { addr, thread, .. } => {
                let process = whose(addr, thread, served);
                if let Some(pid) = process.filter(|pid| *pid != self.pid || !is_executing(*pid)) {
                    return Some(format!("process {pid}, which shares its memory (CLONE_VM) and lives on"));
                }
                // Either the kernel reads for the process during its exec, or an observer such as a
                // debugger reads. It gets an error, which it can handle.
                if self.uffd.poison(addr, PAGE).is_err() {
                    self.uffd.wake(addr, PAGE);
                }
                return None;
            }
            // A survivor changes its memory.
            Message::Fork(child) => self.children.push(child),
            _ => {}
        }
        Some("one that shares its memory (CLONE_VM) and lives on".to_owned())
    }
}

fn of_run() -> impl Iterator<Item = u32> {
    let own = std::process::id();
    proc::all().into_iter().map(|process| process.pid).filter(move |pid| *pid != own && ancestry::belongs(*pid) == Some(true))
}

/// The unserved process that has watched memory at `addr` and a waiting thread `thread`, a tid of
/// its own pid namespace.
fn whose(addr: usize, thread: u32, served: &[u32]) -> Option<u32> {
    let thread = thread.to_string();
    let is_it = |id: &u32| {
        let status = Status::of(id);
        status.is_some_and(|status| {
            status.value("NSpid").and_then(|ids| ids.split_ascii_whitespace().next_back()) == Some(&thread)
        })
    };
    of_run()
        .filter(|pid| !served.contains(pid) && is_watched(*pid, Some(addr)))
        .find(|pid| proc::threads(*pid).is_some_and(|threads| threads.iter().any(is_it)))
}

/// Whether memory of a process, or that at an address, is visibly registered with a userfaultfd.
pub fn is_watched(pid: u32, at: Option<usize>) -> bool {
    let text = proc::read(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let mut is_there = false;
    String::from_utf8_lossy(&text).lines().any(|line| match line.strip_prefix("VmFlags:") {
        Some(flags) => is_there && flags.split_ascii_whitespace().any(|flag| matches!(flag, "um" | "uw")),
        None => {
            let mapping = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let ends = mapping.map(|(start, end)| [start, end].map(|end| usize::from_str_radix(end, 16)));
            if let Some([Ok(start), Ok(end)]) = ends {
                is_there = at.is_none_or(|at| (start..end).contains(&at));
            }
            false
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watched_memory_is_known_by_its_address() {
        let Ok(uffd) = Uffd::open_for_user_mode(0) else { return };
        let own = std::process::id();
        // SAFETY: a new mapping, which no code touches.
        let memory = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                4 * PAGE,
                rustix::mm::ProtFlags::READ,
                rustix::mm::MapFlags::PRIVATE,
            )
        };
        let memory = memory.unwrap().addr();
        // SAFETY: as above.
        unsafe { uffd.register(memory + PAGE, PAGE, uffd::Watched::Missing) }.unwrap();
        assert!(is_watched(own, None));
        assert_eq!([0, 1, 2].map(|page| is_watched(own, Some(memory + page * PAGE))), [false, true, false]);
        assert!(!uffd.is_gone(FIRST));
    }
}
