//! The bytes of a connection, plain or by TLS. Waits only for the socket, within the remaining
//! time, after using up buffered input.

use std::io::{self, BufReader, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConnection;

use crate::counts::Counts;
use crate::tls::{Trust, said};

/// Several TLS records of at most 16 KiB.
const SEALED: usize = 64 << 10;

/// A socket with a deadline, which counts its traffic.
#[derive(Debug)]
pub struct Socket {
    stream: TcpStream,
    deadline: Instant,
    counts: Arc<Counts>,
}

/// A connection to a server.
#[derive(Debug)]
pub enum Stream {
    /// Without encryption.
    Plain(Socket),
    /// Encrypted, with a server authenticated by its certificate.
    Tls(Box<Tls>),
}

/// A TLS connection.
#[derive(Debug)]
pub struct Tls {
    session: ClientConnection,
    socket: BufReader<Socket>,
    has_own: bool,
}

impl Socket {
    /// Of a freshly connected stream.
    ///
    /// # Errors
    /// Those of setting options.
    pub fn new(stream: TcpStream, counts: Arc<Counts>, deadline: Instant) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        Ok(Socket { stream, deadline, counts })
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left.max(Duration::from_millis(1)))) }
    }

    /// A network that takes a few bytes at a time gets no more time.
    fn sent(&mut self, mut call: impl FnMut(&mut TcpStream) -> io::Result<usize>) -> io::Result<usize> {
        loop {
            self.stream.set_write_timeout(self.left()?)?;
            match call(&mut self.stream) {
                Ok(n) => {
                    self.counts.sent_bytes.add(n as u64);
                    return Ok(n);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(timed(error)),
            }
        }
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            self.stream.set_read_timeout(self.left()?)?;
            match self.stream.read(into) {
                Ok(n) => {
                    self.counts.received_bytes.add(n as u64);
                    return Ok(n);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(timed(error)),
            }
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sent(|stream| stream.write(bytes))
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.sent(|stream| stream.write_vectored(parts))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream {
    /// Performs the TLS handshake with the server called `name`.
    ///
    /// # Errors
    /// `InvalidData`, with words: it is another server, or has no TLS. Those of the socket.
    pub fn tls(trust: &Trust, name: &str, socket: Socket) -> io::Result<Stream> {
        let session = trust.session(name)?;
        let socket = BufReader::with_capacity(SEALED, socket);
        let mut tls = Tls { session, socket, has_own: trust.has_own() };
        tls.greet(name)?;
        Ok(Stream::Tls(Box::new(tls)))
    }

    /// Sets the deadline of all that follows.
    ///
    /// # Errors
    /// `TimedOut`: it is past.
    pub fn until(&mut self, deadline: Instant) -> io::Result<()> {
        let socket = match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(tls) => tls.socket.get_mut(),
        };
        socket.deadline = deadline;
        socket.left().map(drop)
    }

    /// Sends all of it.
    ///
    /// # Errors
    /// Those of the connection: any part of it may have been sent.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.write_all(bytes),
            Stream::Tls(tls) => tls.send(bytes),
        }
    }

    /// Receives at least one byte.
    ///
    /// # Errors
    /// `UnexpectedEof`: the connection was closed. Those of the connection.
    pub fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let received = match self {
            Stream::Plain(socket) => socket.read(into),
            Stream::Tls(tls) => tls.receive(into),
        };
        received.and_then(|n| if n == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(n) })
    }

    /// Why a server may have closed a silent connection.
    pub fn why_ended(&self) -> &'static str {
        match self {
            Stream::Plain(_) => "it ended the connection at the first word: if it wants TLS, write rediss://",
            Stream::Tls(tls) if !tls.has_own => {
                "it ended the connection at the first word: if it wants a certificate of ours, name one by cert=FILE,key=FILE"
            }
            Stream::Tls(_) => "it ended the connection at the first word: it does not believe our certificate, perhaps",
        }
    }
}

impl Tls {
    fn greet(&mut self, name: &str) -> io::Result<()> {
        let mut heard = false;
        let greeted = loop {
            if let Err(error) = self.flush() {
                break Err(error);
            }
            if !self.session.is_handshaking() {
                break Ok(());
            }
            match self.fill() {
                Ok(0) => break Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => heard = true,
                Err(error) => break Err(error),
            }
            if let Err(error) = self.session.process_new_packets() {
                // Tells the server why, if possible at once.
                let _ = self.flush();
                break Err(said(&error, name));
            }
        };
        greeted.map_err(|error| match error.kind() {
            // A server without TLS waits for the end of an apparent long word, or closes the
            // connection.
            ErrorKind::TimedOut if !heard => {
                io::Error::new(ErrorKind::TimedOut, "it does not answer TLS: if it has none, write redis://")
            }
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset if !heard => io::Error::new(
                ErrorKind::UnexpectedEof,
                "it ended the connection where TLS begins: if it has none, write redis://",
            ),
            _ => error,
        })
    }

    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            // As much as the session buffers, encrypted.
            match self.session.writer().write(bytes)? {
                0 => return Err(ErrorKind::WriteZero.into()),
                n => bytes = &bytes[n..],
            }
            self.flush()?;
        }
        Ok(())
    }

    /// 0: closed.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // Closed without a close_notify: the end all the same.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            self.fill()?;
            self.session.process_new_packets().map_err(|error| said(&error, ""))?;
            // Sends TLS's own answer.
            self.flush()?;
        }
    }

    /// Waits for more encrypted bytes.
    fn fill(&mut self) -> io::Result<usize> {
        self.session.read_tls(&mut self.socket)
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            if self.session.write_tls(self.socket.get_mut())? == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}

/// A socket's timeout appears as `WouldBlock`.
fn timed(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}
