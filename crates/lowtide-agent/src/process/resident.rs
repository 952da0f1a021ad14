//! The bytes of anonymous memory for which this process counts.
//!
//! `/proc/self/statm` tells them (1 us) while the process shares none. While processes of its
//! family exist after a fork, looks correct statm (`share.rs` of the pager): they read `Pss_Anon`
//! of `/proc/self/smaps_rollup`, 5 us for each MiB in memory. (`/proc/self/pagemap` takes 4 us, but
//! does not tell the number of sharers.) All looks of a family take at most 5 % of a CPU, 1 % if
//! one takes long, and none far below the limit. They also correct errors of the kernel's count
//! (`rss.rs` of `lowtide-sys`).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use linux_raw_sys::general as sys;
use lowtide_core::kernel_text::{self, number, open_own};
use lowtide_core::vm::PAGE_SIZE;
use lowtide_pager::accounts::{Look, Now, Share, rest_after_look};
use lowtide_pager::pager::Pager;
use lowtide_pager::reclaim::UNACCOUNTED;
use lowtide_sys::clock::{now_us, thread_cpu_us};
use lowtide_sys::rss::{self, Correction};
use lowtide_wire::segment::{Others, Proc};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};

use crate::fork::clones;
use crate::process::{agent, thread};

/// A child that only executes another program gets no look.
const LEAST_REST_US: u64 = 20_000;
const TOLERATED_PART: u64 = 64;

static FORKS: AtomicU32 = AtomicU32::new(0);
/// See [`Proc::family`]. A child inherits its parent's.
static FAMILY: AtomicU64 = AtomicU64::new(0);
/// In an unannounced copy: the original's pid until it has joined its family; else 0.
static COPY_OF: AtomicU32 = AtomicU32::new(0);

/// From now on all memory may be shared.
pub fn before_fork() {
    let proc = agent::proc();
    FAMILY.store(agent::segment().found_family(proc), Ordering::Relaxed);
    proc.shared_bytes.store(proc.ram_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    // Release: pairs with the Acquire of the reclaimer, in `Resident`.
    FORKS.fetch_add(1, Ordering::Release);
}

pub fn in_child(proc: &Proc) {
    // Release: pairs with the Acquire in `Segment::relatives`.
    proc.family.store(FAMILY.load(Ordering::Relaxed), Ordering::Release);
}

pub fn in_copy(parent: u32) {
    COPY_OF.store(parent, Ordering::Relaxed);
}

/// Shared memory counts once from here on. If the parent is gone, nothing is shared.
fn join(proc: &Proc, parent: u32) {
    let segment = agent::segment();
    let is_it = |p: &&Proc| p.pid.load(Ordering::Relaxed) == parent && p.forks_unseen();
    if let Some(parent) = segment.used_procs().iter().find(is_it) {
        // A copy of this process may have founded a family first, which then stays. Release: as in
        // `in_child`.
        let _ = proc.family.compare_exchange(0, segment.found_family(parent), Ordering::Release, Ordering::Relaxed);
    }
}

pub struct Resident {
    statm: Option<OwnedFd>,
    /// Open from the start: a change of user may forbid it later.
    smaps: Option<OwnedFd>,
    share: Share,
    forks: u32,
    unannounced: u32,
    next_look_us: u64,
    others: Others,
    may_grow: u64,
    /// Bytes by which statm may be off ([`rss`]), and its last error.
    may_be_off: u64,
    correction: Correction,
}

#[derive(Clone, Copy, Default)]
struct Statm {
    /// Includes lowtide's own.
    anonymous: u64,
    /// Private writable address space, with stacks.
    writable: u64,
}

impl Resident {
    pub fn new() -> Resident {
        let mut this = Resident {
            // Of the first thread: it reveals that this thread has ended.
            statm: rustix::fs::open(c"/proc/self/statm", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok(),
            smaps: open_own(b"smaps_rollup").ok(),
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
        // A copy has no family yet.
        let is_child = proc.family.load(Ordering::Relaxed) != 0;
        this.next_look_us = now_us() + LEAST_REST_US;
        this.share = if is_child { Share::of_child(resident) } else { Share::alone(Now { resident, faults: faults() }) };
        this
    }

    pub fn sharers(&self) -> u64 {
        self.others.members
    }

    /// `watched`: the run is near enough to its `limit` for looks.
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
        // Only a look tells which memory of a copy is its own.
        let looks = is_new_copy || watched && (self.sharers() > 0 || is_off) && now_us() >= self.next_look_us;
        if looks {
            statm = self.look(statm, now, is_off);
            now.resident = self.correction.apply(statm.anonymous);
        }
        if self.sharers() == 0 {
            // Pages once shared with processes that are gone are its own.
            self.share = Share::alone(now);
        }
        let mut count = self.share.count(now, self.others);
        // The family counts for all that a new copy shares.
        if is_new_copy {
            count.bytes -= count.of_nobodys;
        }
        // A child outside the segment relies on its parent's earlier value.
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

    /// Bytes that the process may add to its last count without new mappings: untouched and shared
    /// memory. (A stack may grow further.)
    pub fn may_grow(&self) -> u64 {
        self.may_grow
    }

    pub fn unaccounted(&self) -> u64 {
        UNACCOUNTED.max(self.may_be_off / 4)
    }

    pub fn may_be_off(&self) -> u64 {
        self.may_be_off
    }

    /// The family had `before` other members.
    fn copies_have_joined(&mut self, now: Now, before: u64) {
        if before == 0 {
            self.share.was_copied(now);
        }
        // Memory that was its own is now shared with its copies alone.
        let unannounced = agent::pager().map_or(0, Pager::unannounced_forks);
        if unannounced != core::mem::replace(&mut self.unannounced, unannounced) {
            self.next_look_us = 0;
        }
    }

    /// Returns statm after the look. `is_off`: correct the kernel's count.
    fn look(&mut self, statm: Statm, before: Now, is_off: bool) -> Statm {
        let at_us = now_us();
        let began = thread_cpu_us();
        let look = self.smaps();
        let after = self.statm();
        if let parent @ 1.. = COPY_OF.swap(0, Ordering::Relaxed) {
            // Earlier its parent would count for a part only, and no process for the rest.
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
        let mut n = rustix::io::pread(fd, &mut text, 0).unwrap_or(0);
        if text.starts_with(b"0 ") {
            clones::first_has_ended();
            n = kernel_text::read(c"/proc/thread-self/statm", &mut text).map_or(0, <[u8]>::len);
        }
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
            // Private memory of files is only read; written pages are anonymous.
            exclusive: field(b"Private_Dirty:")?,
        })
    }
}

fn faults() -> u64 {
    // SAFETY: all-zero bytes are a valid rusage.
    let mut usage: sys::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: room for what the call writes.
    let r = unsafe { thread::syscall3(sys::__NR_getrusage, sys::RUSAGE_SELF as usize, &raw mut usage as usize, 0) };
    if r < 0 {
        return 0;
    }
    // A fault that waited for a handler is among these, too, and made no copy.
    let served = agent::proc().counters.faults_total.load(Ordering::Relaxed);
    (usage.ru_minflt as u64 + usage.ru_majflt as u64).saturating_sub(served) * PAGE_SIZE as u64
}
