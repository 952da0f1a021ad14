//! `lowtide stat`: the statistics of a live run.

use super::connection::{Connection, Said, ended, silent};
use super::ps::time;
use super::{connection, find, number, print, table, text};
use crate::args::StatArgs;
use crate::error::Failure;
use lowtide_config::size;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

const WATCH: Duration = Duration::from_secs(1);
const PROCESSES: usize = 20;
/// Classes of clusters that are neither free nor full.
const EIGHTHS: usize = 8;
const CLEAR: &str = "\x1b[H\x1b[2J";

pub fn stat(args: &StatArgs) -> Result<u8, Failure> {
    let mut run = args.pid.map_or_else(find::only, find::by_pid)?;
    let fields: &[(&str, Value)] = if args.areas { &[("areas", Value::Bool(true))] } else { &[] };
    if !args.watch {
        print(&show(&run.answer("stat", fields, |_| ())?, args.json, true))?;
        return Ok(0);
    }
    let (clear, between) = match (args.json, std::io::stdout().is_terminal()) {
        (true, _) => ("", ""),
        (false, true) => (CLEAR, ""),
        (false, false) => ("", "\n"),
    };
    let mut is_first = true;
    while let Some(answer) = look(&mut run, fields)? {
        let before = if is_first { "" } else { between };
        if !print(&format!("{clear}{before}{}", show(&answer, args.json, false)))? {
            break;
        }
        is_first = false;
        if has_ended_within(&mut run, WATCH)? {
            break;
        }
    }
    Ok(0)
}

fn look(run: &mut Connection, fields: &[(&str, Value)]) -> Result<Option<Value>, Failure> {
    run.ask("stat", fields)?;
    match run.listen(connection::PATIENCE)? {
        Said::Answer(answer) => Ok(Some(answer)),
        Said::Error(failure) => Err(failure),
        Said::End => Ok(None),
        Said::Progress(_) | Said::Nothing => Err(silent(run.pid)),
    }
}

/// Waits for the next look, or for the end of the run.
fn has_ended_within(run: &mut Connection, time: Duration) -> Result<bool, Failure> {
    let until = Instant::now() + time;
    match run.listen(time)? {
        Said::End => Ok(true),
        Said::Error(failure) => Err(failure),
        Said::Nothing => Ok(false),
        Said::Answer(_) | Said::Progress(_) => {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            Err(ended(run.pid))
        }
    }
}

fn show(answer: &Value, json: bool, pretty: bool) -> String {
    if !json {
        return readable(answer);
    }
    // The object of `--stats`, without the answer's own fields.
    let mut object = answer.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.shift_remove("lowtide");
        fields.shift_remove("ok");
    }
    if pretty { format!("{object:#}\n") } else { format!("{object}\n") }
}

fn readable(stat: &Value) -> String {
    let bytes = |key: &str| size::show(number(stat, key));
    let of = |group: &str, key: &str| number(&stat[group], key);
    let elapsed = time(stat["elapsed_seconds"].as_f64().unwrap_or(0.0));
    let processes = stat["processes"].as_array().map_or(0, Vec::len);
    let mut all =
        format!("{} (lowtide run {}), {processes} processes, {elapsed}\n", text(stat, "program"), number(stat, "pid"));
    let mut line = |name: &str, what: String| {
        let _ = writeln!(all, "  {name:<10} {what}");
    };
    line("ram", format!("{} of {}, peak {}", bytes("ram_now"), bytes("ram_limit"), bytes("ram_peak")));
    line("program", format!("{} resident", bytes("resident_bytes")));
    let ratio = stat["compression_ratio"].as_f64().filter(|ratio| *ratio > 0.0);
    let ratio = ratio.map_or(String::new(), |ratio| format!(", {ratio:.2}:1 at its fullest"));
    let (pool, limit, staged) = (bytes("pool_bytes"), bytes("pool_limit"), bytes("staged_bytes"));
    let full = match of("pool", "full_times") {
        0 => String::new(),
        times => format!(", was full {times} times"),
    };
    line("lowtide", format!("{}: pool {pool} of {limit}{ratio}{full}; staging {staged}", bytes("own_bytes")));
    let evicted = format!("{} evicted, of these {} zero", of("evictions", "pages"), of("pages", "zero"));
    line("pages", format!("{evicted}; {} loaded, {} on devices", of("pages", "loaded"), of("pages", "on_device")));
    let faults: Vec<String> = ["first_touch", "zero", "staged", "pool", "device"]
        .iter()
        .map(|kind| format!("{} {}", of("faults", kind), kind.replace('_', " ")))
        .collect();
    line("faults", format!("{}: {}", of("faults", "total"), faults.join(", ")));
    if let Some(in_thread) = in_thread(stat) {
        line("in thread", in_thread);
    }
    let latency: Vec<String> = ["p50", "p90", "p99", "p999", "max"]
        .iter()
        .map(|key| format!("{key} {:.1}", stat["fault_latency_us"][*key].as_f64().unwrap_or(0.0)))
        .collect();
    line("latency", format!("{} us", latency.join(", ")));
    all + &areas(stat) + &servers(stat) + &clusters(stat) + &by_process(stat) + &warnings(stat)
}

/// Counts of faults served by the faulting threads, and the reasons of the others; `None`: delivery
/// to threads is off.
fn in_thread(stat: &Value) -> Option<String> {
    let own = number(&stat["faults"], "in_thread");
    let counts = stat["ring_records"].as_object().into_iter().flatten();
    let counts = counts.filter_map(|(why, count)| Some((why, count.as_u64().filter(|count| *count > 0)?)));
    let others: Vec<String> = counts.map(|(why, count)| format!("{count} {}", why.replace('_', " "))).collect();
    let shown = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
    (own > 0 || !others.is_empty()).then(|| format!("{own} of them; to handler threads: {shown}"))
}

fn areas(stat: &Value) -> String {
    let row = |area: &Value| {
        let counts = ["reads", "writes", "errors"].map(|key| number(area, key).to_string());
        let sizes = ["used", "size"].map(|key| size::show(number(area, key)));
        let prio = area["prio"].as_i64().unwrap_or(0).to_string();
        [vec![text(area, "spec"), prio], sizes.to_vec(), vec![text(area, "state")], counts.to_vec()].concat()
    };
    let rows: Vec<Vec<String>> = stat["areas"].as_array().into_iter().flatten().map(row).collect();
    if rows.is_empty() {
        return "  no swap areas: compressed RAM only\n".to_owned();
    }
    table(&["AREA", ">PRIO", ">USED", ">SIZE", "STATE", ">READS", ">WRITES", ">ERRORS"], &rows, "  ")
}

/// Traffic between `lowtide run` and the servers of each remote area.
fn servers(stat: &Value) -> String {
    let row = |area: &Value| {
        let remote = area.get("remote").filter(|remote| remote.is_object())?;
        let count = |key| number(remote, key).to_string();
        let bytes = |key| size::show(number(remote, key));
        let took = |key| format!("{:.1} us", remote["read_latency_us"][key].as_f64().unwrap_or(0.0));
        let pages = ["pages_written", "pages_read"].map(count);
        let rest = [bytes("sent_bytes"), bytes("received_bytes"), took("p50"), took("p99")];
        let events = ["reconnects", "failovers", "copies_lost", "copies_wrong"].map(count);
        Some([vec![text(area, "spec")], pages.to_vec(), rest.to_vec(), events.to_vec()].concat())
    };
    let rows: Vec<Vec<String>> = stat["areas"].as_array().into_iter().flatten().filter_map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let headings = [
        "ON SERVERS",
        ">WRITTEN",
        ">READ",
        ">SENT",
        ">RECEIVED",
        ">READS: P50",
        ">P99",
        ">RECONNECTS",
        ">FAILOVERS",
        ">COPIES LOST",
        ">WRONG",
    ];
    table(&headings, &rows, "  ")
}

fn clusters(stat: &Value) -> String {
    let row = |area: &Value| {
        let clusters = area.get("clusters")?;
        let count = |value: &Value| value.as_u64().unwrap_or(0).to_string();
        let by_eighths = clusters["by_eighths"].as_array().map_or(&[][..], Vec::as_slice);
        let eighths = (0..EIGHTHS).map(|i| by_eighths.get(i).map_or_else(|| "0".to_owned(), count));
        let mut row = vec![text(area, "spec"), count(&clusters["opened"]), count(&clusters["free"])];
        row.extend(eighths);
        row.extend(["full", "never_opened"].map(|key| count(&clusters[key])));
        Some(row)
    };
    let rows: Vec<Vec<String>> = stat["areas"].as_array().into_iter().flatten().filter_map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let headings = [
        "CLUSTERS OF",
        ">OPENED",
        ">FREE",
        ">TO 1/8",
        ">2/8",
        ">3/8",
        ">4/8",
        ">5/8",
        ">6/8",
        ">7/8",
        ">8/8",
        ">FULL",
        ">NEVER OPENED",
    ];
    let silent = stat["areas_not_counted"].as_array().map_or(0, Vec::len);
    let silent = if silent > 0 { format!("  without {silent} processes that did not answer in time\n") } else { String::new() };
    table(&headings, &rows, "  ") + &silent
}

/// The process tree; siblings by size, the largest first.
fn by_process(stat: &Value) -> String {
    let mut list: Vec<&Value> = stat["processes"].as_array().into_iter().flatten().collect();
    if list.len() < 2 {
        return String::new();
    }
    list.sort_by_key(|process| std::cmp::Reverse(number(process, "ram_bytes")));
    let more = list.len().saturating_sub(PROCESSES);
    list.truncate(PROCESSES);
    let row = |(depth, process): &(usize, &Value)| {
        let sizes = ["resident_bytes", "own_bytes", "out_bytes", "on_device_bytes"].map(|key| size::show(number(process, key)));
        let name = "  ".repeat(*depth) + &text(process, "name");
        let faults = number(process, "faults").to_string();
        [vec![number(process, "pid").to_string(), name, text(process, "state")], sizes.to_vec(), vec![faults]].concat()
    };
    let rows: Vec<Vec<String>> = as_tree(&list).iter().map(row).collect();
    let more = if more > 0 { format!("  and {more} smaller ones\n") } else { String::new() };
    let headings = [">PID", "NAME", "STATE", ">RESIDENT", ">LOWTIDE'S", ">SWAPPED", ">ON DEVICES", ">FAULTS"];
    table(&headings, &rows, "  ") + &more
}

/// Each process behind its parent, with its depth in the list. Each appears once, whatever the list
/// contains.
fn as_tree<'a>(list: &[&'a Value]) -> Vec<(usize, &'a Value)> {
    let is_parent = |parent: &Value, child: &Value| number(child, "parent") == number(parent, "pid");
    let is_root = |process: &&&Value| !list.iter().any(|other| is_parent(other, process));
    let mut waiting: Vec<(usize, &Value)> = list.iter().filter(is_root).rev().map(|root| (0, *root)).collect();
    let mut tree: Vec<(usize, &Value)> = Vec::new();
    let is_in = |tree: &[(usize, &Value)], process: &Value| tree.iter().any(|(_, other)| std::ptr::eq(*other, process));
    while let Some((depth, process)) = waiting.pop() {
        if is_in(&tree, process) {
            continue;
        }
        tree.push((depth, process));
        waiting.extend(list.iter().rev().filter(|child| is_parent(process, child)).map(|child| (depth + 1, *child)));
    }
    // The list's entries are of different moments, so two processes may name each other as parents.
    let rest: Vec<&Value> = list.iter().copied().filter(|process| !is_in(&tree, process)).collect();
    tree.extend(rest.into_iter().map(|process| (0, process)));
    tree
}

fn warnings(stat: &Value) -> String {
    let list = stat["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
    list.map(|warning| format!("  warning: {}\n", super::clean(warning))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_answer_of_another_version_is_shown_as_far_as_it_is_understood() {
        let text = readable(&json!({ "ok": true, "program": "x", "areas": [{ "spec": "dir:/x" }], "warnings": ["odd\u{7}"] }));
        assert!(text.contains("dir:/x") && text.contains("warning: odd?"), "{text}");
        assert!(!readable(&json!({})).is_empty());
        assert!(!text.contains("in thread"), "{text}");
        let records = json!({ "kernel_mode": 3, "traced": 0, "asked_already": 2 });
        let text = readable(&json!({ "faults": { "total": 9, "in_thread": 4 }, "ring_records": records }));
        assert!(text.contains("in thread  4 of them; to handler threads: 3 kernel mode, 2 asked already\n"), "{text}");
        let clusters = json!({ "opened": 3, "free": 1, "by_eighths": [2], "never_opened": 7 });
        assert!(!text.contains("ON SERVERS"), "{text}");
        let remote = json!({ "pages_written": 12, "failovers": 3, "read_latency_us": { "p99": 512.25 } });
        let text = readable(&json!({ "areas": [{ "spec": "redis://h:1", "remote": remote }, { "remote": null }] }));
        let row: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(row.join(" "), "redis://h:1 12 0 0 bytes 0 bytes 0.0 us 512.2 us 0 3 0 0", "{text}");
        let text = readable(&json!({ "areas": [{ "spec": "dir:/x", "clusters": clusters }], "areas_not_counted": [4] }));
        assert!(text.contains("CLUSTERS OF") && text.contains("without 1 processes"), "{text}");
    }

    #[test]
    fn processes_stand_behind_their_parents_each_once() {
        let of = |pid: u64, parent: u64, ram: u64| json!({ "pid": pid, "parent": parent, "name": format!("p{pid}"), "ram_bytes": ram });
        let text =
            readable(&json!({ "processes": [of(4, 3, 9), of(2, 1, 5), of(3, 2, 7), of(5, 2, 8), of(8, 9, 1), of(9, 8, 1)] }));
        let names: Vec<&str> =
            text.lines().skip_while(|line| !line.contains("NAME")).skip(1).map(|line| &line[7..13]).collect();
        assert_eq!(names, ["p2    ", "  p5  ", "  p3  ", "    p4", "p8    ", "p9    "], "{text}");
    }

    #[test]
    fn json_is_the_object_of_the_statistics() {
        let answer = json!({ "lowtide": 1, "ok": true, "schema": 1, "program": "x" });
        assert_eq!(show(&answer, true, false), "{\"schema\":1,\"program\":\"x\"}\n");
    }
}
