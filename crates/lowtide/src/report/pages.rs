//! Latency of faults, journeys of pages, and their content.

use super::chart::{Chart, Layer, divided};
use super::over_time::KINDS;
use super::{Report, units};
use lowtide_core::vm::PAGE_SIZE;
use lowtide_wire::segment::{LATENCY_BUCKETS, latency_floor_ns};
use maud::{Markup, html};

/// Histogram buckets in a bar; an octave has eight.
const IN_A_BAR: usize = 4;

pub fn latency(report: &Report<'_>) -> Markup {
    let latency = &report.stats.fault_latency_us;
    let micros = |us: f64| units::seconds(us / 1e6);
    let total: u64 = report.latencies.iter().sum();
    if total == 0 {
        return html! { section { h2 { "How long faults took" } p { "lowtide served no fault." } } };
    }
    html! {
        section {
            h2 { "How long faults took" }
            p {
                "From when lowtide knew of a fault until its page was there. "
                "Half took up to " b { (micros(latency.p50)) } ", 90 % up to " b { (micros(latency.p90)) }
                ", 99 % up to " b { (micros(latency.p99)) } ", the longest " b { (micros(latency.max)) } "."
            }
            (histogram(&report.latencies))
            table {
                tr {
                    th { "kind of fault" }
                    @for name in ["faults", "mean time of service", "time of service, all of them"] { th.n { (name) } }
                }
                @for (name, _, kind) in KINDS {
                    @let (faults, seconds) = (report.observed.faults[kind], report.observed.service[kind]);
                    tr {
                        td { (name) }
                        td.n { (units::count(faults)) }
                        td.n { @if faults > 0.0 { (units::seconds(seconds / faults)) } @else { "–" } }
                        td.n { (units::seconds(seconds)) }
                    }
                }
            }
        }
    }
}

fn histogram(buckets: &[u64; LATENCY_BUCKETS]) -> Markup {
    let bars: Vec<u64> = buckets.chunks(IN_A_BAR).map(|bar| bar.iter().sum()).collect();
    let first = bars.iter().position(|count| *count > 0).unwrap_or(0) & !1;
    let last = bars.iter().rposition(|count| *count > 0).unwrap_or(0);
    let shown = &bars[first..=last];
    let xs: Vec<f64> = (0..shown.len()).map(|i| i as f64).collect();
    let from = units::seconds(latency_floor_ns(first * IN_A_BAR) as f64 / 1e9);
    let to = units::seconds(latency_floor_ns((last + 1) * IN_A_BAR) as f64 / 1e9);
    let x_name = format!("time of service, from {from} to {to}; two bars are a factor of two");
    let chart = Chart {
        title: "Histogram of fault latencies",
        x_name: &x_name,
        y_name: "faults",
        xs: &xs,
        x_show: |_| String::new(),
        y_show: units::count,
        y_binary: false,
        x_binary: false,
    };
    let values = shown.iter().map(|count| *count as f64).collect();
    let edges = |i: usize| latency_floor_ns((first + i) * IN_A_BAR) as f64 / 1e9;
    chart.bars(&Layer { name: "faults", class: "c2", values }, &|i| (i % 4 == 0).then(|| units::seconds(edges(i))))
}

pub fn journeys(report: &Report<'_>) -> Markup {
    let stats = report.stats;
    let (out, back, pages) = (&stats.evictions, &stats.faults, &stats.pages);
    let share = |part: u64, whole: u64| units::percent(part as f64, whole as f64);
    let row = |name: &str, n: u64, note: String| {
        html! {
            tr {
                td { (name) }
                td.n { (units::count(n as f64)) }
                td.n { (units::bytes(n * PAGE_SIZE as u64)) }
                td { (note) }
            }
        }
    };
    let ahead_used = share(back.read_ahead_used, back.read_ahead_pages);
    let writes = units::count(stats.writeback.ios as f64);
    let of_out = |part| format!("{} of what was evicted", share(part, out.pages));
    html! {
        section {
            h2 { "Where pages were" }
            table {
                tr { th { "pages of 4 KiB" } th.n { "pages" } th.n { "size" } th { } }
                (row("evicted from the program's memory", out.pages, String::new()))
                (row("taken back while they waited in staging", back.staged, of_out(back.staged)))
                (row("zero: kept as a mark", pages.zero, of_out(pages.zero)))
                (row("stored in the pool or on a device", pages.stored, of_out(pages.stored)))
                (row("still good on a device, not written again", out.clean, of_out(out.clean)))
                (row("written to devices", stats.writeback.pages, format!("in {writes} writes")))
                (row("came back, read-ahead included", pages.loaded, String::new()))
                (row("read ahead", back.read_ahead_pages, format!("{ahead_used} of it seen to be used")))
            }
        }
    }
}

pub fn data(report: &Report<'_>) -> Markup {
    let pages = &report.stats.pages;
    let total = pages.zero + pages.stored;
    if total == 0 {
        return html! { section { h2 { "What the pages held" } p { "No page was stored." } } };
    }
    let compressible = pages.stored.saturating_sub(pages.same_filled + pages.incompressible);
    let part = |name, class, n: u64| {
        (name, class, n as f64, format!("{} ({})", units::pages(n), units::percent(n as f64, total as f64)))
    };
    let ratio = report.stats.compression_ratio;
    html! {
        section {
            h2 { "What the pages held" }
            (divided("Pages by what they held", &[
                part("zeros", "c5", pages.zero),
                part("one word repeated", "c1", pages.same_filled),
                part("compressible", "c2", compressible),
                part("incompressible", "c4", pages.incompressible),
            ]))
            @if ratio > 0.0 {
                p { "When the pool held most, " b { (format!("{ratio:.2} bytes")) } " of pages took one byte there." }
            }
            @if pages.recompressed > 0 {
                p {
                    (units::pages(pages.recompressed)) " that were cold were packed tighter, which saved "
                    (units::bytes(pages.recompressed_bytes)) "."
                }
            }
        }
    }
}
