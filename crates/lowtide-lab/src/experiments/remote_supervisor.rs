//! CPU time and memory of `lowtide run` itself while it serves four processes whose pages are on a
//! server, beside a run in compressed RAM, where it serves none. Needs redis-server, which it
//! starts on loopback.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_config::proc;
use lowtide_core::vm::PAGE_SIZE;
use serde_json::Value;

use super::remote::{PATIENCE, start};
use crate::experiment::{Experiment, Outcome, Scale};
use crate::fault::program;
use crate::race::lowtide_program;
use crate::report::Table;
use crate::swapoff::cpu;

pub const EXPERIMENT: Experiment = Experiment {
    name: "remote-supervisor",
    question: "what does `lowtide run` itself take while it serves four processes with pages on a server?",
    run,
};

/// Processes that each read own single pages at random.
const PROCESSES: usize = 4;
/// Of each process.
const PAGES: usize = 32 << 20 >> PAGE_SIZE.trailing_zeros();
/// For all of them: half.
const RAM: &str = "64M";
/// Pages loaded before the measurement: all processes are filled then.
const ENOUGH: f64 = 2000.0;

/// `lowtide run` of the processes; drop kills both.
struct Run(Child);

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Seen {
    at: Instant,
    pages_in: f64,
    on_server: [f64; 2],
    cpu: cpu::Cpu,
}

impl Run {
    fn start(options: &[&str], seconds: Duration) -> Result<Run, String> {
        let own = std::env::current_exe().map_err(|e| format!("can't find this program: {e}"))?;
        let one = format!("\"$0\" {} 1 {PAGES} {} /dev/null & ", program::NAME, seconds.as_secs());
        let mut command = Command::new(lowtide_program()?);
        command.args(["run", "--quiet", "--ram", RAM]).args(options).args(["--", "sh", "-c"]);
        command.arg(format!("{}wait", one.repeat(PROCESSES))).arg(own);
        command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map(Run).map_err(|e| format!("lowtide: {e}"))
    }

    fn seen(&self) -> Result<Seen, String> {
        let pid = self.0.id();
        let output = Command::new(lowtide_program()?).args(["stat", &pid.to_string(), "--json"]).output();
        let stat: Value = serde_json::from_slice(&output.map_err(|e| format!("lowtide: {e}"))?.stdout)
            .map_err(|e| format!("lowtide stat: {e}"))?;
        let number = |path: &str| stat.pointer(path).and_then(Value::as_f64).unwrap_or(0.0);
        let on_server = ["pages_written", "pages_read"].map(|name| number(&format!("/areas/0/remote/{name}")));
        Ok(Seen { at: Instant::now(), pages_in: number("/pages/loaded"), on_server, cpu: cpu::of_process(pid) })
    }
}

fn run(scale: &Scale) -> Result<Outcome, String> {
    let redis = start()?;
    let area = format!("redis://127.0.0.1:{}", redis.1);
    let time = Duration::from_secs(scale.pick(3, 20));
    let columns = ["pages", "written/s", "read/s", "CPU s of a second", "us a page", "resident", "private", "threads"];
    let mut table = Table::new(format!("{PROCESSES} processes with {} MiB each in {RAM}", (PAGES * PAGE_SIZE) >> 20), &columns);
    for (name, options) in [("on a server", ["--pool", "1M", "--swap", &area]), ("in RAM", ["--codec", "lz4", "--swap", "ram"])]
    {
        let run = Run::start(&options, time + 2 * PATIENCE)?;
        let until = Instant::now() + PATIENCE;
        while !run.seen().is_ok_and(|seen| seen.pages_in >= ENOUGH) {
            if Instant::now() > until {
                return Err(format!("no pages come in, of processes whose pages are {name}"));
            }
            thread::sleep(Duration::from_millis(200));
        }
        let before = run.seen()?;
        thread::sleep(time);
        let (after, pid) = (run.seen()?, run.0.id());
        let seconds = (after.at - before.at).as_secs_f64();
        let cpu = after.cpu - before.cpu;
        let [written, read] = [0, 1].map(|kind| after.on_server[kind] - before.on_server[kind]);
        let used = cpu.user + cpu.system;
        let each = if written + read > 0.0 { format!("{:.1}", used * 1e6 / (written + read)) } else { "-".to_owned() };
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        let threads = proc::threads(pid).map_or(0, |threads| threads.len());
        table.row([
            name.to_owned(),
            format!("{:.0}", written / seconds),
            format!("{:.0}", read / seconds),
            format!("{:.3}", used / seconds),
            each,
            mib(proc::resident(pid)),
            mib(proc::anonymous(pid)),
            threads.to_string(),
        ]);
    }
    Ok(Outcome { tables: vec![table], ..Outcome::default() })
}
