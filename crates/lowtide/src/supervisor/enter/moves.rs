//! Moves of memory (`mremap`) that filters tell of: the agent of the process makes them, one at a time, if it says that it does
//! (the agent's `moves.rs`); else the thread that asked makes its call itself.
//!
//! Nothing here waits for an agent. A call that was passed on is answered by the agent or not at all: once it may have been made it
//! must not be made again. What ends an agent's connection ends the threads that wait for it, too: its process ends, or executes
//! another program.

use super::notices::Told;
use crate::supervisor::ancestry;
use lowtide_pager::sys::moves::{Call, Made};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::{HashMap, VecDeque};
use std::os::unix::fs::MetadataExt;

/// Threads of which it is remembered whose they are.
const MOST_THREADS: usize = 4096;
/// Answers of an agent that are taken before it is others' turn.
const MOST_AT_ONCE: usize = 16;
/// PIDFD_THREAD (Linux 6.9).
const OF_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0o200);

/// Agents that make moves.
#[derive(Default)]
pub struct Moves {
    makers: Vec<(Maker, Asked)>,
    /// The process that a thread was of when it last asked.
    processes: HashMap<u32, u32>,
    last: u64,
}

/// An agent that makes the moves of its process.
pub struct Maker {
    process: u32,
    /// The thread that does, which ends when the process executes another program.
    thread: OwnedFd,
    connection: OwnedFd,
}

/// What an agent was asked.
#[derive(Default)]
struct Asked {
    /// How many threads lowtide has there at least; none: it has not said so.
    own_threads: Option<u64>,
    told: HashMap<u64, Told>,
    /// Those for which there was no room.
    not_sent: VecDeque<Call>,
}

impl Moves {
    /// What to wait for (readable) before [`Moves::take_answers`] has something to do, in the order of its argument.
    pub fn waits_for(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.makers.iter().map(|(maker, _)| maker.connection.as_fd())
    }

    /// How many agents there are.
    pub fn makers(&self) -> usize {
        self.makers.len()
    }

    /// From now on an agent makes the moves of its process.
    pub fn add(&mut self, maker: Maker) {
        self.makers.retain(|(other, _)| other.process != maker.process);
        self.makers.push((maker, Asked::default()));
    }

    /// Has a move made.
    pub fn ask(&mut self, told: Told) {
        if self.makers.is_empty() {
            return told.goes_on();
        }
        let process = self.process_of(told.thread);
        let Some((maker, asked)) = self.makers.iter_mut().find(|(maker, _)| Some(maker.process) == process) else {
            return told.goes_on();
        };
        let threads = maker.program_threads(asked.own_threads);
        // It has been its thread all the time, and no dead one's whose number it has now.
        if !told.waits() {
            return;
        }
        match threads {
            // It has no other that could change mappings, and the one that it has waits.
            None | Some(..=1) => told.goes_on(),
            Some(_) => {
                self.last += 1;
                let [a, b, c, d, e, _] = told.arguments;
                asked.not_sent.push_back(Call { id: self.last, arguments: [a, b, c, d, e] });
                asked.told.insert(self.last, told);
                asked.send(maker.connection.as_fd());
            }
        }
    }

    /// Takes what was made, where `seen` says that there is something.
    pub fn take_answers(&mut self, seen: &[PollFlags]) {
        let mut seen = seen.iter();
        self.makers.retain_mut(|(maker, asked)| {
            seen.next().is_none_or(PollFlags::is_empty) || asked.take_answers(maker.connection.as_fd())
        });
    }

    /// Whose a thread is that waits: while it does, it stays that.
    fn process_of(&mut self, thread: u32) -> Option<u32> {
        let is_its = |process: &u32| std::fs::exists(format!("/proc/{process}/task/{thread}")).unwrap_or(false);
        if let Some(process) = self.processes.get(&thread).copied().filter(is_its) {
            return Some(process);
        }
        let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
        let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()?;
        if self.processes.len() >= MOST_THREADS {
            self.processes.clear();
        }
        self.processes.insert(thread, process);
        Some(process)
    }
}

impl Maker {
    /// `thread`: which thread of the process at the other end of a connection makes its moves.
    ///
    /// # Errors
    /// `SRCH`: it is none of it. `INVAL`: it may outlive an exec. `MFILE`.
    pub fn new(process: u32, peer: &OwnedFd, thread: u32, connection: &OwnedFd) -> Result<Maker, Errno> {
        // The first thread's number is that of whichever thread executes something.
        if thread == process {
            return Err(Errno::INVAL);
        }
        let pidfd = pidfd_open(Pid::from_raw(thread as i32).ok_or(Errno::SRCH)?, OF_THREAD)?;
        let is_its = std::fs::exists(format!("/proc/{process}/task/{thread}")).unwrap_or(false);
        // Both live, so the numbers are theirs.
        if !is_its || !ancestry::is_alive(&pidfd) || !ancestry::is_alive(peer) {
            return Err(Errno::SRCH);
        }
        Ok(Maker { process, thread: pidfd, connection: connection.try_clone().map_err(|_| Errno::MFILE)? })
    }

    /// How many threads its process has beside lowtide's, at most: those are as many as this, or more by now. None: it has executed
    /// another program, or is gone.
    fn program_threads(&self, own: Option<u64>) -> Option<u64> {
        // The kernel counts a directory for each thread, and two more links.
        let tasks = std::fs::metadata(format!("/proc/{}/task", self.process)).ok()?;
        // After that: it was counted, so it is its own.
        ancestry::is_alive(&self.thread).then(|| own.map_or(u64::MAX, |own| tasks.nlink().saturating_sub(2 + own)))
    }
}

impl Asked {
    /// Sends as many as there is room for: the others when it has taken some. (Where it is gone, that is seen next.)
    fn send(&mut self, connection: BorrowedFd<'_>) {
        while let Some(call) = self.not_sent.front() {
            if call.send(connection).is_err() {
                break;
            }
            self.not_sent.pop_front();
        }
    }

    /// False: there will be no more.
    fn take_answers(&mut self, connection: BorrowedFd<'_>) -> bool {
        for _ in 0..MOST_AT_ONCE {
            match Made::take(connection) {
                Ok(Made { id, result, own_threads }) => {
                    self.own_threads = Some(own_threads);
                    // What it says of others means nothing.
                    if let Some(told) = self.told.remove(&id) {
                        told.was_made(result);
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
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// Of this process, with a thread of it.
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
        Made { id: 5, result: 1, own_threads: 3 }.send(other.as_fd()).unwrap();
        moves.take_answers(&[PollFlags::IN]);
        assert_eq!((moves.makers(), moves.makers[0].1.own_threads), (1, Some(3)), "it was not asked, and says how many");
        rustix::io::write(&other, &[1; 5]).unwrap();
        moves.take_answers(&[PollFlags::empty()]);
        assert_eq!(moves.makers(), 1, "nobody has looked");
        moves.take_answers(&[PollFlags::IN]);
        assert_eq!(moves.makers(), 0);
    }

    #[test]
    fn what_finds_no_room_is_sent_later() {
        let (maker, other) = maker_of(this_thread());
        let (maker, mut asked) = (maker.unwrap(), Asked::default());
        asked.not_sent.extend((0..10_000).map(|id| Call { id, arguments: [0; 5] }));
        asked.send(maker.connection.as_fd());
        let left = asked.not_sent.len();
        assert!((1..10_000).contains(&left), "{left} are left");
        for id in 0..10_000 {
            assert_eq!(Call::receive(other.as_fd()).unwrap().id, id);
            asked.take_answers(maker.connection.as_fd());
        }
    }
}
