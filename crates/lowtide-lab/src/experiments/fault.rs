//! The cost of a page fault from the access to the thread's continuation, with several threads, and
//! beside programs that burn all CPUs.

use std::time::Duration;

use lowtide_core::vm::PAGE_SIZE;

use crate::experiment::{Experiment, Outcome, Scale};
use crate::fault::counts::Counts;
use crate::fault::install::{self, How};
use crate::fault::plain::{self, Parts, Way};
use crate::fault::program::Told;
use crate::fault::under_lowtide::{self, Service, Size};
use crate::measure::{Sample, in_turn};
use crate::plot::{Chart, Series};
use crate::report::{Finding, Table, Target};
use crate::threads;

pub const EXPERIMENT: Experiment = Experiment {
    name: "fault",
    question: "what does a page fault cost, where does the time go, and how slow is the slowest beside programs that burn all CPUs?",
    run,
};

const THREADS: [usize; 3] = [1, 2, 4];
/// The limit in percent of the data: about every other touch is of a page that is out.
const PERCENT: u64 = 60;
/// Target of the slowest fault beside programs that burn all CPUs, in milliseconds.
const SLOWEST_MS: f64 = 50.0;
const THREADS_OF_SLOWEST: usize = 2;
/// Slower ones are in the tables only: they would flatten the other curves.
const MOST_CHARTED_US: f64 = 200.0;

pub const COUNTS: &str = "counts";

/// Faulting threads, and burning programs.
type Place = (usize, usize);

fn run(scale: &Scale) -> Result<Outcome, String> {
    let cpus = threads::allowed()?.len();
    let threads = if scale.race.threads.is_empty() { &THREADS[..] } else { &scale.race.threads };
    let only_counts = !scale.race.only.is_empty();
    let burners = if only_counts { &[0][..] } else { &[0, cpus] };
    let places: Vec<Place> = burners.iter().flat_map(|burners| threads.iter().map(|threads| (*threads, *burners))).collect();
    let pages = scale.pick(128 << 8, 512 << 8);
    let size = Size { pages, limit: Some((pages * PAGE_SIZE) as u64 / 100 * PERCENT) };
    let fail = |line: String| format!("fault: {line}");
    let (ways, unusable) = ways();
    let plain = faults_by_plain_userfaultfd(scale, &ways, &places).map_err(fail)?;
    if only_counts {
        return Ok(Outcome { tables: vec![table_of_parts(&plain), table_of_counts(&plain, &unusable)], ..Outcome::default() });
    }
    let install = installing(scale).map_err(fail)?;
    let real = faults_under_lowtide(scale, &places, size).map_err(fail)?;
    let longest = the_slowest(scale, size, cpus).map_err(fail)?;
    let mut findings = longest.findings;
    findings.extend(comparisons(&places, &plain, &real));
    let tables = vec![
        table_of_parts(&plain),
        table_of_counts(&plain, &unusable),
        install,
        table_under_lowtide(&real, size),
        longest.table,
    ];
    Ok(Outcome { tables, findings, charts: charts(&places, &plain, &real) })
}

/// Results of a way of serving in a place: in each round the median of each part and of the whole,
/// and the slowest fault of all.
struct Shown {
    way: Way,
    place: Place,
    parts: [Sample; 4],
    total: Sample,
    a_second: Sample,
    slowest: f64,
    counts: Counts,
}

/// The ways that this machine supports, and the others with the reason.
fn ways() -> (Vec<Way>, Vec<(Way, String)>) {
    let mut unusable = Vec::new();
    let mut ways = Way::ALL.to_vec();
    ways.retain(|way| way.usable().map_err(|why| unusable.push((*way, why))).is_ok());
    (ways, unusable)
}

const PARTS: [fn(&Parts) -> u64; 4] = [|p| p.delivery, |p| p.load, |p| p.install, |p| p.wake];

fn faults_by_plain_userfaultfd(scale: &Scale, ways: &[Way], places: &[Place]) -> Result<Vec<Shown>, String> {
    let time = Duration::from_millis(scale.pick(200, 600));
    let variants: Vec<(Way, Place)> = places.iter().flat_map(|place| ways.iter().map(|way| (*way, *place))).collect();
    let nothing = |&(way, place): &(Way, Place)| {
        let (parts, total, a_second) = Default::default();
        Shown { way, place, parts, total, a_second, slowest: 0.0, counts: Counts::default() }
    };
    let mut all: Vec<Shown> = variants.iter().map(nothing).collect();
    in_turn(&variants, scale.pick(2, 5), |i, &(way, (threads, burners))| {
        let seen = plain::run(plain::Setup { way, threads, burners }, time)?;
        let shown = &mut all[i];
        for (sample, part) in shown.parts.iter_mut().zip(PARTS) {
            sample.add(median_us(&seen.faults, part));
        }
        shown.total.add(median_us(&seen.faults, Parts::total));
        shown.a_second.add(seen.faults.len() as f64 / time.as_secs_f64());
        shown.slowest = shown.slowest.max(seen.slowest as f64 / 1000.0);
        shown.counts += seen.counts;
        Ok::<(), String>(())
    })?;
    Ok(all)
}

/// Microseconds; NaN without faults.
fn median_us(faults: &[Parts], of: impl Fn(&Parts) -> u64) -> f64 {
    let mut values: Vec<u64> = faults.iter().map(of).collect();
    values.sort_unstable();
    values.get(values.len() / 2).map_or(f64::NAN, |ns| *ns as f64 / 1000.0)
}

fn installing(scale: &Scale) -> Result<Table, String> {
    let of = |how| [1, 64].map(|pages| [false, true].map(|busy| install::Setup { how, pages, busy }));
    let variants = [of(How::Copy), of(How::Move)].concat().concat();
    let mut all: Vec<Sample> = variants.iter().map(|_| Sample::default()).collect();
    in_turn(&variants, scale.pick(3, 7), |i, setup| {
        all[i].add(install::run(*setup)?);
        Ok::<(), String>(())
    })?;
    let mut table =
        Table::new("installing pages, no fault: medians (us a page)", &["", "pages a call", "alone", "another thread runs"]);
    for (setups, samples) in variants.chunks(2).zip(all.chunks(2)) {
        let name = match setups[0].how {
            How::Copy => "UFFDIO_COPY",
            How::Move => "UFFDIO_MOVE",
        };
        let fine = |sample: &Sample| format!("{:.2} +-{:.0} %", sample.median(), sample.spread() * 100.0);
        table.row([name.to_owned(), setups[0].pages.to_string(), fine(&samples[0]), fine(&samples[1])]);
    }
    Ok(table)
}

/// Results of the program in a place under `lowtide run`, by round.
#[derive(Default)]
struct Real {
    place: Place,
    p50: Sample,
    p99: Sample,
    p999: Sample,
    a_second: Sample,
    service: Sample,
    slowest: f64,
    slowest_service: f64,
}

impl Real {
    fn add(&mut self, told: &Told, service: Service) {
        self.p50.add(told.p50);
        self.p99.add(told.p99);
        self.p999.add(told.p999);
        self.a_second.add(told.faults as f64 / told.seconds);
        self.service.add(service.p50);
        self.slowest = self.slowest.max(told.max);
        self.slowest_service = self.slowest_service.max(service.max);
    }
}

fn faults_under_lowtide(scale: &Scale, places: &[Place], size: Size) -> Result<Vec<Real>, String> {
    let time = Duration::from_millis(scale.pick(1000, 4000));
    let mut all: Vec<Real> = places.iter().map(|place| Real { place: *place, ..Real::default() }).collect();
    in_turn(places, scale.pick(1, 3), |i, &(threads, burners)| {
        let (told, service) = under_lowtide::measure(under_lowtide::Setup { threads, burners }, size, time)?;
        if service.faults == 0 {
            return Err("lowtide served no fault: the data fit into the limit".to_owned());
        }
        all[i].add(&told, service);
        Ok(())
    })?;
    Ok(all)
}

struct Longest {
    table: Table,
    findings: Vec<Finding>,
}

fn the_slowest(scale: &Scale, size: Size, cpus: usize) -> Result<Longest, String> {
    let time = Duration::from_secs(scale.pick(3, 60));
    let setup = under_lowtide::Setup { threads: THREADS_OF_SLOWEST, burners: cpus };
    let title = format!("{} s beside {cpus} programs that burn CPU, {THREADS_OF_SLOWEST} threads (us)", time.as_secs());
    let columns = ["", "faults", "p50", "p99", "p99.9", "slowest touch", "served: p50", "p99", "slowest"];
    let mut table = Table::new(title, &columns);
    let mut slowest = [0.0; 2];
    for (at, (name, limit)) in [("natively", None), ("under lowtide", size.limit)].into_iter().enumerate() {
        let (told, service) = under_lowtide::measure(setup, Size { limit, ..size }, time)?;
        slowest[at] = told.max.max(service.max) / 1000.0;
        // Natively nothing is out; slow touches wait for a CPU.
        let figure = |us: f64| if limit.is_some() { format!("{us:.1}") } else { "-".to_owned() };
        let [p50, p99, p999] = [told.p50, told.p99, told.p999].map(figure);
        let [served_p50, served_p99, served_max] = [service.p50, service.p99, service.max].map(figure);
        let max = format!("{:.1}", told.max);
        let faults = service.faults.to_string();
        table.row([name.to_owned(), faults, p50, p99, p999, max, served_p50, served_p99, served_max]);
    }
    let [native, lowtide] = slowest;
    let told = format!("{lowtide:.1} ms");
    let what = format!("slowest touch in {} s, all CPUs burnt, ms", time.as_secs());
    let findings = vec![
        Finding::new(what, told, lowtide).target(Target::AtMost(SLOWEST_MS)),
        Finding::new("the same natively, where nothing is out: the scheduler alone, ms", format!("{native:.1} ms"), native),
    ];
    Ok(Longest { table, findings })
}

fn us(sample: &Sample) -> String {
    format!("{:.1} +-{:.0} %", sample.median(), sample.spread() * 100.0)
}

fn table_of_parts(all: &[Shown]) -> Table {
    let columns = ["served", "threads", "burners", "delivery", "load", "install", "wake", "total", "slowest", "faults/s"];
    let mut table = Table::new("a plain userfaultfd, one page a fault: medians (us), and the slowest of all rounds", &columns);
    for shown in all {
        let (threads, burners) = shown.place;
        let cells = [shown.way.name().to_owned(), threads.to_string(), burners.to_string()];
        let parts = shown.parts.iter().chain([&shown.total]).map(us);
        let rest = [format!("{:.0}", shown.slowest), format!("{:.0}", shown.a_second.median())];
        table.row(cells.into_iter().chain(parts).chain(rest));
    }
    table
}

fn table_of_counts(all: &[Shown], unusable: &[(Way, String)]) -> Table {
    let columns = ["served", "threads", "switches", "wake-ups", "system calls", "by a monitor", "us", "faults"];
    let mut title = "the same alone: how much of what for one fault".to_owned();
    for (way, why) in unusable {
        title += &format!("\n({}: {why})", way.name());
    }
    let mut table = Table::new(title, &columns);
    for shown in all.iter().filter(|shown| shown.place.1 == 0) {
        let counts = &shown.counts;
        let of: [fn(&Counts) -> u64; 4] = [|c| c.switches, |c| c.waits, |c| c.calls, |c| c.by_others];
        let each = of.map(|count| format!("{:.2}", counts.each(count)));
        let cells = [shown.way.name().to_owned(), shown.place.0.to_string()].into_iter().chain(each);
        table.row(cells.chain([us(&shown.total), counts.served.to_string()]));
    }
    for (way, _) in unusable {
        table.row([way.name().to_owned()].into_iter().chain(columns.iter().skip(1).map(|_| "-".to_owned())));
    }
    table
}

fn table_under_lowtide(all: &[Real], size: Size) -> Table {
    let columns = ["threads", "burners", "p50", "p99", "p99.9", "slowest", "served: p50", "slowest", "faults/s"];
    let title = format!(
        "lowtide run --ram {}M, {} MiB read at random: what a fault takes the program, and of that the service that lowtide counts (us)",
        size.limit.unwrap_or(0) >> 20,
        size.pages >> 8
    );
    let mut table = Table::new(title, &columns);
    for real in all {
        let (threads, burners) = real.place;
        table.row([
            threads.to_string(),
            burners.to_string(),
            us(&real.p50),
            us(&real.p99),
            us(&real.p999),
            format!("{:.0}", real.slowest),
            us(&real.service),
            format!("{:.0}", real.slowest_service),
            format!("{:.0}", real.a_second.median()),
        ]);
    }
    table
}

/// Threads and burners, the design's figure there from before lowtide was built, and its ratio.
type Known = (Place, &'static str, f64);
const IDLE: [Known; 2] =
    [((1, 0), "design: 26 against 10.6 us", 26.0 / 10.6), ((2, 0), "design: 9.9 against 13.2 us", 9.9 / 13.2)];
const IN_THREAD: [Known; 1] = [((1, 0), "design: 4.8 against 10.6 us", 4.8 / 10.6)];

fn comparisons(places: &[Place], plain: &[Shown], real: &[Real]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for place in places {
        let of = |way: Way| plain.iter().find(|shown| (shown.way, shown.place) == (way, *place)).map(|shown| &shown.total);
        let (Some(monitors), Some(idle), Some(signal)) = (of(Way::Monitors), of(Way::IdleMonitors), of(Way::Signal)) else {
            continue;
        };
        let (threads, burners) = place;
        let mut compare = |what: &str, a: &Sample, b: &Sample, known: &[Known]| {
            let ratio = a.over(b);
            let told = format!("{:.1} against {:.1} us", a.median(), b.median());
            let what = format!("{what}: {threads} threads, {burners} burners");
            let finding = Finding::new(what, told, ratio.median()).spread(ratio.spread());
            findings.push(match known.iter().find(|(at, ..)| at == place) {
                Some((_, figure, ratio)) => finding.published(*figure).reproduced_if(Target::AtMost(ratio * 1.1)),
                None => finding,
            });
        };
        compare("SCHED_IDLE over plain monitors", idle, monitors, &IDLE);
        compare("in the thread over plain monitors", signal, monitors, &IN_THREAD);
        if let Some(by_bpf) = of(Way::ByBpf) {
            compare("in the thread by BPF over plain monitors", by_bpf, monitors, &[]);
        }
        if let Some(real) = real.iter().find(|real| real.place == *place) {
            // Of different rounds: only the medians are comparable.
            let ratio = real.p50.median() / monitors.median();
            let told = format!("{:.1} against {:.1} us", real.p50.median(), monitors.median());
            findings.push(Finding::new(
                format!("lowtide over a plain userfaultfd: {threads} threads, {burners} burners"),
                told,
                ratio,
            ));
        }
    }
    findings
}

fn charts(places: &[Place], plain: &[Shown], real: &[Real]) -> Vec<Chart> {
    let mut burners: Vec<usize> = places.iter().map(|(_, burners)| *burners).collect();
    burners.dedup();
    let chart = |burners: usize| {
        let mut series: Vec<Series> = Way::ALL
            .iter()
            .map(|way| {
                let of = plain.iter().filter(|shown| shown.way == *way && shown.place.1 == burners);
                let points =
                    of.map(|shown| (shown.place.0 as f64, shown.total.median())).filter(|point| point.1 < MOST_CHARTED_US);
                Series { name: way.name().to_owned(), points: points.collect() }
            })
            .filter(|series| !series.points.is_empty())
            .collect();
        let points = real.iter().filter(|real| real.place.1 == burners).map(|real| (real.place.0 as f64, real.p50.median()));
        series.push(Series { name: "lowtide run".to_owned(), points: points.collect() });
        Chart { title: format!("a fault beside {burners} burners"), x: "threads", y: "median us", series }
    };
    burners.into_iter().map(chart).collect()
}
