//! The parent's view of a forked child that can't report yet.

use core::mem::MaybeUninit;

use lowtide_sys::Line;
use lowtide_sys::stat::parse_state;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, RawDir};

use crate::hooks::gate;
use crate::process::thread;

/// Whether a thread of the child runs, or waits for a CPU or device, and none is stopped or traced;
/// false if unknown. For lowtide's threads.
pub fn wants_to_run() -> bool {
    let mut path = Line::new();
    path.push(b"/proc/self/task/").number(u64::from(gate::forking_thread())).push(b"/children");
    let Some(child) = open(path.bytes(), OFlags::RDONLY).and_then(|children| last_number(&children)) else { return false };
    let mut path = Line::new();
    path.push(b"/proc/").number(child).push(b"/task");
    let Some(threads) = open(path.bytes(), OFlags::RDONLY | OFlags::DIRECTORY) else { return false };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut names = RawDir::new(threads, &mut buffer);
    let mut wants = false;
    while let Some(Ok(name)) = names.next() {
        let name = name.file_name().to_bytes();
        if !name.starts_with(b".") {
            let mut path = Line::new();
            path.push(b"/proc/").number(child).push(b"/task/").push(name).push(b"/stat");
            match thread::read_stat(path.bytes(), parse_state) {
                Some(b'R' | b'D') => wants = true,
                Some(b'T' | b't') => return false,
                _ => {}
            }
        }
    }
    wants
}

fn open(path: &[u8], flags: OFlags) -> Option<OwnedFd> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).ok()
}

fn last_number(file: &OwnedFd) -> Option<u64> {
    let (mut last, mut number) = (None, None);
    let mut text = [0u8; 512];
    loop {
        let read = rustix::io::read(file, &mut text).ok()?;
        if read == 0 {
            return number.or(last);
        }
        for byte in &text[..read] {
            match byte {
                b'0'..=b'9' => number = Some(number.unwrap_or(0) * 10 + u64::from(byte - b'0')),
                _ => last = number.take().or(last),
            }
        }
    }
}
