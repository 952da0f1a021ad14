//! A key-value cache of 64 MiB in 20 MiB of RAM: values in a region, an index in ordinary memory. What was not asked for lately
//! leaves RAM by itself.

use std::collections::HashMap;

use lowtide_region::{Error, Region, Swap};

/// Values of one length each in a row, the oldest overwritten when there is no room.
struct Cache {
    region: Region,
    index: HashMap<u64, (usize, usize)>,
    /// Keys by place, oldest first.
    order: std::collections::VecDeque<(u64, usize, usize)>,
    at: usize,
}

impl Cache {
    fn new(len: usize, ram: u64) -> Result<Cache, Error> {
        let region = Region::builder(len).ram(ram).swap(Swap::Auto).build()?;
        Ok(Cache { region, index: HashMap::new(), order: Default::default(), at: 0 })
    }

    fn put(&mut self, key: u64, value: &[u8]) {
        if self.at + value.len() > self.region.len() {
            self.at = 0;
        }
        let (start, end) = (self.at, self.at + value.len());
        while let Some(&(old, from, to)) = self.order.front().filter(|(_, from, to)| *from < end && start < *to) {
            self.order.pop_front();
            if self.index.get(&old) == Some(&(from, to)) {
                self.index.remove(&old);
            }
        }
        self.region.as_mut_slice()[start..end].copy_from_slice(value);
        self.index.insert(key, (start, end));
        self.order.push_back((key, start, end));
        self.at = end;
    }

    fn get(&self, key: u64) -> Option<&[u8]> {
        self.index.get(&key).map(|&(start, end)| &self.region.as_slice()[start..end])
    }
}

/// What belongs to a key.
fn value(key: u64) -> Vec<u8> {
    let len = 100 + (key * 7919 % 3000) as usize;
    (0..len).map(|i| (key as usize + i / 16) as u8).collect()
}

fn main() -> Result<(), Error> {
    let mut cache = Cache::new(64 << 20, 20 << 20)?;
    let mut random = fastrand::Rng::with_seed(1);
    let (mut hits, mut misses) = (0, 0);
    for _ in 0..200_000 {
        // A few keys often, most of them seldom.
        let key = if random.u8(..) < 200 { random.u64(..2000) } else { random.u64(..60_000) };
        match cache.get(key) {
            Some(found) => {
                assert!(found == value(key), "key {key}");
                hits += 1;
            }
            None => {
                cache.put(key, &value(key));
                misses += 1;
            }
        }
    }
    let stats = cache.region.stats()?;
    assert!(hits > misses && stats.pages_out > 0 && stats.ram_now <= stats.ram_limit + (1 << 20), "{stats:?}");
    println!("{hits} hits, {misses} misses, {} MiB of {} MiB in RAM", stats.ram_now >> 20, stats.ram_limit >> 20);
    Ok(())
}
