//! The program behind the loads of regions: the same data and touches in a region, in ordinary
//! memory, or in a mapped file.

use std::ffi::OsString;
use std::fs::File;
use std::process::ExitCode;
use std::time::Instant;

use clap::ValueEnum;
use lowtide_region::{Delivery, Region, Swap};
use rustix::mm::{MapFlags, ProtFlags};

use super::content::{Content, RECORDS, WORDS};
use super::zipf::Zipf;

pub const NAME: &str = "region-load";
/// Words of noise as in most of the race's loads.
const CONTENT: Content = Content { noise: 24, zeros: 0 };

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Home {
    /// Ordinary memory: natively, or under the kernel's swap.
    Memory,
    Thread,
    Monitor,
    /// A file, mapped, as numpy.memmap does it.
    File,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// One after the other, each thread its part.
    Sequential,
    Random,
    /// A few often.
    Zipf,
}

impl Order {
    pub const NAMES: [&str; 3] = ["sequential", "random", "zipf"];
}

#[derive(Debug, Clone, Copy)]
pub struct RegionLoad {
    pub home: Home,
    pub order: Order,
    pub threads: usize,
    pub pages: usize,
    /// Pages touched by all threads together.
    pub count: usize,
    /// The RAM limit of a region in bytes.
    pub ram: u64,
}

fn value(of: impl ValueEnum) -> OsString {
    of.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default().into()
}

impl RegionLoad {
    /// The command that runs it.
    ///
    /// # Errors
    /// A line.
    pub fn command(&self) -> Result<Vec<OsString>, String> {
        let own = std::env::current_exe().map_err(|e| format!("can't find this program: {e}"))?;
        let numbers = [self.threads, self.pages, self.count, self.ram as usize].map(|n| n.to_string().into());
        Ok([own.into(), NAME.into(), value(self.home), value(self.order)].into_iter().chain(numbers).collect())
    }

    fn parse(args: &[String]) -> Option<RegionLoad> {
        let [home, order, numbers @ ..] = args else { return None };
        let numbers: Vec<usize> = numbers.iter().map(|n| n.parse()).collect::<Result<_, _>>().ok()?;
        let &[threads @ (1..), pages @ (2..), count, ram] = numbers.as_slice() else { return None };
        let (home, order) = (Home::from_str(home, false).ok()?, Order::from_str(order, false).ok()?);
        Some(RegionLoad { home, order, threads, pages, count, ram: ram as u64 })
    }

    fn bytes(&self) -> usize {
        self.pages * WORDS * 8
    }
}

/// The program. Prints the touching's duration on standard error.
pub fn main(args: &[String]) -> ExitCode {
    let Some(load) = RegionLoad::parse(args) else {
        eprintln!("lowtide-lab: {NAME} is started by an experiment only");
        return ExitCode::from(2);
    };
    match run(&load) {
        Ok(seconds) => {
            eprintln!("seconds {seconds:.6}");
            ExitCode::SUCCESS
        }
        Err(line) => {
            eprintln!("{line}");
            ExitCode::FAILURE
        }
    }
}

fn run(load: &RegionLoad) -> Result<f64, String> {
    let delivery = match load.home {
        Home::Memory => return fill_and_touch(load, &mut vec![0; load.pages * WORDS]),
        Home::File => return in_file(load),
        Home::Thread => Delivery::InThread,
        Home::Monitor => Delivery::Monitor,
    };
    let region = Region::builder(load.bytes()).ram(load.ram).swap(Swap::Ram).delivery(delivery).build();
    let mut region = region.map_err(|e| e.to_string())?;
    // SAFETY: page-aligned memory of this many words, any bytes are valid words, borrowed as long
    // as the slice lives.
    let words = unsafe { std::slice::from_raw_parts_mut(region.as_mut_slice().as_mut_ptr().cast(), load.pages * WORDS) };
    fill_and_touch(load, words)
}

/// In an unnamed file in the working directory.
fn in_file(load: &RegionLoad) -> Result<f64, String> {
    use rustix::fs::{Mode, OFlags};
    let file = rustix::fs::open(".", OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR | Mode::WUSR).map(File::from);
    let file = file.map_err(|e| format!("no file: {e}"))?;
    file.set_len(load.bytes() as u64).map_err(|e| format!("no room for the file: {e}"))?;
    // SAFETY: a mapping of a private file; page-aligned, and any bytes are valid words. It is never
    // unmapped.
    let words = unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let at = rustix::mm::mmap(std::ptr::null_mut(), load.bytes(), protection, MapFlags::SHARED, &file, 0);
        std::slice::from_raw_parts_mut(at.map_err(|e| format!("can't map the file: {e}"))?.cast(), load.pages * WORDS)
    };
    fill_and_touch(load, words)
}

/// Seconds of touching. Verifies every touched record.
fn fill_and_touch(load: &RegionLoad, words: &mut [u64]) -> Result<f64, String> {
    words.chunks_exact_mut(WORDS).enumerate().for_each(|(i, page)| CONTENT.fill(i, page));
    let (words, zipf) = (&*words, Zipf::new(load.pages));
    let began = Instant::now();
    let one = &|thread: usize| {
        let mut random = fastrand::Rng::with_seed(thread as u64);
        let part = load.pages / load.threads;
        (0..load.count / load.threads).try_for_each(|n| {
            let page = match load.order {
                Order::Sequential => thread * part + n % part,
                Order::Random => random.usize(..load.pages),
                Order::Zipf => zipf.next(&mut random),
            };
            let record = if load.order == Order::Sequential { 0 } else { random.usize(..RECORDS) };
            let found = CONTENT.verify(page, record, &words[page * WORDS..(page + 1) * WORDS], 0);
            found.map(drop).map_err(|page| format!("wrong data in page {page}"))
        })
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..load.threads).map(|thread| scope.spawn(move || one(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())))
    })?;
    Ok(began.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_read_back_and_every_order_verifies() {
        assert!(Order::value_variants().iter().zip(Order::NAMES).all(|(order, name)| value(*order) == name));
        for order in Order::value_variants() {
            let load = RegionLoad { home: Home::Memory, order: *order, threads: 2, pages: 50, count: 300, ram: 1 << 24 };
            let args: Vec<String> = load.command().unwrap()[2..].iter().map(|a| a.to_str().unwrap().to_owned()).collect();
            let read = RegionLoad::parse(&args).unwrap();
            assert_eq!((read.order, read.threads, read.pages, read.count, read.ram), (*order, 2, 50, 300, 1 << 24));
            assert!(run(&read).is_ok());
        }
        assert!(RegionLoad::parse(&["memory".to_owned()]).is_none());
    }
}
