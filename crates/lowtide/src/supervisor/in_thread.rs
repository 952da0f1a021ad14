//! Makes the kernel deliver faults to the faulting threads themselves (docs/design/in-thread.md):
//! loads the BPF programs, before the program starts or for the first process that asks, and
//! registers processes. When this process ends, the kernel removes the programs, and faults go to
//! handler threads.
//!
//! Loading is slow, and so is each registration: the kernel waits until no CPU uses the old maps. A
//! separate thread does both and answers; until then the requesting process uses its handler
//! threads.

use crate::host::confinement::Confinement;
use crate::host::privilege;
use crate::supervisor::ancestry;
use crate::supervisor::peer::Rights;
use lowtide_bpf::record::Why;
use lowtide_bpf::{Carrier, Hook, Notifier, Registration, SIGNAL, Stacks, WAYS};
use lowtide_sys::release::{self, Release};
use lowtide_wire::broker::{HANDLER_STACK, send};
use lowtide_wire::segment::{FAULTS_BY_HANDLERS, FAULTS_IN_THREAD};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Rings of a process: its handler threads read one.
const RINGS: u32 = 1;
/// Most queued requests, with two descriptors each.
const MOST_WAITING: usize = 64;
/// Most registered processes, with a descriptor each: the usual limit is 1024.
const MOST_REGISTERED: usize = 256;
/// Longest period of unregistering ended processes: others may get their numbers.
const FORGET_EVERY: Duration = Duration::from_secs(5);
const STACK: usize = 256 << 10;
/// The first Linux whose programs attach to function entries. Before 6.9, detaching one, as this
/// process's end does, can block for ever on an exiting process (tasks_rcu_exit_srcu); 6.9 to 6.11
/// are untested.
const AT_ENTRIES_SINCE: Release = (6, 12, 0);

pub struct InThread {
    /// A `FAULTS_` value of the segment.
    faults: u32,
    programs: Arc<Programs>,
    /// To the registering thread, once a process has asked.
    queue: Option<SyncSender<Asked>>,
}

/// Shared by the registering thread and the event loop.
#[derive(Default)]
struct Programs {
    /// Empty until they are loaded.
    notifier: OnceLock<Notifier>,
    /// See [`InThread::is_loading`].
    is_loading: AtomicBool,
}

/// A process's request to deliver faults to its threads.
pub struct Asked {
    pub pid: u32,
    pub process: OwnedFd,
    pub rights: Rights,
    pub handler: u64,
    /// Receives the ring and the slots, or an error; closed without an answer if loading fails.
    pub socket: OwnedFd,
}

struct Registered {
    pid: u32,
    process: OwnedFd,
}

trait Register {
    /// Returns the process's ring and slots, for that process only.
    fn register(&self, pid: u32, handler: u64) -> Result<[OwnedFd; 2], Errno>;
    fn unregister(&self, pid: u32);
}

struct Told<'a> {
    notifier: &'a Notifier,
    stacks: Stacks,
}

impl Register for Told<'_> {
    fn register(&self, pid: u32, handler: u64) -> Result<[OwnedFd; 2], Errno> {
        // No filters: the process reported none for its main thread. Threads that have some get no
        // faults.
        let registration = Registration::new(handler, HANDLER_STACK, 0, RINGS).on(self.stacks);
        let registered = privilege::with(privilege::for_loaded(), || self.notifier.register(pid, registration));
        let maps = registered.map_err(|_| Errno::IO)?;
        Ok([maps.rings.into_iter().next().ok_or(Errno::IO)?, maps.slots])
    }

    fn unregister(&self, pid: u32) {
        let _ = privilege::with(privilege::for_loaded(), || self.notifier.unregister(pid));
    }
}

/// Whether loading is worth trying; nearly free.
pub fn may_load(confinement: &Confinement) -> bool {
    // A filter may kill the caller, and also covers the run's processes, whose handlers it may
    // restrict. An attempt without the capabilities appears in the audit log.
    !confinement.is_filtered
        && (privilege::has(privilege::TRACING) || privilege::has(CapabilitySet::SYS_ADMIN))
        && privilege::with(privilege::LOADING, Notifier::may_load)
}

/// Loads the programs; the error is one line.
pub fn load() -> Result<Notifier, String> {
    let ways = ways(release::running());
    let loaded = privilege::with(privilege::LOADING, || Notifier::load_by(SIGNAL, &ways)).map_err(|error| error.to_string());
    // Reading the kernel's types takes tens of megabytes, which the allocator would keep and the
    // limit would count. SAFETY: returns unused memory only.
    unsafe { libc::malloc_trim(0) };
    loaded
}

/// Ways of loading on this kernel, the best first.
fn ways(kernel: Release) -> Vec<(Hook, Carrier)> {
    WAYS.into_iter().filter(|(hook, _)| *hook == Hook::Probe || kernel >= AT_ENTRIES_SINCE).collect()
}

impl InThread {
    pub fn new(faults: u32) -> InThread {
        InThread { faults, programs: Arc::default(), queue: None }
    }

    /// Loads the programs now; the error is one line.
    pub fn load(&mut self) -> Result<(), String> {
        let loaded = load()?;
        self.programs.notifier.get_or_init(|| loaded);
        Ok(())
    }

    /// Whether this process temporarily holds megabytes of the kernel's types. Call it on the
    /// thread of [`InThread::ask`]: after a `false`, none come before the next `ask`.
    pub fn is_loading(&self) -> bool {
        // Acquire: pairs with the Release in `start`: the types are freed before.
        self.programs.is_loading.load(Ordering::Acquire)
    }

    /// Queues a registration; the answer comes later.
    ///
    /// # Errors
    /// `NOSYS`: this run delivers no faults to threads. `AGAIN`: too many requests, or no memory;
    /// try later.
    pub fn ask(&mut self, asked: Asked) -> Result<(), Errno> {
        if self.faults == FAULTS_BY_HANDLERS {
            return Err(Errno::NOSYS);
        }
        let queue = match &self.queue {
            Some(queue) => queue,
            None => &*self.queue.insert(start(Arc::clone(&self.programs), self.stacks(), load).map_err(|_| Errno::AGAIN)?),
        };
        match queue.try_send(asked) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => Err(Errno::AGAIN),
            Err(TrySendError::Disconnected(_)) => {
                // A failed load stays failed.
                self.faults = FAULTS_BY_HANDLERS;
                Err(Errno::NOSYS)
            }
        }
    }

    /// By default, skips stacks that may lack room.
    fn stacks(&self) -> Stacks {
        if self.faults == FAULTS_IN_THREAD { Stacks::Any } else { Stacks::Known }
    }

    /// Faults and events left to handler threads, by reason in the order of [`Why::ALL`], and the
    /// ones without a record ([`Why::Lost`], [`Why::Again`]); zeros without delivery to threads.
    pub fn counts(&self) -> [u64; Why::ALL.len()] {
        let Some(notifier) = self.programs.notifier.get() else { return [0; Why::ALL.len()] };
        privilege::with(privilege::for_loaded(), || Why::ALL.map(|why| notifier.count(why).unwrap_or(0)))
    }
}

/// Starts the registering thread. It ends if loading fails, and with this process.
fn start(
    programs: Arc<Programs>,
    stacks: Stacks,
    load: impl FnOnce() -> Result<Notifier, String> + Send + 'static,
) -> std::io::Result<SyncSender<Asked>> {
    let (sender, queue) = sync_channel(MOST_WAITING);
    let thread = std::thread::Builder::new().name("lowtide-bpf".to_owned()).stack_size(STACK);
    let is_loaded = programs.notifier.get().is_some();
    // Set before the thread begins: see `InThread::is_loading`.
    programs.is_loading.store(!is_loaded, Ordering::Relaxed);
    let shared = Arc::clone(&programs);
    let work = move || {
        if !is_loaded {
            let loaded = load();
            // Release: pairs with the Acquire in `InThread::is_loading`.
            shared.is_loading.store(false, Ordering::Release);
            // Only this thread sets it.
            let Ok(loaded) = loaded else { return };
            shared.notifier.get_or_init(|| loaded);
        }
        if let Some(notifier) = shared.notifier.get() {
            answer_all(&Told { notifier, stacks }, &queue, MOST_REGISTERED, FORGET_EVERY);
        }
    };
    let started = thread.spawn(work);
    if started.is_err() {
        programs.is_loading.store(false, Ordering::Relaxed);
    }
    started.map(|_| sender)
}

/// Registers requesting processes, at most `most`, and unregisters ended ones at least `every` so
/// often.
fn answer_all(with: &impl Register, queue: &Receiver<Asked>, most: usize, every: Duration) {
    let mut registered = Vec::<Registered>::new();
    loop {
        let asked = match registered.is_empty() {
            true => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => queue.recv_timeout(every),
        };
        match asked {
            Ok(asked) => answer(with, asked, &mut registered, most),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        // After the answer: unregistering takes as long again for each.
        registered.retain(|Registered { pid, process }| {
            let lives = ancestry::is_alive(process);
            if !lives {
                with.unregister(*pid);
            }
            lives
        });
    }
}

fn answer(with: &impl Register, asked: Asked, registered: &mut Vec<Registered>, most: usize) {
    let Asked { pid, process, rights, handler, socket } = asked;
    // It may have ended while others were registered.
    if !ancestry::is_alive(&process) {
        return;
    }
    let others = registered.iter().filter(|other| other.pid != pid).count();
    let maps = if others < most { with.register(pid, handler) } else { Err(Errno::AGAIN) };
    // Its handler threads go on whether or not this arrives.
    let refuse = |error: Errno| {
        let _ = send(socket.as_fd(), error.raw_os_error() as u32, &[]);
    };
    let [ring, slots] = match maps {
        Ok(maps) => maps,
        Err(error) => return refuse(error),
    };
    // An older process of this number must not be unregistered later.
    registered.retain(|other| other.pid != pid);
    let told = if rights.are_still_of(pid, &process) {
        send(socket.as_fd(), 0, &[ring.as_fd(), slots.as_fd()])
    } else {
        refuse(Errno::SRCH);
        Err(Errno::SRCH)
    };
    match told {
        Ok(()) => registered.push(Registered { pid, process }),
        // It has executed another program, which has no handler.
        Err(_) => with.unregister(pid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_wire::broker::receive;
    use lowtide_wire::segment::FAULTS_AS_CAN_BE;
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use rustix::process::{PidfdFlags, pidfd_open};
    use std::process::{Child, Command};
    use std::sync::Mutex;

    /// Longer than any test.
    const NEVER: Duration = Duration::from_secs(3600);
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Records requests, and blocks each registration until the test permits it.
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
        for end in [&one, &other] {
            set_socket_timeout(end, Timeout::Recv, Some(PATIENCE)).unwrap();
        }
        [one, other]
    }

    fn next(hears: &Receiver<String>) -> String {
        hears.recv_timeout(PATIENCE).expect("something is done")
    }

    fn process_of(pid: u32) -> OwnedFd {
        pidfd_open(lowtide_config::proc::as_pid(pid).unwrap(), PidfdFlags::empty()).unwrap()
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

    /// A request that claims this process's rights.
    fn asked(pid: u32, process: &OwnedFd, handler: u64, socket: &OwnedFd) -> Asked {
        let rights = Rights::of(std::process::id()).unwrap();
        Asked { pid, process: process.try_clone().unwrap(), rights, handler, socket: socket.try_clone().unwrap() }
    }

    /// A slow registrar, its permission channel (which also shows that a registration is about to
    /// start), and its log.
    fn slow(most: usize, every: Duration) -> (InThread, SyncSender<()>, Receiver<String>) {
        let (sender, queue) = sync_channel(MOST_WAITING);
        let ((may, waits), (done, hears)) = (sync_channel(0), sync_channel(MOST_WAITING));
        std::thread::spawn(move || answer_all(&Slow { may: Mutex::new(waits), done }, &queue, most, every));
        (InThread { queue: Some(sender), ..InThread::new(FAULTS_AS_CAN_BE) }, may, hears)
    }

    #[test]
    fn whoever_asks_is_not_waited_for_and_answered_later() {
        let (mut in_thread, may, hears) = slow(MOST_REGISTERED, NEVER);
        let (pid, process, [ours, theirs]) = (std::process::id(), process_of(std::process::id()), pair());
        in_thread.ask(asked(pid, &process, 1, &ours)).unwrap();
        in_thread.ask(asked(pid, &process, 2, &ours)).unwrap();
        rustix::fs::fcntl_setfl(&theirs, rustix::fs::OFlags::NONBLOCK).unwrap();
        assert_eq!(receive(theirs.as_fd()).unwrap_err(), Errno::AGAIN);
        may.send(()).unwrap();
        assert_eq!(next(&hears), format!("{pid} at 1"));
        rustix::fs::fcntl_setfl(&theirs, rustix::fs::OFlags::empty()).unwrap();
        let answer = receive(theirs.as_fd()).unwrap();
        assert_eq!((answer.word, answer.files.len()), (0, 2));
        drop(may);
        assert_eq!(receive(theirs.as_fd()).unwrap().word, Errno::IO.raw_os_error() as u32, "it was refused");
    }

    #[test]
    fn the_ended_are_not_registered_and_forgotten() {
        let (mut in_thread, may, hears) = slow(MOST_REGISTERED, NEVER);
        let [(first, one), (second, two)] = [sleeper(), sleeper()];
        let (pid, own, [ours, _theirs]) = (std::process::id(), process_of(std::process::id()), pair());
        let gone = first.id();
        in_thread.ask(asked(gone, &one, 7, &ours)).unwrap();
        in_thread.ask(asked(second.id(), &two, 7, &ours)).unwrap();
        // The second one ends during the first one's registration.
        end(second);
        may.send(()).unwrap();
        assert_eq!(next(&hears), format!("{gone} at 7"));
        in_thread.ask(asked(pid, &own, 7, &ours)).unwrap();
        // A registration is about to start, so the first process had its answer and lived at the
        // last check.
        may.send(()).unwrap();
        end(first);
        assert_eq!(next(&hears), format!("{pid} at 7"));
        in_thread.ask(asked(pid, &own, 8, &ours)).unwrap();
        may.send(()).unwrap();
        let mut heard = [next(&hears), next(&hears)];
        heard.sort_by_key(|line| line.ends_with("gone"));
        assert_eq!(heard, [format!("{pid} at 8"), format!("{gone} is gone")]);
    }

    #[test]
    fn whoever_gets_a_number_again_is_not_forgotten_for_who_had_it() {
        let (mut in_thread, may, hears) = slow(MOST_REGISTERED, NEVER);
        let (pid, own, [ours, _theirs]) = (std::process::id(), process_of(std::process::id()), pair());
        // As if it had had this process's number.
        let (first, one) = sleeper();
        in_thread.ask(asked(pid, &one, 1, &ours)).unwrap();
        may.send(()).unwrap();
        assert_eq!(next(&hears), format!("{pid} at 1"));
        in_thread.ask(asked(pid, &own, 2, &ours)).unwrap();
        // A registration is about to start: the first process lived at the last check.
        may.send(()).unwrap();
        end(first);
        assert_eq!(next(&hears), format!("{pid} at 2"));
        let (other, two) = sleeper();
        for handler in [3, 4] {
            in_thread.ask(asked(other.id(), &two, handler, &ours)).unwrap();
            may.send(()).unwrap();
            assert_eq!(next(&hears), format!("{} at {handler}", other.id()));
        }
        end(other);
    }

    #[test]
    fn the_ended_are_forgotten_though_nobody_asks() {
        let (mut in_thread, may, hears) = slow(MOST_REGISTERED, Duration::from_millis(1));
        let ((only, process), [ours, theirs]) = (sleeper(), pair());
        let pid = only.id();
        in_thread.ask(asked(pid, &process, 1, &ours)).unwrap();
        may.send(()).unwrap();
        assert_eq!(next(&hears), format!("{pid} at 1"));
        assert_eq!(receive(theirs.as_fd()).unwrap().files.len(), 2);
        end(only);
        assert_eq!(next(&hears), format!("{pid} is gone"));
    }

    #[test]
    fn no_more_than_a_bound_are_registered() {
        let (mut in_thread, may, hears) = slow(1, NEVER);
        let ((first, one), own, [ours, theirs]) = (sleeper(), process_of(std::process::id()), pair());
        let (gone, pid) = (first.id(), std::process::id());
        // The second registration replaces the first.
        for handler in [1, 2] {
            in_thread.ask(asked(gone, &one, handler, &ours)).unwrap();
            may.send(()).unwrap();
            assert_eq!(next(&hears), format!("{gone} at {handler}"));
            assert_eq!(receive(theirs.as_fd()).unwrap().word, 0);
        }
        in_thread.ask(asked(pid, &own, 1, &ours)).unwrap();
        assert_eq!(receive(theirs.as_fd()).unwrap().word, Errno::AGAIN.raw_os_error() as u32);
        end(first);
        // It has ended, so the request fails, and the check for ended ones runs.
        in_thread.ask(asked(gone, &one, 3, &ours)).unwrap();
        assert_eq!(next(&hears), format!("{gone} is gone"));
        in_thread.ask(asked(pid, &own, 3, &ours)).unwrap();
        may.send(()).unwrap();
        assert_eq!(next(&hears), format!("{pid} at 3"));
        assert_eq!(receive(theirs.as_fd()).unwrap().word, 0);
    }

    #[test]
    fn whoever_gets_no_answer_is_not_registered() {
        let (mut in_thread, may, hears) = slow(MOST_REGISTERED, NEVER);
        let (pid, own, [ours, theirs]) = (std::process::id(), process_of(std::process::id()), pair());
        // As a connection inherited by another program, or kept over an exec that changed rights.
        let rights = Rights::of_another(pid);
        in_thread.ask(Asked { rights, ..asked(pid, &own, 1, &ours) }).unwrap();
        may.send(()).unwrap();
        assert_eq!([next(&hears), next(&hears)], [format!("{pid} at 1"), format!("{pid} is gone")]);
        let answer = receive(theirs.as_fd()).unwrap();
        assert_eq!((answer.word, answer.files.len()), (Errno::SRCH.raw_os_error() as u32, 0));
        drop(theirs);
        in_thread.ask(asked(pid, &own, 2, &ours)).unwrap();
        may.send(()).unwrap();
        assert_eq!([next(&hears), next(&hears)], [format!("{pid} at 2"), format!("{pid} is gone")]);
    }

    #[test]
    fn nobody_is_told_where_nothing_can_be_loaded() {
        let (process, [ours, theirs]) = (process_of(std::process::id()), pair());
        let mut none = InThread::new(FAULTS_BY_HANDLERS);
        assert_eq!(none.ask(asked(1, &process, 1, &ours)), Err(Errno::NOSYS));
        let (may, waits) = sync_channel::<()>(0);
        let mut failed = InThread::new(FAULTS_AS_CAN_BE);
        assert!(!failed.is_loading());
        let fails = move || waits.recv().map_or_else(|_| Err("not here".to_owned()), |()| Err("not now".to_owned()));
        failed.queue = Some(start(Arc::clone(&failed.programs), failed.stacks(), fails).unwrap());
        assert!(failed.is_loading(), "as long as it has what it loads from");
        assert_eq!(failed.ask(asked(1, &process, 1, &ours)), Ok(()));
        drop(may);
        drop(ours);
        assert_eq!(receive(theirs.as_fd()).unwrap_err(), Errno::PIPE, "it is not left to wait");
        assert!(!failed.is_loading());
        let [ours, _theirs] = pair();
        assert_eq!(failed.ask(asked(1, &process, 1, &ours)), Err(Errno::NOSYS));
        assert_eq!(failed.faults, FAULTS_BY_HANDLERS);
    }

    #[test]
    fn old_kernels_get_probes() {
        for (kernel, hooks) in [((6, 8, 0), &[Hook::Probe][..]), ((6, 11, 99), &[Hook::Probe])] {
            assert_eq!(ways(kernel).iter().map(|(hook, _)| *hook).collect::<Vec<_>>(), hooks, "{kernel:?}");
        }
        for kernel in [(6, 12, 0), (7, 3, 4)] {
            assert_eq!(ways(kernel), WAYS, "{kernel:?}");
        }
    }
}
