//! Counts lowtide's instructions for a fault, an eviction, a fork and a measurement on a machine
//! and in a run of any size: a separate process simulates them (`subject.rs`, `paged.rs`,
//! `stored.rs`) and counts its instructions (`stepper.rs`).

mod counts;
mod paged;
pub mod stepper;
mod stored;
mod subject;

use std::ops::RangeInclusive;
use std::process::{Command, ExitCode, Stdio};

pub use counts::Counts;

/// Runs the helper if the arguments name one.
pub fn helper() -> Option<ExitCode> {
    let args: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    (args.first()? == subject::NAME).then(|| subject::main(&args[1..]))
}

/// Makes copies use no repeated instructions: the processor would stop after each byte.
const COPIES: &str = "glibc.cpu.x86_rep_movsb_threshold=1000000000:glibc.cpu.x86_rep_stosb_threshold=1000000000";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Possible CPUs.
    pub cpus: usize,
    /// NUMA nodes, with as many CPUs each.
    pub nodes: usize,
    pub processes: usize,
}

impl Size {
    /// Runs the subject at this size twice; the counts of each of [`STEPS`] at the time with fewer
    /// instructions: some steps repeat a few tens of them now and then, whatever the size.
    ///
    /// # Errors
    /// A line: it can't be started, or failed, and has said why.
    pub fn count(self) -> Result<Vec<Counts>, String> {
        let both = self.count_once()?.into_iter().zip(self.count_once()?);
        Ok(both.map(|(one, other)| if other.instructions < one.instructions { other } else { one }).collect())
    }

    fn count_once(self) -> Result<Vec<Counts>, String> {
        let own = std::env::current_exe().map_err(|e| format!("can't find this program: {e}"))?;
        let words = [self.cpus, self.nodes, self.processes].map(|n| n.to_string());
        let mut command = Command::new(own);
        command.arg(subject::NAME).args(words).env("GLIBC_TUNABLES", COPIES).stderr(Stdio::inherit());
        let out = command.output().map_err(|e| format!("can't start this program: {e}"))?;
        let said = String::from_utf8_lossy(&out.stdout);
        let counts: Vec<Counts> = said.lines().filter_map(Counts::of_line).collect();
        if !out.status.success() || counts.len() != STEPS.len() {
            return Err(format!(
                "what is counted ended early, {}, after {} of {} steps",
                out.status,
                counts.len(),
                STEPS.len()
            ));
        }
        Ok(counts)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[rustfmt::skip]
pub enum Step {
    Control,
    Touch, Load, Staged, Direct, Fill, Drain, Write, Read, FreeSlot, Frame, Free, RunOut,
    Lists, Audit, Publish, OthersOf, RamNow, Active, PoolShare, Yields, Claim, Fork, Child,
}

pub const STEPS: [&str; 24] = [
    "control: an addition for each CPU and process",
    "fault: first touch",
    "fault: page in the pool",
    "fault: page in staging",
    "fault at the limit: stores a batch first",
    "eviction: a batch into staging",
    "eviction: a batch into the pool",
    "store: a page to a swap file",
    "store: a page from a swap file",
    "store: its slot is freed",
    "frames: 64 that the CPU does not have at hand",
    "frames: one of the last node is freed",
    "frames: one, of which there are none",
    "frames: the lists of all CPUs are emptied",
    "lowtide run: adds up all processes",
    "measurement: publishes gauges",
    "measurement: the others of its family",
    "measurement: what the run uses",
    "measurement: how many are active",
    "measurement: its share of the pools",
    "measurement: whether to give way",
    "start: a place in the segment",
    "fork: announced, and over",
    "fork: the child's store",
];

/// The steps that a thread of the program may wait for at any missing page.
pub const ON_A_FAULTS_WAY: RangeInclusive<usize> = Step::Touch as usize..=Step::RunOut as usize;
