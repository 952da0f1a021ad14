//! The protocol (RESP2). A missing or overlong reply breaks the connection: its unread rest would
//! pass for later replies.

use std::io::{self, ErrorKind};
use std::time::Instant;

use crate::stream::Stream;

/// Bytes of one read.
const CHUNK: usize = 64 << 10;
/// Longest line, text and list of a reply. (`INFO` is some KiB.)
const MAX_LINE: usize = 8 << 10;
const MAX_BULK: usize = 1 << 20;
const MAX_LIST: usize = 1 << 20;
/// Most bytes of a reply and the memory for its parts: a scan's keys have some 60.
const MAX_REPLY: usize = 16 << 20;
/// Depth of lists in lists.
const MAX_DEPTH: usize = 4;
/// First bytes of a TLS alert, which some servers send to a client without TLS.
const ALERT: [u8; 2] = [0x15, 3];

/// A server's reply.
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
    /// A null reply.
    Nothing,
    /// A list.
    List(Vec<Reply>),
}

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    read: Box<[u8]>,
    at: usize,
    end: usize,
    has_heard: bool,
    /// Bytes left for the present reply.
    room: usize,
}

/// Appends a command.
pub fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    begin(out, words.len());
    words.iter().for_each(|one| word(out, one));
}

/// Begins a command of this many words.
pub fn begin(out: &mut Vec<u8>, words: usize) {
    number(out, b'*', words);
}

/// Appends a word of a command.
pub fn word(out: &mut Vec<u8>, word: &[u8]) {
    number(out, b'$', word.len());
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

fn number(out: &mut Vec<u8>, kind: u8, number: usize) {
    out.push(kind);
    // Faster than `write!`, needed three times for each page.
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
    /// Of a fresh stream.
    pub fn new(stream: Stream) -> Connection {
        Connection { stream, read: vec![0; CHUNK].into(), at: 0, end: 0, has_heard: false, room: 0 }
    }

    /// Sets the deadline of all that follows.
    ///
    /// # Errors
    /// `TimedOut`: it is past.
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

    /// Expects `+OK`. `Ok(Err)`: an error reply.
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

    /// Expects at most `most` bytes, appends them to `out` and returns their count. `Ok(Err)`:
    /// another reply.
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

    /// The first byte, and the rest without the line's end.
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

    /// Appends to the unread bytes.
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

    /// A server that closes a silent connection may expect another protocol.
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

    /// Its server sends these bytes, in pieces of this size.
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
        // Four lists of half a million, none of them too long.
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
