//! The page as a whole. It loads and runs nothing; maud escapes the texts of users and programs.

use super::{Report, advice, more_ram, over_time, pages, units};
use crate::stats::{Area, Remote};
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("style.css");
/// No script, no network, even if the content asked for them.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

pub fn page(report: &Report<'_>) -> Markup {
    let stats = report.stats;
    let title = format!("{} in {}", stats.program, units::bytes(stats.memory.ram_limit));
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (title) " – lowtide" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (title) }
                    pre { (command(report)) }
                    dl.facts { (facts(report)) }
                }
                section {
                    h2 { "In words" }
                    ul.advice { @for sentence in advice::advice(report) { li { (sentence) } } }
                }
                (over_time::section(report))
                (more_ram::section(report))
                (pages::latency(report))
                (pages::journeys(report))
                (pages::data(report))
                (options(report))
                (footer(report))
            }
        }
    }
}

fn facts(report: &Report<'_>) -> Markup {
    let stats = report.stats;
    let fact = |name: &str, value: String| html! { div { dt { (name) } dd { (value) } } };
    html! {
        (fact("time", units::seconds(stats.elapsed_seconds)))
        (fact("exit status", report.code.to_string()))
        (fact("limit at the end", units::bytes(stats.memory.ram_limit)))
        (fact("most RAM used", units::bytes(stats.memory.ram_peak)))
        (fact("evicted", units::pages(stats.evictions.pages)))
        (fact("came back", units::pages(stats.pages.loaded)))
        (fact("page faults", units::count(stats.faults.total as f64)))
        (fact("CPU time of the program", units::seconds(report.observed.program_cpu)))
        (fact("CPU time of lowtide in it", units::seconds(stats.work.cpu_seconds)))
    }
}

/// Shell-quoted.
fn command(report: &Report<'_>) -> String {
    let words = report.command.iter().map(|word| {
        let word = word.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+%@".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.into_owned()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

fn options(report: &Report<'_>) -> Markup {
    html! {
        section {
            h2 { "The run" }
            table {
                @for (name, value) in &report.options { tr { th { code { (name) } } td { (value) } } }
                tr { th { "pids" } td { (report.stats.pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")) } }
            }
            @if !report.stats.areas.is_empty() {
                table {
                    tr {
                        th { "swap area" }
                        th { "state" }
                        @for name in ["held at the end", "size", "reads", "writes", "errors"] { th.n { (name) } }
                    }
                    @for area in &report.stats.areas {
                        tr {
                            td { (area.spec) }
                            td { (area.state) }
                            td.n { (units::bytes(area.used)) }
                            td.n { (units::bytes(area.size)) }
                            td.n { (units::count(area.reads as f64)) }
                            td.n { (units::count(area.writes as f64)) }
                            td.n { (units::count(area.errors as f64)) }
                        }
                    }
                }
                (servers(&report.stats.areas))
            }
        }
    }
}

/// Traffic between lowtide run and the servers of areas.
fn servers(areas: &[Area]) -> Markup {
    let on_servers: Vec<(&str, &Remote)> =
        areas.iter().filter_map(|area| Some((area.spec.as_str(), area.remote.as_ref()?))).collect();
    let figures = |remote: &Remote| {
        let took = &remote.read_latency_us;
        [
            ("pages written", units::count(remote.pages_written as f64)),
            ("read", units::count(remote.pages_read as f64)),
            ("sent", units::bytes(remote.sent_bytes)),
            ("received", units::bytes(remote.received_bytes)),
            ("reads: p50", units::seconds(took.p50 / 1e6)),
            ("p99", units::seconds(took.p99 / 1e6)),
            ("reconnects", units::count(remote.reconnects as f64)),
            ("failovers", units::count(remote.failovers as f64)),
            ("copies lost", units::count(remote.copies_lost as f64)),
            ("wrong", units::count(remote.copies_wrong as f64)),
        ]
    };
    html! {
        @if let Some((_, first)) = on_servers.first() {
            table {
                tr {
                    th { "on servers" }
                    @for (name, _) in figures(first) { th.n { (name) } }
                }
                @for (spec, remote) in &on_servers {
                    tr {
                        td { (spec) }
                        @for (_, figure) in figures(remote) { td.n { (figure) } }
                    }
                }
            }
        }
    }
}

fn footer(report: &Report<'_>) -> Markup {
    let series = report.series;
    html! {
        footer {
            "lowtide " (env!("CARGO_PKG_VERSION")) ". Sizes are binary (1 MiB = 1048576 bytes), pages are 4 KiB. "
            "For this page lowtide looked " (series.taken) " times, every " (units::seconds(series.step().as_secs_f64()))
            " in the end, which took " (units::seconds(series.cpu.as_secs_f64())) " of CPU time."
        }
    }
}
