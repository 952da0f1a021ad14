//! The slot allocator's worth in a whole run: a parallel build under memory pressure, before and
//! after.
//!
//! Published (the kernel's swap allocator, 2024, a build of the kernel under memory pressure with
//! 48 threads): system time -47.7 % by cluster locks; fallbacks of 64 KiB folios by the fragmented
//! clusters' search. Here each process has areas of its own: only one compiler's single thread and
//! lowtide's threads meet at its locks.

use crate::build::{Project, Ran, Runner, Variant};
use crate::experiment::{Experiment, Outcome, Scale};
use crate::measure::{Sample, in_turn};
use crate::report::{Finding, Table, Target};

pub const EXPERIMENT: Experiment =
    Experiment { name: "build", question: "a parallel build under memory pressure: what is a slot allocator worth?", run };

/// The first of each size of folio is the baseline.
const VARIANTS: [Variant; 9] = [
    Variant { name: "area-lock-4k", slots: "area-lock", folio: 0 },
    Variant { name: "exact-4k", slots: "exact", folio: 0 },
    Variant { name: "scan-one-4k", slots: "scan-one", folio: 0 },
    Variant { name: "scan-all-4k", slots: "scan-all", folio: 0 },
    Variant { name: "area-lock-64k", slots: "area-lock", folio: 4 },
    Variant { name: "exact-64k", slots: "exact", folio: 4 },
    Variant { name: "bucketed-64k", slots: "bucketed", folio: 4 },
    Variant { name: "scan-one-64k", slots: "scan-one", folio: 4 },
    Variant { name: "scan-all-64k", slots: "scan-all", folio: 4 },
];

pub fn names() -> impl Iterator<Item = &'static str> {
    VARIANTS.iter().map(|variant| variant.name)
}

#[derive(Default)]
struct Builds {
    user: Sample,
    system: Sample,
    real: Sample,
    out_mib: Sample,
    in_mib: Sample,
    waits: Sample,
    wait_ms: Sample,
    whole: Vec<u64>,
    split: Vec<u64>,
}

impl Builds {
    fn add(&mut self, built: &Ran) {
        self.user.add(built.user);
        self.system.add(built.system);
        self.real.add(built.real);
        self.out_mib.add(built.out_mib);
        self.in_mib.add(built.in_mib);
        if let Some((waits, seconds)) = built.waits {
            self.waits.add(waits as f64);
            self.wait_ms.add(seconds * 1e3);
        }
        for (sums, counts) in [(&mut self.whole, &built.whole), (&mut self.split, &built.split)] {
            sums.resize(counts.len(), 0);
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }
}

fn run(scale: &Scale) -> Result<Outcome, String> {
    let disk = lowtide_config::place::auto_dir();
    let prefixed = |line: String| format!("build: {line}");
    let (files, rows, limit, swap) = scale.pick((24, 4_000, 32 << 20, 64 << 20), (120, 6_000, 36 << 20, 80 << 20));
    let rounds = scale.race.rounds.unwrap_or(scale.pick(1, 5));
    let only = &scale.race.only;
    let wanted = |variant: &&Variant| only.is_empty() || only.iter().any(|name| name == variant.name);
    let variants: Vec<Variant> = VARIANTS.iter().filter(wanted).copied().collect();
    let project = Project::new(&disk, files, rows).map_err(prefixed)?;
    let runner = Runner::new(project.directory(), limit, swap).map_err(prefixed)?;
    scale.progress.more(rounds * variants.len());
    let mut all: Vec<Builds> = variants.iter().map(|_| Builds::default()).collect();
    in_turn(&variants, rounds, |i, variant| {
        all[i].add(&runner.build(variant)?);
        scale.progress.done();
        Ok(())
    })
    .map_err(prefixed)?;
    let title = format!(
        "{} C files, make -j4 in {} MiB, no pool, {} MiB of swap files, one for each process; {rounds} rounds",
        files + 1,
        limit >> 20,
        swap >> 20
    );
    Ok(Outcome {
        tables: vec![times(&title, &variants, &all), folios(&variants, &all)],
        findings: findings(&variants, &all),
        charts: vec![],
    })
}

fn times(title: &str, variants: &[Variant], all: &[Builds]) -> Table {
    let columns = ["medians", "user s", "system s", "real s", "MiB out", "MiB in", "lock waits", "waited ms"];
    let mut table = Table::new(title, &columns);
    for (variant, builds) in variants.iter().zip(all) {
        let cell = |sample: &Sample, decimals: usize| match sample.median() {
            median if median.is_nan() => "-".to_owned(),
            median if sample.spread().is_nan() => format!("{median:.decimals$}"),
            median => format!("{median:.decimals$} +-{:.0} %", sample.spread() * 100.0),
        };
        let counts = [(&builds.user, 2), (&builds.system, 2), (&builds.real, 2), (&builds.out_mib, 0), (&builds.in_mib, 0)];
        let counts = counts.into_iter().chain([(&builds.waits, 0), (&builds.wait_ms, 2)]);
        table.row([variant.name.to_owned()].into_iter().chain(counts.map(|(sample, decimals)| cell(sample, decimals))));
    }
    table
}

fn folios(variants: &[Variant], all: &[Builds]) -> Table {
    let columns = ["all rounds: whole / split", "order 0", "1", "2", "3", "4", "split"];
    let mut table =
        Table::new("runs of pages by what they got, and how many of each size were split for want of such a run", &columns);
    for (variant, builds) in variants.iter().zip(all) {
        let of = |counts: &[u64], order: usize| counts.get(order).copied().unwrap_or(0);
        let cell = |order| format!("{} / {}", of(&builds.whole, order), of(&builds.split, order));
        let (asked, split) = asked_and_split(builds);
        let share = format!("{:.3} %", split as f64 * 100.0 / asked.max(1) as f64);
        table.row([variant.name.to_owned()].into_iter().chain((0..5).map(cell)).chain([share]));
    }
    table
}

/// Requested folios of more than a page, and the split ones among them.
fn asked_and_split(builds: &Builds) -> (u64, u64) {
    let sum = |counts: &[u64]| counts.iter().skip(1).sum::<u64>();
    let split = sum(&builds.split);
    (sum(&builds.whole) + split, split)
}

/// No targets: an allocator's effect on a whole run depends on the number of CPUs.
fn findings(variants: &[Variant], all: &[Builds]) -> Vec<Finding> {
    let of = |slots: &str, folio: usize| {
        variants.iter().zip(all).find(|(variant, _)| variant.slots == slots && variant.folio == folio).map(|(_, builds)| builds)
    };
    let seconds = |what: &str, before: &Sample, after: &Sample| {
        let ratio = after.over(before);
        let told = format!("{:.2} s -> {:.2} s", before.median(), after.median());
        Finding::new(what, told, ratio.median()).spread(ratio.spread())
    };
    let split = |what: &str, before: &Builds, after: &Builds| {
        let [before, after] = [before, after].map(|builds| {
            let (asked, split) = asked_and_split(builds);
            split as f64 / asked.max(1) as f64
        });
        Finding::new(what, format!("{:.1} % -> {:.1} %", before * 100.0, after * 100.0), after / before)
    };
    const FEW: &str = "each process has areas of its own, so that few threads meet at a lock";
    let mut findings = Vec::new();
    for (folio, size) in [(0, "4 KiB"), (4, "64 KiB")] {
        if let (Some(before), Some(after)) = (of("area-lock", folio), of("exact", folio)) {
            let system = seconds(&format!("{size}: system time, exact of area lock"), &before.system, &after.system);
            let system = system.published("-47.7 %, 48 threads").reproduced_if(Target::AtMost(1.0 - 0.477)).because(FEW);
            findings.push(system);
            findings.push(seconds(&format!("{size}: real time, exact of area lock"), &before.real, &after.real));
        }
    }
    if let (Some(before), Some(after)) = (of("area-lock", 4), of("exact", 4)) {
        let finding = split("64 KiB: split, exact of area lock", before, after).published("19.9 % -> 7.8 %");
        let finding = finding.reproduced_if(Target::AtMost(7.8 / 19.9));
        findings.push(finding.because("the area lock's allocator knows orders here, and splits few folios"));
    }
    if let (Some(before), Some(after)) = (of("scan-all", 4), of("scan-one", 4)) {
        let system = seconds("64 KiB: system time, scan-one of scan-all", &before.system, &after.system);
        let system = system.published("-52 % to -72 %").reproduced_if(Target::AtMost(0.48)).because(FEW);
        let split = split("64 KiB: split, scan-one of scan-all", before, after).published("about 1, once 1.9");
        findings.extend([system, split.reproduced_if(Target::AtMost(1.9))]);
    }
    if let (Some(before), Some(after)) = (of("scan-all", 0), of("scan-one", 0)) {
        let real = seconds("4 KiB: real time, scan-one of scan-all", &before.real, &after.real);
        findings.push(real.published("4432 s -> 4430 s").reproduced_if(Target::AtMost(1.0)));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_folios_are_counted_once_for_each_that_was_asked_for() {
        let mut builds = Builds::default();
        for _ in 0..2 {
            builds.add(&Ran {
                whole: vec![7, 0, 0, 0, 10],
                split: vec![0, 0, 0, 0, 5],
                waits: Some((3, 0.5)),
                ..Ran::default()
            });
        }
        assert_eq!(asked_and_split(&builds), (30, 10));
        assert_eq!((builds.waits.median(), builds.wait_ms.median()), (3.0, 500.0));
    }
}
