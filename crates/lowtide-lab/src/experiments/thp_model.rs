//! Do 64 KiB folios stay whole, again and again, in an area hardly larger than the memory? Models
//! the kernel's test of its swap allocator for large folios: 60 MiB of memory in folios of 64 KiB,
//! an area of 64 MiB, and 100 rounds of random drops and loads, beside a little memory in single
//! pages.
//!
//! Published (the kernel, 2024): 100 % fallbacks after a few rounds before its allocator knew
//! orders; 0 % is expected now.

use fastrand::Rng;
use lowtide_core::slot::Policy;

use crate::experiment::{Experiment, Outcome, Scale};
use crate::report::{Finding, Table, Target};
use crate::slots::{Baseline, Slots, area};
use crate::threads;

pub const EXPERIMENT: Experiment =
    Experiment { name: "thp-model", question: "do 64 KiB folios go out whole, time after time, into a small area?", run };

const MIB: usize = 256;
const AREA: u64 = 64 * MIB as u64;
const FOLIO: usize = 16;
const ORDER: u32 = FOLIO.ilog2();
const FOLIOS: usize = 60 * MIB / FOLIO;
/// Random picks of a folio to drop in each round; some repeat.
const DROPS: usize = 16 * MIB / FOLIO;
/// Pages of the memory that is never in folios, and random picks of one to drop in each round.
const SMALL: usize = MIB;
const SMALL_DROPS: usize = MIB / 4 * 3;
/// Random picks of a folio's page to load alone in each round: it leaves a hole in the folio's
/// slots and goes out alone.
const LOADS: usize = MIB / 4;
const ROUNDS: usize = 100;
const SEED: u64 = 1;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Load {
    Folios,
    Small,
    Holes,
}

impl Load {
    const ALL: [Load; 3] = [Load::Folios, Load::Small, Load::Holes];

    fn name(self) -> &'static str {
        match self {
            Load::Folios => "folios only",
            Load::Small => "and 1 MiB of single pages",
            Load::Holes => "and single pages loaded out of folios",
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Tally {
    /// Folios stored in one run.
    whole: u64,
    /// Folios stored in single slots, or not at all.
    fallbacks: u64,
    /// Of these, those for which no run existed.
    impossible: u64,
    bad_rounds: u64,
}

impl Tally {
    fn fallback_rate(&self) -> f64 {
        self.fallbacks as f64 / (self.whole + self.fallbacks) as f64
    }
}

/// The slot of each page, or `None` if it is in memory.
struct Memory<'a, S> {
    slots: &'a S,
    /// By folio: its pages, and whether it is resident as a folio, never swapped out since its last
    /// drop.
    folios: Vec<([Option<u64>; FOLIO], bool)>,
    small: Vec<Option<u64>>,
    tally: Tally,
}

fn simulate(slots: &impl Slots, load: Load) -> Tally {
    let small = if load == Load::Folios { 0 } else { SMALL };
    let mut memory =
        Memory { slots, folios: vec![([None; FOLIO], true); FOLIOS], small: vec![None; small], tally: Tally::default() };
    let mut rng = Rng::with_seed(SEED);
    for _ in 0..ROUNDS {
        let before = memory.tally.fallbacks;
        memory.all_out();
        memory.tally.bad_rounds += u64::from(memory.tally.fallbacks > before);
        for _ in 0..DROPS {
            memory.drop_folio(rng.usize(..FOLIOS));
        }
        for _ in 0..if small > 0 { SMALL_DROPS } else { 0 } {
            memory.load_small(rng.usize(..small));
        }
        for _ in 0..if load == Load::Holes { LOADS } else { 0 } {
            memory.load_from_folio(rng.usize(..FOLIOS), rng.usize(..FOLIO));
        }
    }
    memory.tally
}

impl<S: Slots> Memory<'_, S> {
    /// Evicts everything in the order of addresses: folios whole if possible, all else page by
    /// page.
    fn all_out(&mut self) {
        let small_after_each = self.small.len().div_ceil(FOLIOS);
        let mut small = self.small.chunks_mut(small_after_each.max(1));
        for (pages, fresh) in &mut self.folios {
            if std::mem::take(fresh) {
                self.tally.impossible += u64::from(!self.slots.has_free_run(ORDER));
                match self.slots.alloc(ORDER) {
                    Some(first) => {
                        *pages = std::array::from_fn(|i| Some(first + i as u64));
                        self.tally.whole += 1;
                    }
                    None => self.tally.fallbacks += 1,
                }
            }
            let singles = pages.iter_mut().chain(small.next().into_iter().flatten());
            singles.filter(|page| page.is_none()).for_each(|page| *page = self.slots.alloc(0));
        }
    }

    /// Drops a folio and reuses its memory for a new one.
    fn drop_folio(&mut self, i: usize) {
        let (pages, fresh) = &mut self.folios[i];
        pages.iter_mut().filter_map(Option::take).for_each(|slot| self.slots.free(slot, 1));
        *fresh = true;
    }

    /// Loads one page of a folio for a write: its slot is free, and it will go out alone.
    fn load_from_folio(&mut self, i: usize, page: usize) {
        if let Some(slot) = self.folios[i].0[page].take() {
            self.slots.free(slot, 1);
        }
    }

    fn load_small(&mut self, i: usize) {
        if let Some(slot) = self.small[i].take() {
            self.slots.free(slot, 1);
        }
    }
}

fn run(_: &Scale) -> Result<Outcome, String> {
    let mut table = Table::new(
        format!("{ROUNDS} rounds: 60 MiB of 64 KiB folios, an area of 64 MiB"),
        &["load", "allocator", "whole", "fell back", "no run existed", "rounds with fallbacks"],
    );
    let mut findings = Vec::new();
    for load in Load::ALL {
        let mut show = |name: &str, tally: Tally| {
            table.row([
                load.name().to_owned(),
                name.to_owned(),
                tally.whole.to_string(),
                format!("{:.2} %", tally.fallback_rate() * 100.0),
                tally.impossible.to_string(),
                tally.bad_rounds.to_string(),
            ]);
        };
        let before = threads::on_one_cpu(|| simulate(&Baseline::without_orders(AREA), load))?;
        show("clusters without orders", before);
        show("one area lock", threads::on_one_cpu(|| simulate(&Baseline::new(AREA), load))?);
        for policy in Policy::ALL {
            let area = area(AREA, policy)?;
            let tally = threads::on_one_cpu(|| simulate(&area, load))?;
            show(policy.name(), tally);
            if policy == Policy::Exact {
                findings.push(
                    Finding::new(
                        format!("64 KiB folios split in a small area: {}", load.name()),
                        format!("{:.0} % -> {:.0} %", before.fallback_rate() * 100.0, tally.fallback_rate() * 100.0),
                        tally.fallback_rate(),
                    )
                    .published("100 % -> 0 %")
                    .target(Target::Exactly(0.0)),
                );
            }
        }
    }
    Ok(Outcome { tables: vec![table], findings, charts: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_tells_a_bad_allocator() {
        for load in Load::ALL {
            let tally = simulate(&Baseline::without_orders(AREA), load);
            assert!(tally.fallback_rate() > 0.5 && tally.bad_rounds > 90, "{load:?} {tally:?}");
        }
    }

    #[test]
    fn folios_go_out_whole_round_after_round() {
        for load in Load::ALL {
            let area = area(AREA, Policy::Exact).unwrap();
            let tally = simulate(&area, load);
            assert_eq!(tally.fallbacks, 0, "{load:?}");
            // A round drops about 225 folios: 256 picks of 960, with repetitions.
            assert!(tally.whole > FOLIOS as u64 + 90 * 200, "{tally:?}");
            area.validate().unwrap();
        }
    }
}
