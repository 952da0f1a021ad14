//! The statistics as OpenMetrics text. Names and help come from the list of statistics
//! (`stats/list.rs`), by Prometheus conventions: `lowtide_GROUP_KEY`, with the unit as a suffix,
//! and `_total` for counters.

use crate::live::Live;
use crate::stats::list::{Figure, Number, Shape};
use crate::stats::{Area, Evictions, Faults, Histogram, Memory, Pages, Pool, Remote, RingRecords, Stats, Work, Writeback};
use crate::supervisor::series::{self, Cost};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;

type Label = (&'static str, String);

#[derive(Debug)]
struct Family {
    name: String,
    help: String,
    unit: Option<Unit>,
    grows: bool,
    samples: Vec<(Vec<Label>, Number)>,
}

#[derive(Debug)]
struct Snapshot {
    info: Vec<Label>,
    families: Vec<Family>,
    latency: Histogram,
    reads: Vec<(Vec<Label>, Histogram)>,
}

/// The present statistics of a run; the text ends with `# EOF`.
pub fn text(run: &Live<'_>) -> String {
    let stats = Stats::new(run, run.tree.now(), run.started.elapsed());
    let cost = Cost { cpu: series::process_cpu(), wakeups: run.wakeups };
    let areas = run.areas.list().into_iter().enumerate();
    let reads = areas.filter_map(|(n, area)| Some((labels(&area.spec, n), Histogram::of_reads(area.remote.as_deref()?))));
    encode(&stats, Histogram::of_faults(run.shared.segment()), reads.collect(), cost)
}

fn encode(stats: &Stats, latency: Histogram, reads: Vec<(Vec<Label>, Histogram)>, cost: Cost) -> String {
    let mut registry = Registry::with_prefix("lowtide");
    let info = vec![("program", stats.program.clone()), ("pid", stats.pid.to_string())];
    registry.register_collector(Box::new(Snapshot { info, families: families(stats, cost), latency, reads }));
    let mut text = String::new();
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

fn families(stats: &Stats, cost: Cost) -> Vec<Family> {
    let mut all = Vec::new();
    group(&mut all, Memory::NAME, Memory::ABOUT, stats.memory.figures());
    group(&mut all, Pages::NAME, Pages::ABOUT, stats.pages.figures());
    group(&mut all, Faults::NAME, Faults::ABOUT, stats.faults.figures());
    group(&mut all, RingRecords::NAME, RingRecords::ABOUT, stats.ring_records.figures());
    group(&mut all, Evictions::NAME, Evictions::ABOUT, stats.evictions.figures());
    group(&mut all, Writeback::NAME, Writeback::ABOUT, stats.writeback.figures());
    group(&mut all, Pool::NAME, Pool::ABOUT, stats.pool.figures());
    group(&mut all, Work::NAME, Work::ABOUT, stats.work.figures());
    areas(&mut all, Area::NAME, &stats.areas, |area| Some(area.figures()));
    areas(&mut all, Remote::NAME, &stats.areas, |area| area.remote.as_ref().map(Remote::figures));
    let mut one = |name: &str, help: &str, shape, value| {
        let figure = Figure { key: "", help: "", shape, value };
        let (name, unit) = split_unit(name, shape);
        all.push(Family { help: help.to_owned(), ..family(name, unit, &figure, Vec::new()) });
    };
    let whole = |n: usize| Number::Whole(n as u64);
    one("stall_some_seconds", "Time that served faults took, added up", Shape::Count, Number::Real(stats.stall_seconds.some));
    one("compression_ratio", "Bytes of pages in the pool to their compressed bytes, when it held most", Shape::Gauge, {
        Number::Real(stats.compression_ratio)
    });
    one("elapsed_seconds", "Time since the program was started", Shape::Gauge, Number::Real(stats.elapsed_seconds));
    one("processes", "Processes of the run", Shape::Gauge, whole(stats.processes.len()));
    one("warnings", "Warnings that were shown", Shape::Count, whole(stats.warnings.len()));
    one("supervisor_cpu_seconds", "CPU that lowtide run itself has had", Shape::Count, Number::Real(cost.cpu.as_secs_f64()));
    one("supervisor_wakeups", "Times that lowtide run woke up", Shape::Count, Number::Whole(cost.wakeups));
    all
}

fn group(all: &mut Vec<Family>, name: &str, about: &str, figures: Vec<Figure>) {
    let kinds: Vec<_> = figures.iter().filter(|figure| figure.shape == Shape::Kind).collect();
    if let Some(first) = kinds.first() {
        let samples = kinds.iter().map(|figure| (vec![("kind", figure.key.to_owned())], figure.value)).collect();
        all.push(Family { help: one_line(about), ..family(name.to_owned(), None, first, samples) });
    }
    for figure in figures.iter().filter(|figure| !matches!(figure.shape, Shape::Kind | Shape::Sum)) {
        let (name, unit) = split_unit(&joined(name, figure.key), figure.shape);
        all.push(family(name, unit, figure, Vec::new()));
    }
}

/// The families of the areas that have a group, distinguished by labels.
fn areas(all: &mut Vec<Family>, group: &str, areas: &[Area], figures: impl Fn(&Area) -> Option<Vec<Figure>>) {
    let of_each = areas.iter().enumerate().filter_map(|(n, area)| Some((labels(&area.spec, n), figures(area)?)));
    let of_each: Vec<_> = of_each.collect();
    for (i, figure) in of_each.first().into_iter().flat_map(|(_, figures)| figures).enumerate() {
        let (name, unit) = split_unit(&joined(group, figure.key), figure.shape);
        let samples = of_each.iter().map(|(labels, figures)| (labels.clone(), figures[i].value)).collect();
        all.push(family(name, unit, figure, samples));
    }
}

/// An area that was taken off and put on again is in the list twice.
fn labels(spec: &str, number: usize) -> Vec<Label> {
    vec![("area", spec.to_owned()), ("number", number.to_string())]
}

fn family(name: String, unit: Option<Unit>, figure: &Figure, samples: Vec<(Vec<Label>, Number)>) -> Family {
    let grows = matches!(figure.shape, Shape::Count | Shape::Kind);
    let samples = if samples.is_empty() { vec![(Vec::new(), figure.value)] } else { samples };
    Family { name, help: one_line(figure.help), unit, grows, samples }
}

fn joined(group: &str, key: &str) -> String {
    if group.is_empty() { key.to_owned() } else { format!("{group}_{key}") }
}

/// The name without its unit, which the encoder adds.
fn split_unit(name: &str, shape: Shape) -> (String, Option<Unit>) {
    for (suffix, unit) in [("_bytes", Unit::Bytes), ("_seconds", Unit::Seconds)] {
        if let Some(rest) = name.strip_suffix(suffix) {
            return (rest.to_owned(), Some(unit));
        }
    }
    (name.to_owned(), (shape == Shape::Bytes).then_some(Unit::Bytes))
}

/// Joins the lines of a text and drops its full stop.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").trim_end_matches('.').to_owned()
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        encoder.encode_descriptor("run", "Which run this is", None, MetricType::Info)?.encode_info(&self.info)?;
        for Family { name, help, unit, grows, samples } in &self.families {
            let kind = if *grows { MetricType::Counter } else { MetricType::Gauge };
            let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
            for (labels, value) in samples {
                if labels.is_empty() {
                    put(&mut metric, *grows, *value)?;
                } else {
                    put(&mut metric.encode_family(labels)?, *grows, *value)?;
                }
            }
        }
        let help = "How long lowtide took to serve faults, from when it knew of them";
        let service = encoder.encode_descriptor("fault_service", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        put_histogram(service, &self.latency)?;
        if !self.reads.is_empty() {
            let help = "How long requests for pages on servers took, from when lowtide run had them to its answer";
            let mut reads = encoder.encode_descriptor("remote_read", help, Some(&Unit::Seconds), MetricType::Histogram)?;
            for (labels, histogram) in &self.reads {
                put_histogram(reads.encode_family(labels)?, histogram)?;
            }
        }
        Ok(())
    }
}

fn put_histogram(mut metric: MetricEncoder<'_>, of: &Histogram) -> fmt::Result {
    metric.encode_histogram::<NoLabelSet>(of.sum_seconds, of.count, &of.buckets, None)
}

fn put(metric: &mut MetricEncoder<'_>, grows: bool, value: Number) -> fmt::Result {
    match (grows, value) {
        (true, Number::Whole(value)) => metric.encode_counter::<NoLabelSet, _, u64>(&value, None),
        (true, Number::Real(value)) => metric.encode_counter::<NoLabelSet, _, u64>(&value, None),
        (false, Number::Whole(value)) => metric.encode_gauge(&value),
        (false, Number::Real(value)) => metric.encode_gauge(&value),
    }
}
