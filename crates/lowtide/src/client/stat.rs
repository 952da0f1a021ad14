//! `lowtide stat`: the statistics of a run that goes on.

use super::connection::{Connection, Said, ended, silent};
use super::ps::time;
use super::{connection, find, number, print, table, text};
use crate::args::StatArgs;
use crate::error::Failure;
use crate::size;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How often `--watch` looks.
const WATCH: Duration = Duration::from_secs(1);
/// Most processes in the table.
const PROCESSES: usize = 20;
/// Clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Shows the statistics of a run.
pub fn stat(args: &StatArgs) -> Result<u8, Failure> {
    let mut run = args.pid.map_or_else(find::only, find::by_pid)?;
    if !args.watch {
        print(&show(&run.answer("stat", &[], |_| ())?, args.json, true))?;
        return Ok(0);
    }
    let (clear, between) = match (args.json, std::io::stdout().is_terminal()) {
        (true, _) => ("", ""),
        (false, true) => (CLEAR, ""),
        (false, false) => ("", "\n"),
    };
    let mut is_first = true;
    while let Some(answer) = look(&mut run)? {
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

/// The statistics; None: the run is over.
fn look(run: &mut Connection) -> Result<Option<Value>, Failure> {
    run.ask("stat", &[])?;
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
        // Nothing was asked.
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
    // The object of `--stats`, without what makes it an answer.
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
    line("lowtide", format!("{}: pool {pool} of {limit}{ratio}; staging {staged}", bytes("own_bytes")));
    let evicted = format!("{} evicted, of these {} zero", of("evictions", "pages"), of("pages", "zero"));
    line("pages", format!("{evicted}; {} loaded, {} on devices", of("pages", "loaded"), of("pages", "on_device")));
    let faults: Vec<String> = ["first_touch", "zero", "staged", "pool", "device"]
        .iter()
        .map(|kind| format!("{} {}", of("faults", kind), kind.replace('_', " ")))
        .collect();
    line("faults", format!("{}: {}", of("faults", "total"), faults.join(", ")));
    let latency: Vec<String> = ["p50", "p90", "p99", "p999", "max"]
        .iter()
        .map(|key| format!("{key} {:.1}", stat["fault_latency_us"][*key].as_f64().unwrap_or(0.0)))
        .collect();
    line("latency", format!("{} us", latency.join(", ")));
    all + &areas(stat) + &by_process(stat) + &warnings(stat)
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

fn by_process(stat: &Value) -> String {
    let mut list: Vec<&Value> = stat["processes"].as_array().into_iter().flatten().collect();
    if list.len() < 2 {
        return String::new();
    }
    list.sort_by_key(|process| std::cmp::Reverse(number(process, "ram_bytes")));
    let row = |process: &&Value| {
        let sizes = ["ram_bytes", "own_bytes", "out_bytes", "on_device_bytes"].map(|key| size::show(number(process, key)));
        [vec![number(process, "pid").to_string(), text(process, "state")], sizes.to_vec()].concat()
    };
    let rows: Vec<Vec<String>> = list.iter().take(PROCESSES).map(row).collect();
    let more = list.len().saturating_sub(PROCESSES);
    let more = if more > 0 { format!("  and {more} smaller ones\n") } else { String::new() };
    table(&[">PID", "STATE", ">RAM", ">LOWTIDE'S", ">OUT", ">ON DEVICES"], &rows, "  ") + &more
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
    }

    #[test]
    fn json_is_the_object_of_the_statistics() {
        let answer = json!({ "lowtide": 1, "ok": true, "schema": 1, "program": "x" });
        assert_eq!(show(&answer, true, false), "{\"schema\":1,\"program\":\"x\"}\n");
    }
}
