//! The userfaultfds of the run's processes, as long as any process has the memory that they watch.
//!
//! A process that has lowtide's threads may end, or execute another program, while another one that shares its memory (`clone`
//! with CLONE_VM, `vfork`) lives on. Nobody can bring its missing pages back then: what they held was in tables of that memory,
//! served by those threads. Without a descriptor the kernel would forget what was registered, and it would read zeros. Here it
//! waits, and the run ends with a message; one that meets no missing page is left alone.

use crate::supervisor::ancestry;
use crate::supervisor::enter::is_executing;
use lowtide_config::proc::{self, Status};
use lowtide_pager::sys::uffd::{Message, Uffd};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::process::Signal;
use std::time::Duration;

/// An address that can be mapped, and how many bytes from there on a process can have, without five levels of page tables.
const FIRST: usize = 1 << 16;
const ALL: usize = (1 << 47) - 4096 - FIRST;
/// At so many looks in a row somebody has to wait: a process that is being killed waits, too.
const LOOKS: u32 = 8;
/// How often it is looked whether those that were killed are gone, ten milliseconds apart.
const PATIENCE: u32 = 200;

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

/// What a survivor waits for.
enum Waits {
    /// A page.
    For(u32),
    /// That an event is read.
    ForEvent,
    /// It is the process itself, which executes another program, and only the kernel reads for it.
    Executes(usize),
}

impl Kept {
    /// Keeps the userfaultfd of a process, which has the other end of `socket` open as long as it serves its memory.
    pub fn add(&mut self, pid: u32, uffd: OwnedFd, socket: OwnedFd) {
        // Nothing is registered or armed with it.
        let uffd = Uffd::ready(uffd, 0);
        self.0.push(One { pid, socket, uffd, is_left: false, waited: 0, children: Vec::new() });
    }

    /// Lets go of those whose memory is nobody's any more. Of whom somebody waits in vain: the pid of the process that could have
    /// served it, and what is to be said.
    pub fn look(&mut self) -> Option<(u32, String)> {
        self.find_left();
        self.0.retain(|one| !(one.is_left && one.is_gone()));
        self.0.iter_mut().filter(|one| one.is_left).find_map(|one| {
            one.waited = if one.uffd.is_readable() { one.waited + 1 } else { 0 };
            if one.waited < LOOKS {
                return None;
            }
            let who = match one.waits()? {
                Waits::Executes(page) => {
                    // As where nobody keeps anything: what it reads there is nothing of the program's.
                    one.uffd.zero_page(page, 4096);
                    one.uffd.wake(page, 4096);
                    return None;
                }
                Waits::For(pid) => format!("process {pid}, which shares its memory (CLONE_VM) and lives on"),
                Waits::ForEvent => "one that shares its memory (CLONE_VM) and lives on".to_owned(),
            };
            let pid = one.pid;
            Some((
                pid,
                format!("process {pid} has ended or executed another program, and nobody can bring back pages of {who}"),
            ))
        })
    }

    /// Whether some process has memory of one that has ended.
    pub fn have_survivors(&self) -> bool {
        self.0.iter().any(|one| one.is_left)
    }

    /// Kills all processes that have memory which nobody serves any more, before the last descriptor is closed. Those that were to
    /// serve it have been killed.
    pub fn kill_survivors(&mut self) {
        for _ in 0..PATIENCE {
            self.0.retain(|one| !one.is_gone());
            if self.0.is_empty() {
                return;
            }
            let own = std::process::id();
            let all = proc::all().into_iter().filter(|process| process.pid != own);
            let of_run = all.filter(|process| ancestry::belongs(process.pid) == Some(true));
            of_run.filter(|process| is_watched(process.pid)).for_each(|process| process.signal(Signal::KILL));
            std::thread::sleep(Duration::from_millis(10));
        }
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

    /// Reads who waits. None: nobody does.
    fn waits(&mut self) -> Option<Waits> {
        match self.uffd.read().ok()? {
            Message::Fault { addr, thread, .. } => {
                let process = Status::of(thread).and_then(|status| status.number("Tgid")).unwrap_or(thread);
                let executes = process == self.pid && is_executing(process);
                Some(if executes { Waits::Executes(addr) } else { Waits::For(process) })
            }
            Message::Fork(child) => {
                self.children.push(child);
                Some(Waits::ForEvent)
            }
            _ => Some(Waits::ForEvent),
        }
    }
}

/// Whether any memory of a process is registered with a userfaultfd, as far as that can be seen.
fn is_watched(pid: u32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let flags = text.lines().filter_map(|line| line.strip_prefix("VmFlags:"));
    flags.flat_map(str::split_ascii_whitespace).any(|flag| matches!(flag, "um" | "uw"))
}
