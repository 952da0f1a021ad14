//! Memory shared by the processes of a run: two memfds of `lowtide run`, mapped through
//! `/proc/PID/fd/N`.
//!
//! - [`Settings`]: writable by `lowtide run` only.
//! - [`Segment`]: one [`Proc`] for each process (written by its agent), swap area budgets, warnings
//!   and the fatal message.
//!
//! All fields are atomics without locks, so a process may die at any instruction. Every process of
//! the run can write all of the segment, even after dropping privileges: never open, execute,
//! signal, index with or dereference what it holds. It holds amounts only.

mod own_threads;
mod process;
mod ram;
mod settings;
mod text;
mod told_calls;

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use lowtide_core::store::{FILL_WORDS, FillWord, FillWords, Image, MAX_AREAS};
use lowtide_core::vm::PAGE_SIZE;
use rustix::thread::{Timespec, futex};

pub use lowtide_core::latency::{LATENCY_BUCKETS, latency_bucket, latency_floor_ns, latency_quantile_ns};
pub use process::add;
pub use process::{
    AreaCounters, AreaFills, AreaGauges, Counters, EPOCHS_A_LIMIT, FaultKind, OWN_THREADS, Proc, REFAULT_AGES, proc_state,
};
pub use ram::{Audit, Membership, Others};
pub use settings::*;
pub use text::{Text, text_state};

/// First word of both memfds.
pub const MAGIC: u64 = 0x6c6f_7774_6964_6501;
/// Layout version; agents refuse any other. Every change of `Settings`, `Proc` or `Counters` raises
/// it.
pub const VERSION: u32 = 24;
/// Most processes counted at a time, more than `make -j1024` starts. Slots never claimed use no
/// memory and are not scanned.
pub const MAX_PROCS: usize = 4096;
/// The warning for processes without a slot.
pub const NO_PLACE: &[u8] = b"more than 4096 processes at a time: those for which there was no place are not limited";
/// Warnings kept; later ones are only counted.
pub const MAX_WARNINGS: usize = 16;

/// Environment variable: the settings' path (`/proc/PID/fd/N`), [`BROKER_FOLLOWS`], and a socket
/// name for processes that can't follow the path.
pub const ENV_SEGMENT: &str = "LOWTIDE_SEGMENT";

/// Finding the agent without its path, by an inherited descriptor.
pub mod transient {
    /// Such an entry of LD_PRELOAD, before the number. The dot is distinctive.
    pub const PREFIX: &str = "/proc/./self/fd/";
    /// Lowest such descriptor, if possible: programs without an agent never close it and may rely
    /// on low numbers.
    pub const FIRST: i32 = 800;
}

/// Separator in [`ENV_SEGMENT`].
pub const BROKER_FOLLOWS: u8 = b'@';

/// Flag of an image whose death can't be observed.
const ELSEWHERE: u64 = 1 << 61;

/// The run's use of a swap area.
#[repr(C)]
pub struct AreaBudget {
    /// Bytes in use; added before files grow.
    pub used: AtomicU64,
    /// 1: claimed by a process; never reassigned, because forked children may still read it.
    pub claimed: AtomicU32,
}

/// Slots scanned ([`Segment::used_procs`]), for single-threaded experiments.
#[cfg(feature = "lab")]
pub static LOOKED_AT: AtomicU64 = AtomicU64::new(0);

/// The segment; all zeros is valid and empty.
#[repr(C)]
pub struct Segment {
    /// [`MAGIC`], written last.
    pub magic: AtomicU64,
    /// As in [`Settings::swap`].
    pub areas: [AreaBudget; MAX_AREAS],
    /// Highest [`Segment::ram_roughly`] seen.
    pub ram_peak: AtomicU64,
    /// Why `lowtide run` must kill the run (device lost, `--when-full stop`). The writer wakes
    /// `fatal.state` (shared futex).
    pub fatal: Text,
    /// Warnings sent, dropped included.
    pub warnings_sent: AtomicU32,
    /// The first warnings.
    pub warnings: [Text; MAX_WARNINGS],
    /// Sums over dead processes.
    pub dead: Counters,
    /// I/Os of dead processes.
    pub dead_areas: [AreaCounters; MAX_AREAS],
    /// Fill words of dead ones.
    pub dead_words: FillWords,
    /// Latencies of dead ones.
    pub dead_latency: [AtomicU64; LATENCY_BUCKETS],
    /// Scan [`Segment::used_procs`] instead: reading a slot makes its page resident.
    pub procs: [Proc; MAX_PROCS],
    /// Futex counting what processes asked of the holding thread.
    holds: AtomicU32,
    /// Bytes of `lowtide run`, segment and agent file included.
    pub supervisor_bytes: AtomicU64,
    /// Slots from here on were never claimed.
    pub procs_high: AtomicU32,
    /// Number of families created.
    pub families: AtomicU64,
    /// All growth ever published, in bytes; only differences matter (`ram.rs`).
    pub grown: AtomicI64,
    /// Correction of `grown` for killed processes ([`Audit`]).
    pub untold: AtomicI64,
    /// Processes at the latest look.
    pub seen: AtomicU32,
    /// Those with registered memory.
    pub seen_active: AtomicU32,
}

impl Segment {
    /// Bytes to map.
    pub const SIZE: usize = size_of::<Segment>().next_multiple_of(PAGE_SIZE);

    /// Sends a warning line unless the same line has been sent.
    pub fn warn(&self, pid: u32, text: &[u8]) {
        let mut padded = [0u8; 320];
        let n = text.len().min(320);
        padded[..n].copy_from_slice(&text[..n]);
        for line in &self.warnings {
            if line.get().is_some_and(|seen| seen == padded) {
                return;
            }
            if line.put(pid, text) {
                break;
            }
        }
        self.warnings_sent.fetch_add(1, Ordering::Relaxed);
    }

    /// The slots ever claimed.
    pub fn used_procs(&self) -> &[Proc] {
        let used = self.places();
        // Not `fetch_add`: the experiments count locked instructions. One thread counts.
        #[cfg(feature = "lab")]
        LOOKED_AT.store(LOOKED_AT.load(Ordering::Relaxed) + used.len() as u64, Ordering::Relaxed);
        used
    }

    fn places(&self) -> &[Proc] {
        // Acquire: pairs with the AcqRel in `claim`.
        &self.procs[..(self.procs_high.load(Ordering::Acquire) as usize).min(MAX_PROCS)]
    }

    /// Processes at `lowtide run`'s latest look plus those claimed since, at least 1. Zombies count
    /// for a moment. Cheaper than a scan.
    pub fn processes(&self) -> u64 {
        u64::from(self.seen.load(Ordering::Relaxed)).max(1)
    }

    /// Marks registered memory.
    pub fn becomes_active(&self, p: &Proc) {
        // Release: pairs with the Acquire of readers.
        if p.state.swap(proc_state::ACTIVE, Ordering::Release) != proc_state::ACTIVE {
            self.seen_active.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Processes with registered memory, at the latest look and since.
    pub fn active(&self) -> u64 {
        self.seen_active.load(Ordering::Relaxed).into()
    }

    /// Wakes all reclaimers from long naps.
    pub fn ring(&self) {
        self.used_procs().iter().filter(|p| p.state.load(Ordering::Relaxed) >= proc_state::WATCHING).for_each(Proc::ring);
    }

    /// For a reclaimer that its process outgrows: asks `lowtide run` to hold its threads, or to
    /// release them.
    pub fn ask_to_hold(&self, proc: &Proc, is: bool) {
        // AcqRel: its Release pairs with the Acquire in `Proc::is_to_be_held`.
        if proc.is_to_be_held.swap(is.into(), Ordering::AcqRel) != u32::from(is) {
            self.wake_holder();
        }
    }

    /// Wakes the holding thread of `lowtide run`.
    fn wake_holder(&self) {
        // SeqCst: pairs with the load in `holds`, before the scan.
        self.holds.fetch_add(1, Ordering::SeqCst);
        let _ = futex::wake(&self.holds, futex::Flags::empty(), 1);
    }

    /// How often a process asked for something; load before scanning.
    pub fn holds(&self) -> u32 {
        self.holds.load(Ordering::SeqCst)
    }

    /// Waits up to `most` until the count differs from `seen`.
    pub fn wait_for_holds(&self, seen: u32, most: Option<&Timespec>) {
        let _ = futex::wait(&self.holds, futex::Flags::empty(), seen, most);
    }

    /// The other living members of `mine`'s family.
    pub fn others_of(&self, mine: &Proc) -> Others {
        let mut others = Others::default();
        self.relatives(mine).for_each(|p| {
            others.members += 1;
            others.shared = others.shared.saturating_add(p.shared_bytes.load(Ordering::Relaxed));
        });
        others
    }

    fn relatives<'a>(&'a self, mine: &Proc) -> impl Iterator<Item = &'a Proc> {
        let family = mine.family.load(Ordering::Relaxed);
        // Usually none, which saves the scan.
        let all = if family == 0 { &[] } else { self.used_procs() };
        let mine = core::ptr::from_ref(mine);
        all.iter().filter(move |p| {
            let counts = !core::ptr::eq(*p, mine) && p.state.load(Ordering::Relaxed) >= proc_state::WATCHING;
            // Acquire: pairs with the Release that sets the family (`found_family`, or the agent
            // after fork); the gauges were cleared before.
            counts && p.family.load(Ordering::Acquire) == family
        })
    }

    /// The family of a process about to fork, founded if missing.
    pub fn found_family(&self, mine: &Proc) -> u64 {
        match mine.family.load(Ordering::Relaxed) {
            0 => {
                let family = self.families.fetch_add(1, Ordering::Relaxed) + 1;
                // Copies may race. Release: pairs with the Acquire in `relatives`.
                match mine.family.compare_exchange(0, family, Ordering::Release, Ordering::Relaxed) {
                    Ok(_) => family,
                    Err(found) => found,
                }
            }
            family => family,
        }
    }

    /// Claims a slot. After exec a pid keeps its own; counts are folded and swap space is returned.
    /// None: all taken.
    pub fn claim(&self, pid: u32) -> Option<&Proc> {
        use proc_state::*;
        let held = |p: &&Proc| p.pid.load(Ordering::Relaxed) == pid && p.state.load(Ordering::Relaxed) != FREE;
        if let Some(p) = self.used_procs().iter().find(held) {
            p.next_image();
            self.fold(p);
            self.give_back(p);
            self.publish_ram(p, 0);
            p.clear_gauges();
            // Release, here and below: pairs with the Acquire of `lowtide run`'s scan.
            p.state.store(WATCHING, Ordering::Release);
            return Some(p);
        }
        let (i, p) = self.procs.iter().enumerate().find(|(_, p)| {
            // Load first: even a failing compare-exchange faults in each slot's page. Acquire:
            // pairs with the Release in `reap`.
            p.state.load(Ordering::Relaxed) == FREE
                && p.state.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })?;
        // AcqRel: pairs with the Acquire in `places`.
        self.procs_high.fetch_max(i as u32 + 1, Ordering::AcqRel);
        p.next_image();
        p.pid.store(pid, Ordering::Relaxed);
        p.state.store(WATCHING, Ordering::Release);
        self.seen.fetch_add(1, Ordering::Relaxed);
        Some(p)
    }

    /// Frees a dead process's slot, folding counts and returning swap space. For `lowtide run`.
    pub fn reap(&self, p: &Proc) {
        self.fold(p);
        self.give_back(p);
        self.publish_ram(p, 0);
        p.clear_gauges();
        // Not on exec: the C library may have told its word before the agent begins.
        p.cleared_word.store(0, Ordering::Relaxed);
        p.next_image();
        p.pid.store(0, Ordering::Relaxed);
        // Release: pairs with the Acquire in `claim`.
        p.state.store(proc_state::FREE, Ordering::Release);
    }

    /// The image in a slot of this segment.
    pub fn image(&self, p: &Proc) -> Image {
        let slot = (core::ptr::from_ref(p).addr() - self.procs.as_ptr().addr()) / size_of::<Proc>();
        let elsewhere = if p.is_elsewhere() { ELSEWHERE } else { 0 };
        // Acquire: pairs with the Release in `Proc::next_image`.
        let image = p.image.load(Ordering::Acquire).wrapping_mul(MAX_PROCS as u64) % ELSEWHERE;
        Image::new(elsewhere | image | slot as u64)
    }

    /// Whether an image may still exist. False proves it gone: reaped, or its slot reclaimed by the
    /// same pid (another process, or exec). A forger can make a forked process stop with a message,
    /// not read foreign pages: tags identify pages of files.
    pub fn is_alive(&self, image: Image) -> bool {
        if image.number() & ELSEWHERE != 0 {
            return true;
        }
        let (slot, number) = (image.number() as usize % MAX_PROCS, image.number() / MAX_PROCS as u64);
        // Acquire: pairs with the Release in `Proc::next_image`: the image's acts happen before the
        // caller's.
        self.places().get(slot).is_some_and(|p| p.image.load(Ordering::Acquire) == number)
    }

    /// Subtracts a dead process's swap use; its unnamed files are gone. (Children may keep one a
    /// while, uncounted; a named one is not reused.)
    fn give_back(&self, p: &Proc) {
        for (area, now) in self.areas.iter().zip(&p.areas_now) {
            // Acquire: pairs with the Release in `Quota::take`, so `used` contains these bytes.
            let bytes = now.charged.swap(0, Ordering::Acquire);
            let less = |used: u64| Some(used.saturating_sub(bytes));
            let _ = area.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    /// Moves a process's counts to the dead's sums.
    fn fold(&self, p: &Proc) {
        self.dead.fold(&p.counters);
        self.dead_areas.iter().zip(&p.areas).for_each(|(to, from)| to.fold(from));
        self.dead_words.fold(&p.same_filled_words);
        for (to, from) in self.dead_latency.iter().zip(&p.latency) {
            to.fetch_add(from.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
        for word in p.counters.words().iter().chain(p.areas.iter().flat_map(AreaCounters::words)) {
            word.store(0, Ordering::Relaxed);
        }
        p.same_filled_words.set(&[FillWord::default(); FILL_WORDS]);
    }
}

#[cfg(test)]
fn segment() -> std::boxed::Box<Segment> {
    let layout = std::alloc::Layout::new::<Segment>();
    // SAFETY: zeros are valid, allocated with this layout.
    unsafe { std::boxed::Box::from_raw(std::alloc::alloc_zeroed(layout).cast()) }
}

#[cfg(test)]
mod tests {
    use std::string::{String, ToString};
    use std::vec::Vec;

    use super::*;
    use lowtide_core::store::AreaState;

    #[test]
    fn what_a_process_did_is_counted_once_whether_it_executes_another_program_or_dies() {
        let run = segment();
        let (first, second) = (run.claim(10).unwrap(), run.claim(11).unwrap());
        let work = |p: &Proc, n: u64| {
            p.counters.writeback_ios.fetch_add(n, Ordering::Relaxed);
            p.counters.latency_max_ns.store(100 * n, Ordering::Relaxed);
            p.areas[2].writes.fetch_add(n, Ordering::Relaxed);
            p.areas[7].errors.fetch_add(1, Ordering::Relaxed);
            p.areas_now[2].used.store(n, Ordering::Relaxed);
            p.areas_now[2].state.store(AreaState::Failing as u64, Ordering::Relaxed);
        };
        work(first, 5);
        assert!(core::ptr::eq(run.claim(10).unwrap(), first), "it called exec");
        let now = |p: &Proc| {
            p.areas_now.iter().map(|a| a.used.load(Ordering::Relaxed) + a.state.load(Ordering::Relaxed)).sum::<u64>()
        };
        assert_eq!((first.counters.writeback_ios.load(Ordering::Relaxed), now(first)), (0, 0));
        work(first, 3);
        work(second, 2);
        run.reap(first);
        run.reap(second);
        assert_eq!((now(first), now(second)), (0, 0));
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!((of(&run.dead.writeback_ios), of(&run.dead.latency_max_ns)), (10, 500));
        assert_eq!((of(&run.dead_areas[2].writes), of(&run.dead_areas[7].errors), of(&run.dead_areas[0].writes)), (10, 3, 0));
    }

    #[test]
    fn the_last_place_is_given_and_no_other() {
        let run = segment();
        let places: Vec<&Proc> = (1..=MAX_PROCS as u32).map(|pid| run.claim(pid).unwrap()).collect();
        assert!(places.iter().zip(&run.procs).all(|(given, place)| core::ptr::eq(*given, place)), "each is given once");
        let last = places[MAX_PROCS - 1];
        assert!(run.claim(MAX_PROCS as u32 + 1).is_none());
        assert!(core::ptr::eq(run.claim(MAX_PROCS as u32).unwrap(), last), "it called exec");
        assert_eq!((run.used_procs().len(), run.processes()), (MAX_PROCS, MAX_PROCS as u64));
        assert!(run.is_alive(run.image(last)) && run.image(last) != run.image(places[0]));
        run.reap(places[7]);
        assert!(core::ptr::eq(run.claim(MAX_PROCS as u32 + 1).unwrap(), places[7]));
        assert!(run.claim(MAX_PROCS as u32 + 2).is_none());
        assert!(String::from_utf8_lossy(NO_PLACE).contains(&MAX_PROCS.to_string()), "the message says how many there are");
    }

    #[test]
    fn an_image_is_gone_after_an_exec_or_a_burial_and_never_comes_back() {
        let run = segment();
        let (first, second) = (run.claim(10).unwrap(), run.claim(11).unwrap());
        let images = [run.image(first), run.image(second)];
        assert!(images[0] != images[1] && images.iter().all(|image| run.is_alive(*image)));
        assert!(core::ptr::eq(run.claim(10).unwrap(), first), "it called exec");
        let executed = run.image(first);
        assert_eq!([images[0], images[1], executed].map(|image| run.is_alive(image)), [false, true, true]);
        run.reap(first);
        assert!(!run.is_alive(executed) && !run.is_alive(Image::new(ELSEWHERE - 1)));
        assert!(core::ptr::eq(run.claim(12).unwrap(), first));
        assert_eq!([images[0], executed, run.image(first)].map(|image| run.is_alive(image)), [false, false, true]);
        assert!(run.is_alive(images[1]));
        second.has_another_pid();
        let elsewhere = run.image(second);
        run.reap(second);
        assert_eq!([images[1], elsewhere].map(|image| run.is_alive(image)), [false, true], "what its pid says is not about it");
        assert_ne!(run.image(run.claim(13).unwrap()).number() & ELSEWHERE, ELSEWHERE);
    }

    #[test]
    fn the_space_of_swap_files_is_given_back_once_by_exec_and_by_death() {
        let run = segment();
        let (first, second) = (run.claim(10).unwrap(), run.claim(11).unwrap());
        let write = |p: &Proc, area: usize, bytes: u64| {
            run.areas[area].used.fetch_add(bytes, Ordering::Relaxed);
            p.areas_now[area].charged.fetch_add(bytes, Ordering::Relaxed);
        };
        let used = || [0, 1, 2].map(|area: usize| run.areas[area].used.load(Ordering::Relaxed));
        write(first, 0, 5);
        write(first, 2, 3);
        write(second, 2, 4);
        run.claim(10).unwrap();
        assert_eq!(used(), [0, 0, 4]);
        run.claim(10).unwrap();
        write(first, 1, 7);
        assert_eq!(used(), [0, 7, 4]);
        run.reap(first);
        assert_eq!(used(), [0, 0, 4]);
        assert!(core::ptr::eq(run.claim(12).unwrap(), first));
        run.reap(first);
        assert_eq!(used(), [0, 0, 4], "what another had there before is not its own");
        run.areas[2].used.store(1, Ordering::Relaxed);
        run.reap(second);
        assert_eq!(used(), [0, 0, 0], "never below nothing");
    }
}
