//! Programs whose memory goes to the disk: data that do not compress, and data that do under a small pool. The limit holds, and
//! the writes are long.

use std::time::Duration;

use crate::check::{Growth, ends_well, faults, report};
use crate::machine::{native_only, turn};
use crate::measure::{Limit, Swap};
use crate::programs::job;

const MIB: u64 = 1 << 20;
/// The shortest write, on average, that counts as long.
const LONG: f64 = 262_144.0;

/// `pool`: a size, or nothing for the default.
fn program(label: &str, arguments: &str, ram: u64, pool: Option<&str>, size: &str) {
    let Some(_turn) = turn() else { return };
    let Some(mut job) = job(label, "one_malloc", arguments) else { return };
    job.deadline = Duration::from_secs(if size.ends_with('G') { 3600 } else { 120 });
    let native = job.native();
    assert!(ends_well(&native), "natively: {native:?}");
    if native_only() {
        return;
    }
    let mut options = vec!["--swap".to_owned(), format!("dir:/var/tmp,size={size}")];
    options.extend(pool.into_iter().flat_map(|pool| ["--pool".to_owned(), pool.to_owned()]));
    let limit = Limit { ram, swap: Swap::Options(options) };
    let limited = job.limited(&limit);
    report(&job, &limit, &native, &limited);
    let mut wrong = faults(&native, &limited, &limit, Growth::Existing);
    let (ios, bytes) = (limited.stat("writeback.ios"), limited.stat("writeback.bytes"));
    if bytes < ram as f64 || bytes < LONG * ios {
        wrong.push(format!("{bytes} bytes were written with {ios} writes, {:.0} KiB each", bytes / ios / 1024.0));
    }
    assert!(wrong.is_empty(), "{label}: {}\n{}", wrong.join("\n"), limited.stderr);
}

#[test]
fn data_that_do_not_compress() {
    program("writeback, noise", "256 n 2000", 64 * MIB, None, "1024M");
}

#[test]
fn data_that_compress_under_a_small_pool() {
    program("writeback, text", "256 t 2000", 64 * MIB, Some("8M"), "1024M");
}

#[test]
#[ignore = "4 GiB: make soak"]
fn soak_4_gib_that_do_not_compress() {
    program("writeback, 4 GiB of noise", "4096 n 20000", 512 * MIB, None, "8G");
}

#[test]
#[ignore = "4 GiB: make soak"]
fn soak_4_gib_that_compress_under_a_small_pool() {
    program("writeback, 4 GiB of text", "4096 t 20000", 512 * MIB, Some("64M"), "8G");
}
