//! A region handed to the crate `bytes`: slices of it are counted, and it is given back when the last one goes.

use bytes::Bytes;
use lowtide_region::{Error, Region, Swap};
use std::thread::sleep;
use std::time::{Duration, Instant};

fn main() -> Result<(), Error> {
    let mut region = Region::builder(48 << 20).ram(16 << 20).swap(Swap::Auto).build()?;
    for (i, line) in region.as_mut_slice().chunks_exact_mut(16).enumerate() {
        line.copy_from_slice(format!("{i:015}\n").as_bytes());
    }
    let group = region.group().clone();
    let mut bytes = Bytes::from_owner(region);
    let tail = bytes.split_off(40 << 20);
    drop(bytes);
    let first = (40 << 20) / 16;
    assert!(tail.chunks_exact(16).enumerate().all(|(i, line)| line == format!("{:015}\n", first + i).as_bytes()));
    let stats = group.stats()?;
    assert!(stats.pages_out > 0 && stats.ram_now <= stats.ram_limit + (1 << 20), "{stats:?}");
    drop(tail);
    // What is being stored at this moment goes when that is done.
    let start = Instant::now();
    while group.stats()?.stored_pages > 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "all of it is given back");
        sleep(Duration::from_millis(1));
    }
    println!("48 MiB of lines in {} MiB of RAM", stats.ram_limit >> 20);
    Ok(())
}
