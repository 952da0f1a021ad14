//! Moves of memory (`mremap`), guards and lazy frees (`madvise`) that filters tell of. The
//! process's agent makes them, one at a time, if it has registered for that (the agent's
//! `hooks/made_calls.rs`); otherwise the thread makes its call itself.
//!
//! Nothing here waits for an agent. Only the agent may answer a call that was passed on: the call
//! may have been made, and must not be made twice. When an agent's connection ends, its process
//! ends or executes another program, which ends the waiting threads, too. If they still wait after
//! that, the run must end.

use super::notices::Told;
use crate::supervisor::ancestry;
use linux_raw_sys::general::{__NR_mremap, __NR_process_madvise, __NR_set_tid_address, __NR_shmat};
use lowtide_config::proc::{Stat, Status, as_pid};
use lowtide_pager::sys::moves::{Call, Made};
use lowtide_pager::sys::release;
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};
use std::collections::{HashMap, VecDeque};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

const MOST_THREADS: usize = 4096;
const MOST_WORDS: usize = 4096;
/// Answers taken from one agent before the next one's turn.
const MOST_AT_ONCE: usize = 16;
/// How long threads of a lost agent may wait: each thread of an ending process must first get a
/// CPU.
const LOST_AFTER: Duration = Duration::from_secs(5);
/// PIDFD_THREAD (Linux 6.9).
const OF_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0o200);

#[derive(Default)]
pub struct Moves {
    makers: Vec<(Maker, Asked)>,
    /// Threads that wait for a lost agent.
    left: Vec<Left>,
    /// A thread's process at its last request.
    processes: HashMap<u32, u32>,
    /// The word that the kernel clears at a thread's end, by process and start time.
    words: HashMap<(u32, u64), u64>,
    last: u64,
}

pub struct Maker {
    process: u32,
    thread_id: u32,
    /// The thread that makes them; it ends when the process executes another program.
    thread: OwnedFd,
    connection: OwnedFd,
}

/// Threads that a lost agent has not answered.
struct Left {
    process: u32,
    /// The agent's thread. Its process's other threads end with it.
    thread: Option<OwnedFd>,
    since: Instant,
    told: Vec<Told>,
}

#[derive(Default)]
struct Asked {
    /// A lower bound of lowtide's threads in the process, once the agent has sent it.
    own_threads: Option<u64>,
    told: HashMap<u64, Told>,
    /// Requests that the socket had no room for.
    not_sent: VecDeque<Call>,
}

impl Moves {
    /// The descriptors to poll (readable) before [`Moves::take_answers`], in the order of its
    /// argument.
    pub fn waits_for(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.makers.iter().map(|(maker, _)| maker.connection.as_fd())
    }

    pub fn makers(&self) -> usize {
        self.makers.len()
    }

    /// Registers an agent as the maker of its process's moves.
    pub fn add(&mut self, maker: Maker) {
        self.drop_unless(|other, _| other.process != maker.process);
        let mut asked = Asked::default();
        if let Some(word) = self.word_of(maker.process) {
            asked.says(word, maker.connection.as_fd());
        }
        self.makers.push((maker, asked));
    }

    /// Whether threads wait for lost agents: call [`Moves::lost`] periodically then.
    pub fn has_left_some(&self) -> bool {
        !self.left.is_empty()
    }

    /// A process whose agent is lost and whose threads still wait, though its agent's thread still
    /// lives after the grace time.
    pub fn lost(&mut self) -> Option<u32> {
        self.left_for(LOST_AFTER)
    }

    fn left_for(&mut self, time: Duration) -> Option<u32> {
        self.left.retain_mut(|left| {
            left.told.retain(Told::waits);
            !left.told.is_empty()
        });
        let is_there = |left: &&Left| left.thread.as_ref().is_none_or(ancestry::is_alive);
        self.left.iter().filter(|left| left.since.elapsed() > time).find(is_there).map(|left| left.process)
    }

    fn drop_unless(&mut self, mut stays: impl FnMut(&Maker, &mut Asked) -> bool) {
        let left = &mut self.left;
        self.makers.retain_mut(|(maker, asked)| {
            let stays = stays(maker, asked);
            if !stays && !asked.told.is_empty() {
                let told = asked.told.drain().map(|(_, told)| told).collect();
                left.push(Left { process: maker.process, thread: maker.thread.try_clone().ok(), since: Instant::now(), told });
            }
            stays
        });
    }

    /// Notes the word that the kernel clears when the process's first thread ends: the agent must
    /// keep it in memory. In musl it serves all other threads, too.
    pub fn clears_word(&mut self, told: Told) {
        let (process, word) = (told.thread, told.arguments[0]);
        if self.process_of(process) == Some(process)
            && let Some(stat) = Stat::of(process)
            && told.waits()
        {
            self.remember((process, stat.start), word);
            if let Some((maker, asked)) = self.makers.iter_mut().find(|(maker, _)| maker.process == process) {
                asked.says(word, maker.connection.as_fd());
            }
        }
        told.goes_on();
    }

    fn remember(&mut self, process: (u32, u64), word: u64) {
        if self.words.len() >= MOST_WORDS {
            self.words.retain(|(pid, start), _| Stat::of(*pid).is_some_and(|stat| stat.start == *start));
        }
        self.words.insert(process, word);
    }

    /// The word that the process or, if it is a copy, its parent has told.
    fn word_of(&mut self, process: u32) -> Option<u64> {
        let stat = Stat::of(process)?;
        let own = (process, stat.start);
        if let Some(word) = self.words.get(&own) {
            return Some(*word);
        }
        if !stat.is_copy_of_its_parent() {
            return None;
        }
        let word = *self.words.get(&(stat.parent, Stat::of(stat.parent)?.start))?;
        // Its children are copies, too.
        self.remember(own, word);
        Some(word)
    }

    /// Passes a move or an advice on to the agent.
    pub fn ask(&mut self, told: Told) {
        if self.makers.is_empty() {
            return told.goes_on();
        }
        let process = self.process_of(told.thread);
        let Some((maker, asked)) = self.makers.iter_mut().find(|(maker, _)| Some(maker.process) == process) else {
            return told.goes_on();
        };
        let threads = maker.program_threads(asked.own_threads);
        // The thread has waited all along, so its number was not reused.
        if !told.waits() {
            return;
        }
        match threads {
            // No other thread can change mappings, so the only one may move itself.
            None => told.goes_on(),
            Some(..=1) if told.number == __NR_mremap => told.goes_on(),
            // The kernel finds and grants shared memory by the caller's rights.
            Some(_) if told.number == __NR_shmat && !have_same_rights(told.thread, maker.thread_id) => told.goes_on(),
            Some(_) if told.number == __NR_process_madvise && !is_about(&told, maker.process) => told.goes_on(),
            Some(_) => {
                self.last += 1;
                let [a, b, c, d, e, _] = told.arguments;
                asked.not_sent.push_back(Call { id: self.last, number: told.number, arguments: [a, b, c, d, e] });
                asked.told.insert(self.last, told);
                asked.send(maker.connection.as_fd());
            }
        }
    }

    pub fn take_answers(&mut self, seen: &[PollFlags]) {
        let mut seen = seen.iter();
        self.drop_unless(|maker, asked| {
            seen.next().is_none_or(PollFlags::is_empty) || asked.take_answers(maker.connection.as_fd())
        });
    }

    /// The process of a waiting thread: it cannot change during the wait.
    fn process_of(&mut self, thread: u32) -> Option<u32> {
        let is_its = |process: &u32| std::fs::exists(format!("/proc/{process}/task/{thread}")).unwrap_or(false);
        if let Some(process) = self.processes.get(&thread).copied().filter(is_its) {
            return Some(process);
        }
        let process = Status::of(thread)?.number("Tgid")?;
        if self.processes.len() >= MOST_THREADS {
            self.processes.clear();
        }
        self.processes.insert(thread, process);
        Some(process)
    }
}

impl Maker {
    /// Registers `thread` of the process at the other end of `connection` as its maker.
    ///
    /// # Errors
    /// `SRCH`: it is not that process's thread. `INVAL`: it may outlive an exec. `MFILE`.
    pub fn new(process: u32, peer: &OwnedFd, thread: u32, connection: &OwnedFd) -> Result<Maker, Errno> {
        // On an exec the calling thread takes over the first thread's number.
        if thread == process {
            return Err(Errno::INVAL);
        }
        let pidfd = pidfd_open(as_pid(thread).ok_or(Errno::SRCH)?, OF_THREAD)?;
        let is_its = std::fs::exists(format!("/proc/{process}/task/{thread}")).unwrap_or(false);
        // Both live, so the numbers are theirs.
        if !is_its || !ancestry::is_alive(&pidfd) || !ancestry::is_alive(peer) {
            return Err(Errno::SRCH);
        }
        Ok(Maker { process, thread_id: thread, thread: pidfd, connection: connection.try_clone().map_err(|_| Errno::MFILE)? })
    }

    /// Upper bound of the process's threads beside lowtide's, of which there are at least `own`.
    /// None: it has executed another program, or is gone.
    fn program_threads(&self, own: Option<u64>) -> Option<u64> {
        // st_nlink counts a directory for each thread, and two more.
        let tasks = std::fs::metadata(format!("/proc/{}/task", self.process)).ok()?;
        // Alive after the count, so the count was of its process.
        ancestry::is_alive(&self.thread).then(|| own.map_or(u64::MAX, |own| tasks.nlink().saturating_sub(2 + own)))
    }
}

/// Whether two threads have the same user, groups, capabilities and IPC namespace. (The maker lacks
/// some capabilities that do not matter here: the agent's `hooks/made_calls.rs`.)
fn have_same_rights(asking: u32, making: u32) -> bool {
    /// CAP_IPC_LOCK and CAP_SYS_ADMIN.
    const GIVEN_UP: u64 = 1 << 14 | 1 << 21;
    let [Some(asking_has), Some(making_has)] = [asking, making].map(Status::of) else { return false };
    let are_same = |name| asking_has.value(name) == making_has.value(name);
    let [one, other] = [&asking_has, &making_has].map(|status| status.bits("CapEff").map(|bits| bits & !GIVEN_UP));
    let namespace = |thread| std::fs::read_link(format!("/proc/{thread}/ns/ipc")).ok();
    ["Uid", "Gid", "Groups"].into_iter().all(are_same) && one == other && namespace(asking) == namespace(making)
}

/// Whether a process_madvise targets its caller, for which the kernel takes any advice since Linux
/// 6.13.
fn is_about(told: &Told, process: u32) -> bool {
    /// PIDFD_SELF_THREAD and PIDFD_SELF_THREAD_GROUP.
    const SELF: [i32; 2] = [-10000, -20000];
    let [pidfd, .., flags, _] = told.arguments;
    let says_pid = || {
        let info = std::fs::read_to_string(format!("/proc/{}/fdinfo/{}", told.thread, pidfd as u32)).ok()?;
        info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok())
    };
    release::running() >= (6, 13, 0) && flags == 0 && (SELF.contains(&(pidfd as i32)) || says_pid() == Some(process))
}

impl Asked {
    /// Tells the agent the word that the kernel clears. Its answer matches no call's number and is
    /// ignored.
    fn says(&mut self, word: u64, connection: BorrowedFd<'_>) {
        // Only the last one holds.
        self.not_sent.retain(|call| call.number != __NR_set_tid_address);
        self.not_sent.push_back(Call { id: 0, number: __NR_set_tid_address, arguments: [word, 0, 0, 0, 0] });
        self.send(connection);
    }

    /// Sends what the socket has room for. (A lost peer shows at the next poll.)
    fn send(&mut self, connection: BorrowedFd<'_>) {
        while let Some(call) = self.not_sent.front() {
            if call.send(connection).is_err() {
                break;
            }
            self.not_sent.pop_front();
        }
    }

    /// False: the connection has ended.
    fn take_answers(&mut self, connection: BorrowedFd<'_>) -> bool {
        for _ in 0..MOST_AT_ONCE {
            match Made::take(connection) {
                Ok(Made { id, result, own_threads }) => {
                    self.own_threads = Some(own_threads);
                    // Ignores answers to unknown calls.
                    match (self.told.remove(&id), result) {
                        (Some(told), Some(result)) => told.was_made(result),
                        (Some(told), None) => told.goes_on(),
                        (None, _) => {}
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(_) => return false,
            }
        }
        self.send(connection);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_pager::sys::call_filter;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::FromRawFd;

    /// A maker of this process, with one of its threads.
    fn maker_of(thread: u32) -> (Result<Maker, Errno>, OwnedFd) {
        let (connection, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let peer = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        (Maker::new(std::process::id(), &peer, thread, &connection), other)
    }

    fn this_thread() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    }

    #[test]
    fn whose_a_thread_is_is_known_anew_where_its_number_is_anothers() {
        let (mut moves, own) = (Moves::default(), std::process::id());
        let thread = this_thread();
        assert_eq!(moves.process_of(thread), Some(own));
        // As if another process had had a thread of this number.
        moves.processes.insert(thread, 1);
        assert_eq!(moves.process_of(thread), Some(own));
        assert_eq!(moves.process_of(u32::MAX / 2), None);
    }

    #[test]
    fn threads_of_lowtide_are_not_counted() {
        let (maker, _other) = maker_of(this_thread());
        let maker = maker.unwrap();
        assert!(maker.program_threads(Some(0)).unwrap() >= 2, "that of the test, and the first one");
        assert_eq!(maker.program_threads(Some(1 << 20)), Some(0));
        assert_eq!(maker.program_threads(None), Some(u64::MAX), "it has not said how many are lowtide's");
    }

    #[test]
    fn an_agent_whose_thread_has_ended_is_not_asked() {
        let thread = std::thread::spawn(|| {
            let (maker, _other) = maker_of(this_thread());
            maker.unwrap()
        });
        let maker = thread.join().unwrap();
        while ancestry::is_alive(&maker.thread) {
            std::thread::yield_now();
        }
        assert_eq!(maker.program_threads(Some(0)), None);
        assert_eq!(maker_of(std::process::id()).0.err(), Some(Errno::INVAL), "it may outlive an exec");
        assert_eq!(maker_of(1).0.err(), Some(Errno::SRCH), "another process's");
    }

    #[test]
    fn an_agent_that_has_gone_or_says_what_nobody_says_is_dropped() {
        let mut moves = Moves::default();
        let (maker, other) = maker_of(this_thread());
        moves.add(maker.unwrap());
        Made { id: 5, result: Some(1), own_threads: 3 }.send(other.as_fd()).unwrap();
        moves.take_answers(&[PollFlags::IN]);
        assert_eq!((moves.makers(), moves.makers[0].1.own_threads), (1, Some(3)), "it was not asked, and says how many");
        rustix::io::write(&other, &[1; 5]).unwrap();
        moves.take_answers(&[PollFlags::empty()]);
        assert_eq!(moves.makers(), 1, "nobody has looked");
        moves.take_answers(&[PollFlags::IN]);
        assert_eq!(moves.makers(), 0);
    }

    /// A thread in a call that a filter tells of, and the notification.
    fn told() -> (Told, std::thread::JoinHandle<bool>) {
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let filter = call_filter::filter(true);
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut().cast() };
            let [mode, flags] = call_filter::ARGUMENTS;
            // SAFETY: the filter of this thread forbids nothing, and the call moves at most the
            // thread's own memory.
            unsafe {
                rustix::thread::set_no_new_privs(true).unwrap();
                let listener = libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program);
                assert!(listener >= 0, "{}", std::io::Error::last_os_error());
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                let page = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0);
                sender.send(OwnedFd::from_raw_fd(listener as i32)).unwrap();
                libc::mremap(page, 4096, 8192, libc::MREMAP_MAYMOVE) != libc::MAP_FAILED
            }
        });
        let listener = std::sync::Arc::new(receiver.recv().unwrap());
        (Told::receive(&listener).unwrap(), thread)
    }

    #[test]
    fn threads_that_an_agent_has_left_waiting_are_missed() {
        let mut moves = Moves::default();
        let (maker, other) = maker_of(this_thread());
        moves.add(maker.unwrap());
        let (told, thread) = told();
        moves.makers[0].1.told.insert(1, told);
        drop(other);
        moves.take_answers(&[PollFlags::HUP]);
        assert!(moves.has_left_some() && moves.lost().is_none(), "they may be about to end");
        assert_eq!(moves.left_for(Duration::ZERO), Some(std::process::id()));
        // Ends the thread's call.
        moves.left[0].told.drain(..).for_each(Told::goes_on);
        assert!(thread.join().unwrap());
        assert_eq!((moves.left_for(Duration::ZERO), moves.has_left_some()), (None, false));
    }

    #[test]
    fn what_an_agent_leaves_to_a_thread_that_thread_does() {
        let (maker, other) = maker_of(this_thread());
        let (maker, mut asked) = (maker.unwrap(), Asked::default());
        let (told, thread) = told();
        asked.told.insert(3, told);
        Made { id: 3, result: None, own_threads: 1 }.send(other.as_fd()).unwrap();
        assert!(asked.take_answers(maker.connection.as_fd()) && asked.told.is_empty());
        assert!(thread.join().unwrap(), "it has made its call");
    }

    #[test]
    fn what_finds_no_room_is_sent_later() {
        let (maker, other) = maker_of(this_thread());
        let (maker, mut asked) = (maker.unwrap(), Asked::default());
        asked.not_sent.extend((0..10_000).map(|id| Call { id, number: __NR_mremap, arguments: [0; 5] }));
        asked.send(maker.connection.as_fd());
        let left = asked.not_sent.len();
        assert!((1..10_000).contains(&left), "{left} are left");
        for id in 0..10_000 {
            assert_eq!(Call::receive(other.as_fd()).unwrap().id, id);
            asked.take_answers(maker.connection.as_fd());
        }
    }
}
