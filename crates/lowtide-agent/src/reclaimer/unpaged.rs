//! Memory that lowtide does not page, which may be why a run exceeds its limit: the main thread's
//! stack, which grows without notice, and pinned I/O memory.

use lowtide_core::kernel_text::{number, read};
use lowtide_sys::Line;
use lowtide_sys::maps::Maps;

use crate::process::say;

/// Less than this part of the limit is not the reason.
const PART: u64 = 8;
pub(super) const EVERY_US: u64 = 100_000;

#[derive(Default)]
pub(super) struct Unpaged {
    looked_us: u64,
    said_stack: bool,
    said_pinned: bool,
}

impl Unpaged {
    pub(super) fn say(&mut self, limit: u64, now_us: u64) {
        if now_us.saturating_sub(self.looked_us) < EVERY_US || self.said_stack && self.said_pinned {
            return;
        }
        self.looked_us = now_us;
        warn(
            &mut self.said_stack,
            main_stack(),
            limit,
            b"are the main thread's stack, which lowtide does not page (ulimit -s)",
        );
        warn(&mut self.said_pinned, pinned(), limit, b"are pinned for input and output (io_uring's buffers, for one)");
    }
}

fn warn(said: &mut bool, bytes: u64, limit: u64, what: &[u8]) {
    if *said || bytes < limit / PART {
        return;
    }
    *said = true;
    let mut line = Line::new();
    line.number(bytes >> 20).push(b" MiB ").push(what).push(b": the run goes over its limit of ").number(limit >> 20);
    say::warn(line.push(b" MiB").bytes());
}

fn main_stack() -> u64 {
    let mut text = [0u8; 1024];
    let stat = read(c"/proc/self/stat", &mut text).unwrap_or_default();
    // The third field follows the name, which may contain blanks and brackets.
    let fields = stat.rsplit(|c| *c == b')').next().unwrap_or_default();
    let start = fields.split(|c| *c == b' ').filter(|field| !field.is_empty()).nth(28 - 3).map_or(0, number);
    let range = Maps::open().and_then(|mappings| mappings.find(start as usize));
    range.ok().flatten().filter(|_| start != 0).map_or(0, |range| (range.end - range.start) as u64)
}

fn pinned() -> u64 {
    let mut text = [0u8; 2048];
    let status = read(c"/proc/thread-self/status", &mut text).unwrap_or_default();
    let value = status.split(|c| *c == b'\n').find_map(|line| line.strip_prefix(b"VmPin:"));
    value.map_or(0, |value| number(value.trim_ascii_start()) << 10)
}
