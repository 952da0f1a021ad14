//! What was missed, and what would have been with more or less memory.
//!
//! A page that leaves memory comes back after others have left: how many is its age (the refault distance of Linux's
//! `workingset.c`), which is counted in epochs of a 16th of the limit. Two models say what becomes of the misses when the
//! program's pages have another part of the memory, and the pool another size:
//!
//! - **In no order.** The clock hand can't see what is used, so a page stays for as long as the hand takes to come round,
//!   whoever asks for it, and then is away until the program next asks: a FIFO cache. The time that a page is away is the
//!   program's doing and stays; the time that it stays, T, is the same for all and is what fits: the pages in memory are those of
//!   all ages for T of (T + away) each (Fagin's, and Che's, approximation).
//! - **In order.** What is gone through again and again in the same order, as by a stream, comes back after all the others. More
//!   memory saves nothing until all of it fits; a smaller pool makes all of it come from the device once it does not.
//!
//! How much of either it is shows in how many pages come in with one fault.

use core::sync::atomic::{AtomicU64, Ordering};

use lowtide_core::store::StoreStats;
use lowtide_core::vm::PAGE_SIZE;

use crate::segment::{Counters, EPOCHS_A_LIMIT, FaultKind, REFAULT_AGES, limits_away};

/// With fewer faults on stored pages nothing is known.
pub(super) const ENOUGH: f64 = 64.0;
/// What is sampled of pages that pass the pool by counts from this many pages on.
const SAMPLES: f64 = 16.0;
/// Bytes of pages in a byte of the pool, where nothing is known.
const GUESSED_DENSITY: f64 = 2.0;
/// What the shrinker leaves is denser than what comes.
const DENSEST: f64 = 8.0;
/// Objects take this part of the pool's frames.
const PACKED: f64 = 0.96;
/// Microseconds that a fault takes beside its service: the kernel tells a handler, and wakes the thread.
const DELIVERY: f64 = 10.0;
/// Microseconds of the faults of which there were too few to know: in staging; in the pool, and for each page that comes with it;
/// on a device beside that.
const STAGED_FAULT: f64 = 14.0;
const POOL_FAULT: [f64; 2] = [16.0, 3.0];
const DEVICE_FAULT: [f64; 2] = [70.0, 3.0];
/// Microseconds of CPU for each page that leaves: detaching it, compressing it, writing it, and reading it out of the pool to
/// write it. A part of them counts: they are lowtide's, in the background, but of CPUs that the program could use.
pub(super) const DETACH: f64 = 4.0;
pub(super) const COMPRESS: f64 = 6.0;
pub(super) const WRITE: f64 = 4.0;
pub(super) const WRITE_BACK: f64 = 3.0;
pub(super) const BACKGROUND: f64 = 0.5;
/// See [`Misses::keeps`]: at least, and at most.
const KEEPS: [f64; 2] = [0.3, 0.85];
/// Pages that come in with a fault: of a program that touches in no order, and (so many more) of one that streams.
const IN_NO_ORDER: f64 = 2.0;
const STREAM: f64 = 14.0;

/// What a process has, in pages.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Places {
    /// The limit of the run.
    pub limit: f64,
    /// The program's pages in memory.
    pub resident: f64,
    /// Frames of its pool, ...
    pub pool: f64,
    /// ... the objects in them, ...
    pub objects: f64,
    /// ... and the pages that these were before they were compressed.
    pub in_pool: f64,
    /// Pages on devices.
    pub on_device: f64,
    /// The pool takes pages to compress them.
    pub compresses: bool,
}

/// What was counted: of a process since it began, or of the last while.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Misses {
    /// Faults by age, on pages in the pool and on devices.
    pub pool_ages: [f64; REFAULT_AGES],
    pub device_ages: [f64; REFAULT_AGES],
    /// Faults on pages in staging, in the pool, on devices, and microseconds of each kind.
    pub faults: [f64; 3],
    pub service: [f64; 3],
    pub evicted: f64,
    /// Pages that came from pool and devices, read-ahead included.
    pub loaded: f64,
    /// Pages that the pool would have taken, and those that were worth no place in it.
    pub offered: f64,
    pub unworthy: f64,
    /// See [`StoreStats::sampled`].
    pub sampled: f64,
    pub sampled_small: f64,
    pub sampled_bytes: f64,
}

impl Misses {
    pub const NONE: Misses = Misses {
        pool_ages: [0.0; REFAULT_AGES],
        device_ages: [0.0; REFAULT_AGES],
        faults: [0.0; 3],
        service: [0.0; 3],
        evicted: 0.0,
        loaded: 0.0,
        offered: 0.0,
        unworthy: 0.0,
        sampled: 0.0,
        sampled_small: 0.0,
        sampled_bytes: 0.0,
    };

    /// All so far.
    pub fn of(c: &Counters, stats: &StoreStats) -> Misses {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64;
        let kinds = [FaultKind::Staged, FaultKind::Pool, FaultKind::Device];
        Misses {
            pool_ages: c.refaults_pool.each_ref().map(get),
            device_ages: c.refaults_device.each_ref().map(get),
            faults: kinds.map(|kind| get(c.faults(kind))),
            service: kinds.map(|kind| get(&c.service_ns[kind as usize]) / 1e3),
            evicted: get(&c.evictions_pages),
            loaded: get(&c.pages_loaded),
            offered: stats.offered as f64,
            unworthy: stats.unworthy as f64,
            sampled: stats.sampled as f64,
            sampled_small: stats.sampled_small as f64,
            sampled_bytes: stats.sampled_bytes as f64,
        }
    }

    /// Changes each figure by the same one of `other`.
    pub fn each(&mut self, other: &Misses, f: impl Fn(f64, f64) -> f64) {
        let lists = [
            (&mut self.pool_ages[..], &other.pool_ages[..]),
            (&mut self.device_ages, &other.device_ages),
            (&mut self.faults, &other.faults),
            (&mut self.service, &other.service),
        ];
        for (mine, its) in lists.into_iter().flat_map(|(mine, its)| mine.iter_mut().zip(its)) {
            *mine = f(*mine, *its);
        }
        for (mine, its) in [
            (&mut self.evicted, other.evicted),
            (&mut self.loaded, other.loaded),
            (&mut self.offered, other.offered),
            (&mut self.unworthy, other.unworthy),
            (&mut self.sampled, other.sampled),
            (&mut self.sampled_small, other.sampled_small),
            (&mut self.sampled_bytes, other.sampled_bytes),
        ] {
            *mine = f(*mine, its);
        }
    }

    /// Faults on stored pages.
    pub fn refaults(&self) -> f64 {
        self.faults[1] + self.faults[2]
    }

    /// Microseconds of a fault on a page in staging, in the pool and on a device.
    pub fn costs(&self) -> [f64; 3] {
        let pages = self.pages_a_fault();
        let seen = |i: usize| (self.faults[i] >= ENOUGH / 4.0).then(|| DELIVERY + self.service[i] / self.faults[i]);
        let pool = seen(1).unwrap_or(POOL_FAULT[0] + pages * POOL_FAULT[1]);
        // No device is quicker than the pool.
        let device = seen(2).unwrap_or(pool + DEVICE_FAULT[0] + pages * DEVICE_FAULT[1]);
        [seen(0).unwrap_or(STAGED_FAULT), pool, device]
    }

    /// Pages in a page of the pool.
    pub fn density(&self, now: &Places) -> f64 {
        if now.compresses && now.pool > now.limit / 32.0 {
            (PACKED * now.in_pool / now.objects.max(1.0)).clamp(1.0, DENSEST)
        } else if self.sampled_small >= SAMPLES {
            (PACKED * self.sampled_small * PAGE_SIZE as f64 / self.sampled_bytes.max(1.0)).clamp(1.0, DENSEST)
        } else {
            GUESSED_DENSITY
        }
    }

    /// Which part of the pages that it could hold the pool really kept until they were asked for: it is never quite full, and
    /// what is written to a device first is not always what would be asked for last.
    fn keeps(&self, now: &Places) -> f64 {
        let (small, holds) = (self.small(), now.pool * self.density(now));
        if self.faults[2] < ENOUGH / 4.0 || holds <= 0.0 || small <= 0.0 {
            return KEEPS[1];
        }
        // As if those that came from the pool had been those that were away shortest.
        let mut left = self.faults[1] * self.pages_a_fault() / small;
        let (mut kept, mut longest) = (0.0, 0.0);
        for (age, pages) in self.returned() {
            let here = pages.min(left);
            left -= here;
            longest = if here > 0.0 { now.limit * limits_away(age) } else { longest };
            kept += here * now.limit * limits_away(age);
            kept += (pages - here) * longest;
        }
        kept = small * (kept + self.gone() * longest) / self.evicted.max(1.0);
        (kept / holds).clamp(KEEPS[0], KEEPS[1])
    }

    /// Pages that left and did not come back.
    fn gone(&self) -> f64 {
        (self.evicted - self.loaded - self.faults[0]).max(0.0)
    }

    /// Which part of the pages that leave is for a pool.
    pub fn small(&self) -> f64 {
        if self.offered >= ENOUGH {
            ((self.offered - self.unworthy) / self.offered).clamp(0.0, 1.0)
        } else if self.sampled >= SAMPLES {
            self.sampled_small / self.sampled
        } else {
            1.0
        }
    }

    /// Pages that come in with a fault.
    fn pages_a_fault(&self) -> f64 {
        (self.loaded / self.refaults().max(1.0)).max(1.0)
    }

    /// Pages that came back, by age.
    fn returned(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        let each = self.pages_a_fault();
        let both = self.pool_ages.iter().zip(&self.device_ages).map(move |(pool, device)| (pool + device) * each);
        both.enumerate().filter(|(_, pages)| *pages > 0.0)
    }

    /// Microseconds that the program would have waited, and a part of those that lowtide would have worked, if the pool had had
    /// `pool` pages.
    pub fn time_with(&self, pool: f64, now: &Places) -> f64 {
        let ordered = ((self.pages_a_fault() - IN_NO_ORDER) / STREAM).clamp(0.0, 1.0);
        let of = |part: f64, model: fn(&Misses, f64, &Places) -> Missed| {
            if part > 0.0 { part * self.time(&model(self, pool, now), pool) } else { 0.0 }
        };
        of(ordered, Misses::in_order) + of(1.0 - ordered, Misses::in_no_order)
    }

    fn time(&self, missed: &Missed, pool: f64) -> f64 {
        let [staged, from_pool, from_device] = self.costs();
        let (each, small) = (self.pages_a_fault(), self.small());
        let waited = missed.staged * staged + (missed.pool * from_pool + missed.device * from_device) / each;
        let in_pool = if pool > 0.0 { small } else { 0.0 };
        let stored = missed.pool + missed.device + missed.gone;
        let through_pool = in_pool * (stored - missed.pool).max(0.0);
        let tried = if pool > 0.0 { stored * COMPRESS } else { 0.0 };
        let written = (stored - missed.pool) * WRITE + through_pool * WRITE_BACK;
        waited + BACKGROUND * ((stored + missed.staged) * DETACH + tried + written)
    }

    fn in_no_order(&self, pool: f64, now: &Places) -> Missed {
        let evicted = self.evicted.max(1.0);
        // In the time in which all this was seen.
        let stays = now.resident.max(1.0) / evicted;
        let gone = self.gone();
        let soon = (now.limit / 256.0 / evicted, self.faults[0]);
        let away = |age: usize| now.limit * limits_away(age) / evicted;
        let resident = (now.resident + now.pool - pool).max(1.0);
        // Pages of a kind, of which `pages` came back after `away` each.
        let all = |(away, pages): (f64, f64)| pages * (stays + away);
        let fits = |stays: f64| {
            let there = |kind: (f64, f64)| all(kind) * stays / (stays + kind.0);
            self.returned().map(|(age, pages)| there((away(age), pages))).sum::<f64>() + there(soon) + gone * stays
        };
        // What is known of is all that counts: rather its change than its size.
        let fit = fits(stays) * resident / now.resident.max(1.0);
        let stays = most_with(stays * 16.0, |stays| fits(stays) <= fit);
        let came = |kind: (f64, f64)| all(kind) / (stays + kind.0);
        let mut missed = Missed { staged: came(soon), gone, ..Missed::default() };
        let (small, holds) = (self.small(), pool * self.density(now) * self.keeps(now));
        // How long a page stays in the pool: for ever, if all fit.
        let out = now.resident + now.in_pool + now.on_device - resident;
        let in_pool = if small * out <= holds {
            f64::INFINITY
        } else {
            let takes = |stays: f64| {
                let of = |(age, pages)| came((away(age), pages)) * away(age).min(stays);
                small * (self.returned().map(of).sum::<f64>() + gone * stays)
            };
            most_with(LONGEST, |stays| takes(stays) <= holds)
        };
        for (age, pages) in self.returned() {
            let pages = came((away(age), pages));
            // Those of an age are spread over an epoch.
            let epoch = now.limit / EPOCHS_A_LIMIT as f64 / evicted;
            let soon = if pool > 0.0 { ((in_pool - away(age)) / epoch + 0.5).clamp(0.0, 1.0) } else { 0.0 };
            missed.pool += pages * small * soon;
            missed.device += pages * (1.0 - small * soon);
        }
        missed
    }

    fn in_order(&self, pool: f64, now: &Places) -> Missed {
        let small = self.small();
        let gone = self.gone();
        let mut missed = Missed { staged: self.faults[0], gone, ..Missed::default() };
        let in_pool = if small > 0.0 { pool * self.density(now) * self.keeps(now) / small } else { 0.0 };
        let more = now.pool - pool;
        for (age, pages) in self.returned() {
            // Those that are away from when it left until it comes back are what does not fit.
            let out = now.limit * limits_away(age);
            if out <= more {
                continue;
            }
            let shallow = if out - more <= in_pool { small } else { 0.0 };
            missed.pool += pages * shallow;
            missed.device += pages * (1.0 - shallow);
        }
        missed
    }
}

/// Pages.
#[derive(Debug, Clone, Copy, Default)]
struct Missed {
    staged: f64,
    pool: f64,
    device: f64,
    /// Those that left and did not come back.
    gone: f64,
}

/// The times in which all was seen that a page may stay in the pool.
const LONGEST: f64 = 64.0;

/// The largest number up to `most` for which `holds`, which holds for small ones: near enough.
fn most_with(most: f64, holds: impl Fn(f64) -> bool) -> f64 {
    let (mut small, mut large) = (0.0, most);
    for _ in 0..16 {
        let between = (small + large) / 2.0;
        if holds(between) { small = between } else { large = between }
    }
    small
}
