//! Do clean copies of resident pages keep folios from getting runs of slots?
//!
//! Published (the change that scans one fragmented cluster, 2025): on a device whose swap cache is
//! freed late, its pinned slots raised the fallbacks of 64 KiB allocations from 138,945 to 259,979.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};

use fastrand::Rng;
use lowtide_core::slot::{Area, NoCache, Policy, SwapCache};

use crate::experiment::{Experiment, Outcome, Scale};
use crate::report::{Finding, Table, Target};
use crate::slots::area;

pub const EXPERIMENT: Experiment = Experiment {
    name: "slots-copies",
    question: "do clean copies of pages in memory keep folios from getting runs of slots?",
    run,
};

/// Share of the area with pages that are out.
const OUT: f64 = 0.6;
/// Share of the area with clean copies, if freed late.
const COPIES: f64 = 0.3;
const FOLIO: u64 = 16;
const ORDER: u32 = FOLIO.ilog2();

#[derive(Clone, Copy, PartialEq)]
enum Freed {
    AtOnce,
    /// A clean copy for a while, which the allocator can't take back.
    Late,
    /// A clean copy for a while, unless the allocator takes it back.
    LateOrTaken,
}

const VARIANTS: [(Freed, &str); 3] =
    [(Freed::AtOnce, "at once"), (Freed::Late, "late"), (Freed::LateOrTaken, "late, or taken back")];

#[derive(Default)]
struct Copies(RefCell<BTreeSet<u64>>);

impl SwapCache for Copies {
    fn give_up(&self, _area: &Area, slot: u64) -> bool {
        self.0.borrow_mut().remove(&slot)
    }
}

#[derive(Default)]
struct Counts {
    folios: u64,
    fell_back: u64,
    /// Of these, those despite a run of free slots and reclaimable copies.
    in_vain: u64,
    /// Pages without any slot.
    refused: u64,
    taken_back: u64,
}

struct Pages<'a> {
    area: &'a Area,
    freed: Freed,
    rng: Rng,
    /// Runs of slots whose pages are out.
    out: Vec<(u64, u64)>,
    pages_out: u64,
    /// 1 for slots whose pages are out.
    used: Vec<u8>,
    copies: Copies,
    /// Copies by age; some may have been taken back.
    oldest: VecDeque<u64>,
    counts: Counts,
}

fn run(scale: &Scale) -> Result<Outcome, String> {
    let slots = scale.pick(32u64 << 10, 128 << 10);
    let mut table = Table::new(
        format!("folios of 64 KiB, {:.0} % of the slots in use, {:.0} % clean copies", OUT * 100.0, COPIES * 100.0),
        &[
            "copies are freed",
            "policy",
            "folios",
            "fell back",
            "share",
            "though there was a run",
            "pages refused",
            "taken back",
        ],
    );
    let mut findings = Vec::new();
    for (freed, name) in VARIANTS {
        let mut rates = Vec::new();
        for policy in Policy::ALL {
            let area = area(slots, policy)?;
            let c = Pages::new(&area, slots, freed).run(scale.pick(4, 10) * slots / FOLIO);
            area.validate().map_err(|e| format!("the area of policy {} is not sound: {e:?}", policy.name()))?;
            let share = c.fell_back as f64 / c.folios as f64;
            let counts = [c.in_vain, c.refused, c.taken_back].map(|n| n.to_string());
            let first = [name, policy.name()].map(str::to_owned);
            let folios = [c.folios.to_string(), c.fell_back.to_string(), format!("{:.2} %", share * 100.0)];
            table.row(first.into_iter().chain(folios).chain(counts));
            rates.push(share);
            if policy == Policy::Exact {
                let finding = Finding::new(
                    format!("exact, copies freed {name}: fallbacks though there was a run"),
                    format!("{} of {}", c.in_vain, c.folios),
                    c.in_vain as f64,
                );
                findings.push(finding.target(Target::Exactly(0.0)));
            }
        }
        if freed == Freed::Late {
            let of = |policy| Policy::ALL.iter().zip(&rates).find(|(p, _)| **p == policy).map_or(0.0, |(_, rate)| *rate);
            let (one, all) = (of(Policy::ScanOne), of(Policy::ScanAll));
            let finding = Finding::new(
                "fallbacks, scan-one over scan-all, copies freed late",
                format!("{:.2} % / {:.2} %", one * 100.0, all * 100.0),
                one / all,
            );
            let finding = finding.published("138,945 -> 259,979, 1.87 times").reproduced_if(Target::AtLeast(1.5));
            findings.push(finding.because("copies pin all clusters alike here, so that searching more of them finds no more"));
        }
    }
    Ok(Outcome { tables: vec![table], findings, charts: Vec::new() })
}

impl<'a> Pages<'a> {
    fn new(area: &'a Area, slots: u64, freed: Freed) -> Pages<'a> {
        Pages {
            area,
            freed,
            rng: Rng::with_seed(1),
            out: Vec::new(),
            pages_out: 0,
            used: vec![0; slots as usize],
            copies: Copies::default(),
            oldest: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    /// Fills the area, and then loads and stores this many folios.
    fn run(mut self, rounds: u64) -> Counts {
        let most = (self.used.len() as f64 * OUT) as u64;
        while self.pages_out < most {
            self.store();
        }
        self.counts = Counts::default();
        for _ in 0..rounds {
            while self.pages_out + FOLIO > most {
                self.load();
            }
            self.store();
        }
        self.counts
    }

    fn alloc(&mut self, order: u32) -> Option<u64> {
        let before = self.copies.0.borrow().len();
        let slot = match self.freed {
            Freed::LateOrTaken => self.area.alloc_reclaiming(order, &self.copies),
            _ => self.area.alloc_reclaiming(order, &NoCache),
        }?;
        self.counts.taken_back += (before - self.copies.0.borrow().len()) as u64;
        let n = 1 << order;
        self.used[slot as usize..(slot + n) as usize].fill(1);
        self.pages_out += n;
        self.out.push((slot, n));
        Some(slot)
    }

    /// Stores a folio, or its single pages without a run.
    fn store(&mut self) {
        self.counts.folios += 1;
        if self.alloc(ORDER).is_some() {
            return;
        }
        self.counts.fell_back += 1;
        self.counts.in_vain += u64::from(self.has_room());
        for _ in 0..FOLIO {
            self.counts.refused += u64::from(self.alloc(0).is_none());
        }
    }

    /// Whether a folio has a run, reclaimable copies included.
    fn has_room(&self) -> bool {
        let pinned = self.copies.0.borrow();
        let pinned = |first: u64| self.freed == Freed::Late && pinned.range(first..first + FOLIO).next().is_some();
        let runs = self.used.chunks(FOLIO as usize).enumerate().skip(1);
        runs.into_iter().any(|(i, run)| run.iter().all(|used| *used == 0) && !pinned(i as u64 * FOLIO))
    }

    fn load(&mut self) {
        let (first, n) = self.out.swap_remove(self.rng.usize(..self.out.len()));
        let some = if self.rng.bool() { n } else { self.rng.u64(1..=n) };
        let at = first + self.rng.u64(0..=n - some);
        let rest = [(first, at - first), (at + some, first + n - at - some)];
        self.out.extend(rest.into_iter().filter(|run| run.1 > 0));
        self.pages_out -= some;
        self.used[at as usize..(at + some) as usize].fill(0);
        for slot in at..at + some {
            if self.freed == Freed::AtOnce {
                self.area.release(slot);
                continue;
            }
            self.area.mark_cached(slot, true);
            self.copies.0.borrow_mut().insert(slot);
            self.oldest.push_back(slot);
        }
        let most = (self.used.len() as f64 * COPIES) as usize;
        while self.copies.0.borrow().len() > most
            && let Some(slot) = self.oldest.pop_front()
        {
            // A slot taken back, reused and loaded again appears too old here: harmless.
            if self.copies.0.borrow_mut().remove(&slot) {
                self.area.release(slot);
            }
        }
    }
}
