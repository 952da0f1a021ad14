//! Writes pages to devices, past the pool.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use rustix::io::Errno;

use super::folio::{Chunk, Folio, RUN, Results};
use super::table_word::Word;
use super::tier::Slots;
use super::{MAX_AREAS, Page, Scratch, Store, StoreError};
use crate::device::WriteRun;
use crate::slot::{AreaRef, Row};
use crate::vm::PAGE_SIZE;

const FOLIOS: usize = 32;

impl Store {
    /// Writes pages `which` to devices, to the next area if one fails. Leaves those in `which` that
    /// no device takes, because of the returned error.
    pub(super) fn write_out(
        &self,
        pages: &[&Page],
        which: &mut Chunk<usize>,
        out: Results<'_>,
        scratch: &mut Scratch,
    ) -> StoreError {
        let mut why = StoreError::Full;
        // A failed area rests, so each round uses others.
        for _ in 0..=MAX_AREAS {
            let Some(error) = self.write_round(pages, which, out, scratch) else { break };
            why = error;
        }
        why
    }

    /// Writes pages `which` in few, long writes, concurrently to one area. Leaves those in `which`
    /// that failed with the returned error, or got no slots.
    fn write_round(
        &self,
        pages: &[&Page],
        which: &mut Chunk<usize>,
        out: Results<'_>,
        scratch: &mut Scratch,
    ) -> Option<StoreError> {
        let all = core::mem::take(which);
        let of: Chunk<&Page> = all.iter().map(|&i| pages[i]).collect();
        let mut tags = [0; RUN];
        let (mut all, mut of, mut tags) = (&all[..], &of[..], &mut tags[..]);
        let mut why = None;
        while !all.is_empty() {
            let mut folios: ArrayVec<Folio<'_>, FOLIOS> = ArrayVec::new();
            let mut covered = 0;
            while covered < all.len()
                && !folios.is_full()
                && let Some(folio) = self.alloc_folio(all.len() - covered, Slots::Writable, &mut scratch.ends.on_device)
            {
                covered += folio.pages;
                folios.push(folio);
            }
            if covered == 0 {
                which.extend(all.iter().copied());
                break;
            }
            for folios in folios.chunk_by(|a, b| a.area.id() == b.area.id()) {
                let area = &folios[0].area;
                let mut runs: ArrayVec<WriteRun<'_>, FOLIOS> = ArrayVec::new();
                for run in folios.chunk_by(|a, b| a.slot + a.pages as u64 == b.slot) {
                    let (pages, tags_of_run);
                    (pages, of) = of.split_at(run.iter().map(|folio| folio.pages).sum());
                    (tags_of_run, tags) = core::mem::take(&mut tags).split_at_mut(pages.len());
                    runs.push(WriteRun { slot: run[0].slot, pages, tags: tags_of_run, result: Ok(()) });
                }
                self.write(area, &mut runs);
                for run in runs {
                    let these;
                    (these, all) = all.split_at(run.pages.len());
                    if let Err(errno) = run.result {
                        why = Some(StoreError::Io { errno, offset: run.slot * PAGE_SIZE as u64 });
                        which.extend(these.iter().copied());
                        continue;
                    }
                    for ((&i, slot), tag) in these.iter().zip(run.slot..).zip(&*run.tags) {
                        out[i] = self.publish(area, slot, Word::Device(*tag));
                    }
                }
            }
        }
        why
    }

    /// On failure the slots are given up, and the area rests.
    fn write(&self, area: &AreaRef<'_>, runs: &mut [WriteRun<'_>]) {
        match &area.device {
            Some(device) => area.io.writes.add(device.write_runs(runs) as u64),
            None => runs.iter_mut().for_each(|run| run.result = Err(Errno::NODEV)),
        }
        for run in runs {
            let Err(errno) = ended(area, run.pages.len(), run.result) else { continue };
            let mut row = Row::new(&**area);
            for slot in run.slot..run.slot + run.pages.len() as u64 {
                if is_passing(errno) {
                    row.push(slot);
                } else if let Some(word) = area.word(slot) {
                    // The device is broken: the slot is not tried again.
                    word.store(Word::Bad.encode(), Ordering::Release);
                    area.has_bad_slot();
                    self.counters.bad_slots.add(1);
                }
            }
        }
    }
}

/// Counts a write of `pages` pages; the area rests if it failed. Returns `result`.
pub(super) fn ended(area: &AreaRef<'_>, pages: usize, result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Ok(()) => {
            area.io.write_bytes.add((pages * PAGE_SIZE) as u64);
            area.wrote();
        }
        Err(errno) => {
            area.io.errors.add(1);
            area.failed(errno);
        }
    }
    result
}

/// No room for now, or an unreachable server that got nothing; not a broken device.
pub(super) fn is_passing(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::NOTCONN)
}
