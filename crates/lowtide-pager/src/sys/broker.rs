//! What a process of the run asks `lowtide run` for when it can't get it by itself: its user is another, it has no privilege,
//! or it can't follow the paths of the run's files. `lowtide run` listens on a socket without a place in the file system, and
//! answers its descendants only.
//!
//! One connection carries questions and answers in turn; each is one message of one word, perhaps with another one of 64 bits,
//! and with descriptors. The word of an answer is 0 or the number of an error. Neither side trusts the other's descriptors to be
//! what they should be.
//!
//! Nothing here allocates or takes a lock: a child that shares its parent's memory (`vfork`) may call it.

use core::mem::MaybeUninit;
use core::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut, retry_on_intr};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// The library to preload. Answer: its file.
pub const LIBRARY: u32 = 1;
/// The files of the run. Answer: the settings and the segment.
pub const FILES: u32 = 2;
/// A userfaultfd can't be made. Answer: `/dev/userfaultfd`, on which it can.
pub const DEVICE: u32 = 3;
/// The userfaultfd that comes with the question is to be made ready for the features of the settings.
pub const HANDSHAKE: u32 = 4;
/// The page map of the asking process. Answer: its file.
pub const PAGE_MAP: u32 = 5;
/// The swap file that comes with the question is for children that the asking process forks: they find it under [`of_file`]'s
/// number.
pub const HAND_ON: u32 = 6;
/// What the parent of the asking process has handed on under this number. Answer: the file.
pub const INHERIT: u32 = 7;
/// The named file of a swap area, whose number stands where that of a file stands. Answer: the file.
pub const SWAP_FILE: u32 = 8;
/// The asking process has no child that needs what it has handed on: the fork is over.
pub const TAKE_BACK: u32 = 9;
/// The asking process is to be told of its faults by BPF programs: its threads by a signal whose handler is at the address that
/// comes with the question, and by a ring. Answer: the ring, and the slots of its threads (`lowtide-bpf`).
pub const REGISTER: u32 = 10;
/// A thread of the asking process, whose id comes with the question, is about to execute a program that can't preload the
/// library: it is to be mapped there.
pub const ENTER: u32 = 11;
/// Nothing was executed after [`ENTER`].
pub const DO_NOT_ENTER: u32 = 12;
/// The descriptor that comes with the question tells of the execs and moves of the asking process and its descendants
/// ([`super::call_filter`]). Without one: whether one more would be taken.
pub const FOLLOW: u32 = 13;
/// From now on this connection is for moves that threads of the asking process have asked for ([`super::moves`]).
pub const MOVES: u32 = 14;
/// The userfaultfd that comes with the question watches the asking process's memory, and is to be kept as long as any process
/// has that. From the answer on the end of this connection says that the asking process ended, or executes another program.
pub const KEEP: u32 = 15;
/// Bytes of stack that the handler takes beside the signal's frame.
pub const HANDLER_STACK: usize = 2048;

/// Most descriptors of a message.
pub const MAX_FILES: usize = 2;
/// Bytes of a message, without the second word and with it.
const SHORT: usize = 4;
const LONG: usize = 12;
/// Whoever waits longer for an answer goes on without.
const PATIENCE: Duration = Duration::from_secs(10);

/// Descriptors that came with a message.
pub type Files = ArrayVec<OwnedFd, MAX_FILES>;

/// A question about the file that has the descriptor `number` in the process whose it was first.
pub const fn of_file(question: u32, number: u32) -> u32 {
    question | number << 8
}

/// The question and the number in it (see [`of_file`]); 0 where none belongs to it.
pub const fn parts(word: u32) -> (u32, u32) {
    (word & 0xff, word >> 8)
}

/// The address of a name.
///
/// # Errors
/// `NAMETOOLONG`.
pub fn address(name: &[u8]) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(name)
}

/// What was received.
#[derive(Debug)]
pub struct Message {
    /// A question, or an answer.
    pub word: u32,
    /// What came with a question that has such; else 0.
    pub detail: u64,
    /// The descriptors. They close on exec.
    pub files: Files,
}

/// A connection to `lowtide run`.
pub struct Connection(OwnedFd);

impl Connection {
    /// Connects to the socket of this name. Whose it is can be asked of [`Connection::as_fd`] (SO_PEERCRED). Waits for some seconds
    /// where many others are about to connect.
    ///
    /// # Errors
    /// Those of connect.
    pub fn new(name: &[u8]) -> Result<Connection, Errno> {
        Self::by(name, SocketFlags::CLOEXEC)
    }

    /// The same without waiting.
    ///
    /// # Errors
    /// `AGAIN`: many others are about to connect. Those of connect.
    pub fn at_once(name: &[u8]) -> Result<Connection, Errno> {
        let connection = Self::by(name, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        rustix::io::ioctl_fionbio(&connection.0, false)?;
        Ok(connection)
    }

    fn by(name: &[u8], flags: SocketFlags) -> Result<Connection, Errno> {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        let address = address(name)?;
        retry_on_intr(|| rustix::net::connect(&socket, &address))?;
        Ok(Connection(socket))
    }

    /// The socket.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// What was answered, or those of sending and receiving.
    pub fn ask(&self, question: u32, file: Option<BorrowedFd<'_>>) -> Result<Files, Errno> {
        send(self.0.as_fd(), question, file.as_slice())?;
        self.answer()
    }

    /// Hands a file over, and waits so long for the answer, in milliseconds: without one it is on its way.
    ///
    /// # Errors
    /// As [`Connection::ask`].
    pub fn hand_over(&self, question: u32, file: BorrowedFd<'_>, ms: i64) -> Result<(), Errno> {
        send(self.0.as_fd(), question, &[file])?;
        self.answer_within(&Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 })
            .unwrap_or(Ok(Files::new()))
            .map(drop)
    }

    /// Asks with a second word, and waits for the answer.
    ///
    /// # Errors
    /// As [`Connection::ask`].
    pub fn ask_with(&self, question: u32, detail: u64) -> Result<(), Errno> {
        self.post(question, detail)?;
        self.answer().map(drop)
    }

    /// Asks something that takes long; [`Connection::answer_if_there`] looks for the answer.
    ///
    /// # Errors
    /// Those of sending.
    pub fn post(&self, question: u32, detail: u64) -> Result<(), Errno> {
        send_with(self.0.as_fd(), question, Some(detail), &[])
    }

    /// The answer to what was posted, or why there will be none; `None`: it has not come.
    pub fn answer_if_there(&self) -> Option<Result<Files, Errno>> {
        self.answer_within(&Timespec { tv_sec: 0, tv_nsec: 0 })
    }

    fn answer_within(&self, time: &Timespec) -> Option<Result<Files, Errno>> {
        let is_there = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(time)).is_ok_and(|ready| ready > 0);
        is_there.then(|| self.answer())
    }

    fn answer(&self) -> Result<Files, Errno> {
        match receive(self.0.as_fd())? {
            Message { word: 0, files, .. } => Ok(files),
            Message { word: error, .. } => Err(Errno::from_raw_os_error(error as i32)),
        }
    }

    /// Asks for one descriptor.
    ///
    /// # Errors
    /// As [`Connection::ask`].
    pub fn ask_file(&self, question: u32) -> Result<OwnedFd, Errno> {
        self.ask(question, None)?.pop().ok_or(Errno::BADMSG)
    }
}

/// Sends a message.
///
/// # Errors
/// Those of sendmsg.
pub fn send(socket: BorrowedFd<'_>, word: u32, files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    send_with(socket, word, None, files)
}

fn send_with(socket: BorrowedFd<'_>, word: u32, detail: Option<u64>, files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut bytes = [0; LONG];
    bytes[..SHORT].copy_from_slice(&word.to_ne_bytes());
    bytes[SHORT..].copy_from_slice(&detail.unwrap_or(0).to_ne_bytes());
    let bytes = &bytes[..if detail.is_some() { LONG } else { SHORT }];
    let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::INVAL);
    }
    retry_on_intr(|| rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Receives a message.
///
/// # Errors
/// Those of recvmsg; `PIPE`: the other side has gone; `BADMSG`: it is no message of this kind; `MFILE`: there is no room for
/// the descriptors.
pub fn receive(socket: BorrowedFd<'_>) -> Result<Message, Errno> {
    let mut bytes = [0; LONG];
    let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut files = Files::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            // What does not fit is closed.
            received.for_each(|file| drop(files.try_push(file)));
        }
    }
    match message.bytes {
        _ if message.flags.contains(ReturnFlags::CTRUNC) => Err(Errno::MFILE),
        // It was longer.
        _ if message.flags.contains(ReturnFlags::TRUNC) => Err(Errno::BADMSG),
        0 => Err(Errno::PIPE),
        SHORT | LONG => {
            let (word, detail) = bytes.split_at(SHORT);
            let word = word.try_into().map_or(0, u32::from_ne_bytes);
            Ok(Message { word, detail: detail.try_into().map_or(0, u64::from_ne_bytes), files })
        }
        _ => Err(Errno::BADMSG),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::socketpair;

    #[test]
    fn words_and_descriptors_arrive() {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let file = rustix::fs::open(c"/dev/zero", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        send(a.as_fd(), 7, &[]).unwrap();
        send(a.as_fd(), 8, &[file.as_fd(), a.as_fd()]).unwrap();
        send_with(a.as_fd(), 9, Some(u64::MAX - 1), &[]).unwrap();
        let first = receive(b.as_fd()).unwrap();
        assert_eq!((first.word, first.detail, first.files.len()), (7, 0, 0));
        let Message { word, files, .. } = receive(b.as_fd()).unwrap();
        assert_eq!((word, files.len()), (8, 2));
        let third = receive(b.as_fd()).unwrap();
        assert_eq!((third.word, third.detail), (9, u64::MAX - 1));
        let id = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
        assert_eq!(id(&files[0]), id(&file));
        assert!(rustix::io::fcntl_getfd(&files[0]).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        drop(files);
        rustix::io::write(&a, &[0; 13]).unwrap();
        drop(a);
        assert_eq!(receive(b.as_fd()).unwrap_err(), Errno::BADMSG);
        assert_eq!(receive(b.as_fd()).unwrap_err(), Errno::PIPE);
    }

    #[test]
    fn who_connects_at_once_does_not_wait_for_others_but_for_answers() {
        let name = std::format!("lowtide-broker-{}", std::process::id());
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&listener, &address(name.as_bytes()).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let first = Connection::at_once(name.as_bytes()).unwrap();
        assert_eq!(Connection::at_once(name.as_bytes()).err(), Some(Errno::AGAIN), "there is room for one");
        let accepted = rustix::net::accept(&listener).unwrap();
        Connection::at_once(name.as_bytes()).unwrap();
        let answers = std::thread::spawn(move || {
            let question = receive(accepted.as_fd()).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            send(accepted.as_fd(), 0, &[]).unwrap();
            question.word
        });
        assert_eq!(first.ask(5, None).map(|files| files.len()), Ok(0));
        assert_eq!(answers.join().unwrap(), 5);
    }
}
