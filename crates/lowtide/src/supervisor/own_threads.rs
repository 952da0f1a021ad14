//! Whether lowtide's threads in the processes of a run are all there.
//!
//! They end with their process. Where one was ended before (a system call filter does that, or a debugger), it may have had a
//! page in hand, or a lock: the program would wait for ever, and the limit would not be held. Nobody inside can be sure to
//! notice, so it is done from here.
//!
//! A process that ends, or executes another program, loses them as well, and that may take long where another of its threads
//! waits for a disk. So a thread of it that is about to end, or has a SIGKILL to take, tells that it does; and where none is
//! left that could, its memory: the library whose code lowtide's threads execute is not where it was. (A false alarm would end
//! the whole run.)

use lowtide_config::proc::{self, Stat, Status};
use lowtide_core::store::Image;
use lowtide_pager::segment::{Proc, Segment, proc_state};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often the supervisor looks.
const EVERY: Duration = Duration::from_secs(1);
/// After how many looks in a row in which a thread is missing it is believed.
const LOOKS: u32 = 10;

/// A thread that was missing.
struct Missing {
    image: Image,
    thread: u32,
    looks: u32,
}

/// What was seen of them.
#[derive(Default)]
pub struct OwnThreads {
    looked: Option<Instant>,
    missing: Vec<Missing>,
}

impl OwnThreads {
    /// A process in which one of lowtide's threads was ended, and the program goes on; None, too, where it isn't time to look.
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

/// Whether a process has no thread of this id.
fn is_missing(pid: u32, thread: u32) -> bool {
    // SAFETY: signal 0 is none.
    let r = unsafe { libc::syscall(libc::SYS_tgkill, pid, thread, 0) };
    r == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// Whether any thread of a process ends, or is told to by SIGKILL, as all are when their process ends or executes another
/// program. What can't be read proves that nothing is known.
fn is_ending(pid: u32) -> bool {
    let Some(threads) = proc::threads(pid) else { return true };
    threads.into_iter().any(|thread| {
        match (Status::of(format_args!("{pid}/task/{thread}")), Stat::of_thread(pid, thread)) {
            // A zombie leader of a process that goes on is one that ends, too: then nothing is known.
            (Some(status), Some(stat)) => has_kill_pending(&status) || stat.is_exiting(),
            // It has gone since.
            _ => true,
        }
    })
}

/// As itself or as its process.
fn has_kill_pending(thread: &Status) -> bool {
    const SIGKILL: u64 = 1 << (libc::SIGKILL - 1);
    ["SigPnd", "ShdPnd"].iter().any(|name| thread.bits(name).is_some_and(|set| set & SIGKILL != 0))
}

/// Whether a process still has the agent's library mapped where it was. (What can't be read proves nothing.)
fn has_agent(pid: u32, p: &Proc) -> bool {
    let at = p.agent_at.load(Ordering::Acquire);
    let text = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().filter(|line| line.contains("/memfd:lowtide-agent")).any(|line| holds(line, at))
}

/// Whether a line of `/proc/PID/maps` is of a mapping that holds this address.
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
        // Not this process: threads of other tests end here.
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
