//! Pages of a group on a server. Threads of this process do `lowtide run`'s part: threads that
//! serve faults reach them by sockets, without allocation or shared locks.

use core::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use lowtide_config::spec::{Spec, User};
use lowtide_core::device::DeviceName;
use lowtide_core::device::channel;
use lowtide_core::device::wire::Hello;
use lowtide_core::lock::Lock;
use lowtide_core::store::{RemoteConfig, Store, StoreError};
use lowtide_remote::relay::Relay;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;

use crate::error::Error;
use crate::instance::warn;

const MOST: usize = 64;
const PATIENCE: Duration = Duration::from_secs(5);

/// Socket names by device number. Never freed, because threads may be reading them.
static NAMES: [AtomicPtr<String>; MOST] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MOST];
static TAKING: Lock<()> = Lock::new(());

/// Dropping it removes all that the group has on the server.
#[derive(Debug)]
pub struct ServerThreads {
    relay: Relay,
    size: u64,
}

pub struct Seat(u8);

impl ServerThreads {
    /// `spec`: as in [`Swap::Server`](crate::Swap::Server).
    pub fn start(spec: &str) -> Result<ServerThreads, Error> {
        // The text may hold a password.
        let (server, size, timeout, copies) = match Spec::parse(spec, User::Region) {
            Ok(Spec::Remote { server, size, timeout, copies, .. }) => (server, size, timeout, copies),
            Ok(_) => return Err(Error::Swap("a server is written redis://HOST:PORT".to_owned())),
            Err(why) => return Err(Error::Swap(why)),
        };
        let about = |why: String| Error::Swap(format!("{server}: {why}"));
        let opened = Relay::open(&server, size, timeout, copies).map_err(about)?;
        opened.warnings.iter().for_each(|why| warn(format!("{server}: {why}").as_bytes()));
        opened.relay.take().map_err(about)?;
        opened.relay.start(is_this_process).map_err(about)?;
        Ok(ServerThreads { relay: opened.relay, size: opened.size })
    }

    pub fn add_to(&self, store: &Store) -> Result<Seat, Error> {
        let seat = Seat::take(self).ok_or_else(|| self.about(format!("{MOST} groups with servers at a time are the most")))?;
        // Leaked, because messages name it.
        let spec = Box::leak(self.relay.server.to_string().into_bytes().into_boxed_slice());
        let name = DeviceName::of_server(spec, seat.0);
        let added = store.add_remote(RemoteConfig { open, name, size: self.size, quota: None, priority: 0 });
        added.map(|()| seat).map_err(|error| match error {
            StoreError::NoMemory => Error::System { what: "mapping lowtide's tables", errno: Errno::NOMEM },
            StoreError::Io { .. } => self.is_out_of_reach(),
            _ => self.about("no swap area can be made of it".to_owned()),
        })
    }

    pub fn is_out_of_reach(&self) -> Error {
        self.about("the threads that speak to it can't be reached".to_owned())
    }

    pub fn say_what_is_odd(&self) {
        self.relay.warnings().iter().for_each(|why| self.warn(why));
    }

    fn about(&self, why: String) -> Error {
        Error::Swap(format!("{}: {why}", self.relay.server))
    }

    fn warn(&self, why: &str) {
        warn(format!("{}: {why}", self.relay.server).as_bytes());
    }
}

impl Drop for ServerThreads {
    fn drop(&mut self) {
        self.say_what_is_odd();
        self.relay.finish(PATIENCE).iter().for_each(|why| self.warn(why));
    }
}

impl Seat {
    fn take(server: &ServerThreads) -> Option<Seat> {
        let _taking = TAKING.lock();
        let free = NAMES.iter().position(|name| name.load(Ordering::Relaxed).is_null())?;
        let seat = Seat(free as u8);
        seat.leads_to(server);
        Some(seat)
    }

    pub fn leads_to(&self, server: &ServerThreads) {
        let name = Box::leak(Box::new(server.relay.name.clone()));
        // Release: pairs with the Acquire in `open`. The text is complete.
        NAMES[usize::from(self.0)].store(name, Ordering::Release);
    }
}

/// See [`lowtide_core::device::Opener`]. Signal handlers may call it in a fault.
fn open(number: u8, hello: Hello) -> Result<OwnedFd, Errno> {
    // Acquire: pairs with the Release in `leads_to`.
    let name = NAMES.get(usize::from(number)).ok_or(Errno::NOENT)?.load(Ordering::Acquire);
    // SAFETY: null, or a text that is never freed or changed.
    let name = unsafe { name.as_ref() }.ok_or(Errno::NOENT)?;
    channel::connect(name.as_bytes(), hello, is_here)
}

fn is_here(peer: BorrowedFd<'_>) -> Result<(), Errno> {
    if socket_peercred(peer)?.pid == rustix::process::getpid() { Ok(()) } else { Err(Errno::PERM) }
}

fn is_this_process(peer: &OwnedFd) -> bool {
    is_here(peer.as_fd()).is_ok()
}

/// # Safety
/// There is one thread.
pub unsafe fn forget_in_child() {
    // SAFETY: as the caller promises.
    unsafe { TAKING.reset_after_fork() };
    NAMES.iter().for_each(|name| name.store(core::ptr::null_mut(), Ordering::Relaxed));
}
