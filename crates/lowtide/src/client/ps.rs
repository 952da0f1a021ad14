//! `lowtide ps`: lists the runs.

use super::connection::Connection;
use super::find::{self, program};
use super::{number, print, table};
use crate::error::Failure;
use lowtide_config::size;
use serde_json::Value;

pub fn ps() -> Result<u8, Failure> {
    let mut rows = Vec::new();
    for run in find::all() {
        let answer = match Connection::new(&run.place, run.pid) {
            Ok(None) => continue,
            Ok(Some(mut connection)) => connection.answer("ps", &[], |_| ()),
            Err(failure) => Err(failure),
        };
        rows.push(match answer {
            Ok(answer) => row(run.pid, &answer),
            Err(failure) => {
                crate::error::say(&format!("warning: {}", failure.line));
                continue;
            }
        });
    }
    if rows.is_empty() {
        print("no runs\n")?;
    } else {
        print(&table(&[">PID", ">RAM", ">LIMIT", ">OUT", ">TIME", ">PROCESSES", "PROGRAM"], &rows, ""))?;
    }
    Ok(0)
}

fn row(pid: u32, answer: &Value) -> Vec<String> {
    let bytes = |key| size::show(number(answer, key));
    vec![
        pid.to_string(),
        bytes("ram_now"),
        bytes("ram_limit"),
        bytes("out_bytes"),
        time(answer["elapsed_seconds"].as_f64().unwrap_or(0.0)),
        number(answer, "processes").to_string(),
        program(answer),
    ]
}

/// `3.1 s`, `12:04`, `5:12:04`.
pub fn time(seconds: f64) -> String {
    let whole = seconds as u64;
    let (hours, minutes, rest) = (whole / 3600, whole / 60 % 60, whole % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds:.1} s"),
        (0, _) => format!("{minutes}:{rest:02}"),
        _ => format!("{hours}:{minutes:02}:{rest:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!([3.1, 59.9, 724.0, 18_724.5].map(time), ["3.1 s", "59.9 s", "12:04", "5:12:04"]);
    }
}
