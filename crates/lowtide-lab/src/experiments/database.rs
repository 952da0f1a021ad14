//! A slot allocator's worth to one process of many threads: MariaDB with 16 workers, before and
//! after.
//!
//! Published (the kernel's swap allocator, 2024): more throughput for a database with 16 workers by
//! cluster locks. The race compares the same job with zram (`race --only mariadb`).

use std::ffi::OsString;

use crate::build::{Ran, Runner, Variant};
use crate::experiment::{Experiment, Outcome, Scale};
use crate::measure::{Sample, in_turn};
use crate::race::{MARIADB, MARIADB_NEEDS};
use crate::report::{Finding, Table, Target};

pub const EXPERIMENT: Experiment =
    Experiment { name: "database", question: "MariaDB with 16 workers: what is a slot allocator worth?", run };

const VARIANTS: [Variant; 2] =
    [Variant { name: "area lock", slots: "area-lock", folio: 0 }, Variant { name: "exact", slots: "exact", folio: 0 }];

#[derive(Default)]
struct Runs {
    per_second: Sample,
    system: Sample,
    out_mib: Sample,
    waits: Sample,
    wait_ms: Sample,
}

impl Runs {
    fn add(&mut self, ran: &Ran, transactions: f64) {
        self.per_second.add(transactions / ran.real);
        self.system.add(ran.system);
        self.out_mib.add(ran.out_mib);
        let (waits, seconds) = ran.waits.unwrap_or_default();
        self.waits.add(waits as f64);
        self.wait_ms.add(seconds * 1e3);
    }
}

fn run(scale: &Scale) -> Result<Outcome, String> {
    let prefixed = |line: String| format!("database: {line}");
    let missing: Vec<String> = MARIADB_NEEDS.iter().filter_map(|need| need.missing()).collect();
    if !missing.is_empty() {
        return Err(prefixed(format!("needs {} (`make race` installs it)", missing.join(" and "))));
    }
    // Some half of what it takes natively.
    let (rows, transactions, limit, rounds) = scale.pick((400_000, 2_000, 128 << 20, 1), (800_000, 4_000, 192 << 20, 3));
    let directory = tempfile::Builder::new()
        .prefix("lowtide-lab-database-")
        .tempdir_in(lowtide_config::place::auto_dir())
        .map_err(|e| prefixed(e.to_string()))?;
    let script = directory.path().join("mariadb.sh");
    std::fs::write(&script, MARIADB).map_err(|e| prefixed(e.to_string()))?;
    let runner = Runner::new(directory.path(), limit, 2 << 30).map_err(prefixed)?;
    let job: [OsString; 5] =
        ["sh".into(), script.into(), directory.path().into(), rows.to_string().into(), transactions.to_string().into()];
    scale.progress.more(rounds * VARIANTS.len());
    let mut all = VARIANTS.map(|_| Runs::default());
    in_turn(&VARIANTS, rounds, |i, variant| {
        all[i].add(&runner.run(variant, &job)?, f64::from(transactions));
        scale.progress.done();
        Ok(())
    })
    .map_err(prefixed)?;
    let title =
        format!("{rows} rows, {transactions} transactions of 16 workers in {} MiB, no pool; {rounds} rounds", limit >> 20);
    let mut table = Table::new(&title, &["medians", "transactions/s", "system s", "MiB out", "lock waits", "waited ms"]);
    for (variant, runs) in VARIANTS.iter().zip(&all) {
        let cells = [(&runs.per_second, 1), (&runs.system, 1), (&runs.out_mib, 0), (&runs.waits, 0), (&runs.wait_ms, 1)];
        let cells = cells.map(|(sample, decimals): (&Sample, usize)| format!("{:.decimals$}", sample.median()));
        table.row([variant.name.to_owned()].into_iter().chain(cells));
    }
    let [before, after] = &all;
    let ratio = after.per_second.over(&before.per_second);
    let told = format!("{:.1} -> {:.1} transactions/s", before.per_second.median(), after.per_second.median());
    let finding =
        Finding::new("database, 16 workers: throughput by cluster locks", told, ratio.median()).spread(ratio.spread());
    let finding = finding.published("higher").reproduced_if(Target::AtLeast(1.0)).because("2 CPUs: few threads meet at a lock");
    Ok(Outcome { tables: vec![table], findings: vec![finding], charts: vec![] })
}
