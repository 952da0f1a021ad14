//! Runs one load after the other, natively, under the kernel's swap and under lowtide, at the same
//! total memory.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::balance::{self, Highest};
use super::kernel::{Cache, Kernel, Swap};
use super::loads::Load;
use super::lowtide::Lowtide;
use super::restore::{Made, Restorer, own_name};
use super::run::{Done, Ended, Task, run};
use super::site::Site;
use super::tails::SHARES;
use crate::burners;
use crate::measure::{self, Sample};
use crate::progress::Progress;

/// Swap that both have: more than any load needs.
const SWAP: u64 = 4 << 30;
/// Longest run while the load's duration is unknown.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longest first run of the kernel, in native times.
const SLOWEST_KERNEL: f64 = 30.0;
/// Longest run of lowtide: this many times the kernel's time, and this many seconds more. A longer
/// one has lost, and its exact time is not worth an hour.
const SLOWEST: f64 = 4.0;
const MORE_SECONDS: f64 = 20.0;
/// Native runs that determine the limit: a program whose memory depends on its threads' timing
/// (DuckDB) may take half as much again in the next run.
const LOOKS: usize = 3;
/// Tolerated deviation of group and pool from the limit.
const CLOSE_ENOUGH: f64 = 0.015;
const CORRECTIONS: usize = 4;

#[derive(Debug, Clone)]
pub struct Course {
    /// The limit in percent of a load's native memory.
    pub percent: u64,
    pub swap: Swap,
    /// lowtide has its default options, whatever the kernel swaps to.
    pub plain: bool,
    pub rounds: usize,
    pub burners: usize,
    pub quick: bool,
    pub disk: PathBuf,
    pub progress: Progress,
}

/// Turns.
const NATIVE: usize = 0;
const KERNEL: usize = 1;

#[derive(Debug, Default)]
pub struct Shown {
    pub seconds: Sample,
    rounds: usize,
    /// Rounds aborted for their duration.
    pub too_long: usize,
    /// Rounds in which the kernel killed it for lack of memory, with swap free.
    pub killed: usize,
    /// Highest memory in bytes, in any round.
    pub peak: u64,
    /// The same in each round.
    pub peaks: Sample,
    /// The highest sampled memory by the peak in lowtide's report: the worst round.
    pub unsaid: f64,
    /// The kernel's major faults, or lowtide's faults.
    pub faults: Sample,
    /// Of lowtide's faults those on staged pages.
    pub staged: Sample,
    pub pages_in: Sample,
    /// Microseconds for each of [`SHARES`], of loads that measure them.
    pub tails: [Sample; SHARES.len()],
}

impl Shown {
    fn saw_peak(&mut self, bytes: u64) {
        self.peak = self.peak.max(bytes);
        self.peaks.add(bytes as f64);
    }
}

#[derive(Debug)]
pub struct Match {
    pub native: Shown,
    pub kernel: Shown,
    pub lowtide: Shown,
    /// The swap: a file also where compressed RAM can't hold enough.
    pub swap: Swap,
    /// Bytes in all.
    pub limit: u64,
    /// Of those, the bytes of the kernel's group, without the kernel's own structures.
    pub group: u64,
}

#[derive(Debug)]
pub struct Race {
    pub(super) course: Course,
    restorer: Restorer,
    kernel: Kernel,
    lowtide: Lowtide,
    pub(super) site: Site,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub swap: Swap,
    pub group: u64,
    pub cache: Cache,
}

impl Race {
    /// Prepares the machine.
    ///
    /// # Errors
    /// A line: what this machine or user can't do. Nothing is left then.
    pub fn new(course: Course) -> Result<Race, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("it takes root to turn the kernel's swap on".into());
        }
        let work = course.disk.join(own_name());
        let lowtide = Lowtide::new(&work, &course.disk, course.plain)?;
        let mut restorer = Restorer::new()?;
        restorer.will_make(&Made::Directory(work.clone()))?;
        std::fs::create_dir(&work).map_err(|e| format!("{}: {e}", work.display()))?;
        let kernel = Kernel::new(&mut restorer, &course.disk, SWAP)?;
        let site = Site { directory: work, quick: course.quick };
        Ok(Race { course, restorer, kernel, lowtide, site })
    }

    /// Takes everything back.
    ///
    /// # Errors
    /// A line: something could not be undone.
    pub fn end(self) -> Result<(), String> {
        self.restorer.restore()
    }

    /// Runs a load in turn in all three ways.
    ///
    /// # Errors
    /// A line: a run failed, or its result differs from the native one.
    pub fn run(&mut self, load: &Load) -> Result<Match, String> {
        self.measure(load).map_err(|e| format!("{}: {e}", load.name))
    }

    fn measure(&mut self, load: &Load) -> Result<Match, String> {
        let progress = self.course.progress.clone();
        progress.doing(format!("{}: how much it takes", load.name));
        let task = (load.task)(&self.site)?;
        let native = self.typical(&task)?;
        let limit = native.peak / 100 * self.course.percent;
        let told = |text: String| progress.above(|| eprintln!("race: {}: {text}", load.name));
        told(format!("native {:.2} s, {} MiB", native.seconds, native.peak >> 20));
        progress.doing(format!("{}: how much the kernel's group is to get", load.name));
        let share = self.share(&task, &native, limit)?;
        let mut shown: [Shown; 3] = Default::default();
        // lowtide's longest time; the kernel's turn in the first round is before lowtide's.
        let mut slowest = PATIENCE;
        measure::in_turn(&["native", "kernel", "lowtide"], self.course.rounds, |which, name| {
            let into = &mut shown[which];
            progress.doing(format!("{}: {name}, {} of {} rounds done", load.name, into.rounds, self.course.rounds));
            into.rounds += 1;
            let ended = match which {
                NATIVE => self.natively(&task, into)?,
                KERNEL => {
                    let ended = self.under_kernel(&task, share, &native, into)?;
                    slowest = patience(ended.seconds_in_all(), SLOWEST);
                    ended
                }
                _ => self.under_lowtide(&task, limit, share.swap, slowest, into)?,
            };
            match ended {
                Ended::Well(done) if done.checksum != native.checksum => {
                    return Err(format!("WRONG RESULT: {name} {:016x}, expected {:016x}", done.checksum, native.checksum));
                }
                Ended::Well(done) => {
                    into.seconds.add(done.seconds);
                    into.tails.iter_mut().zip(done.tails.iter().flatten()).for_each(|(sample, us)| sample.add(*us));
                }
                Ended::TooLong { seconds, .. } => {
                    into.too_long += 1;
                    into.seconds.add(seconds);
                }
                Ended::Killed { seconds, .. } => {
                    into.killed += 1;
                    into.seconds.add(seconds);
                }
            }
            let killed = if matches!(ended, Ended::Killed { .. }) { ", killed for lack of memory" } else { "" };
            told(format!("{name} {:.2} s{killed}", into.seconds.last()));
            Ok(())
        })?;
        let [native, kernel, lowtide] = shown;
        Ok(Match { native, kernel, lowtide, swap: share.swap, limit, group: share.group })
    }

    /// Of a few runs without a limit the one with the median peak.
    fn typical(&self, task: &Task) -> Result<Done, String> {
        let look = |_| self.without_limit(task)?.done().map_err(|why| format!("without a limit: {why}"));
        let mut looks = (0..LOOKS).map(look).collect::<Result<Vec<Done>, String>>()?;
        looks.sort_by_key(|done| done.peak);
        Ok(looks.swap_remove(LOOKS / 2))
    }

    /// Prefixes a command with the words for a limit, after those for burners outside of it.
    fn beside(&self, words: Vec<OsString>) -> Result<Vec<OsString>, String> {
        let mut all = burners::words(self.course.burners)?;
        all.extend(words);
        Ok(all)
    }

    pub(super) fn share(&mut self, task: &Task, native: &Done, limit: u64) -> Result<Share, String> {
        self.kernel.swap_to(&mut self.restorer, self.course.swap)?;
        let mut share = Share { swap: self.course.swap, group: limit, cache: Cache::Free };
        if share.swap == Swap::File {
            return Ok(share);
        }
        let (_, highest) = self.sampled(task, share, native)?;
        let Some(group) = balance::for_group(limit, highest.demand) else {
            self.kernel.swap_to(&mut self.restorer, Swap::File)?;
            return Ok(Share { swap: Swap::File, ..share });
        };
        share.group = group;
        // With less memory, the swapped pages may compress better or worse. Keeps the best so far:
        // programs with garbage collection differ from run to run.
        let (mut best, mut least_off) = (share, f64::INFINITY);
        for _ in 0..CORRECTIONS {
            let highest = self.sampled(task, share, native)?.1;
            let off = (highest.used.used() as f64 / limit as f64 - 1.0).abs();
            if off < least_off {
                (best, least_off) = (share, off);
            }
            if off < CLOSE_ENOUGH {
                break;
            }
            share.group = balance::corrected(share.group, limit, highest.used);
        }
        Ok(best)
    }

    fn natively(&self, task: &Task, into: &mut Shown) -> Result<Ended, String> {
        let ended = self.without_limit(task)?;
        into.saw_peak(ended.peak());
        Ok(ended)
    }

    fn without_limit(&self, task: &Task) -> Result<Ended, String> {
        run(task, &self.beside(Vec::new())?, PATIENCE, |_| ())
    }

    fn under_kernel(&self, task: &Task, share: Share, native: &Done, into: &mut Shown) -> Result<Ended, String> {
        let before = self.kernel.events()?;
        let (ended, highest) = self.sampled(task, share, native)?;
        let after = self.kernel.events()?;
        into.faults.add((after.major_faults - before.major_faults) as f64);
        into.pages_in.add((after.pages_in - before.pages_in) as f64);
        into.saw_peak(highest.used.used());
        Ok(ended)
    }

    fn under_lowtide(&self, task: &Task, limit: u64, swap: Swap, slowest: Duration, into: &mut Shown) -> Result<Ended, String> {
        let ended = run(task, &self.beside(self.lowtide.words(limit, swap, SWAP))?, slowest, |_| ())?;
        let seen = ended.peak();
        let mut peak = seen;
        if let Ended::Well(_) = ended {
            let counts = self.lowtide.take_counts()?;
            into.faults.add(counts.faults as f64);
            into.staged.add(counts.staged as f64);
            into.pages_in.add(counts.pages_in as f64);
            into.unsaid = into.unsaid.max(seen as f64 / counts.peak as f64);
            peak = peak.max(counts.peak);
        }
        into.saw_peak(peak);
        Ok(ended)
    }

    /// Runs the task in the kernel's group, and returns the highest memory of group and pool.
    pub(super) fn sampled(&self, task: &Task, share: Share, native: &Done) -> Result<(Ended, Highest), String> {
        self.kernel.empty()?;
        let (mut highest, mut failed) = (Highest::default(), None);
        let (began, kills) = (Instant::now(), self.kernel.kills()?);
        let ended = run(task, &self.beside(self.kernel.words())?, patience(native.wall, SLOWEST_KERNEL), |_| {
            let limited = self.kernel.limit(share.group, share.cache);
            match limited.and_then(|()| self.kernel.held(share.cache)) {
                Ok(held) => highest.add(held),
                Err(line) => failed = Some(line),
            }
        });
        failed.map_or(Ok(()), Err)?;
        // Its output does not matter then: a compiler fails when a part of it is killed.
        if self.kernel.kills()? > kills {
            return Ok((Ended::Killed { seconds: began.elapsed().as_secs_f64(), peak: highest.used.used() }, highest));
        }
        Ok((ended?, highest))
    }
}

fn patience(seconds: f64, times: f64) -> Duration {
    Duration::from_secs_f64(seconds * times + MORE_SECONDS)
}
