//! Gathering: too few pages for a long device write wait in the pool, uncompressed, in consecutive
//! slots. Otherwise a program that changes a page here and there would cause a write for each.
//!
//! Loads find them there, and if the gathering thread never writes them, the shrinker (`shrink.rs`)
//! does. The thread's record (`Scratch`) is only a hint.

use super::folio::{Folio, Results};
use super::objects::Insert;
use super::table_word::{Made, Object, Word};
use super::tier::{Slots, waits_for};
use super::{Entry, Page, Scratch, Store};
use crate::codec::Filter;
use crate::slot::CLUSTER_SLOTS;
use crate::vm::PAGE_SIZE;

/// Slots between a thread's latest folio and the next one, if one write may cover both. On a
/// rotating device, where threads share one sequence, waiting pages of others in between are
/// written too; not across clusters.
fn skipped(before: Entry, folio: &Folio<'_>) -> Option<usize> {
    let skipped = folio.slot.checked_sub(before.offset()).filter(|_| before.area() == folio.area.id())?;
    let same = before.offset() / CLUSTER_SLOTS as u64 == folio.slot / CLUSTER_SLOTS as u64;
    (skipped == 0 || same && folio.area.is_rotating()).then_some(skipped as usize)
}

impl Store {
    /// Keeps few pages `which` in the pool. Returns the number of leading pages done.
    pub(super) fn gather(&self, pages: &[&Page], which: &[usize], out: Results<'_>, scratch: &mut Scratch) -> usize {
        let Some(enough) = waits_for(which.len(), self.pool.limit()) else { return 0 };
        let mut done = 0;
        while done < which.len() && self.pool.accepts() {
            let before = scratch.ends.on_device;
            let Some(folio) = self.alloc_folio(which.len() - done, Slots::Writable, &mut scratch.ends.on_device) else { break };
            let goes_on = !folio.slot.is_multiple_of(CLUSTER_SLOTS as u64);
            match before.and_then(|before| skipped(before, &folio)).filter(|_| goes_on) {
                Some(skipped) => scratch.ends.gathered += if scratch.ends.gathered > 0 { skipped } else { 0 },
                None => self.write_gathered(before, scratch),
            }
            let mut kept = 0;
            while kept < folio.pages && self.pool.accepts() {
                let i = which[done + kept];
                let Some(object) = self.keep(pages[i], Made::Stored, Some(Filter::None), Insert::Anywhere) else { break };
                out[i] = self.publish(&folio.area, folio.slot + kept as u64, Word::Pool(object));
                kept += 1;
            }
            done += kept;
            scratch.ends.gathered += kept;
            if kept < folio.pages {
                let (slot, n) = (folio.slot + kept as u64, (folio.pages - kept) as u64);
                let given_back = folio.area.free_run(slot, n);
                debug_assert!(given_back.is_ok(), "{given_back:?}");
                scratch.ends.on_device = Entry::new(folio.area.id(), slot);
                break;
            }
            if scratch.ends.gathered >= enough {
                self.write_gathered(scratch.ends.on_device, scratch);
            }
        }
        done
    }

    pub(super) fn write_gathered(&self, end: Option<Entry>, scratch: &mut Scratch) {
        let gathered = core::mem::take(&mut scratch.ends.gathered);
        let raw = |object: Object| object.handle.object_len() == PAGE_SIZE;
        if gathered > 0
            && let Some(end) = end.filter(|end| end.offset() > 0)
            && let Some(area) = self.areas.get(end.area()).filter(|area| area.is_open())
        {
            let end = end.offset();
            let cluster = (end - 1) / CLUSTER_SLOTS as u64 * CLUSTER_SLOTS as u64;
            // While another thread writes, the shrinker gets them later.
            self.write_part(&area, end.saturating_sub(gathered as u64).max(cluster)..end, &raw, scratch);
        }
    }
}
