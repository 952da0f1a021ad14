//! Maintains the server: renews the run's lease; removes the pages of ended devices and of killed
//! runs; and at the end removes all of the run.

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

const PATIENCE: Duration = Duration::from_secs(3);

pub struct Keeper {
    /// Ended devices. The thread ends with the last sender.
    gone: Sender<Arc<Device>>,
    /// The final result: whether all is removed.
    ended: Receiver<bool>,
}

impl Keeper {
    /// Starts the thread.
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

    pub fn sender(&self) -> Sender<Arc<Device>> {
        self.gone.clone()
    }

    /// Waits for the final removals. Whether all is removed.
    pub fn finish(self, patience: Duration) -> bool {
        drop(self.gone);
        self.ended.recv_timeout(patience) == Ok(true)
    }
}

/// Whether nothing is left.
fn keep(remote: &Arc<Remote>, run: RunName, devices: &Receiver<Arc<Device>>) -> bool {
    // A later start removes the rest.
    let _ = lease::clean(remote, PATIENCE);
    let mut pages = Pages::new(remote.clone());
    // Devices with pages on a node that is away.
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

/// A replica that missed the removal, or a server that restored an older file, may bring keys back.
fn nothing_was_brought_back(remote: &Arc<Remote>, run: RunName) -> bool {
    let soon = || Instant::now() + PATIENCE;
    // A failover may be newer than the latest map.
    let now = remote.known(soon()).and_then(|known| remote.newer(&known, soon()));
    let events = remote.counts.failovers.get() + remote.counts.reconnects.get();
    now.is_ok() && (events == 0 || lease::sweep(remote, run, PATIENCE).is_ok())
}

/// Renews the lease until the run is over. Its own thread: no slow work may delay it.
fn renew(remote: &Arc<Remote>, run: RunName, over: &Receiver<()>) {
    let mut client = Client::new(remote.clone());
    while over.recv_timeout(RENEWED_EVERY) == Err(RecvTimeoutError::Timeout) {
        let _ = lease::renew(&mut client, run, Instant::now() + PATIENCE);
    }
}

/// Keeps devices with remaining pages. `patience`: the wait for nodes that are away, once.
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
