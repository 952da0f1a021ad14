//! Regions against the kernel's zram and against a mapped file, each within the same memory in all.

use std::time::Duration;

use super::kernel::{Cache, Swap};
use super::match_up::{Race, Share};
use super::region_load::{Home, Order, RegionLoad};
use super::run::{Done, Task, run};
use crate::measure::{Sample, in_turn};

const PATIENCE: Duration = Duration::from_secs(90);
/// A mapped file gets fewer touches by this factor: its missing pages come from the disk.
const FILE_SHARE: usize = 8;
/// The same out of order, where its read-ahead is in vain: a millisecond a touch.
const FILE_SHARE_OUT_OF_ORDER: usize = 32;
/// In the order of turns.
pub const SIDES: [(&str, Home); 4] =
    [("zram", Home::Memory), ("in-thread", Home::Thread), ("monitor", Home::Monitor), ("mapped file", Home::File)];

/// One order of touching, by this many threads.
#[derive(Debug)]
pub struct Touched {
    pub order: Order,
    pub threads: usize,
    /// Microseconds for each touch, over all threads, for each of [`SIDES`].
    pub us: [Sample; SIDES.len()],
    /// Peak of memory, relative to the limit.
    pub peak: [f64; SIDES.len()],
}

impl Race {
    /// Measures `pages` pages in `percent` of their memory, in these orders and with these thread
    /// counts.
    ///
    /// # Errors
    /// A line.
    pub fn regions(
        &mut self,
        pages: usize,
        count: usize,
        percent: u64,
        orders: &[Order],
        threads: &[usize],
    ) -> Result<Vec<Touched>, String> {
        let rounds = self.course.rounds;
        let load = |home, order, threads, ram| RegionLoad { home, order, threads, pages, count, ram };
        let native = self.native(&load(Home::Memory, Order::Random, 1, 0))?;
        let limit = native.peak / 100 * percent;
        // All have the same content, and so the same compression in the pool.
        let task = self.task(&load(Home::Memory, Order::Random, 1, 0))?;
        let share = self.share(&task, &native, limit)?;
        if share.swap != Swap::Zram {
            return Err("the data does not compress enough for zram".into());
        }
        let mut all = Vec::new();
        for &order in orders {
            for &threads in threads {
                let mut touched = Touched { order, threads, us: Default::default(), peak: Default::default() };
                in_turn(&SIDES, rounds, |side, (name, home)| {
                    let mut load = load(*home, order, threads, limit);
                    if *home == Home::File {
                        load.count /= if order == Order::Sequential { FILE_SHARE } else { FILE_SHARE_OUT_OF_ORDER };
                    }
                    let (seconds, peak) = self.one(&load, share, limit, &native)?;
                    touched.us[side].add(seconds * 1e6 / load.count as f64);
                    touched.peak[side] = touched.peak[side].max(peak as f64 / limit as f64);
                    eprintln!("region: {order:?}, {threads} threads, {name}: {:.2} us", touched.us[side].last());
                    Ok::<(), String>(())
                })?;
                all.push(touched);
            }
        }
        Ok(all)
    }

    fn task(&self, load: &RegionLoad) -> Result<Task, String> {
        Ok(Task { command: load.command()?, directory: self.site.directory.clone(), client: None })
    }

    fn native(&self, load: &RegionLoad) -> Result<Done, String> {
        run(&self.task(load)?, &[], PATIENCE, |_| ())?.done().map_err(|why| format!("without a limit: {why}"))
    }

    /// Seconds of the touching, and the peak of memory in bytes.
    fn one(&self, load: &RegionLoad, share: Share, limit: u64, native: &Done) -> Result<(f64, u64), String> {
        let task = self.task(load)?;
        let (ended, peak) = match load.home {
            Home::Memory | Home::File => {
                let of_file = Share { group: limit, cache: Cache::Counts, ..share };
                let share = if load.home == Home::File { of_file } else { share };
                let (ended, highest) = self.sampled(&task, share, native)?;
                (ended, highest.used.used())
            }
            Home::Thread | Home::Monitor => {
                let ended = run(&task, &[], PATIENCE, |_| ())?;
                (ended, ended.peak())
            }
        };
        Ok((ended.done().map_err(|why| format!("{load:?} {why}"))?.seconds, peak))
    }
}
