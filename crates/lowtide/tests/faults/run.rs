//! One run with one failure, and what it came to.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::path::Path;

use lowtide_core::faults::{Fault, Faults, Op};
use rustix::mm::{MapFlags, ProtFlags};

use crate::measure::{Job, Limit, Outcome, Swap};
use crate::programs::job;

/// A run that is repeated.
pub struct Scene {
    pub name: &'static str,
    program: &'static str,
    arguments: &'static str,
    /// Beginnings of `--swap` SPECs; the path follows.
    swap: &'static [&'static str],
    pool: &'static str,
}

/// The smallest limit that lowtide takes.
const RAM: u64 = 16 << 20;
/// So much is used that each page leaves RAM again and again, and no more: every operation fails in a run of its own.
pub const SCENES: &[Scene] = &[
    Scene { name: "noise", program: "one_malloc", arguments: "14 n 8", swap: &["dir:"], pool: "1M" },
    Scene { name: "mixed", program: "one_malloc", arguments: "14 ntnw 8", swap: &["file:"], pool: "1M" },
    Scene { name: "fork", program: "forks", arguments: "stay 12 1", swap: &["dir:"], pool: "1M" },
    Scene { name: "areas", program: "one_malloc", arguments: "14 n 8", swap: &["file:", "dir:"], pool: "1M" },
];

/// A child that is filled whole by its parent.
pub const BARE_FORK: Scene =
    Scene { name: "bare fork", program: "daemonize", arguments: "48 once 0 0 fork", swap: &["dir:"], pool: "1M" };

impl Scene {
    /// Its program, compiled, in a directory of its own.
    pub fn job(&self, label: &str) -> Option<Job> {
        job(&format!("faults {} {label}", self.name), self.program, self.arguments)
    }
}

/// How runs ended.
#[derive(Default, Debug)]
pub struct Tally {
    calls: u64,
    runs: u64,
    struck: u64,
    right: u64,
    stopped: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { calls, runs, struck, right, stopped } = self;
        write!(
            f,
            "{calls} calls; {runs} runs, {struck} with the failure: {right} ended right, {stopped} stopped with the message"
        )
    }
}

/// A [`Faults`] in a file that the agents map.
pub struct Plan {
    faults: &'static Faults,
}

impl Plan {
    pub fn write(path: &Path, faults: Faults) -> Plan {
        let file: File = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).expect("a plan");
        file.set_len(size_of::<Faults>() as u64).expect("room for a plan");
        let (prot, len) = (ProtFlags::READ | ProtFlags::WRITE, size_of::<Faults>());
        // SAFETY: a new mapping of a file as long as a Faults, which is written before anybody reads it.
        let faults = unsafe {
            let at = rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, &file, 0).expect("a mapped plan");
            at.cast::<Faults>().write(faults);
            &*at.cast::<Faults>()
        };
        Plan { faults }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: the reference goes with this.
        let _ = unsafe { rustix::mm::munmap(std::ptr::from_ref(self.faults).cast_mut().cast(), size_of::<Faults>()) };
    }
}

/// A run of a scene with a failure; what came out, and the plan with its counts.
fn run(scene: &Scene, faults: Faults) -> Option<(Outcome, Plan, Vec<String>)> {
    let (op, kind) = faults.what();
    let job = scene.job(&format!("{op:?} {kind:?}"))?;
    let plan = job.directory.join("plan");
    // The last one has room for all; the others are too small.
    let sizes = [8, 64].into_iter().skip(2 - scene.swap.len());
    let mut specs = Vec::new();
    for ((i, kind), size) in scene.swap.iter().enumerate().zip(sizes) {
        let swap = job.directory.join(format!("swap{i}"));
        if *kind == "dir:" {
            fs::create_dir(&swap).expect("a directory");
        } else {
            use std::os::unix::fs::OpenOptionsExt;
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&swap).expect("a file");
            file.set_len(size << 20).expect("room");
        }
        specs.push((format!("{kind}{}", swap.display()), size));
    }
    let faults = Plan::write(&plan, faults);
    let job = job.env("LOWTIDE_FAULTS", &plan);
    let mut options = ["--pool", scene.pool].map(str::to_owned).to_vec();
    options.extend(specs.iter().flat_map(|(spec, size)| ["--swap".to_owned(), format!("{spec},size={size}M")]));
    let outcome = job.limited(&Limit { ram: RAM, swap: Swap::Options(options) });
    Some((outcome, faults, specs.into_iter().map(|(spec, _)| spec).collect()))
}

/// Whether a run ended right; else the error, unless it was stopped with the message that it must be stopped with.
fn judge(outcome: &Outcome, right: &str, op: Op, specs: &[String]) -> Result<bool, String> {
    if outcome.status == 0 && outcome.stdout == right && outcome.left.is_empty() {
        return Ok(true);
    }
    let message = outcome.stderr.lines().find_map(|line| Some(line.split_once(" was stopped: ")?.1));
    let says_why = match (op, message) {
        (_, None) => false,
        (Op::Device, Some(text)) => {
            let offset = text.split_once(" at offset ").and_then(|(_, rest)| rest.split_once(" of ")?.0.parse::<u64>().ok());
            offset.is_some_and(|offset| offset > 0 && offset.is_multiple_of(4096))
                && specs.iter().any(|spec| text.ends_with(spec))
        }
        (Op::Forking | Op::Forked, _) => false,
        (Op::Map | Op::Heap, Some(text)) => text.contains("memory") || text.contains("thread"),
        (Op::Copy | Op::Move | Op::Wake | Op::Register | Op::Scan, Some(text)) => !text.contains("internal error"),
    };
    // lowtide's own status, and no word from the program, whose standard output the test reads.
    match outcome.status == 125 && says_why && outcome.stdout.is_empty() && outcome.left.is_empty() {
        true => Ok(false),
        false => Err(format!("status {}, {:?}, left {:?}: {}", outcome.status, outcome.stdout, outcome.left, outcome.stderr)),
    }
}

/// Lets each operation of a scene fail in its turn, or every `sample`th; what is wrong.
pub fn at_each(scene: &Scene, op: Op, kind: Fault, sample: u64, tally: &mut Tally) -> Vec<String> {
    let Some((right, of_device)) = without_failure(scene, op, kind, tally) else { return Vec::new() };
    assert!(of_device > 20, "{of_device} operations of the device");
    // Threads take turns as they like, so the counts of two runs differ by some.
    let all = std::env::var_os("LOWTIDE_FAULTS_ALL").is_some();
    let only = std::env::var("LOWTIDE_FAULTS_ONLY").ok();
    let step = if all || only.is_some() || tally.calls < 40 { 1 } else { sample.min(tally.calls / 8).max(1) };
    let mut wrong = Vec::new();
    for at in (0..tally.calls).step_by(step as usize) {
        let name = format!("{} {kind:?} {at}", scene.name);
        if only.as_ref().is_some_and(|only| *only != name) {
            continue;
        }
        wrong.extend(once(scene, op, Faults::new(op, kind, at), &name, &right, tally));
    }
    wrong
}

/// How often calls fail of which many are made.
const EVERY: &[u64] = &[2, 3, 7, 31];

/// Lets every so many calls of a scene fail, and some calls alone: a few that lie as far from each other, or many.
pub fn now_and_then(scene: &Scene, op: Op, kind: Fault, tally: &mut Tally) -> Vec<String> {
    let Some((right, _)) = without_failure(scene, op, kind, tally) else { return Vec::new() };
    let all = std::env::var_os("LOWTIDE_FAULTS_ALL").is_some();
    let only = std::env::var("LOWTIDE_FAULTS_ONLY").ok();
    let step = (tally.calls / if all { 64 } else { 4 }).max(1);
    let often = EVERY.iter().map(|every| (every - 1, *every));
    let alone = (0..tally.calls).step_by(step as usize).map(|at| (at, 0));
    let mut wrong = Vec::new();
    for (at, every) in often.chain(alone) {
        let name = format!("{} {kind:?} {at} {every}", scene.name);
        if only.as_ref().is_none_or(|only| *only == name) {
            wrong.extend(once(scene, op, Faults::new(op, kind, at).and_every(every), &name, &right, tally));
        }
    }
    assert!(only.is_some() || tally.struck > 0, "{} {kind:?}: no such call is made", scene.name);
    wrong
}

/// A run in which nothing fails: its output, and how many operations of the device it has.
fn without_failure(scene: &Scene, op: Op, kind: Fault, tally: &mut Tally) -> Option<(String, u64)> {
    let (whole, plan, specs) = run(scene, Faults::new(op, kind, u64::MAX))?;
    let right = whole.stdout.clone();
    assert!(judge(&whole, &right, op, &specs) == Ok(true) && right.starts_with("OK"), "without a failure: {whole:?}");
    assert!(!plan.faults.has_struck(), "{:?}", plan.faults);
    tally.calls = plan.faults.calls(op);
    Some((right, plan.faults.calls(Op::Device)))
}

/// A run with a failure; what is wrong.
fn once(scene: &Scene, op: Op, faults: Faults, name: &str, right: &str, tally: &mut Tally) -> Option<String> {
    let (outcome, plan, specs) = run(scene, faults)?;
    tally.runs += 1;
    tally.struck += u64::from(plan.faults.has_struck());
    match judge(&outcome, right, op, &specs) {
        Ok(true) => tally.right += 1,
        Ok(false) => tally.stopped += 1,
        Err(why) => return Some(format!("{name} ({op:?}): {why}")),
    }
    None
}

/// Lets each mapping of a scene fail in its turn, and looks at those runs that came to an area without memory for its tables:
/// how many they were; what is wrong.
pub fn without_tables(scene: &Scene) -> (usize, Vec<String>) {
    let Some((whole, plan, _)) = run(scene, Faults::new(Op::Map, Fault::NoMemory, u64::MAX)) else { return (0, Vec::new()) };
    let (mut found, mut wrong) = (0, Vec::new());
    for at in 0..plan.faults.calls(Op::Map) {
        let Some((outcome, ..)) = run(scene, Faults::new(Op::Map, Fault::NoMemory, at)) else { break };
        let warnings = outcome.stderr.matches("no memory for the tables of a swap area").count();
        if warnings == 0 {
            continue;
        }
        found += 1;
        let right = outcome.status == 0 && outcome.stdout == whole.stdout && !outcome.stderr.contains("not limited");
        if !right || warnings != 1 || outcome.stat("evictions.pages") == 0.0 {
            wrong.push(format!("mapping {at}: {}", outcome.stderr));
        }
    }
    (found, wrong)
}

/// Steps of the parent before there is a child: the kernel gives a fork up if the process is killed before its event has been
/// read, or just then.
const BEFORE_THE_CLONE: u64 = 5;

/// Kills the process that forks, or the one that is forked, after each step; how the runs ended, and what is wrong.
pub fn killed_at_each_step(op: Op) -> Option<(String, Vec<String>)> {
    let scene = Scene { name: "killed fork", program: "fork_steps", arguments: "24", swap: &["dir:"], pool: "1M" };
    let (whole, plan, _) = run(&scene, Faults::new(op, Fault::Killed, u64::MAX))?;
    let steps = plan.faults.calls(op);
    assert!(whole.status == 0 && whole.stdout == "OK the child\nOK the parent\n" && steps > 4, "{steps} steps: {whole:?}");
    let (mut right, mut stopped, mut wrong) = (0, 0, Vec::new());
    for at in 0..steps {
        let (outcome, plan, _) = run(&scene, Faults::new(op, Fault::Killed, at))?;
        let message = outcome.status == 125 && outcome.stderr.contains(" was stopped: ");
        let the_other = match op {
            Op::Forking if at < BEFORE_THE_CLONE => outcome.stdout.is_empty() && outcome.status == 137,
            Op::Forking => outcome.stdout == "OK the child\n" && outcome.status == 137,
            _ => outcome.stdout == "OK the parent\n" && outcome.status == 0,
        };
        right += u64::from(the_other);
        stopped += u64::from(message);
        if !(the_other || message) || !outcome.left.is_empty() || !plan.faults.has_struck() {
            wrong.push(format!("{op:?} {at}: {outcome:?}"));
        }
    }
    Some((
        format!("killed after each of {steps} steps: {right} times the other one was right, {stopped} stopped with a message"),
        wrong,
    ))
}
