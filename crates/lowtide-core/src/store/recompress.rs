//! Recompression: pages in the pool that were compressed by the fast codec, and that nobody has wanted for a while, are
//! compressed again by zstd, which takes longer and packs them tighter. Only the CPU time of who calls this is spent on it.
//!
//! A clock over the clusters of all areas, those without a device too: a cluster of which no page was stored or loaded for a
//! whole round of the hand is cold. A round takes [`ROUND_US`] at least. How a page goes from one object to the other, and why
//! nothing is lost, is in `claim.rs`.

use core::sync::atomic::{AtomicU64, Ordering};

use super::objects::Insert;
use super::table_word::{Made, Object, Word};
use super::walk::Walk;
use super::{Codec, Page, RECOMPRESS_LEVEL, Scratch, Store, claim};
use crate::slot::{Area, CLUSTER_SLOTS, Clock, Row, Visit};
use crate::vm::PAGE_SIZE;

/// Shortest time from the beginning of a round of the hand to that of the next, in microseconds.
pub const ROUND_US: u64 = 5_000_000;
/// Words and clusters that are looked at for each page that may be compressed.
const LOOKS: usize = 64;

/// What [`Store::recompress`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Recompressed {
    /// Words and clusters looked at. 0: nothing was to do.
    pub looked: usize,
    /// Pages that are smaller now.
    pub pages: usize,
    /// By how many bytes.
    pub bytes_saved: usize,
}

/// The clock.
#[derive(Debug, Default)]
pub(super) struct Recompressor {
    /// The hand; a round of it.
    round: Walk,
    /// When the next round may begin.
    next_round_us: AtomicU64,
}

/// What became of a page.
enum Fate {
    /// It is smaller by this many bytes.
    Smaller(usize),
    /// Tried, and left as it was.
    Same,
    /// There was nothing to try.
    Skipped,
    /// The pool has no room for it.
    NoRoom,
}

impl Store {
    /// Whether [`Store::recompress`] has something to look at now. Cheap.
    pub fn wants_recompression(&self, now_us: u64) -> bool {
        let clock = &self.recompressor;
        self.codec == Codec::Lz4
            && self.pool.objects() > 0
            && (clock.round.is_under_way() || now_us >= clock.next_round_us.load(Ordering::Relaxed))
    }

    /// Compresses cold pages again, at most `pages`, and looks at no more than 64 words or clusters for each. `now_us` is the
    /// time, in microseconds from any moment. Loads and frees in progress are not disturbed. Does nothing where the store
    /// compresses with zstd anyway, or while another thread is at it.
    ///
    /// The memory of zstd's compressor stays with `scratch` until [`Scratch::forget_compressor`].
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
                    // Used while the hand was there: the rest has its turn when it is cold again.
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
            // Freed meanwhile; or damaged, which is for a load to find and to say.
            _ => old,
        };
        let finished = claim::finish(&mut Row::new(area), slot, old, Word::Pool(word));
        if word.handle == old.handle {
            return Fate::Same;
        }
        // Nobody can come to the other one any more.
        self.let_go(if finished { old } else { word });
        if finished { Fate::Smaller(old.handle.object_len() - word.handle.object_len()) } else { Fate::Same }
    }

    /// The page as an object of zstd's, if that saves enough.
    fn pack_tighter(&self, page: &Page, old: Object, scratch: &mut Scratch) -> Result<Option<Object>, NoRoom> {
        let Some(len) = Codec::Zstd(RECOMPRESS_LEVEL).compress(page, &mut scratch.workspace) else { return Ok(None) };
        if !pays(old.handle.object_len(), len) {
            return Ok(None);
        }
        let data = &scratch.workspace.bytes[..len];
        // Into room that is there: the pool shall not grow to become smaller. At first there may be none.
        let keep = |how| self.keep(data, Made::Recompressed, how);
        match keep(Insert::IntoRoom) {
            None if self.pool.accepts() && self.pool.has_room_for_span() => keep(Insert::Anywhere).ok_or(NoRoom).map(Some),
            kept => kept.ok_or(NoRoom).map(Some),
        }
    }
}

struct NoRoom;

/// Whether an object of `new` bytes is enough of a gain: an eighth, for loading it takes longer.
fn pays(old: usize, new: usize) -> bool {
    new <= old / 8 * 7
}

#[cfg(test)]
#[path = "recompress_tests.rs"]
mod tests;
