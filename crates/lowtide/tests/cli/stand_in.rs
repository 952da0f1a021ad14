//! What lowtide makes of what processes write into the memory that a run shares, with a process that stands in for one of them.

use crate::running::Running;
use crate::{Spoilt, lowtide, works};
use lowtide_config::proc::Stat;
use lowtide_wire::segment::{Proc, Segment, Settings};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Pid, Signal};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Maps a file shared; None: that is not allowed.
fn map(file: &std::fs::File, size: usize, prot: ProtFlags) -> Option<*mut u8> {
    // SAFETY: a new mapping of a file that can't shrink; it stays until the test ends.
    unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, prot, MapFlags::SHARED, file, 0) }.ok().map(<*mut _>::cast)
}

/// Maps the settings and the segment of a run, as an agent would. `origin`: what LOWTIDE_SEGMENT says.
fn shared(origin: &str) -> (&'static Settings, &'static Segment) {
    let path = origin.split('@').next().expect("a path");
    let file = std::fs::File::open(path).expect("the settings open");
    let at = map(&file, Settings::SIZE, ProtFlags::READ).expect("mapped").cast::<Settings>();
    // SAFETY: as large as Settings, and written by lowtide.
    let settings = unsafe { &*at };
    let path = std::ffi::CStr::from_bytes_until_nul(&settings.segment).expect("a path").to_str().expect("UTF-8");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("the segment opens");
    let at = map(&file, Segment::SIZE, ProtFlags::READ | ProtFlags::WRITE).expect("mapped").cast::<Segment>();
    // SAFETY: as above.
    (settings, unsafe { &*at })
}

/// The smallest program that the kernel executes, at an address of its own: code, or a loader that is executed instead.
fn smallest(at: u64, code: &[u8], loader: Option<&Path>) -> Spoilt {
    const HEADERS: u64 = 64 + 2 * 56;
    const LOAD: u64 = 5 << 32 | 1;
    const INTERP: u64 = 4 << 32 | 3;
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let name = loader.map_or(Vec::new(), |path| [path.to_str().expect("UTF-8").as_bytes(), b"\0"].concat());
    let (code_at, size) = (at + HEADERS + name.len() as u64, HEADERS + (name.len() + code.len()) as u64);
    let headers = 1 + u64::from(loader.is_some());
    Spoilt::new(|bytes| {
        *bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 62, 0, 1, 0, 0, 0];
        bytes.extend(words(&[code_at, 64, 0, 64 << 32 | 56 << 48, headers]));
        if loader.is_some() {
            bytes.extend(words(&[INTERP, HEADERS, at + HEADERS, at + HEADERS, name.len() as u64, name.len() as u64, 1]));
        }
        bytes.extend(words(&[LOAD, 0, at, at, size, size, 0x1000]));
        bytes.resize(HEADERS as usize, 0);
        bytes.extend(name);
        bytes.extend(code);
    })
}

/// A program that waits for a signal, without an agent: its loader preloads nothing, and only programs without a loader are
/// entered. And that loader.
fn idle() -> (Spoilt, Spoilt) {
    // 1: mov $34 (pause), %eax; syscall; jmp 1b
    let loader = smallest(0x40_0000, &[0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7], None);
    (smallest(0x80_0000, &[], Some(&loader.path)), loader)
}

/// A run with a process that stands in for one of the tree: registered by the test, without an agent that would write into its
/// slot.
struct StandIn {
    run: Running,
    settings: &'static Settings,
    segment: &'static Segment,
    slot: &'static Proc,
    pid: u32,
    _files: [Spoilt; 2],
}

impl StandIn {
    /// `script`: what the program does then.
    fn new(script: &str) -> StandIn {
        let (program, loader) = idle();
        let run = Running::new(&format!("{} & echo $LOWTIDE_SEGMENT $!; {script}", program.path.display()));
        let (path, pid) = run.line.split_once(' ').expect("two words");
        let ((settings, segment), pid) = (shared(path), pid.parse::<u32>().expect("a pid"));
        // Until it is executed it is a shell with an agent, which says what it has by itself.
        let is_executed = || std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program.path);
        while !is_executed() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let slot = segment.claim(pid).expect("a slot");
        StandIn { run, settings, segment, slot, pid, _files: [program, loader] }
    }

    fn kill(&self) {
        rustix::process::kill_process(Pid::from_raw(self.pid as i32).expect("a pid"), Signal::KILL).expect("killed");
    }

    /// Whether it is gone, or about to be buried by its parent.
    fn is_gone(pid: u32) -> bool {
        Stat::of(pid).is_none_or(|stat| stat.is_zombie())
    }
}

// (Over 70 lines: one run, and every statement about it.)
#[test]
fn statistics_and_warnings() {
    if !works() {
        return;
    }
    let stand_in = StandIn::new("read x; exit 7");
    let (settings, segment, slot, pid) = (stand_in.settings, stand_in.segment, stand_in.slot, stand_in.pid);
    assert_eq!(settings.supervisor, stand_in.run.child.id());
    assert_eq!(settings.ram_limit.load(Ordering::Relaxed), 64 << 20);
    assert_eq!(settings.pool_limit.load(Ordering::Relaxed), 54 << 20);
    slot.counters.evictions_pages.store(1000, Ordering::Relaxed);
    slot.counters.faults_total.store(500, Ordering::Relaxed);
    slot.counters.zero_pages.store(12, Ordering::Relaxed);
    slot.counters.pages_in.store(300, Ordering::Relaxed);
    slot.counters.latency_max_ns.store(77_000, Ordering::Relaxed);
    slot.latency[40].store(500, Ordering::Relaxed);
    slot.now_stored.store(400, Ordering::Relaxed);
    slot.pool_stored_bytes.store(400 * 1024, Ordering::Relaxed);
    slot.own_bytes.store(1 << 20, Ordering::Relaxed);
    slot.ram_bytes.store(50 << 20, Ordering::Relaxed);
    slot.adopted_bytes.store(1 << 30, Ordering::Relaxed);
    segment.warn(pid, b"one\nthing is odd");
    segment.warn(pid, b"one\nthing is odd");
    std::thread::sleep(Duration::from_millis(300));
    // It dies and is buried; its counts stay.
    stand_in.kill();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(slot.pid.load(Ordering::Relaxed), 0, "the dead are buried");

    let (code, _, err, stats) = stand_in.run.output();
    assert_eq!(code, Some(7));
    for key in [
        "schema",
        "program",
        "pids",
        "elapsed_seconds",
        "ram_limit",
        "ram_now",
        "ram_peak",
        "resident_bytes",
        "own_bytes",
        "staged_bytes",
        "pool_bytes",
        "pool_stored_bytes",
        "pool_limit",
        "compression_ratio",
        "pages",
        "faults",
        "ring_records",
        "evictions",
        "work",
        "locks",
        "pool",
        "writeback",
        "fault_latency_us",
        "stall_seconds",
        "areas",
        "warnings",
    ] {
        assert!(stats.get(key).is_some(), "{key} is missing");
    }
    assert_eq!(stats["schema"], 1);
    assert!(stats["pids"].as_array().expect("a list").contains(&pid.into()), "{stats}");
    assert_eq!(stats["ram_limit"], 64 << 20);
    assert!(stats["ram_peak"].as_u64() > Some(50 << 20), "{stats}");
    assert!(stats["ram_now"].as_u64() > Some(50 << 20), "{stats}");
    assert!(stats["own_bytes"].as_u64() > Some(1 << 20), "the supervisor counts: {stats}");
    assert!(stats["evictions"]["pages"].as_u64() >= Some(1000), "{stats}");
    assert!(stats["faults"]["total"].as_u64() >= Some(500), "{stats}");
    assert!(stats["fault_latency_us"]["max"].as_f64() >= Some(77.0), "{stats}");
    assert!(stats["fault_latency_us"]["p50"].as_f64() > Some(1.0), "{stats}");
    assert!((stats["compression_ratio"].as_f64().expect("a number") - 4.0).abs() < 0.5, "{stats}");
    assert_eq!(stats["warnings"].as_array().expect("a list").len(), 1, "{stats}");
    assert_eq!(stats["areas"].as_array().expect("a list").len(), 1, "{stats}");
    assert_eq!(err.matches("one?thing is odd").count(), 1, "{err}");
    assert!(err.contains("lowtide: ram peak") && err.contains(" of 64 MiB, 1000 pages out (12 zero), 300 in, 4.00:1"), "{err}");
}

#[test]
fn a_fatal_message_stops_the_tree() {
    if !works() {
        return;
    }
    let StandIn { mut run, segment, pid, .. } = StandIn::new("read x");
    // It is not of the run, whatever stands in the memory that all processes of the run can write.
    let mut stranger = Command::new("sleep").arg("100").spawn().expect("sleep starts");
    segment.claim(stranger.id()).expect("a slot");
    assert!(segment.fatal.put(pid, b"the swap file can't be read: I/O error"));
    let started = Instant::now();
    assert_eq!(run.child.wait().expect("ended").code(), Some(125));
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(StandIn::is_gone(pid), "registered processes are stopped");
    assert!(stranger.try_wait().expect("asked").is_none(), "a process that is not of the run was stopped");
    stranger.kill().and_then(|()| stranger.wait()).expect("ended");
    let mut err = vec![0; 4096];
    let n = run.child.stderr.take().expect("piped").read(&mut err).expect("read");
    let err = String::from_utf8_lossy(&err[..n]);
    assert!(err.contains("lowtide: sh was stopped: the swap file can't be read: I/O error\n"), "{err}");
    let stats = std::fs::read(run.dir.path().join("stats.json")).expect("statistics are written all the same");
    let stats: serde_json::Value = serde_json::from_slice(&stats).expect("JSON");
    let pids = stats["pids"].as_array().expect("a list");
    assert!(pids.contains(&pid.into()) && !pids.contains(&stranger.id().into()), "{stats}");
}

/// Every memfd that a process holds, and how long it is.
fn memfds(pid: u32) -> Vec<(PathBuf, usize)> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").flatten().map(|file| file.path());
    let is_memfd = |path: &PathBuf| std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:"));
    files.filter(is_memfd).map(|path| (path.clone(), std::fs::metadata(&path).expect("a file").len() as usize)).collect()
}

/// A process of the run that gave its privileges up could write into all memory that the run shares. Nothing that a process
/// with more privileges loads, opens or obeys may stand there. This one even has all privileges.
#[test]
fn shared_memory_says_nothing_that_a_process_loads_or_opens() {
    if !works() {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let swap = dir.path().to_str().expect("UTF-8");
    let mut command = lowtide();
    command.args(["run", "--ram", "64M", "--quiet", "--swap", &format!("dir:{swap}"), "--", "sh", "-c"]);
    command.arg("echo $LD_PRELOAD; read x; exec env -i env").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("lowtide starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut preload = String::new();
    out.read_line(&mut preload).expect("a line");
    let files = memfds(child.id());
    assert!(files.len() >= 2, "{files:?}");
    let mut replaced = Vec::new();
    for text in [preload.trim(), swap] {
        // Of the same length, so that all around it stays as it is.
        let evil = "/evil".repeat(text.len() / 5 + 1);
        for (path, size) in &files {
            let Ok(file) = std::fs::OpenOptions::new().read(true).write(true).open(path) else { continue };
            let bytes = std::fs::read(path).expect("read");
            let places: Vec<usize> =
                (0..bytes.len().saturating_sub(text.len())).filter(|&at| bytes[at..].starts_with(text.as_bytes())).collect();
            let mapped = map(&file, *size, ProtFlags::READ | ProtFlags::WRITE);
            for at in places {
                let evil = &evil.as_bytes()[..text.len()];
                if let Some(mapped) = mapped {
                    // SAFETY: within the mapping, which nothing in this process refers to.
                    unsafe { mapped.add(at).copy_from(evil.as_ptr(), evil.len()) };
                }
                if mapped.is_some() || file.write_at(evil, at as u64).is_ok() {
                    replaced.push(text.to_owned());
                }
            }
        }
    }
    child.stdin.take().expect("piped").write_all(b"\n").expect("written");
    let mut environment = String::new();
    out.read_to_string(&mut environment).expect("read");
    assert!(child.wait().expect("ended").success());
    assert!(replaced.is_empty(), "these could be replaced by others: {replaced:?}");
    assert!(environment.lines().any(|line| line.strip_prefix("LD_PRELOAD=") == Some(preload.trim())), "{environment}");
}
