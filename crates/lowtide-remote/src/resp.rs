//! The protocol (RESP2): commands go out in one piece, replies come one after the other. A reply that is too long, or none at
//! all, is an error of the connection, which is of no use afterwards: what is left unread there would be taken for the replies
//! to later commands.

use std::io::{self, ErrorKind};
use std::time::Instant;

use crate::stream::Stream;

/// Bytes that are read at a time.
const CHUNK: usize = 64 << 10;
/// Longest line, longest text and longest list of a reply. (`INFO` is some KiB.)
const MAX_LINE: usize = 8 << 10;
const MAX_BULK: usize = 1 << 20;
const MAX_LIST: usize = 1 << 20;
/// Most bytes of a reply, in all, with what each part of it takes here: those of a scan are keys of some 60.
const MAX_REPLY: usize = 16 << 20;
/// Lists in lists.
const MAX_DEPTH: usize = 4;
/// How an alert of TLS begins, as some servers send it to who speaks none.
const ALERT: [u8; 2] = [0x15, 3];

/// What a server replied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`.
    Simple(String),
    /// `-ERR ...`: the command was not carried out.
    Error(String),
    /// A number.
    Number(i64),
    /// Bytes.
    Bytes(Vec<u8>),
    /// There is nothing of that name.
    Nothing,
    /// Several.
    List(Vec<Reply>),
}

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    read: Box<[u8]>,
    /// What of `read` has come and was not looked at.
    at: usize,
    end: usize,
    /// Something has come by it.
    has_heard: bool,
    /// Bytes that the reply that is being read may still have.
    room: usize,
}

/// Adds a command to what is to be sent.
pub fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    begin(out, words.len());
    words.iter().for_each(|one| word(out, one));
}

/// Begins a command of so many words.
pub fn begin(out: &mut Vec<u8>, words: usize) {
    number(out, b'*', words);
}

/// Adds a word of a command.
pub fn word(out: &mut Vec<u8>, word: &[u8]) {
    number(out, b'$', word.len());
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

fn number(out: &mut Vec<u8>, kind: u8, number: usize) {
    out.push(kind);
    // Faster than `write!`, which each page would pay for three times.
    let (mut digits, mut at, mut left) = ([0u8; 20], 20, number);
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
}

fn nonsense() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "it does not speak the protocol of Redis")
}

impl Connection {
    /// Of a stream by which nothing has been said.
    pub fn new(stream: Stream) -> Connection {
        Connection { stream, read: vec![0; CHUNK].into(), at: 0, end: 0, has_heard: false, room: 0 }
    }

    /// Until when all that follows must be over.
    ///
    /// # Errors
    /// `TimedOut`: that is past.
    pub fn until(&mut self, deadline: Instant) -> io::Result<()> {
        self.stream.until(deadline)
    }

    /// Sends commands.
    ///
    /// # Errors
    /// Those of the connection: the commands may have been carried out or not.
    pub fn send(&mut self, commands: &[u8]) -> io::Result<()> {
        self.stream.send(commands).map_err(|error| self.explained(error))
    }

    /// The next reply.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn reply(&mut self) -> io::Result<Reply> {
        self.room = MAX_REPLY;
        self.reply_at(0)
    }

    fn reply_at(&mut self, depth: usize) -> io::Result<Reply> {
        let (kind, text) = self.line()?;
        let text = String::from_utf8_lossy(text).into_owned();
        let takes = text.len() + size_of::<Reply>();
        self.room = self.room.checked_sub(takes).ok_or_else(nonsense)?;
        let number = || text.parse::<i64>().map_err(|_| nonsense());
        Ok(match kind {
            b'+' => Reply::Simple(text),
            b'-' => Reply::Error(text),
            b':' => Reply::Number(number()?),
            b'$' => match number()? {
                -1 => Reply::Nothing,
                length => {
                    let length = usize::try_from(length).ok().filter(|n| *n <= MAX_BULK).ok_or_else(nonsense)?;
                    self.room = self.room.checked_sub(length).ok_or_else(nonsense)?;
                    let mut bytes = Vec::new();
                    self.bytes(length, &mut bytes)?;
                    Reply::Bytes(bytes)
                }
            },
            b'*' => match number()? {
                -1 => Reply::Nothing,
                length => {
                    let length = usize::try_from(length).ok().filter(|n| *n <= MAX_LIST && depth < MAX_DEPTH);
                    let length = length.ok_or_else(nonsense)?;
                    Reply::List((0..length).map(|_| self.reply_at(depth + 1)).collect::<io::Result<_>>()?)
                }
            },
            _ => return Err(nonsense()),
        })
    }

    /// The next reply, which is to be `+OK`. `Ok(Err)`: an error in its place.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn done(&mut self) -> io::Result<Result<(), String>> {
        match self.line()? {
            (b'+', b"OK") => Ok(Ok(())),
            (b'-', text) => Ok(Err(String::from_utf8_lossy(text).into_owned())),
            _ => Err(nonsense()),
        }
    }

    /// The next reply, which is bytes, at most so many: adds them to `out`, and says how many they are. `Ok(Err)`: another reply
    /// in their place.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn reply_into(&mut self, out: &mut Vec<u8>, most: usize) -> io::Result<Result<usize, Reply>> {
        match self.line()? {
            (b'$', b"-1") => Ok(Err(Reply::Nothing)),
            (b'$', text) => {
                let length = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).filter(|n| *n <= MAX_BULK);
                let length: usize = length.ok_or_else(nonsense)?;
                let before = out.len();
                self.bytes(length, out)?;
                if length > most {
                    out.truncate(before);
                    return Ok(Err(Reply::Simple("too long".to_owned())));
                }
                Ok(Ok(length))
            }
            (b'-', text) => Ok(Err(Reply::Error(String::from_utf8_lossy(text).into_owned()))),
            _ => Err(nonsense()),
        }
    }

    /// A line, without its end: how it begins, and the rest.
    fn line(&mut self) -> io::Result<(u8, &[u8])> {
        let mut looked_at = 0;
        let length = loop {
            let here = &self.read[self.at..self.end];
            if let Some(n) = here[looked_at..].iter().position(|byte| *byte == b'\n') {
                break looked_at + n;
            }
            looked_at = here.len();
            if looked_at > MAX_LINE {
                return Err(nonsense());
            }
            self.fill()?;
        };
        let line = self.at..self.at + length;
        self.at += length + 1;
        match &self.read[line] {
            [kind, text @ .., b'\r'] => Ok((*kind, text)),
            _ => Err(nonsense()),
        }
    }

    /// So many bytes, and the end of a line.
    fn bytes(&mut self, mut length: usize, out: &mut Vec<u8>) -> io::Result<()> {
        while length > 0 {
            if self.at == self.end {
                self.fill()?;
            }
            let here = &self.read[self.at..self.end];
            let n = here.len().min(length);
            out.extend_from_slice(&here[..n]);
            self.at += n;
            length -= n;
        }
        while self.end - self.at < 2 {
            self.fill()?;
        }
        self.at += 2;
        if self.read[self.at - 2..self.at] == *b"\r\n" { Ok(()) } else { Err(nonsense()) }
    }

    /// Reads what there is behind what was not looked at, which is less than a longest line.
    fn fill(&mut self) -> io::Result<()> {
        self.read.copy_within(self.at..self.end, 0);
        (self.at, self.end) = (0, self.end - self.at);
        let n = self.stream.receive(&mut self.read[self.end..]).map_err(|error| self.explained(error))?;
        if !self.has_heard && self.read.starts_with(&ALERT) {
            return Err(io::Error::new(ErrorKind::InvalidData, "it speaks TLS: write rediss://"));
        }
        self.has_heard = true;
        self.end += n;
        Ok(())
    }

    /// A server that ends a connection before it has said anything expects something else.
    fn explained(&self, error: io::Error) -> io::Error {
        match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe if !self.has_heard => {
                io::Error::new(ErrorKind::UnexpectedEof, self.stream.why_ended())
            }
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Socket;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::time::Duration;

    /// A connection to who says these bytes, in pieces of so many.
    fn to(bytes: &'static [u8], pieces: usize) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nodelay(true).unwrap();
            bytes.chunks(pieces).for_each(|piece| stream.write_all(piece).unwrap());
        });
        let deadline = Instant::now() + Duration::from_secs(20);
        let socket = Socket::new(TcpStream::connect(address).unwrap(), Arc::default(), deadline).unwrap();
        Connection::new(Stream::Plain(socket))
    }

    #[test]
    fn replies_however_they_come() {
        let said = b"+OK\r\n-OOM no\r\n:-12\r\n$3\r\na\r\n\r\n$-1\r\n*2\r\n$0\r\n\r\n*1\r\n:1\r\n$4\r\nfour\r\n$-1\r\n-ERR x\r\n$5\r\nfives\r\n";
        for pieces in [1, 2, 7, 1000] {
            let mut connection = to(said, pieces);
            let mut next = || connection.reply().unwrap();
            assert_eq!(next(), Reply::Simple("OK".to_owned()));
            assert_eq!(next(), Reply::Error("OOM no".to_owned()));
            assert_eq!(next(), Reply::Number(-12));
            assert_eq!(next(), Reply::Bytes(b"a\r\n".to_vec()));
            assert_eq!(next(), Reply::Nothing);
            assert_eq!(next(), Reply::List(vec![Reply::Bytes(Vec::new()), Reply::List(vec![Reply::Number(1)])]));
            let mut out = b"x".to_vec();
            assert_eq!(connection.reply_into(&mut out, 4).unwrap(), Ok(4));
            assert_eq!(connection.reply_into(&mut out, 4).unwrap(), Err(Reply::Nothing));
            assert_eq!(connection.reply_into(&mut out, 4).unwrap(), Err(Reply::Error("ERR x".to_owned())));
            assert!(connection.reply_into(&mut out, 4).unwrap().is_err(), "too long");
            assert_eq!(out, b"xfour");
            assert_eq!(connection.reply().unwrap_err().kind(), ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn what_is_no_reply_is_an_error_and_not_memory_without_end() {
        for said in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"$99999999999\r\n",
            b"*9999999999\r\n",
            b"$x\r\n",
            b"\r\n",
            b":\r\n",
            b"+x\n",
            b"\x15\x03\x01\x00\x02\x02\x46",
        ] {
            assert_eq!(to(said, 1000).reply().unwrap_err().kind(), ErrorKind::InvalidData, "{said:?}");
        }
        // Four lists of half a million, of which none is too long.
        let half_a_million = format!("*500000\r\n{}", ":1\r\n".repeat(500_000));
        let numbers = format!("*4\r\n{}", half_a_million.repeat(4)).leak().as_bytes();
        assert_eq!(to(numbers, 1 << 20).reply().unwrap_err().kind(), ErrorKind::InvalidData);
        assert!(to(b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", 1000).reply().is_err());
    }

    #[test]
    fn commands_as_they_are_sent() {
        let mut out = Vec::new();
        command(&mut out, &[b"SET", b"a key", &[b'v'; 120]]);
        let expected = format!("*3\r\n$3\r\nSET\r\n$5\r\na key\r\n$120\r\n{}\r\n", "v".repeat(120));
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
