//! Connects the metrics threads to the supervisor, which alone sees the run: they ask, which wakes
//! it, and it answers. No client can make the supervisor wait.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

pub struct Requests {
    bell: Arc<OwnedFd>,
    asked: Receiver<SyncSender<String>>,
}

/// The asking thread's side; any thread may have one.
#[derive(Clone)]
pub struct Asker {
    bell: Arc<OwnedFd>,
    ask: Sender<SyncSender<String>>,
}

impl Requests {
    /// Both sides.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> Result<(Requests, Asker), rustix::io::Errno> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (ask, asked) = channel();
        Ok((Requests { bell: bell.clone(), asked }, Asker { bell, ask }))
    }

    pub fn waits_for(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Answers all requests; calls `text` once if there are any.
    pub fn serve(&self, text: impl FnOnce() -> String) {
        let mut count = [0; 8];
        if rustix::io::read(&*self.bell, &mut count).is_err() {
            return;
        }
        let all: Vec<_> = self.asked.try_iter().collect();
        if all.is_empty() {
            return;
        }
        let text = text();
        for to in all {
            // The asking thread may have given up.
            let _ = to.try_send(text.clone());
        }
    }
}

impl Asker {
    /// None: the supervisor gave no answer in time.
    pub fn text(&self, patience: Duration) -> Option<String> {
        let (to, answer) = sync_channel(1);
        self.ask.send(to).ok()?;
        rustix::io::write(&*self.bell, &1u64.to_ne_bytes()).ok()?;
        answer.recv_timeout(patience).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_is_answered_and_the_text_is_made_once() {
        let (requests, asker) = Requests::new().unwrap();
        requests.serve(|| panic!("nobody has asked"));
        let clients: Vec<_> = (0..3).map(|_| asker.clone()).collect();
        let threads: Vec<_> =
            clients.into_iter().map(|asker| std::thread::spawn(move || asker.text(Duration::from_secs(60)))).collect();
        let mut made = 0;
        while threads.iter().any(|thread| !thread.is_finished()) {
            requests.serve(|| {
                made += 1;
                "x".to_owned()
            });
        }
        assert!(threads.into_iter().all(|thread| thread.join().unwrap().as_deref() == Some("x")) && (1..=3).contains(&made));
        assert_eq!(asker.text(Duration::from_millis(1)), None, "a supervisor that is stopped");
    }
}
