//! Follows execs of processes without an exec hook. A system call filter (`lowtide-wire`'s
//! `call_filter`) tells of each exec, and the thread waits in the call for the answer. Its trace
//! then lasts until it has executed a program or failed.

use super::Entering;
use super::calls_under_way::CallsUnderWay;
use super::held;
use super::notices::{Notices, Told};
use lowtide_config::proc::Status;
use lowtide_wire::segment::Segment;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use std::sync::{Arc, OnceLock};

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
    pub under_way: Arc<CallsUnderWay>,
    put_off: Vec<Told>,
    warnings: Vec<&'static str>,
}

impl Following {
    pub fn has_room(&mut self) -> bool {
        if self.notices.is_none() {
            self.notices = Notices::start(self.processes, self.under_way.clone()).ok();
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
            None => Notices::start(self.processes, self.under_way.clone())?,
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
            // The holding thread holds it for a moment. It can't stop before this is answered.
            Err(Errno::PERM) if is_held(told.thread) => match held::no_hold_begins() {
                Some(_nothing_begins) if is_held(told.thread) && told.waits() => {
                    told.restarts();
                    return None;
                }
                _ => return told.waits().then_some(told),
            },
            // The thread died, and its number belongs to another one.
            Ok(()) if !told.waits() => drop(entering.interrupt(told.thread)),
            _ => {}
        }
    }
    told.goes_on();
    None
}

fn is_held(thread: u32) -> bool {
    // Without a descriptor for reading it, it may be.
    let Some(status) = Status::of(thread) else { return true };
    status.number("TracerPid").is_some_and(|tracer| std::fs::exists(format!("/proc/self/task/{tracer}")).unwrap_or(true))
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

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_wire::call_filter::{self, ARGUMENTS};
    use rustix::fd::{FromRawFd, RawFd};
    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, WaitOptions, pidfd_getfd, pidfd_open, waitpid};

    /// A process in an exec of which its filter tells, and the filter's listener.
    fn executes() -> (Pid, Arc<OwnedFd>) {
        let filter = call_filter::filter(false).map(|instruction| instruction.bytes());
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut().cast() };
        let [mode, flags] = ARGUMENTS;
        let path = c"/bin/true".as_ptr();
        let arguments = [path, std::ptr::null()];
        let mut ends = [0; 2];
        // SAFETY: the child makes only system calls with memory that it has.
        let (child, reads) = unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            let child = libc::fork();
            if child == 0 {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                let listener = libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) as RawFd;
                libc::write(ends[1], (&raw const listener).cast(), size_of::<RawFd>());
                libc::execv(path, arguments.as_ptr());
                libc::_exit(1);
            }
            drop(OwnedFd::from_raw_fd(ends[1]));
            (Pid::from_raw(child).unwrap(), OwnedFd::from_raw_fd(ends[0]))
        };
        let mut listener = [0; size_of::<RawFd>()];
        rustix::io::read(reads, &mut listener).unwrap();
        let pidfd = pidfd_open(child, PidfdFlags::empty()).unwrap();
        let listener = pidfd_getfd(pidfd, RawFd::from_ne_bytes(listener), PidfdGetfdFlags::empty()).unwrap();
        (child, Arc::new(listener))
    }

    #[test]
    fn an_exec_of_a_held_thread_begins_again() {
        let (child, listener) = executes();
        let told = Told::receive(&listener).unwrap();
        held::hold(child).unwrap();
        assert!(!held::let_run(child, child), "it can't stop before the answer");
        let mut told = Some(told);
        // Other tests begin holds.
        while let Some(waits) = told {
            told = answer(waits, &mut Entering::default());
        }
        while !held::let_run(child, child) {
            std::thread::yield_now();
        }
        Told::receive(&listener).expect("the same call").goes_on();
        // The new program's other calls are not told.
        drop(listener);
        let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.exit_status(), Some(0));
    }
}
