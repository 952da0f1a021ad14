//! Loading pages.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use rustix::io::Errno;

use super::table_word::{Made, Object, Word};
use super::{Codec, Entry, Loaded, Page, RECOMPRESS_LEVEL, Scratch, Store, StoreError};
use crate::device::{Opened, ReadRun, Tag};
use crate::pool::Stale;
use crate::slot::{Area, AreaRef};
use crate::vm::PAGE_SIZE;

const RUNS: usize = 32;

impl Store {
    /// Loads a page. The entry stays until [`Store::free`]; after a concurrent free the result is
    /// garbage or `BadEntry`.
    ///
    /// # Errors
    /// As in [`StoreError`]; `into` then holds garbage.
    pub fn load(&self, e: Entry, into: &mut Page, scratch: &mut Scratch) -> Result<Loaded, StoreError> {
        self.load_one(e, into, scratch, Others::Asked)
    }

    fn load_one(&self, e: Entry, into: &mut Page, scratch: &mut Scratch, others: Others) -> Result<Loaded, StoreError> {
        let area = self.areas.get(e.area()).ok_or(StoreError::BadEntry)?;
        let place = area.word(e.offset()).ok_or(StoreError::BadEntry)?;
        loop {
            let passes = self.compaction.passes();
            let raw = place.load(Ordering::Acquire);
            let word = Word::decode(raw);
            let loaded = match word {
                Word::Pool(object) | Word::Claimed(object) => {
                    area.ages.used(e.offset());
                    self.load_object(e, object, into, scratch)
                }
                Word::Device(_) if scratch.keeps_to_memory => return Err(StoreError::OnDevice),
                Word::Device(_) if others == Others::NotAsked => return Err(io(e, Errno::TIMEDOUT)),
                Word::Device(tag) => {
                    let mut run = [ReadRun { slot: e.offset(), into: core::slice::from_mut(into), result: Ok(()) }];
                    self.read(&area, &mut run);
                    run[0].result.map_err(|errno| io(e, errno))?;
                    let opened = is_page(&area, e, tag, into);
                    let is_same = place.load(Ordering::Acquire) == raw;
                    match opened {
                        Ok(Opened::Yes) => Ok(Loaded::Device),
                        Ok(Opened::ByOther(wrong)) => {
                            // Otherwise the bytes may have been the slot's next page.
                            if let (Some(device), Some(wrong), true) = (&area.device, wrong, is_same) {
                                device.report_wrong(e.offset(), wrong);
                            }
                            Ok(Loaded::Device)
                        }
                        _ if !is_same => Err(StoreError::BadEntry),
                        Ok(Opened::No) => Err(self.corrupt(e)),
                        Err(errno) => Err(io(e, errno)),
                    }
                }
                Word::Empty | Word::Dropped | Word::Cached(_) | Word::Bad => return Err(StoreError::BadEntry),
            };
            let now = place.load(Ordering::Acquire);
            let same = now == raw && (word.object().is_none() || self.compaction.passes() == passes);
            if same || !Word::decode(now).is_page() {
                return if same { loaded } else { Err(StoreError::BadEntry) };
            }
            // Compaction has moved the object, or a worker has written or recompressed the page.
            // Each further round takes such a step, or a new pass.
        }
    }

    /// Loads neighbours: one I/O for consecutive slots, and several such runs at once. `into` and
    /// `out` are as long as `entries`; results as from [`Store::load`].
    pub fn load_run(
        &self,
        entries: &[Entry],
        into: &mut [Page],
        out: &mut [Result<Loaded, StoreError>],
        scratch: &mut Scratch,
    ) {
        let n = entries.len().min(into.len()).min(out.len());
        let (mut i, mut others) = (0, Others::Asked);
        while i < n {
            let Some(area) = self.areas.get(entries[i].area()) else {
                out[i] = Err(StoreError::BadEntry);
                i += 1;
                continue;
            };
            let mut runs: ArrayVec<ReadRun<'_>, RUNS> = ArrayVec::new();
            let (mut end, mut rest) = (i, &mut into[i..n]);
            while end < n && entries[end].area() == area.id() && !runs.is_full() {
                let run = device_run(&area, &entries[end..n]);
                if run == 0 || scratch.keeps_to_memory {
                    break;
                }
                let (these, behind) = rest.split_at_mut(run);
                runs.push(ReadRun { slot: entries[end].offset(), into: these, result: Ok(()) });
                (end, rest) = (end + run, behind);
            }
            if runs.is_empty() {
                drop(runs);
                out[i] = self.load(entries[i], &mut into[i], scratch);
                i += 1;
                continue;
            }
            self.read(&area, &mut runs);
            for run in runs {
                for page in run.into {
                    out[i] = match run.result.map(|()| opened(&area, entries[i], page)) {
                        Ok(true) => Ok(Loaded::Device),
                        Err(Errno::TIMEDOUT) => Err(io(entries[i], Errno::TIMEDOUT)),
                        // Page by page, so that one bad slot does not fail its neighbours.
                        Ok(false) | Err(_) => self.load_one(entries[i], page, scratch, others),
                    };
                    if matches!(out[i], Err(StoreError::Io { errno: Errno::TIMEDOUT, .. })) {
                        // The timeout covered the pages behind it, too.
                        others = Others::NotAsked;
                    }
                    i += 1;
                }
            }
        }
    }

    fn load_object(&self, e: Entry, object: Object, into: &mut Page, scratch: &mut Scratch) -> Result<Loaded, StoreError> {
        if self.unpack(object, into, scratch).map_err(|_| StoreError::BadEntry)? {
            return Ok(Loaded::Pool);
        }
        // The entry was freed and its place reused, or the pool's memory was overwritten.
        let area = self.areas.get(e.area());
        let now = area.as_ref().and_then(|a| a.word(e.offset())).map(|place| Word::decode(place.load(Ordering::Acquire)));
        Err(if now.and_then(Word::object) == Some(object) { self.corrupt(e) } else { StoreError::BadEntry })
    }

    /// False: the object is damaged.
    ///
    /// # Errors
    /// As [`crate::pool::Pool::read`].
    pub(super) fn unpack(&self, object: Object, into: &mut Page, scratch: &mut Scratch) -> Result<bool, Stale> {
        let len = object.handle.object_len();
        if len == PAGE_SIZE {
            return self.pool.read(object.handle, into).map(|_| true);
        }
        self.pool.read(object.handle, &mut scratch.workspace.bytes)?;
        let Some(filter) = object.filter else { return Ok(false) };
        let codec = if object.made == Made::Recompressed { Codec::Zstd(RECOMPRESS_LEVEL) } else { self.codec };
        Ok(codec.decompress_filtered(filter, &mut scratch.workspace, len, into))
    }

    fn corrupt(&self, entry: Entry) -> StoreError {
        self.counters.corrupt.add(1);
        if let Some(area) = self.areas.get(entry.area()) {
            area.io.errors.add(1);
        }
        StoreError::Corrupt { entry, offset: entry.offset() * PAGE_SIZE as u64 }
    }

    fn read(&self, area: &Area, runs: &mut [ReadRun<'_>]) {
        match &area.device {
            Some(device) => device.read_runs(runs),
            None => runs.iter_mut().for_each(|run| run.result = Err(Errno::NODEV)),
        }
        for run in runs {
            area.io.reads.add(1);
            match run.result {
                Ok(()) => area.io.read_bytes.add((run.into.len() * PAGE_SIZE) as u64),
                Err(_) => area.io.errors.add(1),
            }
        }
    }
}

fn device_run(area: &AreaRef<'_>, entries: &[Entry]) -> usize {
    let Some(first) = entries.first() else { return 0 };
    let follows = |(i, e): &(usize, &Entry)| {
        e.area() == area.id()
            && e.offset() == first.offset() + *i as u64
            && area.word(e.offset()).is_some_and(|w| matches!(Word::decode(w.load(Ordering::Acquire)), Word::Device(_)))
    };
    entries.iter().enumerate().take_while(follows).count()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    Asked,
    /// They have timed out for a neighbour.
    NotAsked,
}

fn io(entry: Entry, errno: Errno) -> StoreError {
    StoreError::Io { errno, offset: entry.offset() * PAGE_SIZE as u64 }
}

/// Opens a page read from its entry's slot.
///
/// # Errors
/// It has another tag, and no other copy is there: `TIMEDOUT` after a wait.
fn is_page(area: &Area, e: Entry, tag: Tag, page: &mut Page) -> Result<Opened, Errno> {
    let Some(device) = &area.device else { return Ok(Opened::No) };
    if device.open(e.offset(), tag, page) {
        return Ok(Opened::Yes);
    }
    device.open_other(e.offset(), tag, page)
}

/// False: the page cannot be opened, or its entry has changed.
fn opened(area: &Area, e: Entry, page: &mut Page) -> bool {
    let (Some(device), Some(place)) = (&area.device, area.word(e.offset())) else { return false };
    let raw = place.load(Ordering::Acquire);
    let Word::Device(tag) = Word::decode(raw) else { return false };
    device.open(e.offset(), tag, page) && place.load(Ordering::Acquire) == raw
}
