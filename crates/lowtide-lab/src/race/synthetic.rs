//! The program behind the synthetic loads: fills its data, touches it in one way, and verifies it.
//! The lab runs itself for it, under a limit.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Instant;

use clap::ValueEnum;

use super::content::{Content, RECORDS, WORDS};
use super::tails::{self, FAULT, Times};
use super::zipf::Zipf;

pub const NAME: &str = "race-load";
const THREADS: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Touch {
    /// All of it read, from end to end, `count` times.
    Passes,
    /// The same, and the first word of each page changed.
    Updates,
    /// `count` records read, of pages at random.
    Reads,
    /// `count` pages at random changed.
    Writes,
    /// `count` records read, a few pages often.
    Zipf,
    /// `count` records read by four threads at once, of pages at random.
    Threads,
}

#[derive(Debug, Clone, Copy)]
pub struct Synthetic {
    pub touch: Touch,
    /// Pages of its data; two or more.
    pub pages: usize,
    pub content: Content,
    /// Passes or touches.
    pub count: usize,
}

impl Synthetic {
    /// The command that runs it.
    ///
    /// # Errors
    /// A line.
    pub fn command(&self) -> Result<Vec<OsString>, String> {
        let own = std::env::current_exe().map_err(|e| format!("can't find this program: {e}"))?;
        let touch = self.touch.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let numbers = [self.pages, self.content.noise, self.content.zeros, self.count].map(|n| n.to_string().into());
        Ok([own.into(), NAME.into(), touch.into()].into_iter().chain(numbers).collect())
    }

    fn parse(args: &[String]) -> Option<Synthetic> {
        let (touch, numbers) = args.split_first()?;
        let numbers: Vec<usize> = numbers.iter().map(|n| n.parse()).collect::<Result<_, _>>().ok()?;
        let &[pages, noise, zeros, count] = numbers.as_slice() else { return None };
        Some(Synthetic { touch: Touch::from_str(touch, false).ok()?, pages, content: Content { noise, zeros }, count })
    }
}

/// The program. Prints the touching's duration and tails on standard error, a sum over its reads on
/// standard output.
pub fn main(args: &[String]) -> ExitCode {
    let Some(load) = Synthetic::parse(args).filter(|load| load.pages > 1) else {
        eprintln!("lowtide-lab: {NAME} is started by the race only");
        return ExitCode::from(2);
    };
    let mut data = vec![0u64; load.pages * WORDS];
    data.chunks_exact_mut(WORDS).enumerate().for_each(|(i, page)| load.content.fill(i, page));
    let (began, mut times) = (Instant::now(), Times::new());
    match touch(&load, &mut data, &mut times) {
        Ok(sum) => {
            eprintln!("seconds {:.6}", began.elapsed().as_secs_f64());
            times.tails().inspect(|tails| eprintln!("{}", tails::line(*tails)));
            println!("{sum:016x}");
            ExitCode::SUCCESS
        }
        Err(page) => {
            eprintln!("wrong data in page {page}");
            ExitCode::FAILURE
        }
    }
}

/// `times` gets those of single touches that faulted. The error is the number of a page with wrong
/// data.
fn touch(load: &Synthetic, data: &mut [u64], times: &mut Times) -> Result<u64, usize> {
    let content = load.content;
    match load.touch {
        Touch::Passes => (0..load.count).try_fold(0u64, |sum, _| {
            data.chunks_exact(WORDS)
                .enumerate()
                .try_fold(sum, |sum, (i, page)| Ok(sum.rotate_left(1) ^ content.verify_all(i, page, 0)?))
        }),
        Touch::Updates => (0..load.count as u32).try_fold(0u64, |sum, pass| {
            data.chunks_exact_mut(WORDS).enumerate().try_fold(sum, |sum, (i, page)| {
                let seen = content.verify_all(i, page, pass)?;
                page[0] = content.word(i, 0, pass + 1);
                Ok(sum.rotate_left(1) ^ seen)
            })
        }),
        Touch::Reads => reads(load, data, 1, load.count, times, |random| random.usize(..load.pages)),
        Touch::Zipf => {
            let zipf = Zipf::new(load.pages);
            reads(load, data, 1, load.count, times, |random| zipf.next(random))
        }
        Touch::Writes => {
            let mut changes = vec![0u32; load.pages];
            let mut random = fastrand::Rng::with_seed(1);
            (0..load.count).try_fold(0u64, |sum, _| {
                let i = random.usize(..load.pages);
                let page = &mut data[i * WORDS..(i + 1) * WORDS];
                let began = Instant::now();
                let seen = content.verify(i, 0, page, changes[i])?;
                changes[i] += 1;
                page[0] = content.word(i, 0, changes[i]);
                add_fault(times, began);
                Ok(sum.rotate_left(1) ^ seen)
            })
        }
        Touch::Threads => std::thread::scope(|scope| {
            let data = &*data;
            let one = |seed| {
                let mut times = Times::new();
                let sum = reads(load, data, seed, load.count / THREADS, &mut times, |random| random.usize(..load.pages));
                Ok((sum?, times))
            };
            let threads: Vec<_> = (0..THREADS as u64).map(|seed| scope.spawn(move || one(seed))).collect();
            threads.into_iter().try_fold(0, |sum, thread| {
                // A panic ends the process.
                let (more, its) = thread.join().unwrap_or(Err(0))?;
                times.add_all(&its);
                Ok(sum ^ more)
            })
        }),
    }
}

/// Reads a random record of each of the pages that `choose` yields.
fn reads(
    load: &Synthetic,
    data: &[u64],
    seed: u64,
    count: usize,
    times: &mut Times,
    choose: impl Fn(&mut fastrand::Rng) -> usize,
) -> Result<u64, usize> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).try_fold(0u64, |sum, _| {
        let (i, record) = (choose(&mut random), random.usize(..RECORDS));
        let began = Instant::now();
        let seen = load.content.verify(i, record, &data[i * WORDS..(i + 1) * WORDS], 0)?;
        add_fault(times, began);
        Ok(sum.rotate_left(1) ^ seen)
    })
}

fn add_fault(times: &mut Times, began: Instant) {
    let took = began.elapsed();
    if took >= FAULT {
        times.add(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(touch: Touch) -> Synthetic {
        Synthetic { touch, pages: 50, content: Content { noise: 24, zeros: 0 }, count: 200 }
    }

    fn filled(load: &Synthetic) -> Vec<u64> {
        let mut data = vec![0; load.pages * WORDS];
        data.chunks_exact_mut(WORDS).enumerate().for_each(|(i, page)| load.content.fill(i, page));
        data
    }

    #[test]
    fn a_command_is_read_back() {
        for kind in Touch::value_variants() {
            let command = load(*kind).command().unwrap();
            let args: Vec<String> = command[2..].iter().map(|arg| arg.to_str().unwrap().to_owned()).collect();
            let read = Synthetic::parse(&args).unwrap();
            assert_eq!((read.touch, read.pages, read.content.noise, read.count), (*kind, 50, 24, 200));
        }
        assert!(Synthetic::parse(&["passes".to_owned()]).is_none());
    }

    #[test]
    fn every_way_of_touching_finds_wrong_data_and_repeats_itself() {
        for kind in Touch::value_variants() {
            let load = load(*kind);
            let touch = |data: &mut [u64]| touch(&load, data, &mut Times::new());
            let sum = touch(&mut filled(&load));
            assert!(sum.is_ok() && sum == touch(&mut filled(&load)), "{kind:?}");
            let mut wrong = filled(&load);
            wrong.iter_mut().step_by(WORDS / RECORDS).for_each(|word| *word ^= 1);
            assert!(touch(&mut wrong).is_err(), "{kind:?}");
        }
    }
}
