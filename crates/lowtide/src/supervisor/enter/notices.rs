//! What system call filters tell (the pager's `call_filter`) is received by a thread of its own: a thread that is told of waits in
//! its call, and the main thread may be busy with a program that it holds. Execs are left for the main thread, which traces; moves,
//! guards and lazy frees go to the agents of their processes, and so does what `set_tid_address` says (`moves.rs`).

use super::moves::{Maker, Moves};
use crate::signal_fd::SignalSet;
use linux_raw_sys::general::{__NR_madvise, __NR_mremap, __NR_process_madvise, __NR_set_tid_address, __NR_shmat};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Stack of the thread.
const STACK: usize = 256 << 10;
/// Its niceness.
const PRIORITY: i32 = -10;
/// How often it looks at threads that nobody answers, while there are any.
const LOOKS_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP (Linux 6.6).
const SYNC_WAKE_UP: u64 = 1;

/// A thread that waits in a call that a filter has told of.
pub struct Told {
    listener: Arc<OwnedFd>,
    id: u64,
    /// Its id.
    pub thread: u32,
    /// Of the system call.
    pub number: u32,
    pub arguments: [u64; 6],
}

impl Told {
    /// Takes the next that a filter tells of. None: whoever waited was killed, or interrupted.
    pub fn receive(listener: &Arc<OwnedFd>) -> Option<Told> {
        let mut told = std::mem::MaybeUninit::<libc::seccomp_notif>::zeroed();
        // SAFETY: the kernel writes the structure, and zeroes, which it wants there, are valid too.
        let told = unsafe {
            if libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, told.as_mut_ptr()) < 0 {
                return None;
            }
            told.assume_init()
        };
        let (number, arguments) = (told.data.nr as u32, told.data.args);
        Some(Told { listener: listener.clone(), id: told.id, thread: told.pid, number, arguments })
    }

    /// Lets it make its call.
    pub fn goes_on(self) {
        self.send(0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32);
    }

    /// Its call has been made: what that has returned.
    pub fn was_made(self, result: i64) {
        let error = if (-4095..0).contains(&result) { result as i32 } else { 0 };
        self.send(if error == 0 { result } else { 0 }, error, 0);
    }

    fn send(&self, val: i64, error: i32, flags: u32) {
        let answer = libc::seccomp_notif_resp { id: self.id, val, error, flags };
        // (It fails where the thread was killed.)
        // SAFETY: the kernel reads the structure.
        until_done(|| unsafe { libc::ioctl(self.listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) });
    }

    /// Whether the thread still waits.
    pub fn waits(&self) -> bool {
        // SAFETY: the kernel reads the number.
        until_done(|| unsafe { libc::ioctl(self.listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const self.id) })
    }
}

/// Makes a call until nothing interrupts it: to be stopped and continued is enough for that. Whether it succeeds.
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

/// The thread that receives, and what the main thread has of it.
pub struct Notices {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Readable when something was added.
    added: OwnedFd,
    /// Readable when an exec was told of, or a process is lost.
    told: OwnedFd,
}

#[derive(Default)]
struct State {
    listeners: Vec<Arc<OwnedFd>>,
    /// Agents that make moves, to be taken up; and how many have been.
    makers: Vec<Maker>,
    known_makers: usize,
    execs: Vec<Told>,
    /// A process of which threads wait that nobody will answer.
    lost: Option<u32>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // What a thread that panicked has left here is a list as any other.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notices {
    /// Starts the thread.
    ///
    /// # Errors
    /// No descriptor, or no thread, is left.
    pub fn start() -> Result<Notices, Errno> {
        let wakes = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let shared = Arc::new(Shared { state: Mutex::default(), added: wakes()?, told: wakes()? });
        let theirs = shared.clone();
        let before = SignalSet::all_but(&[]).block();
        let thread = std::thread::Builder::new().name("lowtide-notices".to_owned()).stack_size(STACK);
        let started = thread.spawn(move || Receiver { shared: theirs, moves: Moves::default() }.run());
        before.set_mask();
        started.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        Ok(Notices { shared })
    }

    /// How many filters tell.
    pub fn listeners(&self) -> usize {
        self.shared.state().listeners.len()
    }

    /// Receives what this listener tells from now on.
    pub fn add(&self, listener: OwnedFd) {
        // Who tells waits at once, so its CPU is free. (An older kernel wakes as it does.)
        // SAFETY: the kernel takes a number.
        until_done(|| unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) });
        self.shared.state().listeners.push(Arc::new(listener));
        wake(&self.shared.added);
    }

    /// How many agents make moves.
    pub fn makers(&self) -> usize {
        let state = self.shared.state();
        state.makers.len() + state.known_makers
    }

    /// From now on an agent makes the moves of its process.
    pub fn add_maker(&self, maker: Maker) {
        self.shared.state().makers.push(maker);
        wake(&self.shared.added);
    }

    /// A process of which threads wait that nobody will answer, if there is one.
    pub fn lost(&self) -> Option<u32> {
        self.shared.state().lost
    }

    /// Readable when there are execs to take, or a process is lost.
    pub fn waits_for(&self) -> BorrowedFd<'_> {
        self.shared.told.as_fd()
    }

    /// Takes the execs that were told of.
    pub fn execs(&self) -> Vec<Told> {
        sleep(&self.shared.told);
        std::mem::take(&mut self.shared.state().execs)
    }
}

/// Makes it readable.
fn wake(event: &OwnedFd) {
    // (It fails where it is readable many times over.)
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Makes it readable no more.
fn sleep(event: &OwnedFd) {
    let _ = rustix::io::read(event, &mut [0; 8]);
}

/// The thread.
struct Receiver {
    shared: Arc<Shared>,
    moves: Moves,
}

impl Receiver {
    /// Ends with the process.
    fn run(mut self) {
        // Until a call is received, a signal takes its thread out of it. (Where it is not allowed, that is more often so.)
        let _ = rustix::process::setpriority_process(None, PRIORITY);
        loop {
            let listeners = self.renew();
            let fds = [self.shared.added.as_fd()].into_iter().chain(listeners.iter().map(|listener| listener.as_fd()));
            let mut polled: Vec<PollFd<'_>> =
                fds.chain(self.moves.waits_for()).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            let timeout = self.moves.has_left_some().then_some(&LOOKS_AGAIN);
            if poll(&mut polled, timeout).is_err() {
                continue;
            }
            let seen: Vec<PollFlags> = polled.iter().map(PollFd::revents).collect();
            let (of_listeners, of_makers) = seen[1..].split_at(listeners.len());
            // Who has gone is asked no more.
            self.moves.take_answers(of_makers);
            self.look_for_lost();
            if seen[0].contains(PollFlags::IN) {
                sleep(&self.shared.added);
                self.renew();
            }
            for (listener, seen) in listeners.iter().zip(of_listeners) {
                if seen.contains(PollFlags::IN) {
                    self.receive(listener);
                }
                // No process has the filter any more. (An error the kernel says of a poll that was interrupted, too.)
                if seen.contains(PollFlags::HUP) {
                    self.shared.state().listeners.retain(|other| !Arc::ptr_eq(other, listener));
                }
            }
        }
    }

    fn look_for_lost(&mut self) {
        if let Some(process) = self.moves.lost() {
            self.shared.state().lost = Some(process);
            wake(&self.shared.told);
        }
    }

    /// Takes up what was added; which filters tell.
    fn renew(&mut self) -> Vec<Arc<OwnedFd>> {
        let mut state = self.shared.state();
        state.makers.drain(..).for_each(|maker| self.moves.add(maker));
        state.known_makers = self.moves.makers();
        state.listeners.clone()
    }

    fn receive(&mut self, listener: &Arc<OwnedFd>) {
        match Told::receive(listener) {
            None => {}
            Some(told) if told.number == __NR_set_tid_address => self.moves.clears_word(told),
            Some(told) if [__NR_mremap, __NR_madvise, __NR_shmat, __NR_process_madvise].contains(&told.number) => {
                self.moves.ask(told)
            }
            Some(told) => {
                self.shared.state().execs.push(told);
                wake(&self.shared.told);
            }
        }
    }
}
