//! Loading pages.

use core::sync::atomic::Ordering;

use super::word::Word;
use super::{Entry, Loaded, Page, Scratch, Store, StoreError};
use crate::device::ReadRun;
use crate::pool::Handle;
use crate::slot::Area;
use crate::vm::PAGE_SIZE;

impl Store {
    /// Brings the bytes of a page back. The entry stays; [`Store::free`] drops it. When another thread frees the entry meanwhile,
    /// the result is garbage or `BadEntry`.
    ///
    /// # Errors
    /// As in [`StoreError`]; `into` then holds garbage.
    pub fn load(&self, e: Entry, into: &mut Page, scratch: &mut Scratch) -> Result<Loaded, StoreError> {
        let area = self.areas.get(e.area()).ok_or(StoreError::BadEntry)?;
        let place = area.word(e.offset()).ok_or(StoreError::BadEntry)?;
        let raw = place.load(Ordering::Acquire);
        match Word::decode(raw) {
            Word::Pool(handle) => self.load_object(e, handle, into, scratch),
            Word::Device(tag) => {
                self.read(&area, e.offset(), core::slice::from_mut(into))?;
                if area.device.open(e.offset(), tag, into) {
                    Ok(Loaded::Device)
                } else if place.load(Ordering::Acquire) == raw {
                    Err(self.corrupt(e))
                } else {
                    Err(StoreError::BadEntry)
                }
            }
            Word::Empty | Word::Cached(_) | Word::Bad => return Err(StoreError::BadEntry),
        }
        .and_then(|loaded| if place.load(Ordering::Acquire) == raw { Ok(loaded) } else { Err(StoreError::BadEntry) })
    }

    /// Loads neighbours: consecutive slots of a device are read with one I/O. `into` and `out` are as long as `entries`; each
    /// result is as from [`Store::load`].
    pub fn load_run(
        &self,
        entries: &[Entry],
        into: &mut [Page],
        out: &mut [Result<Loaded, StoreError>],
        scratch: &mut Scratch,
    ) {
        let n = entries.len().min(into.len()).min(out.len());
        let mut i = 0;
        while i < n {
            let run = self.device_run(&entries[i..n]);
            if run > 1
                && let Some(area) = self.areas.get(entries[i].area())
                && self.read(&area, entries[i].offset(), &mut into[i..i + run]).is_ok()
            {
                for j in i..i + run {
                    out[j] = match opened(&area, entries[j], &mut into[j]) {
                        true => Ok(Loaded::Device),
                        // Either the bytes are wrong, or the page moved or went while it was read: that is found out afresh.
                        false => self.load(entries[j], &mut into[j], scratch),
                    };
                }
                i += run;
            } else {
                // One by one also after a failed read, so that one bad slot does not take its neighbours with it.
                let end = i + run.max(1);
                for j in i..end {
                    out[j] = self.load(entries[j], &mut into[j], scratch);
                }
                i = end;
            }
        }
    }

    /// How many entries from the first on are consecutive slots of one area whose pages are on its device.
    fn device_run(&self, entries: &[Entry]) -> usize {
        let Some(first) = entries.first() else { return 0 };
        let Some(area) = self.areas.get(first.area()) else { return 0 };
        let follows = |(i, e): &(usize, &Entry)| {
            e.area() == first.area()
                && e.offset() == first.offset() + *i as u64
                && area.word(e.offset()).is_some_and(|w| matches!(Word::decode(w.load(Ordering::Acquire)), Word::Device(_)))
        };
        entries.iter().enumerate().take_while(follows).count()
    }

    fn load_object(&self, e: Entry, handle: Handle, into: &mut Page, scratch: &mut Scratch) -> Result<Loaded, StoreError> {
        let len = handle.object_len();
        if len == PAGE_SIZE {
            self.pool.read(handle, into).map_err(|_| StoreError::BadEntry)?;
            return Ok(Loaded::Pool);
        }
        self.pool.read(handle, &mut scratch.bytes).map_err(|_| StoreError::BadEntry)?;
        if self.codec.decompress(scratch, len, into) {
            return Ok(Loaded::Pool);
        }
        // Either the entry was freed and its place in the pool used again, or the pool's memory was overwritten.
        let area = self.areas.get(e.area());
        let now = area.as_ref().and_then(|a| a.word(e.offset())).map(|place| place.load(Ordering::Acquire));
        Err(if now == Some(Word::Pool(handle).encode()) { self.corrupt(e) } else { StoreError::BadEntry })
    }

    fn corrupt(&self, entry: Entry) -> StoreError {
        self.counters.corrupt.add(1);
        StoreError::Corrupt { entry, offset: entry.offset() * PAGE_SIZE as u64 }
    }

    fn read(&self, area: &Area, slot: u64, into: &mut [Page]) -> Result<(), StoreError> {
        self.counters.device_read_ios.add(1);
        let bytes = (into.len() * PAGE_SIZE) as u64;
        let mut run = [ReadRun { slot, into, result: Ok(()) }];
        area.device.read_runs(&mut run);
        match run[0].result {
            Ok(()) => {
                self.counters.device_read_bytes.add(bytes);
                Ok(())
            }
            Err(errno) => {
                self.counters.device_errors.add(1);
                Err(StoreError::Io { errno, offset: slot * PAGE_SIZE as u64 })
            }
        }
    }
}

/// Opens a page that was read from its entry's slot. False: it can't be, or the entry changed meanwhile.
fn opened(area: &Area, e: Entry, page: &mut Page) -> bool {
    let Some(place) = area.word(e.offset()) else { return false };
    let raw = place.load(Ordering::Acquire);
    let Word::Device(tag) = Word::decode(raw) else { return false };
    area.device.open(e.offset(), tag, page) && place.load(Ordering::Acquire) == raw
}
