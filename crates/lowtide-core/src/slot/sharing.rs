//! Slots that a process shares with its forked children: it adds references before it forks, the
//! child drops those it no longer needs, and the owner drops the rest after the child's death or
//! exec ([`Area::release_dead`]).
//!
//! If no holder (`holders.rs`) is left, a child gets *strays*: counts per slot without a name,
//! which only the child can drop. Those left at its death stay used for the owner's life.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;

use super::area::Area;
use super::bitmap::{Bitmap, WORDS};
use super::cluster::CLUSTER_SLOTS;
use super::holders::{Claim, HOLDERS, Holders, Image};
use super::zombies::{self, Reach, Zombies};
use crate::table::Table;
use crate::vm::OnFork;

/// No holder.
const NOBODYS: u32 = u32::MAX;
const STRAYS: u32 = u32::MAX - 1;
const _: () = assert!(HOLDERS < STRAYS as usize);

/// Rounds of [`Area::release_dead`] that spare a dead parent's record: on a busy machine the child
/// may still take it.
const PATIENCE: u8 = 30;

/// The slots that this process refers to. Bits for them exist, 64 in a word; reading the table
/// words takes 64 times as much: a second per fork for a TiB swapped out.
#[derive(Clone, Copy)]
pub struct Refers<'a> {
    /// All that it was given or got by a fork, and has not freed; ignored if some are bad
    /// ([`Area::has_bad_slot`]).
    pub all: bool,
    /// Else decides by slot number and table word.
    pub asked: &'a dyn Fn(u64, u64) -> bool,
}

#[derive(Debug)]
pub(super) struct Sharing {
    holders: Holders,
    /// Children without a holder that refer to each slot; slot 0: whether any exist. Memory only
    /// then.
    strays: Table<AtomicU16>,
    /// In the owner.
    pub zombies: Zombies,
    /// The holder of this process's references, from a parent.
    mine: AtomicU32,
    /// The holder for the next child, which reads it in its copy.
    childs: AtomicU32,
    record: AtomicU64,
    /// Rounds in which each record had a dead parent. In the owner.
    orphaned: [AtomicU8; HOLDERS],
}

impl Sharing {
    pub(super) fn new(clusters: usize) -> Result<Sharing, Errno> {
        Ok(Sharing {
            holders: Holders::new(clusters * WORDS)?,
            strays: Table::new(clusters * CLUSTER_SLOTS, OnFork::Share)?,
            zombies: Zombies::new(clusters)?,
            mine: AtomicU32::new(NOBODYS),
            childs: AtomicU32::new(NOBODYS),
            record: AtomicU64::new(0),
            orphaned: [const { AtomicU8::new(0) }; HOLDERS],
        })
    }

    /// Whether another process may refer to a slot in the word of `index`.
    #[inline]
    pub(super) fn has_held(&self, i: usize, index: usize) -> bool {
        let w = i * WORDS + index / 64;
        self.holders.held(w, || self.strays_of(w)) != 0
    }

    fn strays_of(&self, w: usize) -> u64 {
        // Acquire: as for the maps in `Holders::held`, between whose loads of `filled` this runs.
        if self.strays[0].load(Ordering::Acquire) == 0 {
            return 0;
        }
        let slots = &self.strays[w * 64..][..64];
        let is = |(at, count): (usize, &AtomicU16)| u64::from(count.load(Ordering::Acquire) != 0) << at;
        slots.iter().enumerate().map(is).fold(0, |all, bit| all | bit)
    }

    /// Which of `n` slots other processes may refer to. Others that this process has freed are
    /// free.
    pub(super) fn held(&self, i: usize, first: usize, n: usize) -> Bitmap {
        let words = first / 64..(first + n).div_ceil(64);
        Bitmap::from_words(|w| match words.contains(&w) {
            false => 0,
            true => self.holders.held(i * WORDS + w, || self.strays_of(i * WORDS + w)),
        })
    }

    pub(super) fn drop_one(&self, slot: usize) {
        match self.mine.load(Ordering::Relaxed) {
            NOBODYS => {}
            STRAYS => self.drop_stray(slot),
            holder => self.holders.drop_one(holder as usize, slot),
        }
    }

    /// False: the count is at its maximum; the slot stays used.
    fn add_stray(&self, slot: usize) -> bool {
        self.strays[0].store(1, Ordering::Relaxed);
        self.strays[slot].fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add(1)).is_ok()
    }

    fn drop_stray(&self, slot: usize) {
        let fewer = |n: u16| if n == u16::MAX { None } else { n.checked_sub(1) };
        // Release: as in `Holders::drop_one`.
        let _ = self.strays[slot].fetch_update(Ordering::Release, Ordering::Relaxed, fewer);
    }

    fn claimed(&self) -> Option<Claim> {
        let holder = self.childs.load(Ordering::Relaxed) as usize;
        (holder < HOLDERS).then(|| Claim { holder, record: self.record.load(Ordering::Relaxed) })
    }

    pub(super) fn table_bytes(&self) -> usize {
        self.holders.table_bytes() + self.strays.populated_bytes() + self.zombies.table_bytes()
    }
}

pub(super) fn each_bit(word: u64) -> impl Iterator<Item = usize> {
    (0..64).filter(move |bit| word >> bit & 1 == 1)
}

impl Area {
    /// Whether forked children share slots.
    pub fn is_shared(&self) -> bool {
        self.sharing().is_some()
    }

    /// Calls `f` with map words and this process's bits in them, until it returns true; whether it
    /// did. No other call may be in flight.
    pub(super) fn find_reference(&self, refers: Refers<'_>, mut f: impl FnMut(usize, u64) -> bool) -> bool {
        let Some(sharing) = self.sharing() else { return false };
        // Slots in the baseline's caches are used, but have no references.
        let all = refers.all && self.area_lock().is_none() && !self.has_bad_slots();
        let refers = Refers { all, ..refers };
        let mine = sharing.mine.load(Ordering::Relaxed);
        let is_inherited = self.is_inherited();
        if is_inherited && mine == NOBODYS {
            return false;
        }
        let asks = !refers.all || is_inherited && mine == STRAYS;
        // Acquire: pairs with the Release of a word's change.
        let is =
            |slot: usize| self.word(slot as u64).is_some_and(|word| (refers.asked)(slot as u64, word.load(Ordering::Acquire)));
        (0..self.opened_clusters()).any(|i| {
            // A forked child's copy of the clusters is outdated.
            let used = if is_inherited { None } else { Some(self.used_but_for_zombies(sharing, i)) };
            (0..WORDS).map(|w| (i * WORDS + w, w)).any(|(at, w)| {
                let bits = match (used, mine) {
                    (Some(used), _) => used.word(w),
                    (None, STRAYS) => u64::MAX,
                    (None, holder) => sharing.holders.of(holder as usize, at),
                };
                let bits =
                    if asks { each_bit(bits).filter(|bit| is(at * 64 + bit)).map(|bit| 1u64 << bit).sum() } else { bits };
                bits != 0 && f(at, bits)
            })
        })
    }

    fn used_but_for_zombies(&self, sharing: &Sharing, i: usize) -> Bitmap {
        let inner = self.clusters().lock(i);
        let zombies = if inner.zombies == 0 { Bitmap::EMPTY } else { sharing.zombies.of(i) };
        // Slot 0 and those beyond the end are no slots.
        let first = usize::from(i == 0);
        inner.used_without(&zombies).part(first, self.clusters().slots_of(i) as usize - first)
    }

    /// Whether this process refers to any slot. No other call may be in flight.
    pub fn has_references(&self, refers: Refers<'_>) -> bool {
        self.find_reference(refers, |_, _| true)
    }

    /// Whether the table words agree with [`Refers::all`]. For checks: reads each.
    pub fn refers_to_all(&self, asked: &dyn Fn(u64, u64) -> bool) -> bool {
        let count = |all| {
            let mut count = 0;
            self.find_reference(Refers { all, asked }, |_, bits| {
                count += bits.count_ones();
                false
            });
            count
        };
        let mut by_words = 0;
        self.each_word(|slot, word| by_words += u32::from(slot != 0 && asked(slot, word.load(Ordering::Acquire))));
        self.sharing().is_none() || [count(true), count(false)] == [by_words; 2]
    }

    /// Adds references to this process's slots for the next child of this process, `me`. Returns
    /// the number of strays. No effect on a private area. No other call may be in flight.
    pub fn add_references(&self, me: Image, refers: Refers<'_>) -> u64 {
        let Some(sharing) = self.sharing() else { return 0 };
        let (mut claimed, mut strays) = (None, 0);
        sharing.childs.store(NOBODYS, Ordering::Relaxed);
        self.find_reference(refers, |w, bits| {
            match *claimed.get_or_insert_with(|| sharing.holders.claim(me)) {
                Some(claim) => sharing.holders.add(claim, w, bits),
                None => each_bit(bits).for_each(|bit| {
                    sharing.add_stray(w * 64 + bit);
                    strays += 1;
                }),
            }
            false
        });
        if let Some(claim) = claimed {
            sharing.holders.filled();
            sharing.record.store(claim.map_or(0, |claim| claim.record), Ordering::Relaxed);
            sharing.childs.store(claim.map_or(STRAYS, |claim| claim.holder as u32), Ordering::Relaxed);
        }
        strays
    }

    /// Whether [`Area::add_references`] would find a free holder.
    pub fn has_holder(&self) -> bool {
        self.sharing().is_none_or(|sharing| (0..HOLDERS).any(|holder| sharing.holders.record(holder).is_none()))
    }

    /// Undoes [`Area::add_references`] with the same `refers` if there is no child; `None` if there
    /// was one that died: its strays stay.
    pub fn undo_references(&self, refers: Option<Refers<'_>>) {
        let Some(sharing) = self.sharing() else { return };
        if let Some(claim) = sharing.claimed() {
            sharing.holders.abandon(claim, self.opened_clusters() * WORDS);
        } else if sharing.childs.load(Ordering::Relaxed) == STRAYS
            && let Some(refers) = refers
        {
            self.find_reference(refers, |w, bits| {
                each_bit(bits).for_each(|bit| sharing.drop_stray(w * 64 + bit));
                false
            });
        }
        sharing.childs.store(NOBODYS, Ordering::Relaxed);
    }

    /// In the child `me`, once: takes its references. False: the parent died, and they are gone.
    pub fn take_references(&self, me: Image) -> bool {
        let Some(sharing) = self.sharing() else { return true };
        let taken = sharing.claimed().is_none_or(|claim| sharing.holders.take(claim, me));
        let childs = sharing.childs.swap(NOBODYS, Ordering::Relaxed);
        sharing.mine.store(if taken { childs } else { NOBODYS }, Ordering::Relaxed);
        taken
    }

    /// In the child, once, instead of [`Area::take_references`]: the parent has taken all back but
    /// strays.
    pub fn leave_references(&self) {
        let Some(sharing) = self.sharing() else { return };
        let strays = sharing.childs.swap(NOBODYS, Ordering::Relaxed) == STRAYS;
        sharing.mine.store(if strays { STRAYS } else { NOBODYS }, Ordering::Relaxed);
    }

    /// In the owner `me`: drops references of dead holders. `counts`: counts this round toward the
    /// wait for a dead parent's child. Whether it dropped any.
    pub fn release_dead(&self, me: Image, is_alive: &mut dyn FnMut(Image) -> bool, counts: bool) -> bool {
        let Some(sharing) = self.sharing().filter(|_| !self.is_inherited()) else { return false };
        let mut any = false;
        for (holder, orphaned) in sharing.orphaned.iter().enumerate() {
            let dead = sharing.holders.record(holder).filter(|record| !is_alive(record.image()));
            let Some(record) = dead else {
                orphaned.store(0, Ordering::Relaxed);
                continue;
            };
            let waits = record.is_filling() && {
                let looks = orphaned.load(Ordering::Relaxed);
                orphaned.store(looks.saturating_add(u8::from(counts)), Ordering::Relaxed);
                looks < PATIENCE
            };
            any |= !waits && sharing.holders.release(holder, record, me, self.opened_clusters() * WORDS);
        }
        any
    }

    /// In the owner: frees many slots without references that it has freed. Whether it freed any.
    pub fn reap(&self) -> bool {
        zombies::reap(self, Reach::LONG)
    }
}
