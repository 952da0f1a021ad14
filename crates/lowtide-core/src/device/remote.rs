//! Pages on a server. `lowtide run` has the connections, so that no network code runs in other
//! people's processes. Data leaves this process compressed and sealed (`objects.rs`); keys and
//! plain pages stay.
//!
//! Each buffer (`bounce.rs`) has a channel to `lowtide run`: a socket for one request and its
//! answer at a time (`wire.rs`). The kernel closes them however a process dies: `lowtide run` drops
//! a device's pages with its last channel. A forked child gets channels to its parent's devices
//! before the parent goes on.
//!
//! A write ends when the server has confirmed it.

use core::borrow::Borrow;
use core::sync::atomic::{AtomicI32, Ordering};

use arrayvec::ArrayVec;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::io::{Errno, IoSlice, retry_on_intr};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use rustix::rand::{GetRandomFlags, getrandom};

use super::bounce::{BUFFER_PAGES, Buffer, Buffers, MOST_BUFFERS};
use super::objects::{self, Compressors};
use super::seal::{Seal, Tag};
use super::wire::{Head, Hello, MAX_PAGES, MAX_RUNS, Op, Run};
use super::{DeviceName, Opened, ReadRun, SealRun, WhichCopy, WriteRun};
use crate::vm::Page;

/// Makes a channel for a device in the swap area of this number, and reads the answer. Holds no
/// lock, may wait some seconds, and touches no swappable memory.
pub type Opener = fn(u8, Hello) -> Result<OwnedFd, Errno>;

/// No channel yet.
const NONE: i32 = -1;

/// Pages of one process on a server, dropped with its last channel.
#[derive(Debug)]
pub struct RemoteDevice {
    name: DeviceName,
    seal: Seal,
    buffers: Buffers,
    compressors: Compressors,
    /// Each buffer's channel, or [`NONE`].
    channels: [AtomicI32; MOST_BUFFERS],
    token: u64,
    open: Opener,
}

struct Request {
    runs: ArrayVec<(usize, Run), MAX_RUNS>,
    lengths: ArrayVec<u16, MAX_PAGES>,
    pages: usize,
    bytes: usize,
}

struct Outgoing<'r, P> {
    slot: u64,
    pages: &'r [P],
    tags: &'r mut [Tag],
    result: &'r mut Result<(), Errno>,
}

struct Answer {
    results: ArrayVec<Result<(), Errno>, MAX_RUNS>,
    lengths: ArrayVec<u16, MAX_PAGES>,
}

impl RemoteDevice {
    /// A new device, with fresh keys, and its first channel.
    ///
    /// # Errors
    /// `NOMEM` for its buffers; the errors of getrandom and of `open`.
    pub fn new(name: DeviceName, open: Opener) -> Result<RemoteDevice, Errno> {
        let mut token = [0; 8];
        retry_on_intr(|| getrandom(&mut token[..], GetRandomFlags::empty()))?;
        let device = RemoteDevice {
            name,
            seal: Seal::new()?,
            buffers: Buffers::new()?,
            compressors: Compressors::new(MOST_BUFFERS)?,
            channels: [const { AtomicI32::new(NONE) }; MOST_BUFFERS],
            token: u64::from_ne_bytes(token),
            open,
        };
        device.open_first(false)?;
        Ok(device)
    }

    /// The user's name for it.
    pub fn name(&self) -> DeviceName {
        self.name
    }

    /// In a forked child: forgets the parent's channels. No call may be in flight.
    pub fn forget(&self) {
        self.buffers.reset_after_fork();
        self.compressors.reset_after_fork();
        self.channels.iter().for_each(|channel| channel.store(NONE, Ordering::Relaxed));
    }

    /// In a forked child, before its parent goes on: makes a channel, which keeps the pages.
    ///
    /// # Errors
    /// Those of the opener: the parent's pages can't be read.
    pub fn open_again(&self) -> Result<(), Errno> {
        self.open_first(true)
    }

    /// Connects anew after the pages are freed and their server is gone. No call may be in flight.
    ///
    /// # Errors
    /// Those of the opener.
    pub fn start_over(&self) -> Result<(), Errno> {
        (0..MOST_BUFFERS).for_each(|index| self.close(index));
        self.open_first(false)
    }

    fn open_first(&self, again: bool) -> Result<(), Errno> {
        let channel = (self.open)(self.name.number, Hello { token: self.token, again })?;
        self.channels[0].store(channel.into_raw_fd(), Ordering::Relaxed);
        Ok(())
    }

    /// Seals and writes runs of pages, each with its own result. Returns the number of pieces.
    pub fn write_runs(&self, runs: &mut [WriteRun<'_>]) -> usize {
        self.write_all(runs, of_write)
    }

    /// The same; the pages may change meanwhile.
    pub fn write_in_place(&self, runs: &mut [SealRun<'_>]) {
        self.write_all(runs, of_seal);
    }

    fn write_all<R, P: Borrow<Page>>(&self, runs: &mut [R], outgoing: impl Fn(&mut R) -> Outgoing<'_, P>) -> usize {
        let mut buffer = self.buffers.take();
        let (mut at, mut pieces) = ((0, 0), 0);
        while at.0 < runs.len() {
            let mut request = Request::new();
            while at.0 < runs.len() {
                let mut run = outgoing(&mut runs[at.0]);
                let n = request.pack(self, at, &mut run, &mut buffer);
                if at.1 + n < run.pages.len() {
                    at.1 += n;
                    break;
                }
                at = (at.0 + 1, 0);
            }
            pieces += request.runs.len();
            self.write(&request, &mut buffer, |run, ended| {
                let result = outgoing(&mut runs[run]).result;
                *result = result.and(ended);
            });
        }
        pieces
    }

    fn write(&self, request: &Request, buffer: &mut Buffer<'_>, mut done: impl FnMut(usize, Result<(), Errno>)) {
        if request.runs.is_empty() {
            return;
        }
        let index = buffer.index();
        let objects = &buffer.pages().as_flattened()[..request.bytes];
        match self.ask(index, Op::Write, request, objects) {
            Ok(answer) => request.runs.iter().zip(answer.results).for_each(|((run, _), result)| done(*run, result)),
            Err(errno) => request.runs.iter().for_each(|(run, _)| done(*run, Err(errno))),
        }
    }

    /// Reads runs of sealed pages, each with its own result. The caller opens them.
    pub fn read_runs(&self, runs: &mut [ReadRun<'_>]) {
        let buffer = self.buffers.take();
        let mut at = (0, 0);
        while at.0 < runs.len() {
            let mut request = Request::new();
            while at.0 < runs.len() {
                let run = &runs[at.0];
                let left = run.into.len() - at.1;
                let n = request.add(at.0, run.slot + at.1 as u64, left);
                if n < left {
                    at.1 += n;
                    break;
                }
                at = (at.0 + 1, 0);
            }
            if request.runs.is_empty() {
                continue;
            }
            let read = self.ask(buffer.index(), Op::Read, &request, &[]);
            let read = read.and_then(|answer| self.receive_objects(buffer.index(), &request, &answer, runs));
            if let Err(errno) = read {
                request.runs.iter().for_each(|(run, _)| runs[*run].result = Err(errno));
            }
        }
    }

    fn receive_objects(&self, index: usize, request: &Request, answer: &Answer, runs: &mut [ReadRun<'_>]) -> Result<(), Errno> {
        let channel = self.channel(index)?;
        let mut lengths = answer.lengths.iter();
        for ((which, piece), result) in request.runs.iter().zip(&answer.results) {
            let run = &mut runs[*which];
            run.result = run.result.and(*result);
            let first = (piece.slot - run.slot) as usize;
            for page in &mut run.into[first..first + piece.pages as usize] {
                let length = usize::from(lengths.next().copied().unwrap_or(0));
                if length == 0 {
                    continue;
                }
                let room = page.get_mut(..length).ok_or(Errno::BADMSG);
                room.and_then(|room| receive(channel, room)).inspect_err(|_| self.close(index))?;
                run.result = run.result.and(objects::received(page, length));
            }
        }
        Ok(())
    }

    /// See [`super::Device::open`].
    #[must_use]
    pub fn open(&self, slot: u64, tag: Tag, page: &mut Page) -> bool {
        objects::open(&self.seal, slot, tag, page)
    }

    /// See [`super::Device::open_other`].
    ///
    /// # Errors
    /// Some copy is unavailable, and no available one is right.
    pub fn open_other(&self, slot: u64, tag: Tag, page: &mut Page) -> Result<Opened, Errno> {
        // The failed page was the first copy if the second is right.
        let (mut ended, mut wrong) = (Ok(Opened::No), Some(WhichCopy::First));
        for op in [Op::ReadSecond, Op::ReadFirst] {
            let read = self.read_copy(op, slot, page);
            match read {
                Ok(()) if objects::open(&self.seal, slot, tag, page) => return Ok(Opened::ByOther(wrong)),
                Ok(()) | Err(Errno::NODATA | Errno::BADMSG) => {}
                Err(errno) => ended = Err(errno),
            }
            wrong = read.is_ok().then_some(WhichCopy::Second);
        }
        ended
    }

    /// See [`super::Device::report_wrong`].
    pub fn report_wrong(&self, slot: u64, copy: WhichCopy) {
        crate::lock::assert_holds_none();
        let buffer = self.buffers.take();
        let mut request = Request::new();
        request.add(0, slot, 1);
        let op = if copy == WhichCopy::First { Op::WrongFirst } else { Op::WrongSecond };
        let _ = self.ask(buffer.index(), op, &request, &[]);
    }

    fn read_copy(&self, op: Op, slot: u64, page: &mut Page) -> Result<(), Errno> {
        let buffer = self.buffers.take();
        let mut request = Request::new();
        request.add(0, slot, 1);
        let answer = self.ask(buffer.index(), op, &request, &[])?;
        let mut run = [ReadRun { slot, into: core::slice::from_mut(page), result: Ok(()) }];
        self.receive_objects(buffer.index(), &request, &answer, &mut run)?;
        run[0].result
    }

    /// See [`super::Device::tag`].
    pub fn tag(&self, slot: u64, page: &Page) -> Tag {
        self.seal.tag(slot, page)
    }

    /// Drops the data of `n` slots from `slot` on.
    ///
    /// # Errors
    /// Those of `lowtide run`.
    pub fn discard(&self, slot: u64, n: u64) -> Result<(), Errno> {
        crate::lock::assert_holds_none();
        let buffer = self.buffers.take();
        let mut request = Request::new();
        request.runs.push((0, Run { slot, pages: n as u32 }));
        request.pages = n as usize;
        let answer = self.ask(buffer.index(), Op::Discard, &request, &[])?;
        answer.results.first().copied().unwrap_or(Err(Errno::BADMSG))
    }

    /// Sends a request and receives the answer without objects. Only for the holder of buffer
    /// `index`.
    ///
    /// # Errors
    /// `lowtide run` has ended, or is silent: the request may be done or not.
    fn ask(&self, index: usize, op: Op, request: &Request, objects: &[u8]) -> Result<Answer, Errno> {
        // Without a channel the slots are still good.
        let none = |errno| if op == Op::Write { Errno::NOTCONN } else { errno };
        let channel = self.channel(index).map_err(none)?;
        let asked = || {
            let head = Head { op, runs: request.runs.len(), pages: request.pages, bytes: request.bytes };
            let mut bytes: ArrayVec<u8, { Head::LEN + MAX_RUNS * Run::LEN + MAX_PAGES * 2 }> = ArrayVec::new();
            bytes.extend(head.encode());
            request.runs.iter().for_each(|(_, run)| bytes.extend(run.encode()));
            request.lengths.iter().for_each(|length| bytes.extend(length.to_ne_bytes()));
            send(channel, &bytes, objects)?;
            self.answer(channel, op, request)
        };
        asked().inspect_err(|_| self.close(index))
    }

    fn answer(&self, channel: BorrowedFd<'_>, op: Op, request: &Request) -> Result<Answer, Errno> {
        let lengths = if op.fetches() { request.pages * 2 } else { 0 };
        let mut bytes = [0; 4 + MAX_RUNS * 4 + MAX_PAGES * 2];
        let bytes = &mut bytes[..4 + request.runs.len() * 4 + lengths];
        receive(channel, bytes)?;
        let (results, lengths) = bytes[4..].split_at(request.runs.len() * 4);
        let result = |number: &[u8; 4]| match i32::from_ne_bytes(*number) {
            0 => Ok(()),
            errno => Err(Errno::from_raw_os_error(errno)),
        };
        Ok(Answer {
            results: results.as_chunks::<4>().0.iter().map(result).collect(),
            lengths: lengths.as_chunks::<2>().0.iter().map(|length| u16::from_ne_bytes(*length)).collect(),
        })
    }

    fn channel(&self, index: usize) -> Result<BorrowedFd<'_>, Errno> {
        let place = &self.channels[index];
        if place.load(Ordering::Relaxed) == NONE {
            let channel = (self.open)(self.name.number, Hello { token: self.token, again: true })?;
            place.store(channel.as_raw_fd(), Ordering::Relaxed);
            let _ = channel.into_raw_fd();
        }
        // SAFETY: the device owns the descriptor, and only the buffer's holder closes it.
        Ok(unsafe { BorrowedFd::borrow_raw(place.load(Ordering::Relaxed)) })
    }

    /// Only for the buffer's holder: later bytes would answer no request.
    fn close(&self, index: usize) {
        let fd = self.channels[index].swap(NONE, Ordering::Relaxed);
        if fd != NONE {
            // SAFETY: the device owned the descriptor.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}

impl Drop for RemoteDevice {
    fn drop(&mut self) {
        (0..MOST_BUFFERS).for_each(|index| self.close(index));
    }
}

impl Request {
    fn new() -> Request {
        Request { runs: ArrayVec::new(), lengths: ArrayVec::new(), pages: 0, bytes: 0 }
    }

    fn add(&mut self, run: usize, slot: u64, n: usize) -> usize {
        let n = n.min(MAX_PAGES - self.pages);
        if n == 0 || self.runs.try_push((run, Run { slot, pages: n as u32 })).is_err() {
            return 0;
        }
        self.pages += n;
        n
    }

    fn pack<P: Borrow<Page>>(
        &mut self,
        device: &RemoteDevice,
        at: (usize, usize),
        run: &mut Outgoing<'_, P>,
        buffer: &mut Buffer<'_>,
    ) -> usize {
        let slot = run.slot + at.1 as u64;
        let n = self.add(at.0, slot, run.pages.len() - at.1);
        // SAFETY: the caller holds this compressor's buffer.
        let compressor = unsafe { device.compressors.get(buffer.index()) };
        let room = buffer.pages().as_flattened_mut();
        let pages = run.pages[at.1..].iter().zip(&mut run.tags[at.1..]).take(n);
        for ((page, tag), slot) in pages.zip(slot..) {
            let Some(out) = room[self.bytes..].first_chunk_mut() else { break };
            let length;
            (*tag, length) = objects::pack(&device.seal, slot, page.borrow(), out, compressor);
            self.lengths.push(length as u16);
            self.bytes += length;
        }
        n
    }
}

fn of_write<'r, 'p>(run: &'r mut WriteRun<'p>) -> Outgoing<'r, &'p Page> {
    Outgoing { slot: run.slot, pages: run.pages, tags: run.tags, result: &mut run.result }
}

fn of_seal<'r>(run: &'r mut SealRun<'_>) -> Outgoing<'r, Page> {
    Outgoing { slot: run.slot, pages: run.pages, tags: run.tags, result: &mut run.result }
}

const _: () = assert!(MAX_PAGES <= BUFFER_PAGES);

fn send(channel: BorrowedFd<'_>, mut first: &[u8], mut second: &[u8]) -> Result<(), Errno> {
    while !first.is_empty() || !second.is_empty() {
        let parts = [IoSlice::new(first), IoSlice::new(second)];
        let n =
            retry_on_intr(|| rustix::net::sendmsg(channel, &parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL))?;
        let of_first = n.min(first.len());
        (first, second) = (&first[of_first..], &second[n - of_first..]);
    }
    Ok(())
}

fn receive(channel: BorrowedFd<'_>, mut room: &mut [u8]) -> Result<(), Errno> {
    while !room.is_empty() {
        let (n, _) = retry_on_intr(|| rustix::net::recv(channel, &mut *room, RecvFlags::WAITALL))?;
        if n == 0 {
            return Err(Errno::PIPE);
        }
        room = &mut room[n..];
    }
    Ok(())
}
