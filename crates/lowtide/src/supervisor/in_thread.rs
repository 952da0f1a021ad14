//! Has the kernel tell threads of the run of their own faults (docs/design/in-thread.md): loads the BPF programs, for the first
//! process that asks or before the program starts, and registers processes. When this process ends, the kernel takes all of it
//! away, and faults go to handler threads.
//!
//! To load takes long, and so does each registration: the kernel waits until no CPU uses the maps as they were. So a thread of
//! its own does it, and answers. Until then the process that has asked goes on with its handler threads.

use crate::host::privilege;
use crate::supervisor::ancestry;
use lowtide_bpf::record::Why;
use lowtide_bpf::{Notifier, Registration, SIGNAL};
use lowtide_pager::segment::FAULTS_BY_MONITORS;
use lowtide_pager::sys::broker::{HANDLER_STACK, send};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};

/// Rings of a process: its handler threads take from one.
const RINGS: u32 = 1;
/// Most processes that wait to be registered, with two descriptors each.
const MOST_WAITING: usize = 128;
const STACK: usize = 256 << 10;

/// The programs, and who is told.
pub struct InThread {
    /// One of the segment's `FAULTS_` values.
    faults: u32,
    /// Empty until they are loaded.
    notifier: Arc<OnceLock<Notifier>>,
    /// To the thread that registers, from when the first process has asked.
    queue: Option<SyncSender<Asked>>,
}

/// A process that wants its threads to be told.
struct Asked {
    pid: u32,
    process: OwnedFd,
    handler: u64,
    /// Where the answer goes: its ring and its slots, or why there are none.
    socket: OwnedFd,
}

/// Who knows processes.
trait Register {
    /// The ring and the slots of a process, which nobody but it is to get.
    fn register(&self, pid: u32, handler: u64) -> Result<[OwnedFd; 2], Errno>;
    fn unregister(&self, pid: u32);
}

impl Register for Notifier {
    fn register(&self, pid: u32, handler: u64) -> Result<[OwnedFd; 2], Errno> {
        // Filters: none, as the process said of its main thread. Threads that have some are told nothing.
        let registration = Registration::new(handler, HANDLER_STACK, 0, RINGS);
        let registered = privilege::with(privilege::TRACING, || Notifier::register(self, pid, registration));
        let maps = registered.map_err(|_| Errno::IO)?;
        Ok([maps.rings.into_iter().next().ok_or(Errno::IO)?, maps.slots])
    }

    fn unregister(&self, pid: u32) {
        let _ = privilege::with(privilege::TRACING, || Notifier::unregister(self, pid));
    }
}

/// Whether it is worth trying; costs next to nothing.
pub fn may_load() -> bool {
    privilege::with(privilege::TRACING, Notifier::may_load)
}

/// Loads the programs; why that can't be, in one line.
pub fn load() -> Result<Notifier, String> {
    let loaded = privilege::with(privilege::TRACING, || Notifier::load(SIGNAL)).map_err(|error| error.to_string());
    // To read the kernel's types takes tens of megabytes, which the allocator would keep, and which count.
    // SAFETY: gives unused memory back.
    unsafe { libc::malloc_trim(0) };
    loaded
}

impl InThread {
    /// As the run was asked for: one of the segment's `FAULTS_` values.
    pub fn new(faults: u32) -> InThread {
        InThread { faults, notifier: Arc::default(), queue: None }
    }

    /// Loads the programs now; why that can't be, in one line.
    pub fn load(&mut self) -> Result<(), String> {
        let loaded = load()?;
        self.notifier.get_or_init(|| loaded);
        Ok(())
    }

    /// A process, which has this pid and whose handler is there, wants to be registered. It gets the answer by `socket`, later;
    /// that is closed without one where nothing can be loaded.
    ///
    /// # Errors
    /// `NOSYS`: nobody is told here. `AGAIN`: there are too many, or there is no memory. `MFILE`.
    pub fn ask(&mut self, pid: u32, process: &OwnedFd, handler: u64, socket: &OwnedFd) -> Result<(), Errno> {
        if self.faults == FAULTS_BY_MONITORS {
            return Err(Errno::NOSYS);
        }
        let own = |file: &OwnedFd| file.try_clone().map_err(|_| Errno::MFILE);
        let asked = Asked { pid, process: own(process)?, handler, socket: own(socket)? };
        let queue = match &self.queue {
            Some(queue) => queue,
            None => &*self.queue.insert(start(Arc::clone(&self.notifier)).map_err(|_| Errno::AGAIN)?),
        };
        match queue.try_send(asked) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => Err(Errno::AGAIN),
            Err(TrySendError::Disconnected(_)) => {
                // What can't be loaded once can't be loaded again.
                self.faults = FAULTS_BY_MONITORS;
                Err(Errno::NOSYS)
            }
        }
    }

    /// How many faults and events were left to handler threads for each reason, in the order of [`Why::ALL`], and of these how
    /// many without a record ([`Why::Lost`], [`Why::Again`]); zeros where no thread is told.
    pub fn counts(&self) -> [u64; Why::ALL.len()] {
        let Some(notifier) = self.notifier.get() else { return [0; Why::ALL.len()] };
        privilege::with(privilege::TRACING, || Why::ALL.map(|why| notifier.count(why).unwrap_or(0)))
    }
}

/// Starts the thread that registers. It ends where nothing can be loaded, and with this process.
fn start(notifier: Arc<OnceLock<Notifier>>) -> std::io::Result<SyncSender<Asked>> {
    let (sender, queue) = sync_channel(MOST_WAITING);
    let thread = std::thread::Builder::new().name("lowtide-bpf".to_owned()).stack_size(STACK);
    let work = move || {
        let notifier = match notifier.get() {
            Some(notifier) => notifier,
            // Nobody else does.
            None => match load() {
                Ok(loaded) => notifier.get_or_init(|| loaded),
                Err(_) => return,
            },
        };
        answer_all(notifier, &queue);
    };
    thread.spawn(work).map(|_| sender)
}

/// Registers who asks, and forgets those that have ended, as others may get their numbers.
fn answer_all(with: &impl Register, queue: &Receiver<Asked>) {
    let mut registered = Vec::<(u32, OwnedFd)>::new();
    for Asked { pid, process, handler, socket } in queue {
        // While others were registered it may have ended.
        if ancestry::is_alive(&process) {
            let maps = with.register(pid, handler);
            // Who had its number before is not to be forgotten in its place.
            registered.retain(|(other, _)| *other != pid);
            // (What can't be sent it is without, and goes on as it is.)
            let _ = match &maps {
                Ok([ring, slots]) => send(socket.as_fd(), 0, &[ring.as_fd(), slots.as_fd()]),
                Err(error) => send(socket.as_fd(), error.raw_os_error() as u32, &[]),
            };
            if maps.is_ok() {
                registered.push((pid, process));
            }
        }
        // Not before the answer: that takes as long again for each.
        drop(socket);
        registered.retain(|(pid, process)| {
            let lives = ancestry::is_alive(process);
            if !lives {
                with.unregister(*pid);
            }
            lives
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_pager::segment::FAULTS_AS_CAN_BE;
    use lowtide_pager::sys::broker::receive;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use std::process::{Child, Command};
    use std::sync::Mutex;

    /// Notes what it is asked for, and waits before each registration until it may.
    struct Slow {
        may: Mutex<Receiver<()>>,
        done: SyncSender<String>,
    }

    impl Register for Slow {
        fn register(&self, pid: u32, handler: u64) -> Result<[OwnedFd; 2], Errno> {
            self.may.lock().unwrap().recv().map_err(|_| Errno::IO)?;
            self.done.send(format!("{pid} at {handler}")).unwrap();
            Ok([pair()[0].try_clone().unwrap(), pair()[0].try_clone().unwrap()])
        }

        fn unregister(&self, pid: u32) {
            self.done.send(format!("{pid} is gone")).unwrap();
        }
    }

    fn pair() -> [OwnedFd; 2] {
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        [one, other]
    }

    fn process_of(pid: u32) -> OwnedFd {
        pidfd_open(Pid::from_raw(pid as i32).unwrap(), PidfdFlags::empty()).unwrap()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn sleeper() -> (Child, OwnedFd) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = process_of(child.id());
        (child, process)
    }

    /// One that registers so, who lets it (and goes on when it is about to), and who hears of what it has done.
    fn slow() -> (InThread, SyncSender<()>, Receiver<String>) {
        let (sender, queue) = sync_channel(MOST_WAITING);
        let ((may, waits), (done, hears)) = (sync_channel(0), sync_channel(MOST_WAITING));
        std::thread::spawn(move || answer_all(&Slow { may: Mutex::new(waits), done }, &queue));
        (InThread { queue: Some(sender), ..InThread::new(FAULTS_AS_CAN_BE) }, may, hears)
    }

    #[test]
    fn whoever_asks_is_not_waited_for_and_answered_later() {
        let (mut in_thread, may, hears) = slow();
        let (pid, process, [ours, theirs]) = (std::process::id(), process_of(std::process::id()), pair());
        // Nothing is registered yet, and this returns.
        in_thread.ask(pid, &process, 1, &ours).unwrap();
        in_thread.ask(pid, &process, 2, &ours).unwrap();
        rustix::fs::fcntl_setfl(&theirs, rustix::fs::OFlags::NONBLOCK).unwrap();
        assert_eq!(receive(theirs.as_fd()).unwrap_err(), Errno::AGAIN);
        may.send(()).unwrap();
        assert_eq!(hears.recv().unwrap(), format!("{pid} at 1"));
        rustix::fs::fcntl_setfl(&theirs, rustix::fs::OFlags::empty()).unwrap();
        let answer = receive(theirs.as_fd()).unwrap();
        assert_eq!((answer.word, answer.files.len()), (0, 2));
        drop(may);
        assert_eq!(receive(theirs.as_fd()).unwrap().word, Errno::IO.raw_os_error() as u32, "it was refused");
    }

    #[test]
    fn the_ended_are_not_registered_and_forgotten() {
        let (mut in_thread, may, hears) = slow();
        let [(first, one), (second, two)] = [sleeper(), sleeper()];
        let (pid, own, [ours, _theirs]) = (std::process::id(), process_of(std::process::id()), pair());
        let gone = first.id();
        in_thread.ask(gone, &one, 7, &ours).unwrap();
        in_thread.ask(second.id(), &two, 7, &ours).unwrap();
        // While the other one is registered.
        end(second);
        may.send(()).unwrap();
        assert_eq!(hears.recv().unwrap(), format!("{gone} at 7"));
        end(first);
        in_thread.ask(pid, &own, 7, &ours).unwrap();
        may.send(()).unwrap();
        let mut heard = [hears.recv().unwrap(), hears.recv().unwrap()];
        // Whichever comes first.
        heard.sort_by_key(|line| line.ends_with("gone"));
        assert_eq!(heard, [format!("{pid} at 7"), format!("{gone} is gone")]);
    }

    #[test]
    fn whoever_gets_a_number_again_is_not_forgotten_for_who_had_it() {
        let (mut in_thread, may, hears) = slow();
        let ((first, one), own, [ours, _theirs]) = (sleeper(), process_of(std::process::id()), pair());
        let pid = first.id();
        in_thread.ask(pid, &one, 1, &ours).unwrap();
        may.send(()).unwrap();
        assert_eq!(hears.recv().unwrap(), format!("{pid} at 1"));
        in_thread.ask(pid, &own, 2, &ours).unwrap();
        // It is about to be registered: who had the number lived when that was last looked at.
        may.send(()).unwrap();
        end(first);
        assert_eq!(hears.recv().unwrap(), format!("{pid} at 2"));
        for handler in [3, 4] {
            in_thread.ask(pid + 1, &own, handler, &ours).unwrap();
            may.send(()).unwrap();
            assert_eq!(hears.recv().unwrap(), format!("{} at {handler}", pid + 1));
        }
    }

    #[test]
    fn nobody_is_told_where_nothing_can_be_loaded() {
        let (process, [ours, theirs]) = (process_of(std::process::id()), pair());
        let mut none = InThread::new(FAULTS_BY_MONITORS);
        assert_eq!(none.ask(1, &process, 1, &ours), Err(Errno::NOSYS));
        let (sender, queue) = sync_channel(MOST_WAITING);
        let mut failed = InThread { queue: Some(sender), ..InThread::new(FAULTS_AS_CAN_BE) };
        assert_eq!(failed.ask(1, &process, 1, &ours), Ok(()));
        drop(queue);
        assert_eq!(failed.ask(1, &process, 1, &ours), Err(Errno::NOSYS));
        assert_eq!(failed.faults, FAULTS_BY_MONITORS);
        drop(ours);
        assert_eq!(receive(theirs.as_fd()).unwrap_err(), Errno::PIPE, "it is not left to wait");
    }
}
