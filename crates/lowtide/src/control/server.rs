//! The listening side of `lowtide run`: admission of clients.

use super::connection::Connection;
use super::place::{self, Bound};
use crate::error::Failure;
use crate::live::Live;
use crate::supervisor::peer;
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::time::{Duration, Instant};

const MAX_CLIENTS: usize = 256;
/// Accepts in a row before other work's turn.
const MOST_AT_ONCE: usize = 64;
/// Pause after an accept failed for lack of descriptors.
const PAUSE: Duration = Duration::from_secs(1);

/// The run's control socket, removed on drop, and its clients.
pub struct Control {
    bound: Option<Bound>,
    clients: Vec<Connection>,
    pause_until: Option<Instant>,
}

impl Control {
    /// Listens; the error says why it can't. Then the run goes on without.
    pub fn new() -> (Control, Result<(), String>) {
        let (bound, listening) = match place::listen() {
            Ok(bound) => (Some(bound), Ok(())),
            Err(why) => (None, Err(why)),
        };
        (Control { bound, clients: Vec::new(), pause_until: None }, listening)
    }

    /// The descriptors to poll before [`Control::serve`].
    pub fn waits_for(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let bound = self.bound.as_ref().filter(|_| self.pause_until.is_none());
        let listener = bound.map(|bound| (bound.listener.as_fd(), PollFlags::IN));
        listener.into_iter().chain(self.clients.iter().map(Connection::waits_for))
    }

    pub fn serve(&mut self, run: &mut Live<'_>) {
        self.accept();
        self.clients.retain_mut(|client| client.serve(run));
    }

    /// Continues running requests: call it at each look at the tree.
    pub fn step(&mut self, run: &mut Live<'_>) {
        if self.pause_until.is_some_and(|until| until <= Instant::now()) {
            self.pause_until = None;
        }
        self.clients.iter_mut().for_each(|client| client.step(run));
    }

    fn accept(&mut self) {
        let Some(bound) = self.bound.as_ref().filter(|_| self.pause_until.is_none()) else { return };
        for _ in 0..MOST_AT_ONCE {
            match rustix::net::accept_with(&bound.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => match admit(&socket, self.clients.len()) {
                    Ok(()) => self.clients.push(Connection::new(socket)),
                    Err(why) => turn_away(socket, why),
                },
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // No descriptor: the pending connection stays readable, and polling it would spin.
                Err(_) => {
                    self.pause_until = Some(Instant::now() + PAUSE);
                    return;
                }
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.clients.iter_mut().for_each(Connection::end);
    }
}

fn admit(socket: &OwnedFd, clients: usize) -> Result<(), Failure> {
    let me = place::user();
    match peer::user(socket) {
        Some(user) if user == me || user == 0 => {}
        Some(user) => {
            let line = format!("this run is user {me}'s, and you are user {user}: only its user and root may control it");
            return Err(Failure::usage(line));
        }
        None => return Err(Failure::usage("who connects can't be known: only the user of the run and root may control it")),
    }
    if clients >= MAX_CLIENTS {
        let line = format!("{MAX_CLIENTS} clients are connected to this run already, which is the most: try again later");
        return Err(Failure { code: 1, line });
    }
    Ok(())
}

/// A new socket takes a line at once, or not at all.
fn turn_away(socket: OwnedFd, why: Failure) {
    Connection::refuse(socket, why).end();
}
