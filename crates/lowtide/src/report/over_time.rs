//! Memory, faults and waiting over time.

use super::chart::{Chart, Layer};
use super::{Report, units};
use crate::supervisor::series::Sample;
use lowtide_core::vm::PAGE_SIZE;
use maud::{Markup, html};

/// Drawn kinds of faults, by their index in [`lowtide_wire::segment::FaultKind`].
pub const KINDS: [(&str, &str, usize); 5] = [
    ("first touches", "c0", 4),
    ("zero pages", "c5", 0),
    ("back from staging", "c1", 1),
    ("from the pool", "c2", 2),
    ("from a device", "c4", 3),
];

pub fn section(report: &Report<'_>) -> Markup {
    let samples = report.series.samples();
    if samples.len() < 3 {
        return html! { section { h2 { "Over time" } p { "The run was too short for curves." } } };
    }
    html! {
        section {
            h2 { "Over time" }
            h3 { "Memory" }
            (memory(samples))
            h3 { "Page faults" }
            (faults(samples))
            h3 { "Waiting for pages" }
            (waiting(samples))
        }
    }
}

fn memory(samples: &[Sample]) -> Markup {
    let xs: Vec<f64> = samples.iter().map(|sample| sample.at).collect();
    let of = |get: &dyn Fn(&Sample) -> u64| samples.iter().map(|sample| get(sample) as f64).collect();
    let rest = |sample: &Sample| sample.own.saturating_sub(sample.staged + sample.pool);
    let layer = |name, class, values| Layer { name, class, values };
    let mut layers = vec![
        layer("lowtide's tables and buffers", "c3", of(&rest)),
        layer("the program's pages in memory", "c0", of(&Sample::resident)),
        layer("staging, on the way out", "c1", of(&|sample| sample.staged)),
        layer("compressed pool", "c2", of(&|sample| sample.pool)),
    ];
    if samples.iter().any(|sample| sample.device_pages > 0) {
        layers.push(layer("on devices (no RAM)", "c4", of(&|sample| sample.device_pages * PAGE_SIZE as u64)));
    }
    let limit = layer("the limit", "limit", of(&|sample| sample.limit));
    time_chart("Memory over time", &xs, "bytes", units::about_bytes, true).stacked(&layers, &[limit])
}

fn faults(samples: &[Sample]) -> Markup {
    let (xs, spans) = spans(samples);
    let rate =
        |kind: usize| spans.iter().map(|(then, now, time)| (now.faults[kind] - then.faults[kind]) as f64 / time).collect();
    let layers: Vec<_> = KINDS.into_iter().map(|(name, class, kind)| Layer { name, class, values: rate(kind) }).collect();
    time_chart("Faults a second over time", &xs, "faults a second", units::count, false).stacked(&layers, &[])
}

fn waiting(samples: &[Sample]) -> Markup {
    let (xs, spans) = spans(samples);
    let share = |kind: usize| {
        let part =
            |(then, now, time): &(Sample, Sample, f64)| (now.service_ns[kind] - then.service_ns[kind]) as f64 / 1e7 / time;
        spans.iter().map(part).collect()
    };
    let layers: Vec<_> = KINDS.into_iter().map(|(name, class, kind)| Layer { name, class, values: share(kind) }).collect();
    html! {
        p {
            "How much of the time faults were being served: 100 % is one thread that always waits; several threads that wait "
            "add up. Before and after that the kernel changes from thread to thread, which can take as long again."
        }
        (time_chart("Share of time waiting", &xs, "% of the time", |y| format!("{y:.0} %"), false).stacked(&layers, &[]))
    }
}

/// Pairs of samples with the time between them, and the ends of these times. Counts of a process in
/// an exec may be visible before they reach the sums: such a pair counts as nothing.
fn spans(samples: &[Sample]) -> (Vec<f64>, Vec<(Sample, Sample, f64)>) {
    let grows = |then: &Sample, now: &Sample| {
        let counts = |sample: &Sample| sample.faults.into_iter().chain(sample.service_ns);
        counts(then).zip(counts(now)).all(|(then, now)| then <= now)
    };
    let pairs = samples.windows(2).filter(|pair| pair[1].at - pair[0].at > 1e-3);
    let spans: Vec<_> = pairs
        .map(|pair| (if grows(&pair[0], &pair[1]) { pair[0] } else { pair[1] }, pair[1], pair[1].at - pair[0].at))
        .collect();
    (spans.iter().map(|span| span.1.at).collect(), spans)
}

fn time_chart<'a>(title: &'a str, xs: &'a [f64], y_name: &'a str, y_show: fn(f64) -> String, y_binary: bool) -> Chart<'a> {
    Chart {
        title,
        x_name: "seconds since the start",
        y_name,
        xs,
        x_show: |x| format!("{} s", units::plain(x)),
        y_show,
        y_binary,
        x_binary: false,
    }
}
