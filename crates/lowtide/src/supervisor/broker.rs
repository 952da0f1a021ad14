//! Answers requests that processes of the run can't fulfil themselves: `lowtide-wire`'s `broker`
//! has the list.
//!
//! A client must be a descendant of this process. The broker gives it only its own resources, or
//! what is no secret, and checks all input before use. It never waits for a client.

use crate::host::privilege;
use crate::supervisor::ancestry;
use crate::supervisor::enter::{Entering, Following};
use crate::supervisor::in_thread::{Asked, InThread};
use crate::supervisor::kept::Kept;
use crate::supervisor::peer::{self, Rights};
use crate::supervisor::shared_memory::Shared;
use lowtide_config::proc::{self, Stat};
use lowtide_sys::uffd;
use lowtide_wire::broker::{
    self, DEVICE, DO_NOT_ENTER, ENTER, FILES, FOLLOW, HAND_ON, HANDSHAKE, INHERIT, KEEP, LIBRARY, Message, NAMED_FILE,
    PAGE_MAP, REGISTER, TAKE_BACK, send,
};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Connections served at a time; later ones wait in the backlog.
const MAX_CONNECTIONS: usize = 64;
/// Requests answered before the next connection's turn.
const MOST_AT_ONCE: usize = 16;
/// Pause of accepting after a lack of descriptors.
const FULL: Duration = Duration::from_millis(25);
/// Idle time after which a connection is closed.
const PATIENCE: Duration = Duration::from_secs(5);
/// Files kept for children, of all processes and of one: each takes a descriptor.
const MAX_HANDED_ON: usize = 256;
const MAX_OF_ONE: usize = 32;
/// Target of the link in `/proc/PID/fd` of a userfaultfd. No path equals it: paths begin with a
/// slash.
const USERFAULTFD: &str = "anon_inode:[userfaultfd]";

pub struct Broker {
    listener: Option<OwnedFd>,
    name: String,
    connections: Vec<Connection>,
    handed_on: HandedOn,
    entering: Entering,
    following: Following,
    kept: Kept,
    /// The last accept found no descriptor: no accept until then.
    full_until: Option<Instant>,
}

/// Swap files that processes leave to the children that they fork.
#[derive(Default)]
struct HandedOn(Vec<Heirloom>);

struct Heirloom {
    /// Only this process's children may have the file.
    parent: OwnedFd,
    pid: u32,
    number: u32,
    file: OwnedFd,
}

struct Connection {
    socket: OwnedFd,
    peer: OwnedFd,
    pid: u32,
    /// Its user at connection time.
    user: u32,
    rights: Rights,
    since: Instant,
    /// Set from the announcement of an exec until the exec has begun or failed.
    is_entering: Cell<bool>,
}

impl Broker {
    /// Listens on a socket with an unguessable name; the error says why it can't.
    pub fn new() -> (Broker, Result<(), Errno>) {
        let mut broker = Broker {
            listener: None,
            name: String::new(),
            connections: Vec::new(),
            handed_on: HandedOn::default(),
            entering: Entering::default(),
            following: Following::default(),
            kept: Kept::default(),
            full_until: None,
        };
        let listening = broker.listen();
        (broker, listening)
    }

    fn listen(&mut self) -> Result<(), Errno> {
        let mut random = [0u8; 8];
        rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty())?;
        let name = format!("lowtide-{:016x}", u64::from_ne_bytes(random));
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::bind(&listener, &broker::address(name.as_bytes())?)?;
        rustix::net::listen(&listener, 128)?;
        (self.listener, self.name) = (Some(listener), name);
        Ok(())
    }

    /// The socket's name; empty if there is none.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn entering(&mut self) -> (&mut Entering, &mut Following) {
        (&mut self.entering, &mut self.following)
    }

    pub fn kept(&mut self) -> &mut Kept {
        &mut self.kept
    }

    /// The descriptors to poll (readable) before [`Broker::serve`].
    pub fn waits_for(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let is_full = self.full_until.is_some_and(|until| Instant::now() < until);
        let listener = self.listener.as_ref().filter(|_| self.connections.len() < MAX_CONNECTIONS && !is_full);
        let sockets = listener.into_iter().chain(self.connections.iter().map(|c| &c.socket)).map(AsFd::as_fd);
        sockets.chain(self.following.waits_for())
    }

    pub fn serve(&mut self, shared: &Shared, in_thread: &mut InThread) {
        while self.connections.len() < MAX_CONNECTIONS
            && let Some(listener) = &self.listener
        {
            match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.connections.extend(Connection::of(socket)),
                Err(error) => {
                    // The pending connection stays readable.
                    self.full_until = (error != Errno::AGAIN).then(|| Instant::now() + FULL);
                    break;
                }
            }
        }
        self.following.serve(&mut self.entering);
        let (handed_on, entering, following) = (&mut self.handed_on, &mut self.entering, &mut self.following);
        let kept = &mut self.kept;
        handed_on.0.retain(|heirloom| ancestry::is_alive(&heirloom.parent));
        self.connections.retain(|connection| {
            connection.serve(shared, handed_on, in_thread, (&mut *entering, &mut *following, &mut *kept))
                && (connection.is_entering.get() || connection.since.elapsed() < PATIENCE)
        });
    }
}

impl Connection {
    /// None: the peer is not of this run.
    fn of(socket: OwnedFd) -> Option<Connection> {
        let (peer, pid) = peer::of_run(&socket)?;
        let user = peer::user(&socket)?;
        let rights = Rights::of(pid)?;
        Some(Connection { socket, peer, pid, user, rights, since: Instant::now(), is_entering: Cell::new(false) })
    }

    /// Answers pending requests; false: close the connection.
    /// (Over 70 lines: an arm for each question.)
    fn serve(
        &self,
        shared: &Shared,
        handed_on: &mut HandedOn,
        in_thread: &mut InThread,
        (entering, following, kept): (&mut Entering, &mut Following, &mut Kept),
    ) -> bool {
        for _ in 0..MOST_AT_ONCE {
            let Message { word, detail, mut files } = match broker::receive(self.socket.as_fd()) {
                Ok(received) => received,
                Err(error) => return error == Errno::AGAIN,
            };
            let (question, number) = broker::parts(word);
            let answer = match question {
                LIBRARY => send(self.socket.as_fd(), 0, &[shared.library()]),
                FILES => send(self.socket.as_fd(), 0, &shared.files()),
                DEVICE => self.answer(privilege::open_device()),
                PAGE_MAP => self.answer(self.page_map()),
                HANDSHAKE => self.done(files.first().ok_or(Errno::BADF).and_then(shake_hands)),
                HAND_ON => self.done(files.pop().ok_or(Errno::BADF).and_then(|file| handed_on.take(self, number, file))),
                TAKE_BACK => {
                    handed_on.0.retain(|heirloom| heirloom.pid != self.pid);
                    self.done(Ok(()))
                }
                // A named file belongs to the user who started the run.
                NAMED_FILE if self.user == rustix::process::getuid().as_raw() => {
                    self.answer(shared.open_swap_file(number as usize))
                }
                NAMED_FILE => self.done(Err(Errno::PERM)),
                INHERIT => match handed_on.of_parent(self, number) {
                    Some(file) => send(self.socket.as_fd(), 0, &[file.as_fd()]),
                    None => self.done(Err(Errno::NOENT)),
                },
                REGISTER => match self.asked(detail).and_then(|asked| in_thread.ask(asked)) {
                    // The registering thread answers it.
                    Ok(()) => return false,
                    Err(error) => self.done(Err(error)),
                },
                ENTER => {
                    let traced = self.is_mine().and_then(|()| entering.trace(self.pid, detail as u32));
                    self.is_entering.set(traced.is_ok());
                    let answer = self.done(traced);
                    if traced.is_ok() && answer.is_err() {
                        // The client did not wait for the answer.
                        let _ = entering.let_go(self.pid);
                    }
                    answer
                }
                DO_NOT_ENTER => {
                    self.is_entering.set(false);
                    self.done(entering.let_go(self.pid))
                }
                FOLLOW => self.done(self.is_followed(following, files.pop())),
                KEEP => {
                    let taken = files.pop().ok_or(Errno::BADF).and_then(|file| self.keeps(kept, file));
                    let is_taken = taken.is_ok();
                    let answer = self.done(taken);
                    if is_taken {
                        return false;
                    }
                    answer
                }
                _ => self.done(Err(Errno::INVAL)),
            };
            if answer.is_err() {
                return false;
            }
        }
        true
    }

    /// Whether the peer has this process's user and group. (The kernel refuses to trace one with
    /// more capabilities.)
    fn is_mine(&self) -> Result<(), Errno> {
        let mine = Rights::of(std::process::id()).is_some_and(|rights| rights.are_of_user_of(&self.rights));
        (mine && ancestry::is_alive(&self.peer)).then_some(()).ok_or(Errno::PERM)
    }

    /// A request to deliver faults to the process's own threads, through this handler.
    fn asked(&self, handler: u64) -> Result<Asked, Errno> {
        let own = |file: &OwnedFd| file.try_clone().map_err(|_| Errno::AGAIN);
        let (process, socket) = (own(&self.peer)?, own(&self.socket)?);
        Ok(Asked { pid: self.pid, process, rights: self.rights.clone(), handler, socket })
    }

    /// Adds the listener of the process's filter; without one, asks whether there is room for it.
    fn is_followed(&self, following: &mut Following, listener: Option<OwnedFd>) -> Result<(), Errno> {
        // A process that keeps a copy of the listener can take notifications first, and this
        // process then waits for the next. A process of this user could stop this process anyway;
        // others are not followed.
        self.is_mine()?;
        match listener {
            Some(listener) => following.add(listener),
            None => following.has_room().then_some(()).ok_or(Errno::MFILE),
        }
    }

    fn keeps(&self, kept: &mut Kept, file: OwnedFd) -> Result<(), Errno> {
        is_userfaultfd(&file)?;
        kept.add(self.pid, file, self.socket.try_clone().map_err(|_| Errno::MFILE)?)
    }

    fn done(&self, result: Result<(), Errno>) -> Result<(), Errno> {
        send(self.socket.as_fd(), result.map_or_else(|error| error.raw_os_error() as u32, |()| 0), &[])
    }

    fn answer(&self, file: Result<OwnedFd, Errno>) -> Result<(), Errno> {
        match file {
            Ok(file) => send(self.socket.as_fd(), 0, &[file.as_fd()]),
            Err(error) => self.done(Err(error)),
        }
    }

    /// The requesting process's page map, opened with only that process's privilege: more privilege
    /// would show more.
    fn page_map(&self) -> Result<OwnedFd, Errno> {
        let path = format!("/proc/{}/task/{}/pagemap", self.pid, proc::living_thread(self.pid));
        let open = || rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let file = privilege::with(privilege::NEEDED, open)?;
        self.rights.are_still_of(self.pid, &self.peer).then_some(file).ok_or(Errno::SRCH)
    }
}

impl HandedOn {
    /// Keeps a file for the children of the sending process.
    fn take(&mut self, from: &Connection, number: u32, file: OwnedFd) -> Result<(), Errno> {
        // Accepts only the file types of swap files: closing another file can block for ever,
        // depending on its file system.
        let is_swap = |mode| matches!(FileType::from_raw_mode(mode), FileType::RegularFile | FileType::BlockDevice);
        if !rustix::fs::fstat(&file).is_ok_and(|stat| is_swap(stat.st_mode)) {
            return Err(Errno::BADF);
        }
        self.0.retain(|heirloom| (heirloom.pid, heirloom.number) != (from.pid, number));
        if self.0.len() == MAX_HANDED_ON || self.0.iter().filter(|heirloom| heirloom.pid == from.pid).count() == MAX_OF_ONE {
            return Err(Errno::MFILE);
        }
        let parent = from.peer.try_clone().map_err(|_| Errno::MFILE)?;
        self.0.push(Heirloom { parent, pid: from.pid, number, file });
        Ok(())
    }

    /// The file that the requesting process's parent left under this number.
    fn of_parent(&self, child: &Connection, number: u32) -> Option<&OwnedFd> {
        let parent = Stat::of(child.pid)?.parent;
        let heirloom = self.0.iter().find(|heirloom| (heirloom.pid, heirloom.number) == (parent, number))?;
        // Both still live, so the numbers are theirs.
        (ancestry::is_alive(&heirloom.parent) && ancestry::is_alive(&child.peer)).then_some(&heirloom.file)
    }
}

/// Enables the needed features on a userfaultfd of another process, after checking that the
/// descriptor is one.
fn shake_hands(file: &OwnedFd) -> Result<(), Errno> {
    is_userfaultfd(file)?;
    privilege::with(privilege::NEEDED, || uffd::handshake(file.as_fd(), uffd::NEEDED_FEATURES)).map(drop)
}

fn is_userfaultfd(file: &OwnedFd) -> Result<(), Errno> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|_| Errno::BADF)?;
    (link.to_str() == Some(USERFAULTFD)).then_some(()).ok_or(Errno::BADF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_of_its_user_are_followed() {
        let own = std::process::id();
        let socket = || rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        let connection = |rights| {
            let pid = rustix::process::getpid();
            let peer = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
            let is_entering = Cell::new(false);
            Connection { socket: socket(), peer, pid: own, user: 0, rights, since: Instant::now(), is_entering }
        };
        let mut following = Following::default();
        let mine = connection(Rights::of(own).unwrap());
        assert_eq!(mine.is_followed(&mut following, None), Ok(()));
        assert_eq!(mine.is_followed(&mut following, Some(socket())), Err(Errno::BADF), "that is no listener");
        let anothers = connection(Rights::of_another(own));
        assert_eq!(anothers.is_followed(&mut following, None), Err(Errno::PERM));
        assert_eq!(anothers.is_followed(&mut following, Some(socket())), Err(Errno::PERM));
    }

    #[test]
    fn only_userfaultfds_are_touched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(USERFAULTFD);
        std::fs::write(&path, "").unwrap();
        for path in [path.as_path(), std::path::Path::new("/dev/null")] {
            let file = OwnedFd::from(std::fs::File::open(path).unwrap());
            assert_eq!(shake_hands(&file), Err(Errno::BADF), "{}", path.display());
        }
    }
}
