//! A separate thread receives what system call filters tell (`lowtide-wire`'s `call_filter`): the
//! notifying thread waits in its call, and the main thread may be busy with a held program. The
//! main thread takes the execs, which it traces. Calls that change memory are answered here
//! (`memory_calls.rs`).

use super::calls_under_way::CallsUnderWay;
use super::memory_calls;
use crate::signal_fd::SignalSet;
use linux_raw_sys::general::{__NR_execve, __NR_execveat};
use lowtide_wire::segment::Segment;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const STACK: usize = 256 << 10;
const PRIORITY: i32 = -10;
/// SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP (Linux 6.6).
const SYNC_WAKE_UP: u64 = 1;

/// A thread that waits in a call that a filter told of.
pub struct Told {
    listener: Arc<OwnedFd>,
    id: u64,
    pub thread: u32,
    pub number: u32,
    pub arguments: [u64; 6],
}

impl Told {
    /// Receives a filter's next notification. None: the waiting thread was killed or interrupted.
    pub fn receive(listener: &Arc<OwnedFd>) -> Option<Told> {
        let mut told = std::mem::MaybeUninit::<libc::seccomp_notif>::zeroed();
        // SAFETY: the kernel writes the structure; zeroes are valid, and the kernel requires them
        // on entry.
        let told = unsafe {
            if libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, told.as_mut_ptr()) < 0 {
                return None;
            }
            told.assume_init()
        };
        let (number, arguments) = (told.data.nr as u32, told.data.args);
        Some(Told { listener: listener.clone(), id: told.id, thread: told.pid, number, arguments })
    }

    pub fn goes_on(self) {
        self.send(0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32);
    }

    pub fn fails(self, error: Errno) {
        self.send(0, -error.raw_os_error(), 0);
    }

    /// The kernel makes the call again once the thread has stopped, for which it has been
    /// interrupted.
    pub fn restarts(self) {
        /// ERESTARTNOINTR of the kernel.
        const RESTART: i32 = 513;
        self.send(0, -RESTART, 0);
    }

    fn send(&self, val: i64, error: i32, flags: u32) {
        let answer = libc::seccomp_notif_resp { id: self.id, val, error, flags };
        // SAFETY: the kernel reads the structure. (The call fails if the thread was killed.)
        until_done(|| unsafe { libc::ioctl(self.listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) });
    }

    pub fn waits(&self) -> bool {
        // SAFETY: the kernel reads the number.
        until_done(|| unsafe { libc::ioctl(self.listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const self.id) })
    }
}

/// Repeats an interrupted call: stop and continue suffice to interrupt it. Whether it succeeds.
fn until_done(call: impl Fn() -> libc::c_int) -> bool {
    loop {
        if call() == 0 {
            return true;
        }
        if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return false;
        }
    }
}

/// The receiving thread's handle in the main thread.
pub struct Notices {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Eventfd: something was added.
    added: OwnedFd,
    /// Eventfd: an exec is pending.
    told: OwnedFd,
}

#[derive(Default)]
struct State {
    listeners: Vec<Arc<OwnedFd>>,
    execs: Vec<Told>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic leaves a valid list.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notices {
    /// Starts the thread. The arguments: as in [`super::Following`].
    ///
    /// # Errors
    /// No descriptor or thread is left.
    pub fn start(processes: Option<&'static Segment>, under_way: Arc<CallsUnderWay>) -> Result<Notices, Errno> {
        let wakes = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let shared = Arc::new(Shared { state: Mutex::default(), added: wakes()?, told: wakes()? });
        let theirs = shared.clone();
        let before = SignalSet::all_but(&[]).block();
        let thread = std::thread::Builder::new().name("lowtide-notices".to_owned()).stack_size(STACK);
        let started = thread.spawn(move || Receiver { shared: theirs, processes, under_way }.run());
        before.set_mask();
        started.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        Ok(Notices { shared })
    }

    pub fn listeners(&self) -> usize {
        self.shared.state().listeners.len()
    }

    pub fn add(&self, listener: OwnedFd) {
        // The notifier sleeps at once, so its CPU is free for the receiver. SAFETY: the kernel
        // takes a number. (Older kernels refuse.)
        until_done(|| unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) });
        self.shared.state().listeners.push(Arc::new(listener));
        wake(&self.shared.added);
    }

    /// Readable if an exec is pending.
    pub fn waits_for(&self) -> BorrowedFd<'_> {
        self.shared.told.as_fd()
    }

    pub fn execs(&self) -> Vec<Told> {
        sleep(&self.shared.told);
        std::mem::take(&mut self.shared.state().execs)
    }
}

fn wake(event: &OwnedFd) {
    // A saturated counter is readable anyway.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

fn sleep(event: &OwnedFd) {
    let _ = rustix::io::read(event, &mut [0; 8]);
}

struct Receiver {
    shared: Arc<Shared>,
    processes: Option<&'static Segment>,
    under_way: Arc<CallsUnderWay>,
}

impl Receiver {
    fn run(self) {
        // Until the receiver takes a call, any signal interrupts it. A refused priority only makes
        // that more frequent.
        let _ = rustix::process::setpriority_process(None, PRIORITY);
        loop {
            let listeners = self.shared.state().listeners.clone();
            let fds = [self.shared.added.as_fd()].into_iter().chain(listeners.iter().map(|listener| listener.as_fd()));
            let mut polled: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            if poll(&mut polled, None).is_err() {
                continue;
            }
            let seen: Vec<PollFlags> = polled.iter().map(PollFd::revents).collect();
            if seen[0].contains(PollFlags::IN) {
                sleep(&self.shared.added);
            }
            for (listener, seen) in listeners.iter().zip(&seen[1..]) {
                if seen.contains(PollFlags::IN) {
                    self.receive(listener);
                }
                // No process has the filter any more. (An interrupted poll reports ERR, too.)
                if seen.contains(PollFlags::HUP) {
                    self.shared.state().listeners.retain(|other| !Arc::ptr_eq(other, listener));
                }
            }
        }
    }

    fn receive(&self, listener: &Arc<OwnedFd>) {
        let Some(told) = Told::receive(listener) else { return };
        // What it was told of before is over.
        self.under_way.has_left(told.thread);
        if [__NR_execve, __NR_execveat].contains(&told.number) {
            self.shared.state().execs.push(told);
            wake(&self.shared.told);
        } else {
            memory_calls::answer(told, self.processes, &self.under_way);
        }
    }
}
