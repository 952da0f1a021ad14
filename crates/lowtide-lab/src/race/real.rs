//! Real programs, as packaged by distributions, and their jobs in the race. Each job prints sums
//! over all its data.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use super::redis::Client;
use super::run::Task;
use super::site::Site;
use crate::programs::python_with;

const SAVES: usize = 3;
/// A shell script: DIRECTORY ROWS TRANSACTIONS.
pub const MARIADB: &str = include_str!("jobs/mariadb.sh");
/// What [`MARIADB`] runs.
pub const MARIADB_NEEDS: &[Need] = &[Need::Command("mariadbd"), Need::Command("sysbench")];

#[derive(Debug, Clone, Copy)]
pub enum Need {
    /// A command on `PATH`.
    Command(&'static str),
    Module(&'static str),
}

impl Need {
    /// The missing thing's name, if it is missing.
    pub fn missing(self) -> Option<String> {
        match self {
            Need::Command(name) => {
                let paths = std::env::var_os("PATH").unwrap_or_default();
                let found = std::env::split_paths(&paths).any(|directory| directory.join(name).is_file());
                (!found).then(|| name.to_owned())
            }
            Need::Module(name) => python_with(name).is_none().then(|| format!("Python with {name}")),
        }
    }
}

/// GNU sort of lines of a log by two threads, in memory.
pub fn sort(site: &Site) -> Result<Task, String> {
    let lines = site.pick(1_300_000, 4_000_000);
    let file = site.file("lines", |out| {
        let mut random = fastrand::Rng::with_seed(1);
        (0..lines).try_for_each(|i| writeln!(out, "{:016x} line {i} of a log file, status {}", random.u64(..), random.u8(..5)))
    })?;
    site.task(["sort".into(), "--parallel=2".into(), "-S".into(), "2G".into(), file.into()])
}

/// gcc on one large unit: a table as of a parser generator, and functions.
pub fn gcc(site: &Site) -> Result<Task, String> {
    let (functions, rules) = site.pick((700, 90_000), (1_800, 220_000));
    let file = site.file("unit.c", |out| {
        writeln!(out, "struct rule {{ const char *name; int left, right; double weight; }};\nconst struct rule rules[] = {{")?;
        for i in 0..rules {
            let (left, right) = (i * 31 % 1009, i * 17 % 2003);
            writeln!(out, "{{ \"rule {i} of {}\", {left}, {right}, {}.25 }},", i % 97, i % 100)?;
        }
        writeln!(out, "}};")?;
        for i in 0..functions {
            writeln!(out, "int f{i}(const struct rule *r, int n)\n{{\n  int s = {i};\n  for (; n > {}; n--, r++) {{", i % 7)?;
            writeln!(
                out,
                "    if (r->left > s) s += r->right * {};\n    else s ^= rules[(unsigned) s % {rules}].left;",
                i % 77
            )?;
            writeln!(out, "  }}\n  return s;\n}}")?;
        }
        Ok(())
    })?;
    site.task(["gcc", "-w", "-O1", "-S", "-o", "-"].map(OsString::from).into_iter().chain([file.into()]))
}

pub fn redis(site: &Site) -> Result<Task, String> {
    let socket = site.directory.join("redis");
    let (keys, requests) = site.pick((180_000, 250_000), (400_000, 600_000));
    let server = ["redis-server", "--port", "0", "--save", "", "--appendonly", "no", "--logfile", "/dev/null", "--unixsocket"];
    let task = site.task(server.map(OsString::from).into_iter().chain([socket.clone().into()]))?;
    Ok(Task { client: Some(Client { socket, keys, requests, saves: 0 }), ..task })
}

/// The same with fewer keys and repeated saves: each save forks, and the child reads all data.
pub fn saves(site: &Site) -> Result<Task, String> {
    let (keys, requests) = site.pick((120_000, 250_000), (250_000, 600_000));
    let task = redis(site)?;
    let first = ["sh", "-c", "rm -f saves.rdb && exec \"$@\"", "sh"].map(OsString::from);
    // A server loads a file of this name: neither another load's, nor the previous run's.
    let last = ["--dbfilename", "saves.rdb"].map(OsString::from);
    Ok(Task {
        command: first.into_iter().chain(task.command).chain(last).collect(),
        client: task.client.map(|client| Client { keys, requests, saves: SAVES, ..client }),
        directory: task.directory,
    })
}

/// MariaDB and its workers, all under the limit.
pub fn mariadb(site: &Site) -> Result<Task, String> {
    let [rows, transactions] = site.pick(["400000", "3000"], ["1000000", "10000"]);
    let script = site.file("mariadb.sh", |out| out.write_all(MARIADB.as_bytes()))?;
    let arguments = [site.directory.clone().into(), rows.into(), transactions.into()];
    site.task([OsString::from("sh"), script.into()].into_iter().chain(arguments))
}

/// SQLite in memory, in Python: point queries and updates.
pub fn sqlite(site: &Site) -> Result<Task, String> {
    python(
        site,
        "sqlite3",
        "sqlite.py",
        include_str!("jobs/sqlite.py"),
        site.pick(&["350000", "150000"], &["1000000", "400000"]),
    )
}

pub fn objects(site: &Site) -> Result<Task, String> {
    python(site, "zlib", "objects.py", include_str!("jobs/objects.py"), site.pick(&["220000"], &["600000"]))
}

/// DuckDB: joins, sorts, updates.
pub fn duckdb(site: &Site) -> Result<Task, String> {
    python(site, "duckdb", "duckdb_job.py", include_str!("jobs/duckdb_job.py"), site.pick(&["1200000"], &["2500000"]))
}

/// numpy: streaming through columns.
pub fn numpy(site: &Site) -> Result<Task, String> {
    python(site, "numpy", "arrays.py", include_str!("jobs/arrays.py"), site.pick(&["200", "10"], &["512", "15"]))
}

/// numpy: sorts, an FFT and a product of matrices.
pub fn matrices(site: &Site) -> Result<Task, String> {
    python(site, "numpy", "matrices.py", include_str!("jobs/matrices.py"), site.pick(&["3000000"], &["8000000"]))
}

/// A JavaScript heap under garbage collection.
pub fn javascript(site: &Site) -> Result<Task, String> {
    let script = site.file("heap.js", |out| out.write_all(include_bytes!("jobs/heap.js")))?;
    let [count, steps] = site.pick(["350000", "500000"], ["1000000", "1500000"]);
    // By default it would derive its limits from the group's, and collect garbage more often there
    // than under lowtide.
    let limits = ["--max-old-space-size=2048", "--max-semi-space-size=16"].map(OsString::from);
    let job = [script.into(), count.into(), steps.into()];
    site.task([OsString::from("node")].into_iter().chain(limits).chain(job))
}

fn python(site: &Site, module: &str, name: &str, text: &str, arguments: &[&str]) -> Result<Task, String> {
    let python = python_with(module).ok_or_else(|| format!("no Python with {module}"))?;
    let script = site.file(name, |out| out.write_all(text.as_bytes()))?;
    site.task([python.into(), script.into()].into_iter().chain(arguments.iter().map(OsString::from)))
}

impl Site {
    fn task(&self, command: impl IntoIterator<Item = OsString>) -> Result<Task, String> {
        Ok(Task { command: command.into_iter().collect(), directory: self.directory.clone(), client: None })
    }

    /// Writes a file, which stays in the cache uncharged: otherwise a group would be charged for
    /// its first read.
    fn file(&self, name: &str, write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>) -> Result<PathBuf, String> {
        let path = self.directory.join(name);
        let written = File::create(&path).map(BufWriter::new).and_then(|mut out| {
            write(&mut out)?;
            out.flush()
        });
        written.map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    }
}
