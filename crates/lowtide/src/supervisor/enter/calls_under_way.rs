//! Threads that were let go on into calls that change memory, until they have left them: a thread
//! without a CPU makes its call later. Its next notice shows that it has left the call;
//! `outlast_calls.rs` finds out about the others.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ended threads are looked for among this many.
const MANY: usize = 1024;

#[derive(Default)]
pub struct CallsUnderWay(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    threads: HashMap<u32, Note>,
    notes: u64,
    prune_at: usize,
}

#[derive(Clone, Copy)]
pub struct Note {
    process: u32,
    pub thread: u32,
    number: u64,
}

impl CallsUnderWay {
    fn noted(&self) -> MutexGuard<'_, Noted> {
        // A panic leaves a valid map.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn note(&self, process: u32, thread: u32) {
        let mut noted = self.noted();
        if noted.threads.len() >= noted.prune_at.max(MANY) {
            noted.threads.retain(|thread, note| is_there(note.process, *thread));
            noted.prune_at = 2 * noted.threads.len();
        }
        noted.notes += 1;
        let number = noted.notes;
        noted.threads.insert(thread, Note { process, thread, number });
    }

    pub fn has_left(&self, thread: u32) {
        self.noted().threads.remove(&thread);
    }

    /// The thread has left the call of this note; it may be in another one.
    pub fn is_over(&self, over: Note) {
        self.noted().threads.retain(|_, note| note.number != over.number);
    }

    pub fn of(&self, process: u32) -> Vec<Note> {
        self.noted().threads.values().filter(|note| note.process == process).copied().collect()
    }
}

/// Whether a process has a thread.
pub fn is_there(process: u32, thread: u32) -> bool {
    std::fs::exists(format!("/proc/{process}/task/{thread}")).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_noted_until_they_have_left_or_ended() {
        let (calls, own) = (CallsUnderWay::default(), std::process::id());
        let threads = |process| calls.of(process).iter().map(|note| note.thread).collect::<Vec<_>>();
        calls.note(own, own);
        for thread in 0..MANY as u32 - 1 {
            calls.note(u32::MAX, u32::MAX - thread);
        }
        assert_eq!((threads(own), threads(u32::MAX).len()), (vec![own], MANY - 1));
        calls.note(u32::MAX, 1);
        assert_eq!((threads(own), threads(u32::MAX)), (vec![own], vec![1]), "these had ended");
        let first = calls.of(own)[0];
        calls.note(own, own);
        calls.is_over(first);
        assert_eq!(threads(own), [own], "it is in a later one");
        calls.has_left(own);
        assert!(threads(own).is_empty());
    }
}
