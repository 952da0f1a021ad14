//! The library's regions: the cost of a touch, against the kernel's zram at the same total memory
//! and a mapped file.

use clap::ValueEnum;

use crate::experiment::{Experiment, Outcome, Scale};
use crate::race::{Course, Order, Race, SIDES, Swap, Touched};
use crate::report::{Finding, Table, Target};

pub const EXPERIMENT: Experiment = Experiment {
    name: "region",
    question: "a region that is larger than its RAM: what does a touch cost, against zram with the same memory and a mapped file?",
    run,
};

/// The limit in percent of the data.
const PERCENT: u64 = 70;
const ZRAM: usize = 0;
const THREAD: usize = 1;

fn run(scale: &Scale) -> Result<Outcome, String> {
    let disk = lowtide_config::place::auto_dir();
    let (rounds, progress) = (scale.race.rounds.unwrap_or(scale.pick(1, 3)), scale.progress.clone());
    let course =
        Course { percent: PERCENT, swap: Swap::Zram, plain: false, rounds, burners: 0, quick: scale.quick, disk, progress };
    let prefixed = |line: String| format!("region: {line}");
    let mut race = Race::new(course).map_err(prefixed)?;
    let pages = scale.pick(32 << 10, 96 << 10);
    let threads: &[usize] = scale.pick(&[1, 2], &[1, 2, 4]);
    let chosen = |order: &Order| scale.race.only.is_empty() || scale.race.only.contains(&name_of(*order));
    let orders: Vec<Order> = Order::value_variants().iter().copied().filter(chosen).collect();
    let all = race.regions(pages, scale.pick(100_000, 400_000), PERCENT, &orders, threads).map_err(prefixed)?;
    race.end().map_err(prefixed)?;
    Ok(Outcome { tables: vec![touches(&all, pages), peaks(&all)], findings: findings(&all), charts: Vec::new() })
}

fn name_of(order: Order) -> String {
    format!("{order:?}").to_lowercase()
}

fn name(touched: &Touched) -> String {
    format!("{}, {}", name_of(touched.order), touched.threads)
}

fn columns() -> Vec<&'static str> {
    ["order, threads"].into_iter().chain(SIDES.map(|(name, _)| name)).collect()
}

fn touches(all: &[Touched], pages: usize) -> Table {
    // UMap, a C++ library for such regions, would be another column; these three have other
    // packages of that name.
    let absent = "UMap is missing: it is in none of Debian, PyPI and crates.io";
    let title = format!("us for each touch, all threads together; {} MiB in {PERCENT} %. {absent}", pages >> 8);
    let mut table = Table::new(title, &columns());
    for touched in all {
        let cell = |us: &crate::measure::Sample| format!("{:.2} +-{:.0} %", us.median(), us.spread() * 100.0);
        table.row([name(touched)].into_iter().chain(touched.us.iter().map(cell)).collect::<Vec<_>>());
    }
    table
}

fn peaks(all: &[Touched]) -> Table {
    let mut table = Table::new("memory at its peak, % of the limit", &columns());
    for touched in all {
        let cell = |peak: &f64| format!("{:.1}", peak * 100.0);
        table.row([name(touched)].into_iter().chain(touched.peak.iter().map(cell)).collect::<Vec<_>>());
    }
    table
}

fn findings(all: &[Touched]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for touched in all {
        let ratio = touched.us[ZRAM].over(&touched.us[THREAD]);
        let told = format!("{:.2} us against {:.2} us", touched.us[THREAD].median(), touched.us[ZRAM].median());
        let what = format!("{}: zram / in-thread", name(touched));
        let finding = Finding::new(what, told, ratio.median()).spread(ratio.spread());
        let has_target = touched.order == Order::Random && touched.threads == 1;
        findings.push(if has_target { finding.target(Target::AtLeast(1.5)) } else { finding });
    }
    let random = |threads| all.iter().find(|touched| touched.order == Order::Random && touched.threads == threads);
    if let (Some(one), Some(two)) = (random(1), random(2)) {
        let ratio = one.us[THREAD].over(&two.us[THREAD]);
        let told = format!("{:.2} us against {:.2} us", two.us[THREAD].median(), one.us[THREAD].median());
        let finding = Finding::new("random, in-thread: two threads of one", told, ratio.median()).spread(ratio.spread());
        findings.push(finding.target(Target::AtLeast(1.7)));
    }
    let most = all.iter().map(|touched| touched.peak[THREAD]).fold(0.0, f64::max);
    findings.push(Finding::new("in-thread: highest peak of memory / limit", "", most).target(Target::AtMost(1.02)));
    findings
}
