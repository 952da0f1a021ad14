//! Pages of real programs, read from the memory of processes started for that and stopped again.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lowtide_core::vm::PAGE_SIZE;

/// Longest time for a program to fill its memory.
const PATIENCE: Duration = Duration::from_secs(30);

/// Reads up to this many pages of a kind of memory. The error says what is missing.
type Pages = fn(usize) -> Result<Vec<[u8; PAGE_SIZE]>, String>;
/// Programs' resident anonymous memory, zero pages included.
pub const PROGRAMS: [(&str, Pages); 5] =
    [("python heap", python), ("redis", redis), ("compiler (cc1)", compiler), ("sort", sort), ("numpy floats", floats)];
pub const CODE: (&str, Pages) = ("executable code", code);

/// Drop kills the process.
pub struct Started(pub Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(command: &mut Command) -> Result<Started, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.spawn().map(Started).map_err(|e| format!("{name} can't be started: {e}"))
}

fn python(pages: usize) -> Result<Vec<[u8; PAGE_SIZE]>, String> {
    let script = format!(
        "d = {{i: ['name-%d' % i, i * 1.5, {{'next': i + 1}}] for i in range({})}}\nprint('ready', flush=True)\ninput()",
        pages * 12
    );
    read_when_ready(Command::new("python3").args(["-c", &script]), pages)
}

/// A Python with a module: of `make setup`'s environment beside this program's directory, or the
/// system's.
pub fn python_with(module: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let made = own.iter().filter_map(|own| own.parent()?.parent()).map(|target| target.join("venv/bin/python"));
    made.chain([PathBuf::from("python3")]).find(|python| {
        let status = Command::new(python).args(["-c", &format!("import {module}")]).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    })
}

/// Normally distributed floats and a running sum of them, as simulations have.
fn floats(pages: usize) -> Result<Vec<[u8; PAGE_SIZE]>, String> {
    let python = python_with("numpy").ok_or("no python3 with numpy (`make setup` makes one)")?;
    let half = pages * PAGE_SIZE / 8;
    let script = format!(
        "import numpy\na = numpy.random.default_rng(1).normal(size={half}).round(3)\nb = a.cumsum()\nprint('ready', flush=True)\ninput()"
    );
    read_when_ready(Command::new(python).args(["-c", &script]), pages)
}

fn read_when_ready(command: &mut Command, pages: usize) -> Result<Vec<[u8; PAGE_SIZE]>, String> {
    let mut child = start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
    let mut line = String::new();
    let out = child.0.stdout.take().ok_or("no output")?;
    BufReader::new(out).read_line(&mut line).map_err(|e| e.to_string())?;
    if line.trim() != "ready" {
        return Err(format!("{} did not get ready", command.get_program().to_string_lossy()));
    }
    anonymous(child.0.id(), pages)
}

fn redis(pages: usize) -> Result<Vec<[u8; PAGE_SIZE]>, String> {
    let socket = std::env::temp_dir().join(format!("lowtide-lab-{}.sock", std::process::id()));
    let server = start(
        Command::new("redis-server").args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket).stdout(Stdio::null()),
    )?;
    let began = Instant::now();
    let mut stream = loop {
        match UnixStream::connect(&socket) {
            Ok(stream) => break stream,
            Err(e) if began.elapsed() > PATIENCE => return Err(format!("redis-server does not answer: {e}")),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let mut random = fastrand::Rng::with_seed(1);
    for batch in 0..pages / 16 {
        let mut text = String::new();
        for i in 0..100 {
            let id = batch * 100 + i;
            text += &format!(
                "HSET user:{id} name user{id} mail user{id}@example.org visits {} score {:.4}\r\n",
                random.u32(..1000),
                random.f64()
            );
        }
        stream.write_all(text.as_bytes()).map_err(|e| e.to_string())?;
        let mut answers = [0; 400];
        stream.read_exact(&mut answers).map_err(|e| e.to_string())?;
    }
    let pages = anonymous(server.0.id(), pages);
    let _ = std::fs::remove_file(socket);
    pages
}

/// GNU sort waiting for more lines.
fn sort(pages: usize) -> Result<Vec<[u8; PAGE_SIZE]>, String> {
    let mut child = start(Command::new("sort").args(["-S", "1G"]).stdin(Stdio::piped()).stdout(Stdio::null()))?;
    let mut input = child.0.stdin.take().ok_or("no input")?;
    let mut random = fastrand::Rng::with_seed(1);
    let mut text = String::new();
    // Each line takes about as much again in sort's table of lines, so this is enough.
    while text.len() < pages * PAGE_SIZE {
        text += &format!("{:016x} line {} of a log file, status {}\n", random.u64(..), text.len(), random.u8(..5));
    }
    // sort has read all but the pipe's content.
    input.write_all(text.as_bytes()).map_err(|e| e.to_string())?;
    anonymous(child.0.id(), pages)
}

fn cc1() -> Result<PathBuf, String> {
    let out = Command::new("cc").arg("-print-prog-name=cc1").output().map_err(|e| format!("cc can't be started: {e}"))?;
    Ok(PathBuf::from(String::from_utf8_lossy(&out.stdout).trim()))
}

fn compiler(pages: usize) -> Result<Vec<[u8; PAGE_SIZE]>, String> {
    let mut child = start(
        Command::new(cc1()?).args(["-quiet", "-O2", "-", "-o", "/dev/null"]).stdin(Stdio::piped()).stderr(Stdio::null()),
    )?;
    let mut input = child.0.stdin.take().ok_or("no input")?;
    let mut text = String::new();
    for i in 0..pages * 3 {
        text += &format!(
            "struct s{i} {{ int a[{}]; struct s{i} *next; }};\nint f{i}(struct s{i} *p, int n) {{ int s = {i}; while (p && n-- > {i}) {{ s += p->a[n & 3] * {}; p = p->next; }} return s; }}\n",
            i % 9 + 4,
            i % 77
        );
    }
    input.write_all(text.as_bytes()).map_err(|e| e.to_string())?;
    drop(input);
    // Stopped when it has enough memory; a compiler that ends before has none.
    let pid = rustix::process::Pid::from_child(&child.0);
    let (began, enough) = (Instant::now(), pages * 2);
    let resident = || lowtide_config::proc::resident(child.0.id()) as usize / PAGE_SIZE;
    while resident() < enough + 6000 && began.elapsed() < PATIENCE / 10 {
        std::thread::sleep(Duration::from_millis(2));
    }
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).map_err(|e| e.to_string())?;
    anonymous(child.0.id(), pages)
}

/// Pages of the largest program that is certainly here: the compiler.
fn code(pages: usize) -> Result<Vec<[u8; PAGE_SIZE]>, String> {
    let path = cc1()?;
    let file = File::open(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let len = file.metadata().map_err(|e| e.to_string())?.len();
    // The code lies in the front half, behind the headers and relocations.
    let first = len / 10 / PAGE_SIZE as u64;
    let end = (len / 2 / PAGE_SIZE as u64).min(first + pages as u64);
    let mut page = [0; PAGE_SIZE];
    (first..end)
        .map(|i| file.read_exact_at(&mut page, i * PAGE_SIZE as u64).map(|()| page).map_err(|e| e.to_string()))
        .collect()
}

/// Up to `most` resident pages of a process's private, writable, anonymous memory, spread over all
/// of it.
pub fn anonymous(pid: u32, most: usize) -> Result<Vec<[u8; PAGE_SIZE]>, String> {
    const PRESENT: u64 = 1 << 63;
    let open = |name: &str| File::open(format!("/proc/{pid}/{name}")).map_err(|e| format!("process {pid}: {name}: {e}"));
    let maps = std::io::read_to_string(open("maps")?).map_err(|e| e.to_string())?;
    let (mem, pagemap) = (open("mem")?, open("pagemap")?);
    let mut found = Vec::new();
    for line in maps.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let anonymous = fields.len() == 5 || fields.get(5) == Some(&"[heap]");
        let Some((start, end)) = fields[0].split_once('-').filter(|_| fields[1] == "rw-p" && anonymous) else { continue };
        let parse = |hex| usize::from_str_radix(hex, 16).map_err(|e| e.to_string());
        for at in (parse(start)?..parse(end)?).step_by(PAGE_SIZE) {
            let (mut page, mut state) = ([0; PAGE_SIZE], [0; 8]);
            // An untouched page reads as zeros, and does not count.
            let present = pagemap.read_exact_at(&mut state, (at / PAGE_SIZE * 8) as u64).is_ok()
                && u64::from_ne_bytes(state) & PRESENT != 0;
            if present && mem.read_exact_at(&mut page, at as u64).is_ok() {
                found.push(page);
            }
        }
    }
    let step = (found.len() / most.max(1)).max(1);
    Ok(found.into_iter().step_by(step).take(most).collect())
}
