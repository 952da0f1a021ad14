//! lowtide against the kernel's own swap, on the same disk, with the same memory.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::experiment::{Experiment, Outcome, Scale};
use crate::measure::{self, Sample};
use crate::programs::PAGE;
use crate::race::{Kernel, Load, Swap, Times};
use crate::report::{Finding, Table, Target};

pub const EXPERIMENT: Experiment = Experiment {
    name: "race",
    question: "data of several times the limit, gone through and read at random: how fast is it under lowtide and under the kernel's swap?",
    run,
};

const MIB: u64 = 1 << 20;
/// Swap beyond the data.
const SPARE: u64 = 64 * MIB;
const RACERS: [&str; 2] = ["lowtide", "kernel"];
const OURS: usize = 0;
const KERNEL: usize = 1;

/// What both run, and in how much memory.
struct Course {
    swap: Swap,
    load: Load,
    limit: u64,
    /// Part of the limit for compressed pages, where the kernel swaps to zram.
    compressed: u64,
    dir: PathBuf,
}

#[derive(Default)]
struct Measured {
    fill: Sample,
    pass: Sample,
    /// For each read.
    random_us: Sample,
    peak: u64,
}

impl Measured {
    fn add(&mut self, times: &Times, reads: usize, peak: u64) {
        self.fill.add(times.fill);
        let mut passes = Sample::default();
        times.passes.iter().for_each(|pass| passes.add(*pass));
        self.pass.add(passes.median());
        self.random_us.add(times.random * 1e6 / reads as f64);
        self.peak = self.peak.max(peak);
    }
}

fn run(scale: &Scale) -> Result<Outcome, String> {
    let limit = scale.pick(256, 512) * MIB;
    let bytes = scale.pick(600, 1536) * MIB;
    let noise = match scale.swap {
        Swap::File => PAGE / 8,
        Swap::Zram => PAGE / 8 / 4,
    };
    let pages = bytes as usize / PAGE;
    let load = Load { pages, noise, passes: scale.pick(2, 3), reads: scale.pick(5_000, 40_000) };
    let dir = PathBuf::from(std::env::var_os("LOWTIDE_DIR").unwrap_or_else(|| "/var/tmp".into()));
    let course = Course { swap: scale.swap, load, limit, compressed: limit / 2, dir };
    let lowtide = lowtide()?;
    let kernel = Kernel::new(course.swap, &course.dir, bytes + SPARE, limit, course.compressed)?;
    let mut measured: [Measured; 2] = Default::default();
    measure::in_turn(&RACERS, scale.pick(3, 5), |which, _| {
        let (times, peak) = match which {
            OURS => under_lowtide(&course, &lowtide)?,
            _ => {
                kernel.take_peak()?;
                let times = course.load.run(kernel.command()).map_err(|e| format!("race: under the kernel's swap: {e}"))?;
                (times, kernel.take_peak()?)
            }
        };
        measured[which].add(&times, course.load.reads, peak);
        Ok::<(), String>(())
    })?;
    kernel.end()?;
    Ok(outcome(&course, &measured))
}

/// The program that is built together with this one.
fn lowtide() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|e| format!("race: can't find this program: {e}"))?;
    let path = own.with_file_name("lowtide");
    if path.exists() { Ok(path) } else { Err(format!("race: there is no {}: build lowtide first", path.display())) }
}

/// Runs the load under lowtide and reads from its statistics how much memory it took.
fn under_lowtide(course: &Course, lowtide: &Path) -> Result<(Times, u64), String> {
    let stats = std::env::temp_dir().join(format!("lowtide-lab-{}.json", std::process::id()));
    let mut command = Command::new(lowtide);
    command.args(["run", "--quiet", "--ram", &course.limit.to_string(), "--stats"]).arg(&stats).arg("--swap");
    match course.swap {
        Swap::File => command.arg(format!("dir:{},size={}", course.dir.display(), course.load.pages * PAGE + SPARE as usize)),
        Swap::Zram => command.args(["ram", "--pool", &course.compressed.to_string()]),
    };
    command.arg("--");
    let times = course.load.run(command).map_err(|e| format!("race: under lowtide: {e}"));
    let text = std::fs::read_to_string(&stats).map_err(|e| format!("race: {}: {e}", stats.display()));
    let _ = std::fs::remove_file(&stats);
    let stats: serde_json::Value =
        serde_json::from_str(&times.as_ref().map_or(Ok(String::new()), |_| text)?).unwrap_or_default();
    Ok((times?, stats["ram_peak"].as_u64().unwrap_or(0)))
}

fn outcome(course: &Course, measured: &[Measured; 2]) -> Outcome {
    let swap = match course.swap {
        Swap::File => "a swap file",
        Swap::Zram => "zram",
    };
    let load = &course.load;
    let title = format!(
        "{} MiB of data in {} MiB of RAM, {} % of it noise; the kernel has {swap}",
        load.pages * PAGE >> 20,
        course.limit / MIB,
        load.noise * 100 / (PAGE / 8)
    );
    let columns = ["", "fill s", "pass s", "MiB/s", "spread %", "random read us", "spread %", "peak MiB"];
    let mut table = Table::new(title, &columns);
    for (name, m) in RACERS.into_iter().zip(measured) {
        table.row([
            name.to_owned(),
            format!("{:.2}", m.fill.median()),
            format!("{:.2}", m.pass.median()),
            format!("{:.0}", (load.pages * PAGE >> 20) as f64 / m.pass.median()),
            format!("{:.1}", m.pass.spread() * 100.0),
            format!("{:.0}", m.random_us.median()),
            format!("{:.1}", m.random_us.spread() * 100.0),
            format!("{}", m.peak / MIB),
        ]);
    }
    let [ours, kernel] = [&measured[OURS], &measured[KERNEL]];
    let finding = |what: &str, unit: &str, ours: &Sample, theirs: &Sample, least: f64| {
        let ratio = theirs.over(ours);
        let told = format!("{:.2} {unit} against {:.2} {unit}", ours.median(), theirs.median());
        let finding = Finding::new(what, told, ratio.median()).spread(ratio.spread());
        // What is promised is promised against a file; zram is shown for information.
        if course.swap == Swap::File { finding.target(Target::AtLeast(least)) } else { finding }
    };
    let findings = vec![
        finding("sequential pass, kernel / lowtide", "s", &ours.pass, &kernel.pass, 2.0),
        finding("random read, kernel / lowtide", "us", &ours.random_us, &kernel.random_us, 1.0),
    ];
    Outcome { tables: vec![table], findings, charts: Vec::new() }
}
