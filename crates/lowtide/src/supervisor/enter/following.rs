//! Execs of processes that have no hook for them: a system call filter tells of each (the pager's `exec_filter`), and the thread
//! waits in the call until it is answered. It is traced from then on, until it has executed a program or could not.

use super::Entering;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use std::fs::File;
use std::io::Read;
use std::rc::Rc;
use std::sync::OnceLock;

/// Filters at a time: each of a program that has none from an ancestor.
const MOST: usize = 128;
/// What a link of `/proc/PID/fd` says of a listener. No path can say it.
const LISTENER: &str = "anon_inode:seccomp notify";

/// What filters tell by.
#[derive(Default)]
pub struct Following {
    listeners: Vec<Rc<OwnedFd>>,
    /// What can't be answered yet.
    put_off: Vec<Told>,
    warnings: Vec<&'static str>,
}

/// A thread that waits in an exec.
struct Told {
    listener: Rc<OwnedFd>,
    id: u64,
    thread: u32,
}

impl Following {
    /// Whether one more filter is taken.
    pub fn has_room(&self) -> bool {
        self.listeners.len() < MOST
    }

    /// Takes what a filter tells by.
    ///
    /// # Errors
    /// `BADF`: it is something else. `MFILE`: there are too many.
    pub fn add(&mut self, listener: OwnedFd) -> Result<(), Errno> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", listener.as_raw_fd())).map_err(|_| Errno::BADF)?;
        if link.to_str() != Some(LISTENER) {
            return Err(Errno::BADF);
        }
        // Those who asked at the same time whether there is room have more.
        if self.listeners.len() >= 2 * MOST {
            return Err(Errno::MFILE);
        }
        self.listeners.push(Rc::new(listener));
        Ok(())
    }

    /// What to wait for (readable) before [`Following::serve`] has something to do.
    pub fn waits_for(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.listeners.iter().map(|listener| listener.as_fd())
    }

    /// Warns, when somebody asks ([`Following::warnings`]).
    pub fn say(&mut self, warning: &'static str) {
        self.warnings.push(warning);
    }

    /// What is to be said to the user.
    pub fn warnings(&mut self) -> impl Iterator<Item = &'static str> {
        self.warnings.drain(..)
    }

    /// Takes all that is told, as long as there is room for one more to be traced.
    pub fn serve(&mut self, entering: &mut Entering) {
        self.put_off = std::mem::take(&mut self.put_off).into_iter().filter_map(|told| told.answer(entering)).collect();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut polled: Vec<PollFd<'_>> =
            self.listeners.iter().map(|listener| PollFd::new(&**listener, PollFlags::IN)).collect();
        if polled.is_empty() || !rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0) {
            return;
        }
        let mut seen = polled.iter().map(PollFd::revents).collect::<Vec<_>>().into_iter();
        self.listeners.retain(|listener| {
            let seen = seen.next().unwrap_or(PollFlags::empty());
            if seen.contains(PollFlags::IN) && entering.has_room() {
                self.put_off.extend(Told::receive(listener).and_then(|told| told.answer(entering)));
            }
            // No process has the filter any more.
            !seen.intersects(PollFlags::HUP | PollFlags::ERR)
        });
    }
}

impl Told {
    /// Takes one exec that a filter tells of. None: whoever waited was killed.
    fn receive(listener: &Rc<OwnedFd>) -> Option<Told> {
        let mut told = std::mem::MaybeUninit::<libc::seccomp_notif>::zeroed();
        // SAFETY: the kernel writes the structure, and zeroes, which it wants there, are valid too.
        let told = unsafe {
            if libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, told.as_mut_ptr()) < 0 {
                return None;
            }
            told.assume_init()
        };
        Some(Told { listener: listener.clone(), id: told.id, thread: told.pid })
    }

    /// Lets it go on, traced if it can be; gives it back if it can't be now.
    fn answer(self, entering: &mut Entering) -> Option<Told> {
        // Where it can't be traced (somebody else does) it executes the program as natively.
        if let Some(process) = may_be_traced(self.thread) {
            match entering.follow(process, self.thread) {
                Err(Errno::AGAIN) => return self.waits().then_some(self),
                // It died, and what is traced by its number is another one.
                Ok(()) if !self.waits() => drop(entering.interrupt(self.thread)),
                _ => {}
            }
        }
        let go_on = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let go_on = libc::seccomp_notif_resp { id: self.id, val: 0, error: 0, flags: go_on };
        // SAFETY: the kernel reads the structure. (It fails where the thread was killed.)
        unsafe { libc::ioctl(self.listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const go_on) };
        None
    }

    /// Whether the thread still waits.
    fn waits(&self) -> bool {
        // SAFETY: the kernel reads the number.
        unsafe { libc::ioctl(self.listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const self.id) == 0 }
    }
}

/// The process of a thread that is this process's user's, and to which tracing makes no difference: a program that gives rights
/// gives them while it is traced by somebody who may trace all, and never where no program may.
pub fn may_be_traced(thread: u32) -> Option<u32> {
    // Its own never change.
    static OWN: OnceLock<Option<Status>> = OnceLock::new();
    let (status, own) = (Status::of(thread)?, OWN.get_or_init(|| Status::of(std::process::id())).as_ref()?);
    let may_trace_all = rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE));
    (status.users == own.users && (may_trace_all || status.gains_nothing)).then_some(status.process)
}

/// Whether a process has set up system call filters since its parent forked it. `follows`: one of them may be lowtide's.
pub fn is_confined(pid: u32, parent: u32, follows: bool) -> bool {
    let filters = |pid| Status::of(pid).map(|status| status.filters);
    filters(pid) > filters(parent).map(|filters| filters + u32::from(follows))
}

/// Of `/proc/PID/status`.
struct Status {
    process: u32,
    /// Users and groups.
    users: [String; 2],
    /// No program that it executes gives it rights.
    gains_nothing: bool,
    /// System call filters.
    filters: u32,
}

impl Status {
    fn of(thread: u32) -> Option<Status> {
        // In one call, for it is asked for at each exec.
        let mut text = [0; 8192];
        let len = File::open(format!("/proc/{thread}/status")).and_then(|mut file| file.read(&mut text)).ok()?;
        let text = String::from_utf8_lossy(&text[..len]);
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        Some(Status {
            process: value("Tgid:")?.parse().ok()?,
            users: [value("Uid:")?.to_owned(), value("Gid:")?.to_owned()],
            gains_nothing: value("NoNewPrivs:") == Some("1"),
            filters: value("Seccomp_filters:").and_then(|filters| filters.parse().ok()).unwrap_or(0),
        })
    }
}
