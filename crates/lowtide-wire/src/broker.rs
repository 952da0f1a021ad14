//! Requests to `lowtide run` for files or privileges that a process lacks. `lowtide run` listens on
//! an abstract socket and answers descendants only.
//!
//! A connection alternates questions and answers, each one message of a word, perhaps another of 64
//! bits, and descriptors. An answer is 0 or an error number. Neither side trusts the other's
//! descriptors.
//!
//! Nothing allocates or locks: a `vfork` child may call it.

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

/// Asks for the library's file.
pub const LIBRARY: u32 = 1;
/// Asks for settings and segment.
pub const FILES: u32 = 2;
/// Asks for `/dev/userfaultfd`.
pub const DEVICE: u32 = 3;
/// Asks to initialise the attached userfaultfd by the settings.
pub const HANDSHAKE: u32 = 4;
/// Asks for the process's page map.
pub const PAGE_MAP: u32 = 5;
/// Leaves the attached swap file for children, under [`of_file`]'s number.
pub const HAND_ON: u32 = 6;
/// Asks for a file left by the parent.
pub const INHERIT: u32 = 7;
/// Asks for the named file of a swap area.
pub const NAMED_FILE: u32 = 8;
/// Withdraws files left for children, after the fork.
pub const TAKE_BACK: u32 = 9;
/// Asks for fault reports by BPF: signals to threads (handler address attached) and a ring. Answer:
/// ring and thread slots (`lowtide-bpf`).
pub const REGISTER: u32 = 10;
/// A thread (id attached) is about to execute a program that can't preload the library; map it
/// there.
pub const ENTER: u32 = 11;
/// Cancels [`ENTER`].
pub const DO_NOT_ENTER: u32 = 12;
/// Attaches the listener for calls of the process and its descendants
/// ([`crate::call_filter`]). Without: asks whether one would be accepted.
pub const FOLLOW: u32 = 13;
/// Attaches the process's userfaultfd, kept as long as its memory. Afterwards the connection's end
/// reports exit or exec.
pub const KEEP: u32 = 15;
/// Stack bytes of the handler beside the signal frame.
pub const HANDLER_STACK: usize = 2048;

/// Most descriptors in a message.
pub const MAX_FILES: usize = 2;
/// Message lengths.
const SHORT: usize = 4;
const LONG: usize = 12;
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Descriptors of a message.
pub type Files = ArrayVec<OwnedFd, MAX_FILES>;

/// A question about descriptor `number` of the file's first process.
pub const fn of_file(question: u32, number: u32) -> u32 {
    question | number << 8
}

/// The question and the number; 0 if none.
pub const fn parts(word: u32) -> (u32, u32) {
    (word & 0xff, word >> 8)
}

/// Converts an abstract name.
///
/// # Errors
/// `NAMETOOLONG`.
pub fn address(name: &[u8]) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(name)
}

/// A received message.
#[derive(Debug)]
pub struct Message {
    /// Question, or answer.
    pub word: u32,
    /// The second word, or 0.
    pub detail: u64,
    /// Descriptors, closed on exec.
    pub files: Files,
}

/// A connection to `lowtide run`.
pub struct Connection(OwnedFd);

impl Connection {
    /// Connects. Check the peer (SO_PEERCRED). A full backlog makes it wait seconds.
    ///
    /// # Errors
    /// Those of connect.
    pub fn new(name: &[u8]) -> Result<Connection, Errno> {
        Self::by(name, SocketFlags::CLOEXEC)
    }

    /// Connects without waiting.
    ///
    /// # Errors
    /// Those of connect; `AGAIN`: the backlog is full.
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

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// The answer's error, or those of sending and receiving.
    pub fn ask(&self, question: u32, file: Option<BorrowedFd<'_>>) -> Result<Files, Errno> {
        send(self.0.as_fd(), question, file.as_slice())?;
        self.answer()
    }

    /// Hands a file over and waits up to `ms` milliseconds; it arrives even without an answer.
    ///
    /// # Errors
    /// As [`Connection::ask`].
    pub fn hand_over(&self, question: u32, file: BorrowedFd<'_>, ms: i64) -> Result<(), Errno> {
        send(self.0.as_fd(), question, &[file])?;
        self.answer_within(&Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 })
            .unwrap_or(Ok(Files::new()))
            .map(drop)
    }

    /// Asks with a second word and waits for the answer.
    ///
    /// # Errors
    /// As [`Connection::ask`].
    pub fn ask_with(&self, question: u32, detail: u64) -> Result<(), Errno> {
        self.post(question, detail)?;
        self.answer().map(drop)
    }

    /// Asks without waiting; see [`Connection::answer_if_there`].
    ///
    /// # Errors
    /// Those of sending.
    pub fn post(&self, question: u32, detail: u64) -> Result<(), Errno> {
        send_with(self.0.as_fd(), question, Some(detail), &[])
    }

    /// The answer to [`Connection::post`], or the error. `None`: not yet.
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
/// Those of recvmsg; `PIPE`: closed; `BADMSG`: malformed; `MFILE`: too many descriptors.
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
            // Excess descriptors are closed.
            received.for_each(|file| drop(files.try_push(file)));
        }
    }
    match message.bytes {
        _ if message.flags.contains(ReturnFlags::CTRUNC) => Err(Errno::MFILE),
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
