//! Keeps the server in order: renews the run's lease, by a thread of its own, removes the pages of devices that are gone, what
//! runs have left that were killed, and in the end all that the run has.

use super::devices::Device;
use super::spawn;
use crate::client::Client;
use crate::keys::RunName;
use crate::lease::{self, RENEWED_EVERY};
use crate::pages::Pages;
use crate::remote::Remote;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long the server may take for one thing.
const PATIENCE: Duration = Duration::from_secs(3);

/// The thread.
pub struct Keeper {
    /// Devices that are gone. The thread ends when nobody can send any more.
    gone: Sender<Arc<Device>>,
    /// When all is removed: whether it is.
    ended: Receiver<bool>,
}

impl Keeper {
    /// Starts it.
    ///
    /// # Errors
    /// No thread is left.
    pub fn start(remote: Arc<Remote>, run: RunName) -> std::io::Result<Keeper> {
        let (gone, devices) = channel();
        let (end, ended) = channel();
        let (renewal, over) = channel();
        let its_remote = remote.clone();
        spawn("lowtide-lease", move || renew(&its_remote, run, &over))?;
        spawn("lowtide-keeper", move || {
            let is_empty = keep(&remote, run, &devices);
            drop(renewal);
            let _ = end.send(is_empty);
        })?;
        Ok(Keeper { gone, ended })
    }

    /// Where to send devices to.
    pub fn sender(&self) -> Sender<Arc<Device>> {
        self.gone.clone()
    }

    /// Nothing more comes: waits so long for all to be removed. Whether it is.
    pub fn finish(self, patience: Duration) -> bool {
        drop(self.gone);
        self.ended.recv_timeout(patience) == Ok(true)
    }
}

/// Whether nothing is left.
fn keep(remote: &Arc<Remote>, run: RunName, devices: &Receiver<Arc<Device>>) -> bool {
    // What can't be removed now is removed at another start.
    let _ = lease::clean(remote, PATIENCE);
    let mut pages = Pages::new(remote.clone());
    // Those of which some pages can't be removed now: a node is away.
    let mut left: Vec<Arc<Device>> = Vec::new();
    let mut tried = Instant::now();
    loop {
        match devices.recv_timeout(RENEWED_EVERY) {
            Ok(device) => {
                let mut gone: Vec<Arc<Device>> = std::iter::once(device).chain(devices.try_iter()).collect();
                remove(&mut pages, &mut gone, None);
                left.append(&mut gone);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if tried.elapsed() >= RENEWED_EVERY {
            remove(&mut pages, &mut left, None);
            tried = Instant::now();
        }
    }
    remove(&mut pages, &mut left, Some(PATIENCE));
    left.is_empty()
        && nothing_was_brought_back(remote, run)
        && lease::end(&mut Client::new(remote.clone()), run, Instant::now() + PATIENCE).is_ok()
}

/// Whether nothing is left that had been removed, and that a replica which did not know that, or a server with a file of before,
/// has brought back.
fn nothing_was_brought_back(remote: &Arc<Remote>, run: RunName) -> bool {
    let soon = || Instant::now() + PATIENCE;
    // A failover may have come since somebody asked.
    let now = remote.known(soon()).and_then(|known| remote.newer(&known, soon()));
    let events = remote.counts.failovers.get() + remote.counts.reconnects.get();
    now.is_ok() && (events == 0 || lease::sweep(remote, run, PATIENCE).is_ok())
}

/// Renews the lease, by itself: nothing that takes long may come between. Until the run is over.
fn renew(remote: &Arc<Remote>, run: RunName, over: &Receiver<()>) {
    let mut client = Client::new(remote.clone());
    while over.recv_timeout(RENEWED_EVERY) == Err(RecvTimeoutError::Timeout) {
        let _ = lease::renew(&mut client, run, Instant::now() + PATIENCE);
    }
}

/// Removes the pages of devices; those of which some can't be removed now are left, with what is left of them. `patience`: how
/// long who is away is waited for, once.
fn remove(pages: &mut Pages, devices: &mut Vec<Arc<Device>>, mut patience: Option<Duration>) {
    devices.retain(|device| {
        let runs = device.runs();
        let results = pages.remove(&device.prefix, &runs, patience);
        let removed = runs.iter().zip(&results).filter(|(_, result)| result.is_ok());
        removed.for_each(|(run, _)| device.has_not(run));
        let is_left = results.iter().any(Result::is_err);
        patience = patience.filter(|_| !is_left);
        is_left
    });
}
