//! The program of the race: data that it verifies, read and changed from end to end, and read at random. It is this program itself,
//! started again under a limit.

use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::programs::{PAGE, Started};

/// First argument of the program that is the load.
pub const NAME: &str = "race-load";
/// How long a run may take.
const PATIENCE: Duration = Duration::from_secs(300);
const WORDS: usize = PAGE / 8;

/// How much the program does.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Pages of its data.
    pub pages: usize,
    /// Words of each page that are noise; the others repeat one word. A page has 512.
    pub noise: usize,
    /// Times that it goes through its data.
    pub passes: usize,
    /// Pages that it reads at random.
    pub reads: usize,
}

/// Seconds that a run took.
#[derive(Debug, Default, PartialEq)]
pub struct Times {
    /// For writing the data.
    pub fill: f64,
    /// For each pass.
    pub passes: Vec<f64>,
    /// For all random reads.
    pub random: f64,
}

impl Load {
    /// The command that runs it, after the words of `before` (which say under which limit).
    pub fn command(&self, before: Command) -> Result<Command, String> {
        let mut command = before;
        let own = std::env::current_exe().map_err(|e| format!("can't find this program: {e}"))?;
        let numbers = [self.pages, self.noise, self.passes, self.reads].map(|n| n.to_string());
        command.arg(own).arg(NAME).args(numbers);
        Ok(command)
    }

    /// Runs it under a limit.
    ///
    /// # Errors
    /// A line: it failed, took too long, or found wrong data.
    pub fn run(&self, before: Command) -> Result<Times, String> {
        let mut command = self.command(before)?;
        let name = Path::new(command.get_program()).display().to_string();
        let start = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = Started(start.map_err(|e| format!("{name} can't be started: {e}"))?);
        let began = Instant::now();
        // What it prints fits into the pipe.
        let status = loop {
            match child.0.try_wait().map_err(|e| e.to_string())? {
                Some(status) => break status,
                None if began.elapsed() > PATIENCE => return Err(format!("{name} takes too long")),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let mut said = String::new();
        child.0.stdout.take().ok_or("no output")?.read_to_string(&mut said).map_err(|e| e.to_string())?;
        match (status.success(), parse(&said)) {
            (true, Some(times)) if times.passes.len() == self.passes => Ok(times),
            _ => Err(format!("{name} ended with {status}: {}", said.lines().last().unwrap_or("no output"))),
        }
    }
}

fn parse(said: &str) -> Option<Times> {
    let mut times = Times::default();
    for line in said.lines() {
        let (what, seconds) = line.split_once(' ')?;
        let seconds: f64 = seconds.parse().ok()?;
        match what {
            "fill" => times.fill = seconds,
            "pass" => times.passes.push(seconds),
            "random" => times.random = seconds,
            _ => return None,
        }
    }
    Some(times)
}

/// The program.
pub fn main(args: &[String]) -> ExitCode {
    let numbers: Vec<usize> = args.iter().filter_map(|n| n.parse().ok()).collect();
    let &[pages, noise, passes, reads] = numbers.as_slice() else {
        eprintln!("lowtide-lab: {NAME} is started by the race only");
        return ExitCode::from(2);
    };
    // Ends with the experiment, however that ends.
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(1);
    });
    match work(&Load { pages, noise, passes, reads }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(page) => {
            println!("wrong data in page {page}");
            ExitCode::FAILURE
        }
    }
}

/// Does it all, prints times, and returns the number of the first page with wrong data.
fn work(load: &Load) -> Result<(), usize> {
    let timed = |what: &str, f: &mut dyn FnMut() -> Result<(), usize>| {
        let began = Instant::now();
        f()?;
        println!("{what} {:.6}", began.elapsed().as_secs_f64());
        Ok(())
    };
    let mut data = vec![0u64; load.pages * WORDS];
    timed("fill", &mut || {
        for (i, page) in data.chunks_exact_mut(WORDS).enumerate() {
            for (j, word) in page.iter_mut().enumerate() {
                *word = expected(load, i, j, 0);
            }
        }
        Ok(())
    })?;
    for pass in 0..load.passes {
        timed("pass", &mut || {
            for (i, page) in data.chunks_exact_mut(WORDS).enumerate() {
                verify(load, i, page, pass)?;
                page[0] = expected(load, i, 0, pass + 1);
            }
            Ok(())
        })?;
    }
    let mut random = fastrand::Rng::with_seed(5);
    timed("random", &mut || {
        for _ in 0..load.reads {
            let i = random.usize(..load.pages);
            verify(load, i, &data[i * WORDS..(i + 1) * WORDS], load.passes)?;
        }
        Ok(())
    })
}

fn verify(load: &Load, i: usize, page: &[u64], passes: usize) -> Result<(), usize> {
    let differ = page.iter().enumerate().fold(0, |differ, (j, word)| differ | (word ^ expected(load, i, j, passes)));
    if differ == 0 { Ok(()) } else { Err(i) }
}

/// Word `j` of page `i` after so many passes, which change the first word only. The mixing is that of SplitMix64.
fn expected(load: &Load, i: usize, j: usize, passes: usize) -> u64 {
    if j >= load.noise {
        return i as u64;
    }
    let changed = if j == 0 { (passes as u64) << 48 } else { 0 };
    let mut z = ((i * WORDS + j) as u64 ^ changed).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_bit_in_any_word_is_found() {
        let load = Load { pages: 2, noise: 300, passes: 1, reads: 1 };
        let mut page: Vec<u64> = (0..WORDS).map(|j| expected(&load, 1, j, 3)).collect();
        assert_eq!(verify(&load, 1, &page, 3), Ok(()));
        assert_eq!(verify(&load, 1, &page, 2), Err(1), "the page of an earlier pass");
        assert_eq!(verify(&load, 0, &page, 3), Err(0), "another page");
        for j in 0..WORDS {
            page[j] ^= 1 << (j % 64);
            assert_eq!(verify(&load, 1, &page, 3), Err(1), "word {j}");
            page[j] ^= 1 << (j % 64);
        }
    }

    #[test]
    fn what_the_program_prints_is_read_back() {
        let times = parse("fill 1.5\npass 2\npass 3\nrandom 0.25\n").unwrap();
        assert_eq!(times, Times { fill: 1.5, passes: vec![2.0, 3.0], random: 0.25 });
        assert_eq!(parse("fill 1.5\nwrong data in page 7\n"), None);
    }
}
