//! Execs of processes that have no hook for them: a system call filter tells of each (the pager's `call_filter`), and the thread
//! waits in the call until it is answered. It is traced from then on, until it has executed a program or could not.

use super::Entering;
use super::moves::Maker;
use super::notices::{Notices, Told};
use super::tracee;
use lowtide_config::proc::Status;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::CapabilitySet;
use std::sync::OnceLock;

/// Filters at a time: each of a program that has none from an ancestor.
const MOST: usize = 128;
/// Agents at a time that make moves: each takes two descriptors.
const MOST_MAKERS: usize = 64;
/// What a link of `/proc/PID/fd` says of a listener. No path can say it.
const LISTENER: &str = "anon_inode:seccomp notify";

/// What filters tell by.
#[derive(Default)]
pub struct Following {
    /// None: there is nothing to be told.
    notices: Option<Notices>,
    /// Filters tell of moves, too.
    pub tells_moves: bool,
    /// What can't be answered yet.
    put_off: Vec<Told>,
    warnings: Vec<&'static str>,
}

impl Following {
    /// Whether one more filter is taken.
    pub fn has_room(&mut self) -> bool {
        if self.notices.is_none() {
            self.notices = Notices::start().ok();
        }
        self.notices.is_some() && self.listeners() < MOST
    }

    /// Whether any filter tells.
    pub fn is_told(&self) -> bool {
        self.listeners() > 0
    }

    fn listeners(&self) -> usize {
        self.notices.as_ref().map_or(0, Notices::listeners)
    }

    /// Takes what a filter tells by.
    ///
    /// # Errors
    /// `BADF`: it is something else. `MFILE`: there are too many. Those of starting a thread.
    pub fn add(&mut self, listener: OwnedFd) -> Result<(), Errno> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", listener.as_raw_fd())).map_err(|_| Errno::BADF)?;
        if link.to_str() != Some(LISTENER) {
            return Err(Errno::BADF);
        }
        // Those who asked at the same time whether there is room have more.
        if self.listeners() >= 2 * MOST {
            return Err(Errno::MFILE);
        }
        let notices = match self.notices.take() {
            Some(notices) => notices,
            None => Notices::start()?,
        };
        notices.add(listener);
        self.notices = Some(notices);
        Ok(())
    }

    /// Whether one more agent may make the moves that filters tell of.
    ///
    /// # Errors
    /// `NOENT`: no filter tells of anything. `MFILE`: there are too many.
    pub fn has_room_for_maker(&self) -> Result<(), Errno> {
        let notices = self.notices.as_ref().ok_or(Errno::NOENT)?;
        (notices.makers() < MOST_MAKERS).then_some(()).ok_or(Errno::MFILE)
    }

    /// From now on an agent makes the moves of its process.
    pub fn add_maker(&self, maker: Maker) {
        if let Some(notices) = &self.notices {
            notices.add_maker(maker);
        }
    }

    /// A process of which threads wait in calls that nobody will answer, if there is one.
    pub fn lost(&self) -> Option<u32> {
        self.notices.as_ref().and_then(Notices::lost)
    }

    /// What to wait for (readable) before [`Following::serve`] has something to do.
    pub fn waits_for(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.notices.iter().map(Notices::waits_for)
    }

    /// Warns, when somebody asks ([`Following::warnings`]).
    pub fn say(&mut self, warning: &'static str) {
        self.warnings.push(warning);
    }

    /// What is to be said to the user.
    pub fn warnings(&mut self) -> impl Iterator<Item = &'static str> {
        self.warnings.drain(..)
    }

    /// Answers all that is told, as long as there is room for one more to be traced.
    pub fn serve(&mut self, entering: &mut Entering) {
        let told = std::mem::take(&mut self.put_off).into_iter().chain(self.notices.iter().flat_map(Notices::execs));
        self.put_off = told.filter_map(|told| if entering.has_room() { answer(told, entering) } else { Some(told) }).collect();
    }
}

/// Lets a thread go on, traced if it can be; gives it back if it can't be now.
fn answer(told: Told, entering: &mut Entering) -> Option<Told> {
    // Where it can't be traced (somebody else does) it executes the program as natively.
    if let Some(process) = may_be_traced(told.thread) {
        match entering.follow(process, told.thread) {
            Err(Errno::AGAIN) => return told.waits().then_some(told),
            // Another thread of this process holds it for a moment (`hold.rs`).
            Err(Errno::PERM) if is_held(told.thread) => return told.waits().then_some(told),
            // It died, and what is traced by its number is another one.
            Ok(()) if !told.waits() => drop(entering.interrupt(told.thread)),
            _ => {}
        }
    }
    told.goes_on();
    None
}

/// Whether a thread of this process traces that thread.
fn is_held(thread: u32) -> bool {
    let tracer = i32::try_from(thread).ok().and_then(Pid::from_raw).and_then(tracee::tracer);
    tracer.is_some_and(|tracer| std::fs::exists(format!("/proc/self/task/{tracer}")).unwrap_or(false))
}

/// The process of a thread that is this process's user's, and to which tracing makes no difference: a program that gives rights
/// gives them while it is traced by somebody who may trace all, and never where no program may.
pub fn may_be_traced(thread: u32) -> Option<u32> {
    // Its own never change.
    static OWN: OnceLock<Option<Caller>> = OnceLock::new();
    let (caller, own) = (Caller::of(thread)?, OWN.get_or_init(|| Caller::of(std::process::id())).as_ref()?);
    let may_trace_all = rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE));
    (caller.users == own.users && (may_trace_all || caller.gains_nothing)).then_some(caller.process)
}

/// Whether a process has set up system call filters since its parent forked it. `follows`: one of them may be lowtide's.
pub fn is_confined(pid: u32, parent: u32, follows: bool) -> bool {
    let filters = |pid| Some(Status::of(pid)?.number("Seccomp_filters").unwrap_or(0));
    filters(pid) > filters(parent).map(|filters| filters + u32::from(follows))
}

/// What `/proc/PID/status` says of a thread that executes something.
struct Caller {
    process: u32,
    /// Users and groups.
    users: [String; 2],
    /// No program that it executes gives it rights.
    gains_nothing: bool,
}

impl Caller {
    fn of(thread: u32) -> Option<Caller> {
        let status = Status::of(thread)?;
        Some(Caller {
            process: status.number("Tgid")?,
            users: [status.value("Uid")?.to_owned(), status.value("Gid")?.to_owned()],
            gains_nothing: status.value("NoNewPrivs") == Some("1"),
        })
    }
}
