//! Checks that lowtide's threads in the run's processes still live.
//!
//! They end with their process. One that ends before (by a system call filter or a debugger) may
//! have held a page or a lock: the program would wait for ever, and the limit would not hold. No
//! thread inside is sure to notice, so the supervisor checks.
//!
//! A process that ends or executes another program loses these threads as well, and that may last
//! long if another of its threads waits for a disk. Two signs distinguish this case: a thread that
//! is exiting or has SIGKILL pending; or, if no thread can show that, memory in which the agent's
//! library is not mapped where it was. A false alarm would end the whole run.

use lowtide_config::proc::{self, Stat, Status};
use lowtide_core::store::Image;
use lowtide_wire::segment::{Proc, Segment, proc_state};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(1);
/// Looks in a row that must miss a thread.
const LOOKS: u32 = 10;

struct Missing {
    image: Image,
    thread: u32,
    looks: u32,
}

#[derive(Default)]
pub struct OwnThreads {
    looked: Option<Instant>,
    missing: Vec<Missing>,
}

impl OwnThreads {
    /// A process that goes on without one of lowtide's threads. None also between the looks.
    pub fn ended(&mut self, segment: &Segment) -> Option<u32> {
        if self.looked.is_some_and(|looked| looked.elapsed() < EVERY) {
            return None;
        }
        self.looked = Some(Instant::now());
        let before = std::mem::take(&mut self.missing);
        for p in segment.used_procs().iter().filter(|p| p.state.load(Ordering::Acquire) >= proc_state::WATCHING) {
            let (pid, image) = (p.pid.load(Ordering::Relaxed), segment.image(p));
            let Some(thread) = p.threads().find(|&thread| is_missing(pid, thread)) else { continue };
            let same = before.iter().find(|missing| missing.image == image && missing.thread == thread);
            let looks = same.map_or(0, |missing| missing.looks) + 1;
            if looks >= LOOKS && !is_ending(pid) && has_agent(pid, p) {
                return Some(pid);
            }
            self.missing.push(Missing { image, thread, looks });
        }
        None
    }
}

fn is_missing(pid: u32, thread: u32) -> bool {
    // SAFETY: signal 0 sends nothing.
    let r = unsafe { libc::syscall(libc::SYS_tgkill, pid, thread, 0) };
    r == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// Whether any thread of a process is exiting or has SIGKILL pending, as all are when the process
/// ends or executes another program. Unreadable counts as yes.
fn is_ending(pid: u32) -> bool {
    let Some(threads) = proc::threads(pid) else { return true };
    threads.into_iter().any(|thread| {
        match (Status::of(format_args!("{pid}/task/{thread}")), Stat::of_thread(pid, thread)) {
            // A zombie leader of a live process counts as exiting, too: that case stays undecided.
            (Some(status), Some(stat)) => has_kill_pending(&status) || stat.is_exiting(),
            _ => true,
        }
    })
}

/// Pending for the thread or for its process.
fn has_kill_pending(thread: &Status) -> bool {
    const SIGKILL: u64 = 1 << (libc::SIGKILL - 1);
    ["SigPnd", "ShdPnd"].iter().any(|name| thread.bits(name).is_some_and(|set| set & SIGKILL != 0))
}

/// Whether a process still maps the agent's library where it was. (Unreadable counts as yes.)
fn has_agent(pid: u32, p: &Proc) -> bool {
    let at = p.agent_at.load(Ordering::Acquire);
    let text = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().filter(|line| line.contains("/memfd:lowtide-agent")).any(|line| holds(line, at))
}

/// Whether a line of `/proc/PID/maps` covers this address.
fn holds(line: &str, at: u64) -> bool {
    let range = line.split(' ').next().and_then(|range| range.split_once('-'));
    let number = |text| u64::from_str_radix(text, 16).ok();
    range.is_some_and(|(start, end)| number(start).is_some_and(|n| n <= at) && number(end).is_some_and(|n| at < n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_mappings() {
        let line = "7f00a000-7f00c000 r-xp 00000000 00:01 2087 /memfd:lowtide-agent (deleted)";
        assert!(holds(line, 0x7f00_a000) && holds(line, 0x7f00_bfff));
        assert!(!holds(line, 0x7f00_9fff) && !holds(line, 0x7f00_c000) && !holds("", 0));
    }

    #[test]
    fn who_is_told_to_end_or_does() {
        let has_kill_pending = |text: &str| has_kill_pending(&Status::from(text.as_bytes().to_vec()));
        assert!(has_kill_pending("Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
        assert!(has_kill_pending("SigPnd:\t0000000000000000\nShdPnd:\t0000000000004100\n"));
        assert!(!has_kill_pending("SigPnd:\t0000000000000200\nSigBlk:\t0000000000000100\n"));
        // Another process: threads of other tests end in this one.
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!is_ending(other.id()));
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(is_ending(other.id()));
        assert!(is_ending(i32::MAX as u32));
    }

    #[test]
    fn threads_that_are_there_and_not() {
        let me = std::process::id();
        assert!(!is_missing(me, me));
        assert!(is_missing(me, i32::MAX as u32));
    }
}
