//! Follows execs of processes without an exec hook. A system call filter (`lowtide-wire`'s
//! `call_filter`) tells of each exec, and the thread waits in the call for the answer. Its trace
//! then lasts until it has executed a program or failed.

use super::Entering;
use super::notices::{Notices, Told};
use super::tracee;
use lowtide_config::proc::{Status, as_pid};
use lowtide_wire::segment::Segment;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use std::sync::OnceLock;

/// Most filters: one for each program whose ancestors have none.
const MOST: usize = 128;
/// Target of the link in `/proc/PID/fd` of a listener. No path equals it.
const LISTENER: &str = "anon_inode:seccomp notify";

#[derive(Default)]
pub struct Following {
    /// None before the first listener.
    notices: Option<Notices>,
    pub tells_changes: bool,
    /// The run's.
    pub processes: Option<&'static Segment>,
    put_off: Vec<Told>,
    warnings: Vec<&'static str>,
}

impl Following {
    pub fn has_room(&mut self) -> bool {
        if self.notices.is_none() {
            self.notices = Notices::start(self.processes).ok();
        }
        self.notices.is_some() && self.listeners() < MOST
    }

    fn listeners(&self) -> usize {
        self.notices.as_ref().map_or(0, Notices::listeners)
    }

    /// Takes a filter's listener.
    ///
    /// # Errors
    /// `BADF`: it is something else. `MFILE`: there are too many. Those of starting a thread.
    pub fn add(&mut self, listener: OwnedFd) -> Result<(), Errno> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", listener.as_raw_fd())).map_err(|_| Errno::BADF)?;
        if link.to_str() != Some(LISTENER) {
            return Err(Errno::BADF);
        }
        // Processes that asked for room at the same time may exceed MOST.
        if self.listeners() >= 2 * MOST {
            return Err(Errno::MFILE);
        }
        let notices = match self.notices.take() {
            Some(notices) => notices,
            None => Notices::start(self.processes)?,
        };
        notices.add(listener);
        self.notices = Some(notices);
        Ok(())
    }

    /// The descriptors to poll (readable) before [`Following::serve`].
    pub fn waits_for(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.notices.iter().map(Notices::waits_for)
    }

    pub fn say(&mut self, warning: &'static str) {
        self.warnings.push(warning);
    }

    pub fn warnings(&mut self) -> impl Iterator<Item = &'static str> {
        self.warnings.drain(..)
    }

    /// Answers pending execs while there is room to trace one more.
    pub fn serve(&mut self, entering: &mut Entering) {
        let told = std::mem::take(&mut self.put_off).into_iter().chain(self.notices.iter().flat_map(Notices::execs));
        self.put_off = told
            .filter_map(|told| if entering.has_room_for(told.thread) { answer(told, entering) } else { Some(told) })
            .collect();
    }
}

/// Lets a thread go on, traced if possible; returns it if it must wait.
fn answer(told: Told, entering: &mut Entering) -> Option<Told> {
    // An untraceable thread (it has another tracer, say) executes the program natively.
    if let Some(process) = may_be_traced(told.thread) {
        match entering.follow(process, told.thread) {
            Err(Errno::AGAIN) => return told.waits().then_some(told),
            // `hold.rs` holds this thread for a moment.
            Err(Errno::PERM) if is_held(told.thread) => return told.waits().then_some(told),
            // The thread died, and its number belongs to another one.
            Ok(()) if !told.waits() => drop(entering.interrupt(told.thread)),
            _ => {}
        }
    }
    told.goes_on();
    None
}

fn is_held(thread: u32) -> bool {
    let tracer = as_pid(thread).and_then(tracee::tracer);
    tracer.is_some_and(|tracer| std::fs::exists(format!("/proc/self/task/{tracer}")).unwrap_or(false))
}

/// The process of a thread, if it is this user's and tracing makes no difference to its execs. A
/// setuid program keeps its rights only under a tracer that may trace everything, and gains none
/// under `no_new_privs`.
pub fn may_be_traced(thread: u32) -> Option<u32> {
    // This process's own values never change.
    static OWN: OnceLock<Option<Caller>> = OnceLock::new();
    let (caller, own) = (Caller::of(thread)?, OWN.get_or_init(|| Caller::of(std::process::id())).as_ref()?);
    let may_trace_all = rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE));
    (caller.users == own.users && (may_trace_all || caller.gains_nothing)).then_some(caller.process)
}

/// Whether a process has installed system call filters since its fork. `follows`: one of them may
/// be lowtide's.
pub fn is_confined(pid: u32, parent: u32, follows: bool) -> bool {
    let filters = |pid| Some(Status::of(pid)?.number("Seccomp_filters").unwrap_or(0));
    filters(pid) > filters(parent).map(|filters| filters + u32::from(follows))
}

/// What `/proc/PID/status` says of a thread in an exec.
struct Caller {
    process: u32,
    users: [String; 2],
    /// No exec raises its rights.
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
