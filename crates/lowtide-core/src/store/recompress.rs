//! Recompression: zstd, slower and tighter, compresses cold pages of the fast codec again, on the
//! calling thread's time.
//!
//! A clock goes over the clusters of all areas. A cluster is cold if none of its pages was stored
//! or loaded for a whole round, of at least [`ROUND_US`]. `claim.rs` explains how a page changes
//! objects.

use core::sync::atomic::{AtomicU64, Ordering};

use super::objects::Insert;
use super::table_word::{Made, Object, Word};
use super::walk::Walk;
use super::{Codec, Page, RECOMPRESS_LEVEL, Scratch, Store, claim};
use crate::codec::Filter;
use crate::slot::{Area, CLUSTER_SLOTS, Clock, Row, Visit};
use crate::vm::PAGE_SIZE;

/// Least microseconds between starts of rounds.
pub const ROUND_US: u64 = 5_000_000;
const LOOKS: usize = 64;

/// Results of [`Store::recompress`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Recompressed {
    /// Words and clusters visited; 0: there was no work.
    pub looked: usize,
    /// Pages that are smaller now.
    pub pages: usize,
    /// Bytes saved.
    pub bytes_saved: usize,
}

#[derive(Debug, Default)]
pub(super) struct Recompressor {
    round: Walk,
    next_round_us: AtomicU64,
}

enum Fate {
    Smaller(usize),
    Same,
    Skipped,
    NoRoom,
}

impl Store {
    /// Whether [`Store::recompress`] has work. Cheap.
    pub fn wants_recompression(&self, now_us: u64) -> bool {
        let clock = &self.recompressor;
        self.codec == Codec::Lz4
            && self.pool.objects() > 0
            && (clock.round.is_under_way() || now_us >= clock.next_round_us.load(Ordering::Relaxed))
    }

    /// Recompresses at most `pages` cold pages, and visits at most 64 words or clusters for each.
    /// `now_us`: microseconds from any origin. Loads and frees in progress are not disturbed. Does
    /// nothing if the codec is zstd, or while another thread recompresses.
    ///
    /// zstd's memory stays with `scratch` until [`Scratch::forget_compressor`].
    pub fn recompress(&self, pages: usize, now_us: u64, scratch: &mut Scratch) -> Recompressed {
        let mut done = Recompressed::default();
        if !self.wants_recompression(now_us) {
            return done;
        }
        let clock = &self.recompressor;
        let Some(mut hand) = clock.round.go_on(&self.areas) else { return done };
        if !clock.round.is_under_way() {
            clock.next_round_us.store(now_us.saturating_add(ROUND_US), Ordering::Relaxed);
            hand.begin();
        }
        let looks = pages.saturating_mul(LOOKS);
        let mut tries = pages;
        while done.looked < looks
            && tries > 0
            && let Some((area, slot)) = hand.next()
        {
            done.looked += 1;
            let (cluster, index) = (slot as usize / CLUSTER_SLOTS, slot as usize % CLUSTER_SLOTS);
            let is_cold = if index == 0 {
                area.ages.visit(cluster, Clock::Recompressing) == Visit::Old
            } else {
                !area.ages.is_used(cluster, Clock::Recompressing)
            };
            if !is_cold {
                if index > 0 {
                    // Used meanwhile: the rest waits until it is cold again.
                    area.ages.left(cluster, Clock::Recompressing);
                }
                hand.skip_cluster();
                continue;
            }
            match self.recompress_page(area, slot, scratch) {
                Fate::Smaller(bytes) => {
                    tries -= 1;
                    done.pages += 1;
                    done.bytes_saved += bytes;
                }
                Fate::Same => tries -= 1,
                Fate::Skipped => {}
                Fate::NoRoom => {
                    area.ages.left(cluster, Clock::Recompressing);
                    hand.end();
                    break;
                }
            }
        }
        self.counters.recompressed.add(done.pages as u64);
        self.counters.recompressed_bytes.add(done.bytes_saved as u64);
        done
    }

    fn recompress_page(&self, area: &Area, slot: u64, scratch: &mut Scratch) -> Fate {
        let Some(old) = claim::take(area, slot, |object| object.made == Made::Stored) else { return Fate::Skipped };
        let mut page = [0; PAGE_SIZE];
        let word = match self.unpack(old, &mut page, scratch) {
            Ok(true) => match self.pack_tighter(&page, old, scratch) {
                Ok(Some(new)) => new,
                Ok(None) => Object { made: Made::Tried, ..old },
                Err(NoRoom) => {
                    claim::finish(&mut Row::new(area), slot, old, Word::Pool(old));
                    return Fate::NoRoom;
                }
            },
            // Freed meanwhile; or damaged, which a load will report.
            _ => old,
        };
        let finished = claim::finish(&mut Row::new(area), slot, old, Word::Pool(word));
        if word.handle == old.handle {
            return Fate::Same;
        }
        // No word names the other one any more.
        self.let_go(if finished { old } else { word });
        if finished { Fate::Smaller(old.handle.object_len() - word.handle.object_len()) } else { Fate::Same }
    }

    fn pack_tighter(&self, page: &Page, old: Object, scratch: &mut Scratch) -> Result<Option<Object>, NoRoom> {
        let Some(len) = Codec::Zstd(RECOMPRESS_LEVEL).compress(page, &mut scratch.workspace) else { return Ok(None) };
        if !pays(old.handle.object_len(), len) {
            return Ok(None);
        }
        let data = &scratch.workspace.bytes[..len];
        // Into existing room: the pool must not grow in order to shrink. At first there may be
        // none.
        let keep = |how| self.keep(data, Made::Recompressed, Some(Filter::None), how);
        match keep(Insert::IntoRoom) {
            None if self.pool.accepts() && self.pool.has_room_for_span() => keep(Insert::Anywhere).ok_or(NoRoom).map(Some),
            kept => kept.ok_or(NoRoom).map(Some),
        }
    }
}

struct NoRoom;

/// zstd's slower loads must save an eighth.
fn pays(old: usize, new: usize) -> bool {
    new <= old / 8 * 7
}

#[cfg(test)]
#[path = "recompress_tests.rs"]
mod tests;
