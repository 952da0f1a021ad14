//! The slots of an area that a process shares with its forked children: it refers to them on behalf of a child before it forks,
//! the child drops what it does not need any more, and what it had when it died, or called exec, is dropped by the owner
//! ([`Area::release_dead`]).
//!
//! Who holds what is in `holders.rs`. A child for which there is no holder left has *strays*: they are counted for each slot,
//! by nobody's name, so only the child itself drops them. Those that it has when it dies are used for as long as the owner
//! lives.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;

use super::area::Area;
use super::bitmap::{Bitmap, WORDS};
use super::cluster::CLUSTER_SLOTS;
use super::holders::{Claim, HOLDERS, Holders, Image};
use super::zombies::{self, Reach, Zombies};
use crate::table::Table;
use crate::vm::OnFork;

/// Of which process the references are, as `Sharing::mine` and `Sharing::childs` say it: of a holder with a lower number, or
const NOBODYS: u32 = u32::MAX;
const STRAYS: u32 = u32::MAX - 1;
const _: () = assert!(HOLDERS < STRAYS as usize);

/// How often a dead parent's record for a child that has not made it its own is passed over in [`Area::release_dead`]: the
/// child may still be about to, on a busy machine.
const PATIENCE: u8 = 30;

/// To which slots of an area this process refers. Each that it was given has a bit somewhere, 64 of them in a word; a table word
/// for each slot is 64 times as much to read, and with a TiB that is out a fork would take a second for that.
#[derive(Clone, Copy)]
pub struct Refers<'a> {
    /// To each that it was given, or got by a fork, and has not freed, unless some are bad ([`Area::has_bad_slot`]).
    pub all: bool,
    /// By the number of the slot and its table word, where not all are.
    pub asked: &'a dyn Fn(u64, u64) -> bool,
}

/// Who else than this process refers to slots of an area.
#[derive(Debug)]
pub(super) struct Sharing {
    holders: Holders,
    /// How many children without a holder refer to each slot. For slot 0, which nobody refers to: whether there was such a
    /// child. Takes memory only then.
    strays: Table<AtomicU16>,
    /// In the owner.
    pub zombies: Zombies,
    /// Whose this process's references are, in a process that has them from a parent.
    mine: AtomicU32,
    /// Whose those are that this process has added for the child that it forks next; the child finds it in its copy.
    childs: AtomicU32,
    /// If a holder's, what its record said.
    record: AtomicU64,
    /// How often a parent was found dead before its child had made the record its own. The owner's.
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

    /// Which of `n` slots from index `first` of cluster `i` on somebody else refers to, or may refer to. A slot that this
    /// process has freed, and of which this says that nobody does, is free.
    pub(super) fn held(&self, i: usize, first: usize, n: usize) -> Bitmap {
        // Acquire: as for the maps in `Holders::held`, between whose two looks at `filled` this happens.
        let strays_of = |w: usize| {
            if self.strays[0].load(Ordering::Acquire) == 0 {
                return 0;
            }
            let slots = &self.strays[i * CLUSTER_SLOTS + w * 64..][..64];
            let is = |(at, count): (usize, &AtomicU16)| u64::from(count.load(Ordering::Acquire) != 0) << at;
            slots.iter().enumerate().map(is).fold(0, |all, bit| all | bit)
        };
        let words = first / 64..(first + n).div_ceil(64);
        Bitmap::from_words(|w| match words.contains(&w) {
            false => 0,
            true => self.holders.held(i * WORDS + w, || strays_of(w)),
        })
    }

    /// Drops a reference of this process, which has it from a parent.
    pub(super) fn drop_one(&self, slot: usize) {
        match self.mine.load(Ordering::Relaxed) {
            NOBODYS => {}
            STRAYS => self.drop_stray(slot),
            holder => self.holders.drop_one(holder as usize, slot),
        }
    }

    /// False: there are as many as can be counted. The slot is used for good then.
    fn add_stray(&self, slot: usize) -> bool {
        self.strays[0].store(1, Ordering::Relaxed);
        self.strays[slot].fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add(1)).is_ok()
    }

    fn drop_stray(&self, slot: usize) {
        let fewer = |n: u16| if n == u16::MAX { None } else { n.checked_sub(1) };
        // Release: as in `Holders::drop_one`.
        let _ = self.strays[slot].fetch_update(Ordering::Release, Ordering::Relaxed, fewer);
    }

    /// What this process has claimed for the child that it forks next.
    fn claimed(&self) -> Option<Claim> {
        let holder = self.childs.load(Ordering::Relaxed) as usize;
        (holder < HOLDERS).then(|| Claim { holder, record: self.record.load(Ordering::Relaxed) })
    }

    pub(super) fn table_bytes(&self) -> usize {
        self.holders.table_bytes() + self.strays.populated_bytes() + self.zombies.table_bytes()
    }
}

/// The numbers of the bits of a word that are set.
pub(super) fn each_bit(word: u64) -> impl Iterator<Item = usize> {
    (0..64).filter(move |bit| word >> bit & 1 == 1)
}

impl Area {
    /// Whether forked children get references to slots of this area.
    pub fn is_shared(&self) -> bool {
        self.sharing().is_some()
    }

    /// Calls `f` with the slots that this process refers to: which word of a map, and which bits of it. Only where there are
    /// any, and until it says yes; whether it has. No other call may be in flight.
    pub(super) fn find_reference(&self, refers: Refers<'_>, mut f: impl FnMut(usize, u64) -> bool) -> bool {
        let Some(sharing) = self.sharing() else { return false };
        // Those with which the area's lock deals in rows are used, and nobody refers to them.
        #[cfg(feature = "lab")]
        let refers = Refers { all: refers.all && self.area_lock().is_none(), ..refers };
        let refers = Refers { all: refers.all && !self.has_bad_slots(), ..refers };
        let mine = sharing.mine.load(Ordering::Relaxed);
        let is_inherited = self.is_inherited();
        if is_inherited && mine == NOBODYS {
            return false;
        }
        let asks = !refers.all || is_inherited && mine == STRAYS;
        // Acquire: pairs with the Release with which a word is changed.
        let is =
            |slot: usize| self.word(slot as u64).is_some_and(|word| (refers.asked)(slot as u64, word.load(Ordering::Acquire)));
        (0..self.opened_clusters()).any(|i| {
            // In a forked child the clusters of its parent's areas are an old copy.
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

    /// The slots of cluster `i` that this process was given and has not freed.
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

    /// Whether the table words say the same as [`Refers::all`]. For checks: it looks at each.
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
        // Of those that it was given it refers to all, and to no others.
        self.sharing().is_none() || [count(true), count(false)] == [by_words; 2]
    }

    /// Adds a reference to each slot that this process refers to, on behalf of the child that this process, `me`, forks next.
    /// Returns how many of them are strays. No effect on a private area. No other call may be in flight.
    pub fn add_references(&self, me: Image, refers: Refers<'_>) -> u64 {
        let Some(sharing) = self.sharing() else { return 0 };
        let (mut claimed, mut strays) = (None, 0);
        sharing.childs.store(NOBODYS, Ordering::Relaxed);
        self.find_reference(refers, |w, bits| {
            // A record only where there is something to hold.
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

    /// Whether [`Area::add_references`] would find a holder.
    pub fn has_holder(&self) -> bool {
        self.sharing().is_none_or(|sharing| (0..HOLDERS).any(|holder| sharing.holders.record(holder).is_none()))
    }

    /// Takes back what [`Area::add_references`] added, because there is no child. `refers`: as then; `None` if there was one
    /// that died: it may have dropped some already. (Its strays stay: how many it has dropped is not known.)
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

    /// In the child, `me`, once: what the parent added for it is its own. False: the parent died, and that was dropped.
    pub fn take_references(&self, me: Image) -> bool {
        let Some(sharing) = self.sharing() else { return true };
        let taken = sharing.claimed().is_none_or(|claim| sharing.holders.take(claim, me));
        let childs = sharing.childs.swap(NOBODYS, Ordering::Relaxed);
        sharing.mine.store(if taken { childs } else { NOBODYS }, Ordering::Relaxed);
        taken
    }

    /// In the child, once, in place of [`Area::take_references`]: it refers to nothing here, for its parent has taken back what
    /// it added. (But not what it added by nobody's name, which is the child's to drop.)
    pub fn leave_references(&self) {
        let Some(sharing) = self.sharing() else { return };
        let strays = sharing.childs.swap(NOBODYS, Ordering::Relaxed) == STRAYS;
        sharing.mine.store(if strays { STRAYS } else { NOBODYS }, Ordering::Relaxed);
    }

    /// In the owner, `me`: drops what holders have of which `is_alive` says that they are dead. `counts`: this is one of the
    /// looks, some seconds of them, after which a dead parent's child is no longer waited for. Whether any was dropped.
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

    /// In the owner: frees slots that it has freed, and nobody refers to any more, a great many at a time. Whether there were
    /// any.
    pub fn reap(&self) -> bool {
        zombies::reap(self, Reach::LONG)
    }
}
