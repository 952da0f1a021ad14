//! Advice in words: is the limit too small, where did the time go, is it the disk or the CPU.

use super::more_ram::{enough, gain};
use super::{Report, units};
use lowtide_wire::segment::FaultKind;

/// Share of the time below which waiting for pages is not mentioned.
const LITTLE: f64 = 0.03;
/// A device fault that takes longer waits for the device, not for the CPU.
const SLOW_DEVICE: f64 = 1e-3;

/// The most important first; never empty.
pub fn advice(report: &Report<'_>) -> Vec<String> {
    let (stats, observed) = (report.stats, &report.observed);
    let mut all = Vec::new();
    if stats.evictions.pages == 0 {
        let (peak, limit) = (units::bytes(stats.memory.ram_peak), units::bytes(stats.memory.ram_limit));
        all.push(format!(
            "The limit was never reached: the run had {peak} of {limit} at most, and no page left memory. A lower --ram may do."
        ));
        all.extend(warnings(report));
        return all;
    }
    let waited = |kind: FaultKind| observed.waited(kind) / observed.seconds.max(1e-9);
    let share: f64 = FaultKind::ALL.into_iter().map(waited).sum();
    let percent = |share: f64| units::percent(share, 1.0);
    let curve = observed.curve();
    if share < LITTLE {
        all.push(format!(
            "The limit is large enough: the program waited for pages {} of the time. What it had out, it hardly missed.",
            percent(share)
        ));
    } else {
        all.push(format!(
            "The program waited for pages {} of the {} that it ran.",
            percent(share),
            units::seconds(observed.seconds)
        ));
        match enough(observed, &curve) {
            Some(there) => all.push(format!(
                "The limit is too small for its working set: with --ram {} it would have run about {}.",
                units::about_bytes(there.limit),
                gain(observed, &there)
            )),
            None => all.push(
                "More RAM would bring little: most of that is first touches, or pages that are asked for only once.".to_owned(),
            ),
        }
        all.push(where_the_time_went(report, waited));
    }
    all.extend(data(report));
    all.extend(cpu(report));
    all.extend(warnings(report));
    all
}

fn where_the_time_went(report: &Report<'_>, waited: impl Fn(FaultKind) -> f64) -> String {
    let observed = &report.observed;
    let most = FaultKind::ALL.into_iter().max_by(|a, b| waited(*a).total_cmp(&waited(*b))).unwrap_or(FaultKind::Pool);
    let each = observed.service[most as usize] / observed.faults[most as usize].max(1.0);
    let (part, each_shown) = (units::percent(waited(most), 1.0), units::seconds(each));
    match most {
        FaultKind::Device if each > SLOW_DEVICE => format!(
            "It is the disk: {part} of the time went into faults from devices, {each_shown} each. A faster device \
            in --swap, or more --pool, would help as much as more RAM."
        ),
        FaultKind::Device => format!(
            "Most of the waiting is for devices ({part} of the time), but they are \
            quick: {each_shown} a fault. What counts is how many faults there are."
        ),
        FaultKind::Pool => {
            format!("It is the CPU, not the disk: {part} of the time went into faults on compressed pages, {each_shown} each.")
        }
        FaultKind::Staged => format!(
            "Most of the waiting ({part} of the time) is for pages that were taken back right after they had left: \
            the working set is a little larger than what fits."
        ),
        FaultKind::Zero | FaultKind::FirstTouch => format!(
            "Most of the waiting ({part} of the time) is for fresh memory, {each_shown} each time: more RAM changes that \
            only where no page has to leave for it."
        ),
    }
}

fn data(report: &Report<'_>) -> Option<String> {
    let pages = &report.stats.pages;
    let incompressible = pages.incompressible as f64 / (pages.stored.max(1) as f64);
    let has_device = !report.stats.areas.is_empty();
    match (incompressible > 0.5, has_device) {
        (true, true) => Some(
            "More than half of the pages do not compress: \
            they go straight to the device, and a pool can't help."
                .to_owned(),
        ),
        (true, false) => Some(
            "More than half of the pages do not compress, and there is no swap file: add --swap dir:DIR, \
        or the limit can't be held by compression alone."
                .to_owned(),
        ),
        _ => None,
    }
}

fn cpu(report: &Report<'_>) -> Option<String> {
    let (work, observed) = (report.stats.work.cpu_seconds, &report.observed);
    let cpus = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
    let used = (observed.program_cpu + work) / observed.seconds.max(1e-9);
    (work > 0.1 * observed.seconds && used > 0.85 * cpus).then(|| {
        format!(
            "All {cpus:.0} CPUs were busy, and lowtide's own threads had {} of CPU time: \
            they compete with the program. More RAM or a free CPU would help.",
            units::seconds(work)
        )
    })
}

fn warnings(report: &Report<'_>) -> impl Iterator<Item = String> {
    report.stats.warnings.iter().map(|warning| format!("Warning of the run: {warning}"))
}
