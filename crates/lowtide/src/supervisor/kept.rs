//! The userfaultfds of the run's processes, as long as any process has the memory that they watch.
//!
//! A process that has lowtide's threads may end, or execute another program, while another one that shares its memory (`clone`
//! with CLONE_VM, `vfork`) lives on. Nobody can bring its missing pages back then: what they held was in tables of that memory,
//! served by those threads. Without a descriptor the kernel would forget what was registered, and it would read zeros. Here it
//! waits, and the run ends with a message; one that meets no missing page is left alone.

use crate::supervisor::ancestry;
use crate::supervisor::enter::is_executing;
use lowtide_config::proc::{self, Status};
use lowtide_pager::sys::uffd::{self, Message, Uffd};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Resource, Signal};
use std::time::{Duration, Instant};

/// An address that can be mapped, and how many bytes from there on a process can have, without five levels of page tables.
const FIRST: usize = 1 << 16;
const ALL: usize = (1 << 47) - 4096 - FIRST;
const PAGE: usize = 4096;
/// At so many looks in a row somebody has to wait: a process that is being killed waits, too.
const LOOKS: u32 = 8;
/// Of one process, which may execute programs and leave memory to others each time.
const MOST_OF_ONE: usize = 4;
/// How long it is looked whether those that were killed are gone, and how often.
const PATIENCE: Duration = Duration::from_secs(2);
const EVERY: Duration = Duration::from_millis(10);

/// The userfaultfds that are kept.
#[derive(Default)]
pub struct Kept(Vec<One>);

struct One {
    /// The process that has lowtide's threads, and the other end of this socket.
    pid: u32,
    socket: OwnedFd,
    uffd: Uffd,
    /// That process has ended, or executes another program.
    is_left: bool,
    /// Looks in a row at which somebody waited.
    waited: u32,
    /// Of children that its survivors forked: closed, these would read zeros.
    children: Vec<Uffd>,
}

impl Kept {
    /// Keeps the userfaultfd of a process, which has the other end of `socket` open as long as it serves its memory.
    ///
    /// # Errors
    /// `EXIST`: it has one here. `INVAL`: it is not ready. `MFILE`: half of the descriptors of this process are taken by them.
    pub fn add(&mut self, pid: u32, uffd: OwnedFd, socket: OwnedFd) -> Result<(), Errno> {
        self.forget_gone();
        let own = || self.0.iter().filter(|one| one.pid == pid);
        if own().any(|one| !one.is_left) {
            return Err(Errno::EXIST);
        }
        // Each has two.
        let most = rustix::process::getrlimit(Resource::Nofile).current.map_or(usize::MAX, |most| most as usize / 4);
        if self.0.len() >= most || own().count() >= MOST_OF_ONE {
            return Err(Errno::MFILE);
        }
        // One that is ready can't be made so again. (Of another the kernel would never say that its memory is gone.)
        if uffd::handshake(uffd.as_fd(), 0) != Err(Errno::INVAL) {
            return Err(Errno::INVAL);
        }
        // Nothing is registered or armed with it.
        let uffd = Uffd::ready(uffd, 0);
        self.0.push(One { pid, socket, uffd, is_left: false, waited: 0, children: Vec::new() });
        Ok(())
    }

    /// Lets go of those whose memory is nobody's any more. Of whom somebody waits in vain: the pid of the process that could have
    /// served it, and what is to be said.
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

    /// Whether some process has memory of one that has ended.
    pub fn have_survivors(&mut self) -> bool {
        self.forget_gone();
        self.0.iter().any(|one| one.is_left)
    }

    /// Kills all processes that have memory which nobody serves any more, before the last descriptor is closed. Those that were to
    /// serve it have been killed.
    pub fn kill_survivors(&mut self) {
        let started = Instant::now();
        loop {
            self.0.retain(|one| !one.is_gone());
            // (What can't be killed now, in a wait of the kernel's, ends when that does.)
            if self.0.is_empty() || started.elapsed() > PATIENCE {
                return;
            }
            of_run().filter(|pid| is_watched(*pid, None)).for_each(|pid| {
                let _ = rustix::process::Pid::from_raw(pid as i32).map(|pid| rustix::process::kill_process(pid, Signal::KILL));
            });
            std::thread::sleep(EVERY);
        }
    }

    /// Lets go of those whose process is not there any more, and whose memory is nobody's.
    fn forget_gone(&mut self) {
        self.find_left();
        self.0.retain(|one| !(one.is_left && one.is_gone()));
    }

    /// Finds those whose process is not there any more, by the end of its connection.
    fn find_left(&mut self) {
        let mut there: Vec<&mut One> = self.0.iter_mut().filter(|one| !one.is_left).collect();
        let mut polled: Vec<PollFd<'_>> = there.iter().map(|one| PollFd::new(&one.socket, PollFlags::RDHUP)).collect();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if !polled.is_empty() && rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0) {
            let ended: Vec<bool> = polled.iter().map(|one| !one.revents().is_empty()).collect();
            for (one, _) in there.iter_mut().zip(ended).filter(|(_, ended)| *ended) {
                one.is_left = true;
                // What its threads had read and not answered is to be told again.
                one.uffd.wake(FIRST, ALL);
            }
        }
    }
}

impl One {
    fn is_gone(&self) -> bool {
        self.uffd.is_gone(FIRST)
    }

    /// Reads who waits for something that nobody has. None: nobody of whom that is to be said. `served`: the processes that are
    /// served.
    fn who_waits(&mut self, served: &[u32]) -> Option<String> {
        // Before Linux 6.10 a read may wait; but it has just been seen that this one does not.
        let message = self.uffd.read_at_once().or_else(|why| if why == Errno::OPNOTSUPP { self.uffd.read() } else { Err(why) });
        match message.ok()? {
            Message::Fault { addr, thread, .. } => {
                let process = whose(addr, thread, served);
                if let Some(pid) = process.filter(|pid| *pid != self.pid || !is_executing(*pid)) {
                    return Some(format!("process {pid}, which shares its memory (CLONE_VM) and lives on"));
                }
                // The kernel, which reads for the process itself as that executes another program; or one that only looks, like a
                // debugger. It gets an error, and can do without.
                if self.uffd.poison(addr, PAGE).is_err() {
                    self.uffd.wake(addr, PAGE);
                }
                return None;
            }
            // Its memory changes where nobody reads of it.
            Message::Fork(child) => self.children.push(child),
            _ => {}
        }
        Some("one that shares its memory (CLONE_VM) and lives on".to_owned())
    }
}

/// The processes of the run.
fn of_run() -> impl Iterator<Item = u32> {
    let own = std::process::id();
    proc::all().into_iter().map(|process| process.pid).filter(move |pid| *pid != own && ancestry::belongs(*pid) == Some(true))
}

/// The process that nobody serves and that has watched memory at `addr`, of which a thread waits. `thread`: what it is called where
/// it lives, perhaps in another pid namespace.
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

/// Whether any memory of a process, or that at an address, is registered with a userfaultfd, as far as that can be seen.
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
        // SAFETY: a new mapping, which nobody touches.
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
