//! Tables, curves and findings.

use super::*;

pub(super) fn outcome(baseline: &[(usize, &Cell)], ours: &[(usize, &Cell)], apart: &[(usize, &Cell)]) -> Outcome {
    let tables = vec![
        throughput(baseline, ours),
        locks("the lock that all share: the baseline's area lock, our lists lock", |cell| cell.shared, baseline, ours),
        locks("the other locks: the baseline's caches, our clusters", |cell| cell.local, baseline, ours),
        all_locks(baseline, ours),
    ];
    let findings = findings(baseline, ours, apart);
    let curve = |name: &str, cells: &[(usize, &Cell)], y: &dyn Fn(&Cell) -> f64| Series {
        name: name.to_owned(),
        points: cells.iter().map(|(n, cell)| ((*n as f64).log2(), y(cell))).collect(),
    };
    let speed = |cell: &Cell| cell.speed.median() / 1e6;
    let wait = |cell: &Cell| cell.wait_per_op(cell.shared);
    let chart = |title: &str, y, f: &dyn Fn(&Cell) -> f64| Chart {
        title: title.to_owned(),
        x: "threads (log2)",
        y,
        series: vec![curve("one area lock", baseline, f), curve("lowtide", ours, f)],
    };
    let charts = vec![
        chart("Throughput", "million operations per second", &speed),
        chart("Wait for the shared lock", "ns per operation", &wait),
    ];
    Outcome { tables, findings, charts }
}

fn throughput(baseline: &[(usize, &Cell)], ours: &[(usize, &Cell)]) -> Table {
    let columns =
        ["threads", "baseline Mop/s", "ours Mop/s", "ours/baseline", "baseline vs 1", "ours vs 1", "fallbacks, base", "ours"];
    let mut table = Table::new("throughput: medians of runs in turn, speedups and ratios within a round", &columns);
    for ((n, base), (_, our)) in baseline.iter().zip(ours) {
        table.row([
            n.to_string(),
            format!("{:.2}", base.speed.median() / 1e6),
            format!("{:.2}", our.speed.median() / 1e6),
            format!("{:.2}", our.speed.over(&base.speed).median()),
            format!("{:.2}", base.speed.over(&baseline[0].1.speed).median()),
            format!("{:.2}", our.speed.over(&ours[0].1.speed).median()),
            format!("{:.3} %", base.fallbacks as f64 * 100.0 / base.ops as f64),
            format!("{:.3} %", our.fallbacks as f64 * 100.0 / our.ops as f64),
        ]);
    }
    table
}

/// The effect of slot caches on each load.
pub(super) fn by_load(variants: &[Variant], cells: &[Cell]) -> (Table, Vec<Finding>) {
    let columns =
        ["load", "threads", "baseline Mop/s", "cached Mop/s", "ours Mop/s", "ours/baseline", "ours/cached", "fallbacks, ours"];
    let mut table = Table::new("loads apart: one area lock, cluster locks behind slot caches, cluster locks alone", &columns);
    let mut findings = Vec::new();
    for load in [PAGES, FOLIOS, MIXED] {
        for n in FEW {
            let of = |kind| variants.iter().zip(cells).find(|(variant, _)| **variant == (kind, n, load)).map(|(_, cell)| cell);
            let (Some(base), Some(cached), Some(ours)) = (of(Kind::Baseline), of(Kind::Cached), of(Kind::Ours)) else {
                continue;
            };
            let speed = |cell: &Cell| format!("{:.2}", cell.speed.median() / 1e6);
            let without = ours.speed.over(&cached.speed);
            table.row([
                load.0.to_owned(),
                n.to_string(),
                speed(base),
                speed(cached),
                speed(ours),
                format!("{:.2}", ours.speed.over(&base.speed).median()),
                format!("{:.2}", without.median()),
                format!("{:.3} %", ours.fallbacks as f64 * 100.0 / ours.ops as f64),
            ]);
            let (published, time) = match (n, load) {
                (2, PAGES) => ("dropped: -7.6 % of the time, fast device", 1.0 - 0.076),
                (2, FOLIOS) => ("dropped: -23 % of the time", 1.0 - 0.23),
                _ => continue,
            };
            let what = format!("{}, 2 threads: without slot caches over with them", load.0);
            let told = format!("{} Mop/s against {}", speed(ours), speed(cached));
            let finding = Finding::new(what, told, without.median()).published(published).spread(without.spread());
            let finding = finding.reproduced_if(Target::AtLeast(1.0 / time));
            findings.push(finding.because("the caches hold single slots, and folios pass them by"));
        }
    }
    (table, findings)
}

pub(super) fn alone(variants: &[Variant], cells: &[Cell]) -> Table {
    let mut table = Table::new("a part of it, compared with nothing", &["", "load", "threads", "Mop/s"]);
    for ((kind, threads, load), cell) in variants.iter().zip(cells) {
        let speed = format!("{:.2}", cell.speed.median() / 1e6);
        table.row([kind.name().to_owned(), load.0.to_owned(), threads.to_string(), speed]);
    }
    table
}

fn locks(title: &str, class: fn(&Cell) -> Class, baseline: &[(usize, &Cell)], ours: &[(usize, &Cell)]) -> Table {
    let columns = ["", "threads", "contended", "total wait ms", "max wait us", "avg wait us", "wait ns/op", "taken/op"];
    let mut table = Table::new(title, &columns);
    for (name, cells) in [("baseline", baseline), ("ours", ours)] {
        for (n, cell) in cells {
            let c = class(cell);
            table.row([
                name.to_owned(),
                n.to_string(),
                c.contended.to_string(),
                format!("{:.3}", c.wait_ns as f64 / 1e6),
                format!("{:.1}", c.max_ns as f64 / 1e3),
                format!("{:.2}", c.wait_ns as f64 / c.contended.max(1) as f64 / 1e3),
                format!("{:.3}", cell.wait_per_op(c)),
                format!("{:.3}", c.taken as f64 / cell.ops as f64),
            ]);
        }
    }
    table
}

/// Each lock with waits, like the beginning of the published series; for documents.
fn all_locks(baseline: &[(usize, &Cell)], ours: &[(usize, &Cell)]) -> Table {
    let columns =
        ["allocator", "threads", "lock", "contended", "total wait ms", "max ms", "average us", "in a million operations"];
    let mut table = Table::new("waits for all locks, mixed orders", &columns).markdown();
    for ((n, base), (_, our)) in baseline.iter().zip(ours) {
        for (name, cell) in [("one area lock", base), ("lowtide", our)] {
            for (rank, c) in (0..).zip(&cell.all).filter(|(_, c)| c.contended > 0) {
                // The baseline's locks have ranks only to tell them apart.
                let lock = match (name, rank) {
                    ("one area lock", Baseline::SHARED) => "area",
                    ("one area lock", Baseline::LOCAL) => "slot cache",
                    _ => rank::name(rank),
                };
                table.row([
                    name.to_owned(),
                    n.to_string(),
                    lock.to_owned(),
                    c.contended.to_string(),
                    format!("{:.2}", c.wait_ns as f64 / 1e6),
                    format!("{:.2}", c.max_ns as f64 / 1e6),
                    format!("{:.1}", c.wait_ns as f64 / c.contended as f64 / 1e3),
                    format!("{:.2}", c.contended as f64 * 1e6 / cell.ops as f64),
                ]);
            }
        }
    }
    table
}

fn findings(baseline: &[(usize, &Cell)], ours: &[(usize, &Cell)], apart: &[(usize, &Cell)]) -> Vec<Finding> {
    // Waits per operation, summed over the thread counts: a faster allocator does more operations.
    let waits = |cells: &[(usize, &Cell)]| -> (f64, f64, u64) {
        let several = cells.iter().filter(|(n, _)| *n > 1);
        several.fold((0.0, 0.0, 0), |(ns, often, times), (_, c)| {
            let contended = c.shared.contended;
            (ns + c.wait_per_op(c.shared), often + contended as f64 / c.ops as f64, times + contended)
        })
    };
    let ((base_ns, base_often, base_times), (our_ns, our_often, our_times)) = (waits(baseline), waits(ours));
    let (one, two) = (&ours[0].1.speed, &ours[1].1.speed);
    let single = one.over(&baseline[0].1.speed);
    let scaling = two.over(one);
    let allowed = apart[1].1.speed.over(&apart[0].1.speed);
    let (most, crowd) = match (baseline, ours) {
        ([.., (n, base)], [.., (_, ours)]) => (*n, base.speed.over(&ours.speed)),
        _ => (0, Sample::default()),
    };
    let best =
        ours.iter().map(|(n, cell)| (*n, cell.speed.over(one).median())).fold((1, 1.0), |a, b| if b.1 > a.1 { b } else { a });
    vec![
        Finding::new(
            "waits for the shared lock, per operation",
            format!("{base_times} -> {our_times}"),
            base_often / our_often,
        )
        .published("34,948 -> 91")
        .target(Target::AtLeast(100.0))
        .better_if(Target::AtLeast(34_948.0 / 91.0)),
        Finding::new("time of waits for the shared lock", format!("{base_ns:.1} -> {our_ns:.3} ns/op"), base_ns / our_ns)
            .published("53.6 s -> 0.2 ms")
            .reproduced_if(Target::AtLeast(100.0))
            .because("a holder that loses its CPU lets all others wait until it has one again"),
        Finding::new("1 thread, ours over baseline", format!("{:.2} Mop/s", one.median() / 1e6), single.median())
            .published("higher even with low concurrency")
            .spread(single.spread())
            .target(Target::AtLeast(1.0))
            .known_miss("each page is freed under its cluster's lock, where the baseline frees 64 under one"),
        Finding::new("2 threads over 1 thread", format!("{:.2} Mop/s", two.median() / 1e6), scaling.median())
            .spread(scaling.spread())
            .target(Target::AtLeast(1.7)),
        Finding::new("the same in areas of their own", "what this machine allows", allowed.median()).spread(allowed.spread()),
        Finding::new("most threads pay", format!("at {} threads", best.0), best.1),
        Finding::new(format!("time of an operation, {most} threads, ours over baseline"), "", crowd.median())
            .published("build: system time -47.7 %, 48 threads")
            .spread(crowd.spread())
            .reproduced_if(Target::AtMost(1.0 - 0.477))
            .because("no more threads run at a time than there are CPUs"),
    ]
}
