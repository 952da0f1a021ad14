//! How many bytes of anonymous memory this process counts for.
//!
//! While it shares none with another process: what `/proc/self/statm` says, in 1 us. When it has forked, or was forked, and a
//! process of its family is still there, what it says is put right by looks (the pager's `share.rs` tells how): `Pss_Anon` of
//! `/proc/self/smaps_rollup`, 5 us a MiB that is in memory. (The bits of `/proc/self/pagemap` that say which pages are
//! exclusive take 4 us a MiB, and don't say with how many processes the others are shared.) All processes of a family together
//! take 5 % of a CPU for their looks at most, 1 % where a look takes long, and none while the run is far below its limit. The same
//! looks put statm right where the kernel's count may be off by more than a little (the pager's `sys/rss.rs`).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use linux_raw_sys::general as sys;
use lowtide_core::kernel_text::number;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_pager::accounts::{Look, Now, Others, Share, rest_after_look};
use lowtide_pager::pager::Pager;
use lowtide_pager::reclaim::UNACCOUNTED;
use lowtide_pager::segment::Proc;
use lowtide_pager::sys::clock::{now_us, thread_cpu_us};
use lowtide_pager::sys::rss::{self, Correction};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};

use crate::{agent, thread};

/// The first look of a child, and looks at all, are so far apart at least: a child that only executes something else is left
/// alone.
const LEAST_REST_US: u64 = 20_000;
/// A count that may be off by no more than this part of the limit is taken as it is.
const TOLERATED_PART: u64 = 64;

/// Forks of this process that were announced, or are about to happen.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Number of the family (see [`Proc::family`]). In a child it is the parent's, by inheritance.
static FAMILY: AtomicU64 = AtomicU64::new(0);
/// The process whose copy this one is, until it has joined the family of that one; 0: it is none, or has.
static COPY_OF: AtomicU32 = AtomicU32::new(0);

/// The calling thread of the program is about to fork. All that this process counts for may be shared from now on.
pub fn before_fork() {
    let proc = agent::proc();
    FAMILY.store(agent::segment().found_family(proc), Ordering::Relaxed);
    proc.shared_bytes.store(proc.ram_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    // Release: pairs with the Acquire of the reclaimer, in `Resident`.
    FORKS.fetch_add(1, Ordering::Release);
}

/// In a forked child, whose place in the segment is `proc`: it counts from here on.
pub fn in_child(proc: &Proc) {
    // Release: pairs with the Acquire in `Segment::others_of`.
    proc.family.store(FAMILY.load(Ordering::Relaxed), Ordering::Release);
}

/// In a copy of the process `parent`, which has no hooks: it has not said that it forks.
pub fn in_copy(parent: u32) {
    COPY_OF.store(parent, Ordering::Relaxed);
}

/// In a copy that has looked, whose place in the segment is `proc`: what it shares with the process `parent` counts once from
/// here on. (One that is gone shares nothing.)
fn join(proc: &Proc, parent: u32) {
    let segment = agent::segment();
    let is_it = |p: &&Proc| p.pid.load(Ordering::Relaxed) == parent && p.forks_unseen();
    if let Some(parent) = segment.used_procs().iter().find(is_it) {
        // A copy of this one that has looked before it has made it a family: all of that stay where they are. Release: as in
        // `in_child`.
        let _ = proc.family.compare_exchange(0, segment.found_family(parent), Ordering::Release, Ordering::Relaxed);
    }
}

/// What the reclaimer knows of this process's memory.
pub struct Resident {
    statm: Option<OwnedFd>,
    /// Open from the start: a process that changes its user may not open it any more.
    smaps: Option<OwnedFd>,
    share: Share,
    /// The forks that `share` knows of.
    forks: u32,
    /// Forks that were not announced, when it was last looked because of one.
    unannounced: u32,
    /// When the next look may be, in microseconds.
    next_look_us: u64,
    others: Others,
    may_grow: u64,
    /// By how much statm may be off ([`rss`]), and what it was last found to lack.
    may_be_off: u64,
    correction: Correction,
}

/// What `/proc/self/statm` says, in bytes.
#[derive(Clone, Copy, Default)]
struct Statm {
    /// Anonymous resident memory, lowtide's own included.
    anonymous: u64,
    /// Address space that is this process's alone and may be written to, stacks included.
    writable: u64,
}

fn open(path: &core::ffi::CStr) -> Option<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

impl Resident {
    /// Of a process that shares nothing, or, in a forked child, everything.
    pub fn new() -> Resident {
        let mut this = Resident {
            statm: open(c"/proc/self/statm"),
            smaps: open(c"/proc/self/smaps_rollup"),
            share: Share::default(),
            // Acquire, here and below: pairs with the Release in `before_fork`.
            forks: FORKS.load(Ordering::Acquire),
            unannounced: 0,
            next_look_us: 0,
            others: Others::default(),
            may_grow: u64::MAX,
            may_be_off: rss::may_be_off_here(),
            correction: Correction::default(),
        };
        let resident = this.statm().anonymous;
        let proc = agent::proc();
        // (A copy has no family yet.)
        let is_child = proc.family.load(Ordering::Relaxed) != 0;
        this.next_look_us = now_us() + LEAST_REST_US;
        this.share = if is_child { Share::of_child(resident) } else { Share::alone(Now { resident, faults: faults() }) };
        this
    }

    /// With how many other processes this one may have pages in common.
    pub fn sharers(&self) -> u64 {
        self.others.members
    }

    /// Measures what this process counts for, in bytes, in a run with this `limit`. `watched`: the run is near enough to it for
    /// looks to be worth their time.
    pub fn measure(&mut self, watched: bool, limit: u64) -> u64 {
        let proc = agent::proc();
        let shared = proc.shared_bytes.load(Ordering::Relaxed);
        let is_new_copy = COPY_OF.load(Ordering::Relaxed) != 0;
        let before = core::mem::replace(&mut self.others, agent::segment().others_of(proc)).members;
        let mut statm = self.statm();
        let faults = if self.sharers() > 0 || is_new_copy { faults() } else { 0 };
        let mut now = Now { resident: self.correction.apply(statm.anonymous), faults };
        let forks = FORKS.load(Ordering::Acquire);
        if self.sharers() > 0 && forks != core::mem::replace(&mut self.forks, forks) {
            self.share.forks(now, self.others);
        }
        if self.sharers() > before && proc.forks_unseen() {
            self.copies_have_joined(now, before);
        }
        let is_off = self.may_be_off > limit / TOLERATED_PART;
        // Nothing but a look tells what of a copy was brought in for it, and is its own.
        let looks = is_new_copy || watched && (self.sharers() > 0 || is_off) && now_us() >= self.next_look_us;
        if looks {
            statm = self.look(statm, now, is_off);
            now.resident = self.correction.apply(statm.anonymous);
        }
        if self.sharers() == 0 {
            // Pages that were shared with processes that are gone are its own.
            self.share = Share::alone(now);
        }
        let mut count = self.share.count(now, self.others);
        // Its parent, or another of the family, counts for all that a new copy shares.
        if is_new_copy {
            count.bytes -= count.of_nobodys;
        }
        // A child that is not in the segment yet goes by what its parent said before the fork.
        if self.sharers() > 0 || FORKS.load(Ordering::Acquire) == self.forks {
            let _ = proc.shared_bytes.compare_exchange(shared, count.shared, Ordering::Relaxed, Ordering::Relaxed);
        }
        if looks && count.shared > shared {
            let found = count.shared - shared;
            if is_new_copy {
                agent::segment().found_copied(proc, found, self.others.members);
            } else {
                agent::segment().found_shared(proc, found, self.others.members + 1);
            }
        }
        self.may_grow = statm.writable.max(statm.anonymous).saturating_sub(count.bytes);
        count.bytes
    }

    /// Bytes that the process may come to count for, beside those that it did when it was last measured, without a change of
    /// its mappings: what it has not touched, and what it shares with others. (One stack may grow further, as far as its limit
    /// lets it.)
    pub fn may_grow(&self) -> u64 {
        self.may_grow
    }

    /// Bytes of pages that the process may come to have copies of, when it was last measured.
    pub fn may_copy(&self) -> u64 {
        self.share.may_copy()
    }

    /// By how much a process may seem to have grown that has not, in bytes.
    pub fn unaccounted(&self) -> u64 {
        UNACCOUNTED.max(self.may_be_off / 4)
    }

    /// By how much the kernel's count may be off.
    pub fn may_be_off(&self) -> u64 {
        self.may_be_off
    }

    /// Copies of this process, or of others of its family, have joined that, which had so many other members `before`.
    fn copies_have_joined(&mut self, now: Now, before: u64) {
        if before == 0 {
            self.share.was_copied(now);
        }
        // What it had to itself among others is shared with its own copies alone.
        let unannounced = agent::pager().map_or(0, Pager::unannounced_forks);
        if unannounced != core::mem::replace(&mut self.unannounced, unannounced) {
            self.next_look_us = 0;
        }
    }

    /// Looks at all of the process's memory. `is_off`: the kernel's count is to be put right. What it is afterwards.
    fn look(&mut self, statm: Statm, before: Now, is_off: bool) -> Statm {
        let at_us = now_us();
        let began = thread_cpu_us();
        let look = self.smaps();
        let after = self.statm();
        if let parent @ 1.. = COPY_OF.swap(0, Ordering::Relaxed) {
            // Not before: its parent would count for a part only, and nobody for the rest.
            join(agent::proc(), parent);
            self.others = agent::segment().others_of(agent::proc());
        }
        if let Some(look) = look {
            if is_off {
                self.correction.learn((statm.anonymous, after.anonymous), look.anonymous, self.may_be_off);
            }
            self.share.looked(look, before, self.others);
        }
        let rest = rest_after_look(thread_cpu_us() - began, self.others.members);
        self.next_look_us = at_us + rest.max(LEAST_REST_US);
        after
    }

    fn statm(&self) -> Statm {
        let mut text = [0u8; 128];
        let Some(fd) = &self.statm else { return Statm::default() };
        let n = rustix::io::pread(fd, &mut text, 0).unwrap_or(0);
        let mut fields = text[..n].split(|&c| c == b' ').map(number);
        // size resident shared text lib data
        let resident = fields.nth(1).unwrap_or(0);
        let shared = fields.next().unwrap_or(0);
        let data = fields.nth(2).unwrap_or(0);
        Statm { anonymous: resident.saturating_sub(shared) * PAGE_SIZE as u64, writable: data * PAGE_SIZE as u64 }
    }

    fn smaps(&self) -> Option<Look> {
        let mut text = [0u8; 2048];
        let n = rustix::io::pread(self.smaps.as_ref()?, &mut text, 0).ok()?;
        let field = |name: &[u8]| {
            let line = text[..n].split(|&c| c == b'\n').find_map(|line| line.strip_prefix(name))?;
            Some(number(line.trim_ascii_start()) << 10)
        };
        Some(Look {
            anonymous: field(b"Anonymous:")?,
            proportional: field(b"Pss_Anon:")?,
            // Private memory of files is only read; what was written is anonymous.
            exclusive: field(b"Private_Dirty:")?,
        })
    }
}

/// Page faults of this process that no monitor served, as bytes: a copy of a shared page is one.
fn faults() -> u64 {
    // SAFETY: all-zero bytes are a valid rusage.
    let mut usage: sys::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: room for what the call writes.
    let r = unsafe { thread::syscall3(sys::__NR_getrusage, sys::RUSAGE_SELF as usize, &raw mut usage as usize, 0) };
    if r < 0 {
        return 0;
    }
    // A fault that waited for a monitor is one of these as well, of the one kind or the other. Where it waited to write to a
    // shared page, the kernel has made a copy all the same.
    let counters = &agent::proc().counters;
    let copied = counters.faults_shared_writes.load(Ordering::Relaxed);
    let served = counters.faults_total.load(Ordering::Relaxed).saturating_sub(copied);
    (usage.ru_minflt as u64 + usage.ru_majflt as u64).saturating_sub(served) * PAGE_SIZE as u64
}
