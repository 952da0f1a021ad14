//! A process's channel: one request and its answer at a time (lowtide-core's `device/wire.rs`).
//! Never waits for the process, which may be stopped in the middle of either.

use super::devices::Device;
use super::locked;
use crate::pages::{Pages, Source};
use lowtide_core::device::WhichCopy;
use lowtide_core::device::wire::{Head, Hello, MAX_PAGES, MAX_RUNS, Op, Run};
use lowtide_core::vm::PAGE_SIZE;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::sync::{Arc, Mutex};
use std::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    ToRead,
    ToWrite,
}

pub enum Worked {
    Waits(Waits),
    /// The process has named its device.
    Hello(Hello),
    /// A complete request is here.
    Asked,
    /// The process closed it, or broke the protocol.
    Over,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Performed {
    Done,
    /// Pages are unavailable now: try again.
    Later,
    Nonsense,
}

const ROOM: usize = Head::LEN + MAX_RUNS * Run::LEN + MAX_PAGES * (2 + PAGE_SIZE);

/// Buffers: one for each worker, and more only while processes are slow.
pub struct Rooms {
    free: Mutex<Vec<Vec<u8>>>,
    kept: usize,
}

impl Rooms {
    /// Touches the buffers, so that they count before the run reaches its limit.
    pub fn new(threads: usize) -> Rooms {
        let one = || {
            let mut room = vec![1; ROOM];
            room.clear();
            room
        };
        Rooms { free: Mutex::new((0..threads).map(|_| one()).collect()), kept: threads }
    }

    fn take(&self) -> Vec<u8> {
        locked(&self.free).pop().unwrap_or_else(|| Vec::with_capacity(ROOM))
    }

    fn give(&self, mut room: Vec<u8>) {
        room.clear();
        let mut free = locked(&self.free);
        if room.capacity() >= ROOM && free.len() < self.kept {
            free.push(room);
        }
    }
}

pub struct Channel {
    socket: OwnedFd,
    rooms: Arc<Rooms>,
    /// None before the hello.
    device: Option<Arc<Device>>,
    state: State,
}

enum State {
    /// Bytes received of the head, then of the rest.
    Head([u8; Head::LEN], usize),
    Rest(Head, Vec<u8>, usize),
    /// Unavailable pages of these runs, and since when.
    Late(Source, Vec<Run>, Instant),
    /// Bytes sent.
    Answer(Vec<u8>, usize),
}

const NOTHING: State = State::Head([0; Head::LEN], 0);
const _: () = assert!(Hello::LEN == Head::LEN);

impl Channel {
    pub fn new(socket: OwnedFd, rooms: Arc<Rooms>) -> Channel {
        Channel { socket, rooms, device: None, state: NOTHING }
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub fn device(&self) -> Option<&Arc<Device>> {
        self.device.as_ref()
    }

    /// Sends and receives without waiting.
    pub fn work(&mut self) -> Worked {
        loop {
            match &mut self.state {
                State::Answer(room, sent) => {
                    if *sent < room.len() {
                        match rustix::net::send(&self.socket, &room[*sent..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                            Ok(n) => *sent += n,
                            Err(Errno::INTR) => {}
                            Err(Errno::AGAIN) => return Worked::Waits(Waits::ToWrite),
                            Err(_) => return Worked::Over,
                        }
                        continue;
                    }
                    self.rooms.give(std::mem::take(room));
                    self.state = NOTHING;
                }
                State::Head(head, filled) if *filled < head.len() => match received(&self.socket, &mut head[*filled..]) {
                    Ok(n) => *filled += n,
                    Err(ended) => return ended,
                },
                State::Head(head, _) if self.device.is_none() => return Worked::Hello(Hello::decode(head)),
                State::Head(head, _) => {
                    let Some(head) = Head::decode(head) else { return Worked::Over };
                    let mut room = self.rooms.take();
                    room.resize(head.rest(), 0);
                    self.state = State::Rest(head, room, 0);
                }
                State::Rest(_, room, filled) if *filled < room.len() => match received(&self.socket, &mut room[*filled..]) {
                    Ok(n) => *filled += n,
                    Err(ended) => return ended,
                },
                State::Rest(..) | State::Late(..) => return Worked::Asked,
            }
        }
    }

    pub fn greet(&mut self, device: Result<Arc<Device>, Errno>) {
        let result = device.as_ref().map(drop).map_err(|errno| *errno);
        self.device = device.ok();
        self.answer(Vec::new(), &[result]);
    }

    pub fn perform(&mut self, pages: &mut Pages) -> Performed {
        let Some(device) = self.device.clone() else { return Performed::Nonsense };
        let (head, room) = match std::mem::replace(&mut self.state, NOTHING) {
            State::Rest(head, room, _) => (head, room),
            State::Late(source, runs, since) => {
                let room = self.rooms.take();
                return self.read(pages, &device, source, runs, room, since);
            }
            State::Head(..) | State::Answer(..) => return Performed::Nonsense,
        };
        let Some(Parsed { runs, lengths, objects }) = Parsed::of(head, &room) else { return Performed::Nonsense };
        match head.op {
            Op::Write => {
                device.will_have(&runs);
                let results = pages.write(&device.prefix, &runs, &lengths, objects);
                self.answer(room, &results);
            }
            Op::Read => return self.read(pages, &device, Source::Any, runs, room, Instant::now()),
            Op::ReadFirst => return self.read(pages, &device, Source::First, runs, room, Instant::now()),
            Op::ReadSecond => return self.read(pages, &device, Source::Second, runs, room, Instant::now()),
            Op::WrongFirst | Op::WrongSecond => {
                let which = if head.op == Op::WrongFirst { WhichCopy::First } else { WhichCopy::Second };
                pages.found_wrong(&device.prefix, &runs, which);
                self.answer(room, &vec![Ok(()); runs.len()]);
            }
            Op::Discard => {
                device.will_not_have(&runs);
                let results = pages.remove(&device.prefix, &runs, None);
                let removed = runs.iter().zip(&results).filter(|(_, result)| result.is_ok());
                removed.for_each(|(run, _)| device.has_not(run));
                self.answer(room, &results);
            }
        }
        Performed::Done
    }

    fn read(
        &mut self,
        pages: &mut Pages,
        device: &Device,
        source: Source,
        runs: Vec<Run>,
        mut room: Vec<u8>,
        since: Instant,
    ) -> Performed {
        let n = runs.iter().map(|run| run.pages as usize).sum();
        let (mut lengths, before) = (Vec::with_capacity(n), answer_bytes(&runs, n));
        room.clear();
        room.resize(before, 0);
        let results = pages.read(&device.prefix, &runs, source, &mut lengths, &mut room, since);
        if results.contains(&Err(Errno::AGAIN)) {
            self.rooms.give(room);
            self.state = State::Late(source, runs, since);
            return Performed::Later;
        }
        let objects = (room.len() - before) as u32;
        let mut fields = room[..before].iter_mut();
        let mut put = |bytes: &[u8]| bytes.iter().zip(&mut fields).for_each(|(byte, field)| *field = *byte);
        put(&objects.to_ne_bytes());
        results.iter().for_each(|result| put(&number_of(*result).to_ne_bytes()));
        lengths.iter().for_each(|length| put(&(*length as u16).to_ne_bytes()));
        self.state = State::Answer(room, 0);
        Performed::Done
    }

    fn answer(&mut self, mut room: Vec<u8>, results: &[Result<(), Errno>]) {
        room.clear();
        room.extend(0u32.to_ne_bytes());
        results.iter().for_each(|result| room.extend(number_of(*result).to_ne_bytes()));
        self.state = State::Answer(room, 0);
    }
}

fn answer_bytes(runs: &[Run], pages: usize) -> usize {
    4 + runs.len() * 4 + pages * 2
}

fn number_of(result: Result<(), Errno>) -> i32 {
    result.map_or_else(Errno::raw_os_error, |()| 0)
}

fn received(socket: &OwnedFd, into: &mut [u8]) -> Result<usize, Worked> {
    loop {
        match rustix::net::recv(socket, &mut *into, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(Worked::Over),
            Ok((n, _)) => return Ok(n),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(Worked::Waits(Waits::ToRead)),
            Err(_) => return Err(Worked::Over),
        }
    }
}

struct Parsed<'a> {
    runs: Vec<Run>,
    lengths: Vec<usize>,
    objects: &'a [u8],
}

impl Parsed<'_> {
    /// None: invalid.
    fn of(head: Head, rest: &[u8]) -> Option<Parsed<'_>> {
        let (runs, rest) = rest.split_at_checked(head.runs * Run::LEN)?;
        let runs: Vec<Run> = runs.as_chunks().0.iter().map(Run::decode).collect::<Option<_>>()?;
        if runs.iter().map(|run| run.pages as usize).sum::<usize>() != head.pages {
            return None;
        }
        let (lengths, objects) = rest.split_at_checked(rest.len().checked_sub(head.bytes)?)?;
        let lengths: Vec<usize> = lengths.as_chunks().0.iter().map(|length| usize::from(u16::from_ne_bytes(*length))).collect();
        let are_right = head.op != Op::Write
            || lengths.len() == head.pages
                && lengths.iter().sum::<usize>() == head.bytes
                && lengths.iter().all(|n| *n <= PAGE_SIZE);
        are_right.then_some(Parsed { runs, lengths, objects })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_adds_up_is_done() {
        let request = |pages: usize, lengths: &[u16], bytes: usize| {
            let head = Head { op: Op::Write, runs: 1, pages, bytes };
            let mut all = Vec::new();
            all.extend(Run { slot: 3, pages: 2 }.encode());
            lengths.iter().for_each(|length| all.extend(length.to_ne_bytes()));
            all.resize(all.len() + bytes, 7);
            (head, all)
        };
        let good = request(2, &[5, 6], 11);
        let parsed = Parsed::of(good.0, &good.1).unwrap();
        assert_eq!((parsed.lengths, parsed.objects), (vec![5, 6], &[7; 11][..]));
        for (pages, lengths, bytes) in [(3, &[5, 6][..], 11), (2, &[5, 7], 11), (2, &[5], 5), (2, &[4097, 0], 4097)] {
            let (head, rest) = request(pages, lengths, bytes);
            assert!(Parsed::of(head, &rest).is_none(), "{pages} {lengths:?}");
        }
    }
}
