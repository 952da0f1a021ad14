//! Threads that do everything at once, against a shadow. Prints its seed; `LOWTIDE_SEED` gives one.

use std::os::fd::AsRawFd;

use lowtide_region::{Delivery, Error, Group, Region, Swap};

use crate::content::{MIB, PAGE, check, deliveries, mix, write};

const THREADS: usize = 4;
const STEPS: usize = 4000;
const PAGES: usize = 6 * 1024;

/// Each thread has the pages whose number is its own, modulo the number of threads.
struct Actor<'a> {
    id: usize,
    random: u64,
    regions: &'a [Region],
    group: &'a Group,
    seeds: Vec<Vec<u64>>,
    delivery: Delivery,
    pipe: std::io::PipeWriter,
    _reader: std::io::PipeReader,
}

impl Actor<'_> {
    fn below(&mut self, n: usize) -> usize {
        self.random = mix(self.random);
        self.random as usize % n
    }

    fn mine(&mut self) -> (usize, usize) {
        (self.below(self.regions.len()), self.below(PAGES / THREADS) * THREADS + self.id)
    }

    fn at(&self, region: usize, page: usize) -> *mut u8 {
        // SAFETY: inside the region.
        unsafe { self.regions[region].as_mut_ptr().add(page * PAGE) }
    }

    fn check(&mut self, region: usize, page: usize) {
        // SAFETY: a page that only this thread writes to.
        unsafe { check(self.at(region, page), self.seeds[region][page / THREADS]) };
    }

    fn range(&mut self) -> (usize, std::ops::Range<usize>) {
        let (region, start, pages) = (self.below(self.regions.len()), self.below(PAGES), 1 + self.below(300));
        (region, start * PAGE..(start + pages).min(PAGES) * PAGE)
    }

    fn step(&mut self) {
        match self.below(100) {
            0..35 => {
                let (region, page) = self.mine();
                let seed = if self.below(5) == 0 { 0 } else { self.random };
                // SAFETY: as above.
                unsafe { write(self.at(region, page), seed) };
                self.seeds[region][page / THREADS] = seed;
            }
            35..75 => {
                let (region, first) = self.mine();
                for page in (first..PAGES.min(first + 8 * THREADS)).step_by(THREADS) {
                    self.check(region, page);
                }
            }
            75..80 => {
                let (region, page) = self.mine();
                // SAFETY: as above, and nobody has a reference.
                unsafe { self.regions[region].drop_shared(page * PAGE, (page + 1) * PAGE) }.unwrap();
                self.seeds[region][page / THREADS] = 0;
                self.check(region, page);
            }
            80..86 => {
                let (region, range) = self.range();
                self.regions[region].evict(range).unwrap();
            }
            86..91 => {
                let (region, range) = self.range();
                self.regions[region].prefetch(range).unwrap();
            }
            91..96 => {
                let (region, page) = self.mine();
                let guard = match self.regions[region].resident(page * PAGE..(page + 1) * PAGE) {
                    Ok(guard) => Some(guard),
                    Err(Error::TooMuchResident { .. }) => None,
                    Err(other) => panic!("{other}"),
                };
                let is_there = guard.is_some() || self.delivery == Delivery::Monitor;
                // SAFETY: a page of the region.
                let sent = unsafe { libc::write(self.pipe.as_raw_fd(), self.at(region, page).cast(), PAGE) };
                // A pipe that is full takes nothing.
                let full = sent < 0 && std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock;
                assert!(!is_there || full || sent == PAGE as isize, "{:?}", std::io::Error::last_os_error());
                self.check(region, page);
            }
            96..98 => {
                let ram = (16 + self.below(12)) << 20;
                match self.group.set_ram(ram as u64) {
                    Ok(()) | Err(Error::RamTooSmall { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            _ => {
                // One that comes and goes, in the same group.
                let mut region = Region::builder(MIB).group(self.group).build().unwrap();
                region.as_mut_slice().fill(self.id as u8 + 1);
                region.evict(..MIB / 2).unwrap();
                assert!(region.as_slice().iter().all(|byte| *byte == self.id as u8 + 1));
            }
        }
    }
}

fn run(delivery: Delivery, swap: Swap, ram: u64) {
    let seed = std::env::var("LOWTIDE_SEED").ok().map_or_else(
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64,
        |text| text.parse().unwrap(),
    );
    eprintln!("LOWTIDE_SEED={seed} {delivery:?} {swap:?}");
    let group = Group::builder().ram(ram).swap(swap).delivery(delivery).build().unwrap();
    let regions: Vec<Region> = (0..2).map(|_| Region::builder(PAGES * PAGE).group(&group).build().unwrap()).collect();
    std::thread::scope(|scope| {
        for id in 0..THREADS {
            let (regions, group) = (&regions[..], &group);
            scope.spawn(move || {
                let (reader, pipe) = std::io::pipe().unwrap();
                // SAFETY: a descriptor of this thread's own.
                unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
                let seeds = vec![vec![0; PAGES.div_ceil(THREADS)]; regions.len()];
                let random = mix(seed.wrapping_add(id as u64));
                let mut actor = Actor { id, random, regions, group, seeds, delivery, pipe, _reader: reader };
                (0..STEPS).for_each(|_| actor.step());
                for region in 0..regions.len() {
                    (id..PAGES).step_by(THREADS).for_each(|page| actor.check(region, page));
                }
            });
        }
    });
    let stats = group.stats().unwrap();
    assert!(stats.pages_out > 0 && stats.pages_in > 0 && stats.resident_bytes == 0, "{stats:?}");
    drop(regions);
    // What was being stored just then, whoever stores it lets go of.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        let stats = group.stats().unwrap();
        if (stats.stored_pages, stats.file_pages) == (0, 0) {
            break;
        }
        assert!(std::time::Instant::now() < until, "something is left behind: {stats:?}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn with_a_file() {
    for delivery in deliveries() {
        run(delivery, Swap::Auto, 16 << 20);
    }
}

#[test]
fn with_compressed_ram_only() {
    for delivery in deliveries() {
        run(delivery, Swap::Ram, 24 << 20);
    }
}

#[test]
fn with_a_file_that_is_too_small() {
    for delivery in deliveries() {
        let swap = Swap::Dir { dir: env!("CARGO_TARGET_TMPDIR").into(), size: Some(8 << 20) };
        run(delivery, swap, 16 << 20);
    }
}
