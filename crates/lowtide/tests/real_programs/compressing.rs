//! What is compressed, and what is not even tried.

use crate::check::{Growth, ends_well};
use crate::machine::turn;
use crate::measure::{Limit, Swap};
use crate::programs::job;

fn run(label: &str, arguments: &str, ram: u64) -> Option<crate::measure::Outcome> {
    let job = job(label, "one_malloc", arguments)?;
    let limited = job.limited(&Limit { ram, swap: Swap::Default });
    assert!(ends_well(&limited), "{}", limited.stderr);
    let bound = Growth::Existing.bound(ram);
    assert!(limited.peak <= bound, "peak {} bytes, allowed {bound}: {}", limited.peak, limited.stderr);
    Some(limited)
}

/// Where nothing compresses, next to nothing is tried; and RAM for compressed pages is of no use.
#[test]
fn noise_is_hardly_tried() {
    let Some(_turn) = turn() else { return };
    let Some(noise) = run("noise that is not compressed", "192 n 20000", 64 << 20) else { return };
    let (stored, vain) = (noise.stat("pages.stored"), noise.stat("pages.compressed_in_vain"));
    assert!(stored > 30_000.0, "{}", noise.stderr);
    assert!(vain <= 0.1 * stored, "{vain} of {stored} pages were compressed in vain");
}

/// Where all compresses, all is tried, and almost all faults are spared the device.
#[test]
fn text_is_compressed_and_stays_in_the_pool() {
    let Some(_turn) = turn() else { return };
    let Some(text) = run("text that is compressed", "128 t 40000", 96 << 20) else { return };
    assert!(text.stat("pages.compressed_in_vain") <= 0.01 * text.stat("pages.stored"), "{}", text.stderr);
    let (pool, device) = (text.stat("faults.pool"), text.stat("faults.device"));
    assert!(pool + device > 1000.0, "{}", text.stderr);
    assert!(device <= 0.2 * (pool + device), "{device} faults from the device, {pool} from the pool");
}
