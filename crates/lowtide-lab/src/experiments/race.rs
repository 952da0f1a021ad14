//! lowtide against the kernel's own swap, with the same memory in all.

use crate::experiment::{Experiment, Outcome, Scale};
use crate::measure::Sample;
use crate::plot::{Chart, Series};
use crate::race::{self, Course, Match, Race, SHARES, Shown, Swap};
use crate::report::{Finding, Table, Target};

pub const EXPERIMENT: Experiment = Experiment {
    name: "race",
    question: "programs in less memory than they take: how fast are they under lowtide and under the kernel's swap, with the same memory in all?",
    run,
};

const MIB: u64 = 1 << 20;
/// The geometric mean of all loads.
const TOGETHER: f64 = 1.5;
/// Most excess of memory over the limit, and most deficit of the kernel's.
const MORE: f64 = 1.02;
const LESS: f64 = 0.97;
/// Most excess of the sampled memory over lowtide's own report.
const UNSAID: f64 = 1.01;

fn run(scale: &Scale) -> Result<Outcome, String> {
    let wishes = &scale.race;
    let swap = wishes.swap.unwrap_or(Swap::Zram);
    let course = Course {
        swap,
        percent: wishes.percent.unwrap_or(match swap {
            Swap::Zram => 70,
            Swap::Zswap => 40,
            Swap::File => 33,
        }),
        rounds: wishes.rounds.unwrap_or(scale.pick(1, 3)),
        plain: wishes.plain,
        burners: wishes.burners.unwrap_or(0),
        quick: scale.quick,
        progress: scale.progress.clone(),
        disk: lowtide_config::place::auto_dir(),
    };
    let beside = if course.burners > 0 { format!(", beside {} programs that burn CPU", course.burners) } else { String::new() };
    let options = if course.plain { "; lowtide with its default options" } else { "" };
    let title = format!("in {} % of what each takes natively{beside}{options}", course.percent);
    let loads = race::chosen(&wishes.only, swap);
    let prefixed = |line: String| format!("race: {line}");
    race::missing(&loads).map_or(Ok(()), Err).map_err(prefixed)?;
    let mut race = Race::new(course).map_err(prefixed)?;
    scale.progress.more(loads.len());
    let mut matches = Vec::new();
    for load in &loads {
        matches.push((load.name, load.target, race.run(load).map_err(prefixed)?));
        scale.progress.done();
    }
    race.end().map_err(prefixed)?;
    let crowded = wishes.burners.is_some();
    let whole = wishes.only.is_empty() && wishes.percent.is_none() && !wishes.plain && !crowded && swap == Swap::Zram;
    Ok(Outcome {
        tables: vec![times(&title, &matches), why(&matches), tails(&matches)],
        findings: findings(&matches, whole, target_of(swap, crowded)),
        charts: charts(&matches),
    })
}

type Raced = (&'static str, Option<f64>, Match);

/// The kernel's time by lowtide's in each round; empty if the kernel killed the program in any.
fn ratio(m: &Match) -> Sample {
    if m.kernel.killed > 0 {
        return Sample::default();
    }
    m.kernel.seconds.over(&m.lowtide.seconds)
}

fn times(title: &str, matches: &[Raced]) -> Table {
    let columns = ["", "kernel swaps to", "limit MiB", "native s", "kernel s", "lowtide s", "kernel / lowtide", "spread %"];
    let mut table = Table::new(title, &columns);
    for (name, _, m) in matches {
        let swap = match m.swap {
            Swap::Zram => "zram",
            Swap::File => "file",
            Swap::Zswap => "zswap and file",
        };
        let seconds = |shown: &Shown| {
            let more = if shown.too_long > 0 { "> " } else { "" };
            let killed = if shown.killed > 0 { format!(", killed {} times", shown.killed) } else { String::new() };
            format!("{more}{:.2} +-{:.0} %{killed}", shown.seconds.median(), shown.seconds.spread() * 100.0)
        };
        let ratio = ratio(m);
        table.row([
            (*name).to_owned(),
            swap.to_owned(),
            format!("{}", m.limit / MIB),
            seconds(&m.native),
            seconds(&m.kernel),
            seconds(&m.lowtide),
            cell(ratio.median(), 2),
            cell(ratio.spread() * 100.0, 1),
        ]);
    }
    table
}

/// With this many decimals; an aborted run has no value.
fn cell(value: f64, decimals: usize) -> String {
    if value.is_nan() { "-".to_owned() } else { format!("{value:.decimals$}") }
}

fn why(matches: &[Raced]) -> Table {
    let columns = [
        "",
        "native peak MiB",
        "kernel: group MiB",
        "peak %",
        "major faults",
        "pages in",
        "lowtide: peak %",
        "seen of what it says %",
        "faults",
        "of them staged",
        "pages in",
    ];
    let title = "memory (highest sample, % of the limit: the kernel's group and its pool, the median of the rounds; the program and lowtide, the worst) and faults";
    let mut table = Table::new(title, &columns);
    for (name, _, m) in matches {
        let percent = |peak: f64| format!("{:.1}", peak / m.limit as f64 * 100.0);
        let count = |sample: &Sample| cell(sample.median(), 0);
        table.row([
            (*name).to_owned(),
            format!("{}", m.native.peak / MIB),
            format!("{}", m.group / MIB),
            percent(m.kernel.peaks.median()),
            count(&m.kernel.faults),
            count(&m.kernel.pages_in),
            percent(m.lowtide.peak as f64),
            format!("{:.1}", m.lowtide.unsaid * 100.0),
            count(&m.lowtide.faults),
            count(&m.lowtide.staged),
            count(&m.lowtide.pages_in),
        ]);
    }
    table
}

fn tails(matches: &[Raced]) -> Table {
    let columns: Vec<String> =
        ["kernel", "lowtide"].iter().flat_map(|side| SHARES.map(|(share, _)| format!("{side}: {share}"))).collect();
    let columns: Vec<&str> = [""].into_iter().chain(columns.iter().map(String::as_str)).collect();
    let mut table = Table::new("a fault (of redis and saves: 64 requests), us", &columns);
    for (name, _, m) in matches.iter().filter(|(.., m)| !m.kernel.tails[0].median().is_nan()) {
        let cells = [&m.kernel, &m.lowtide].into_iter().flat_map(|side| &side.tails).map(|us| cell(us.median(), 1));
        table.row([(*name).to_owned()].into_iter().chain(cells));
    }
    table
}

/// The load's effective target. Beside others both racers mostly wait for CPUs. Behind zswap,
/// programs have far too little memory, and there is no target.
fn target_of(swap: Swap, crowded: bool) -> fn(f64) -> Option<f64> {
    match swap {
        Swap::Zswap => |_| None,
        _ if crowded => |_| Some(1.0),
        _ => Some,
    }
}

fn findings(matches: &[Raced], whole: bool, target_of: fn(f64) -> Option<f64>) -> Vec<Finding> {
    let mut findings = Vec::new();
    // A killed program has no time to compare.
    let (killed, compared): (Vec<&Raced>, Vec<_>) = matches.iter().partition(|(.., m)| m.kernel.killed > 0);
    for (name, _, m) in killed {
        let told = format!("the kernel killed it in {} rounds, with swap free", m.kernel.killed);
        findings.push(Finding::new(format!("{name}, seconds under lowtide"), told, m.lowtide.seconds.median()));
    }
    for (name, target, m) in &compared {
        let ratio = ratio(m);
        let told = format!("{:.2} s against {:.2} s", m.lowtide.seconds.median(), m.kernel.seconds.median());
        let finding = Finding::new(format!("{name}, kernel / lowtide"), told, ratio.median()).spread(ratio.spread());
        let least = target.and_then(target_of);
        findings.push(least.map_or(finding.clone(), |least| finding.target(Target::AtLeast(least))));
    }
    let logs: f64 = compared.iter().map(|(.., m)| ratio(m).median().ln()).sum();
    let loads = compared.len();
    let mean = Finding::new("geometric mean", format!("{loads} loads"), (logs / loads as f64).exp());
    findings.push(if whole { mean.target(Target::AtLeast(TOGETHER)) } else { mean });
    let worst = |what: &str, target: Target, of: &dyn Fn(&Match) -> f64| {
        let shares = matches.iter().map(|(name, _, m)| (*name, of(m)));
        let by = |a: &(&str, f64), b: &(&str, f64)| a.1.total_cmp(&b.1);
        let found = if matches!(target, Target::AtLeast(_)) { shares.min_by(by) } else { shares.max_by(by) };
        let (name, share) = found.unwrap_or(("no load", f64::NAN));
        Finding::new(what, name, share).target(target)
    };
    let kernel = |m: &Match| m.kernel.peaks.median() / m.limit as f64;
    findings.extend([
        worst("kernel: highest peak of memory / limit", Target::AtMost(MORE), &kernel),
        worst("kernel: lowest peak of memory / limit", Target::AtLeast(LESS), &kernel),
        worst("lowtide: highest peak of memory / limit", Target::AtMost(MORE), &|m| m.lowtide.peak as f64 / m.limit as f64),
        worst("lowtide: peak seen from outside / what it says", Target::AtMost(UNSAID), &|m| m.lowtide.unsaid),
    ]);
    findings
}

fn charts(matches: &[Raced]) -> Vec<Chart> {
    let series = |name: &str, of: fn(&Match) -> &Shown| {
        let points = matches.iter().enumerate().map(|(i, (.., m))| ((i + 1) as f64, of(m).seconds.median()));
        Series { name: name.to_owned(), points: points.collect() }
    };
    let title = "seconds".to_owned();
    let series = vec![series("native", |m| &m.native), series("kernel", |m| &m.kernel), series("lowtide", |m| &m.lowtide)];
    vec![Chart { title, x: "load, by its row in the table", y: "seconds", series }]
}
