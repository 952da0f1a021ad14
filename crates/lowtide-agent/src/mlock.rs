//! mlock: what it means under lowtide.
//!
//! Locked pages can't be moved, so they would stay in RAM whatever the limit. Small locks, which programs use to keep secrets off
//! disks, are honoured, up to a sixteenth of the limit in all. Larger ones, and mlockall, are recorded, answered with success and
//! otherwise ignored: the run warns about it once.

use core::sync::atomic::{AtomicU64, Ordering};

use lowtide_pager::line::Line;

use crate::{agent, say};

static LOCKED: AtomicU64 = AtomicU64::new(0);

/// Whether a lock of `len` bytes is to be passed to the kernel.
pub fn honour(len: usize) -> bool {
    let most = agent::settings().ram_limit.load(Ordering::Relaxed) / 16;
    let before = LOCKED.fetch_add(len as u64, Ordering::Relaxed);
    if before + len as u64 <= most {
        return true;
    }
    LOCKED.fetch_sub(len as u64, Ordering::Relaxed);
    ignored();
    false
}

/// A lock was not passed on.
pub fn ignored() {
    let mut line = Line::new();
    line.push(b"the program locks memory (mlock): lowtide honours 1/16 of --ram and keeps the rest swappable");
    say::warn(line.bytes());
}

/// `len` bytes were unlocked.
pub fn unlocked(len: usize) {
    let _ = LOCKED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(n.saturating_sub(len as u64)));
}
