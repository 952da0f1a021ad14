//! What the processes of a run share: two memfds that `lowtide run` makes, and that agents map through `/proc/PID/fd/N`.
//!
//! - The [`Settings`]: nobody but `lowtide run` can write them.
//! - The [`Segment`]: one [`Proc`] for each process of the tree (written by its agent), the budgets of the swap areas, and the
//!   way up for warnings and for the message of a fatal end. All fields are atomics. Nobody locks anything in it, so a process
//!   may die at any instruction. Every process of the run can write all of it, also one that gave its privileges up: nothing
//!   may be opened, executed, signalled, indexed or followed as an address because of what stands here. It says how much there
//!   is of something.

mod process;
mod ram;
mod settings;
mod text;

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use lowtide_core::store::{FILL_WORDS, FillWord, FillWords, Image, MAX_AREAS};
use lowtide_core::vm::PAGE_SIZE;
use rustix::thread::{Timespec, futex};

use crate::accounts::Others;

pub use lowtide_core::latency::{LATENCY_BUCKETS, latency_bucket, latency_floor_ns};
pub use process::{
    AREA_STATES, AreaCounters, AreaFills, AreaGauges, Counters, EPOCHS_A_LIMIT, FaultKind, OWN_THREADS, Proc, REFAULT_AGES,
    area_state, limits_away, proc_state,
};
pub use ram::{Audit, Membership};
pub use settings::*;
pub use text::{Text, text_state};

/// First word of the settings and of the segment.
pub const MAGIC: u64 = 0x6c6f_7774_6964_6501;
/// Layout version; the agent refuses another one.
pub const VERSION: u32 = 18;
/// Processes of one run that can be alive at the same time and be counted: more than `make -j1024` starts. A place that nobody
/// has had yet takes no memory, and who goes through the places stops at the highest that somebody has had.
pub const MAX_PROCS: usize = 4096;
/// What is said once of those that find no place.
pub const NO_PLACE: &[u8] = b"more than 4096 processes at a time: those for which there was no place are not limited";
/// Kept warnings of a run; later ones are counted only.
pub const MAX_WARNINGS: usize = 16;

/// Environment variable that says where the settings are, which name the segment: their path (`/proc/PID/fd/N`), and behind
/// [`BROKER_FOLLOWS`] the name of the socket where a process can have them that can't follow the path.
pub const ENV_SEGMENT: &str = "LOWTIDE_SEGMENT";

/// How a program finds the agent that can't follow the path of its file: by a descriptor that is left open for it.
pub mod transient {
    /// How such an entry of LD_PRELOAD begins; the number of the descriptor follows. Nobody else writes it with the dot.
    pub const PREFIX: &str = "/proc/./self/fd/";
    /// It has this number or a higher one, if it may have: out of the way of programs without an agent, which nobody closes it
    /// for, and which may rely on the numbers of theirs.
    pub const FIRST: i32 = 800;
}

/// Between the path and the socket in [`ENV_SEGMENT`].
pub const BROKER_FOLLOWS: u8 = b'@';

/// Part of the number of a process image of which nobody knows when it is gone: it counts as alive as long as the run lasts.
const ELSEWHERE: u64 = 1 << 61;

/// What all processes of the run together have used of a swap area.
#[repr(C)]
pub struct AreaBudget {
    /// Bytes of its files in use: agents add before they grow a file.
    pub used: AtomicU64,
    /// 1: a process of the run has the named file. It is not given to another when that one is gone, because its forked
    /// children may still read it.
    pub claimed: AtomicU32,
}

/// Places of processes that this process was given to look at ([`Segment::used_procs`]). For experiments of one thread.
#[cfg(feature = "lab")]
pub static LOOKED_AT: AtomicU64 = AtomicU64::new(0);

/// The whole segment. An all-zero one (a fresh memfd) is valid and empty.
#[repr(C)]
pub struct Segment {
    /// [`MAGIC`], written last.
    pub magic: AtomicU64,
    /// What has been used of the swap areas, as in [`Settings::swap`].
    pub areas: [AreaBudget; MAX_AREAS],
    /// Highest [`Segment::ram_now`] seen by anyone.
    pub ram_peak: AtomicU64,
    /// Why the run must be stopped (device lost with pages on it, `--when-full stop`): `lowtide run` kills the tree when it is
    /// set. The writer wakes `fatal.state` (shared futex).
    pub fatal: Text,
    /// Warnings sent so far (those beyond [`MAX_WARNINGS`] are dropped).
    pub warnings_sent: AtomicU32,
    /// The first warnings.
    pub warnings: [Text; MAX_WARNINGS],
    /// Sums over processes that are gone.
    pub dead: Counters,
    /// Their I/Os on the swap areas.
    pub dead_areas: [AreaCounters; MAX_AREAS],
    /// Their words of same-filled pages.
    pub dead_words: FillWords,
    /// Their latencies.
    pub dead_latency: [AtomicU64; LATENCY_BUCKETS],
    /// The processes. Scan [`Segment::used_procs`], not this: reading a slot makes its page resident.
    pub procs: [Proc; MAX_PROCS],
    /// Counts the changes of what is to be held: a futex for all processes of the run.
    holds: AtomicU32,
    /// `lowtide run`'s own memory in bytes, this segment and the agent's file included: it counts against the limit.
    pub supervisor_bytes: AtomicU64,
    /// No slot from this index on has ever been claimed.
    pub procs_high: AtomicU32,
    /// Families of forked processes that there have been.
    pub families: AtomicU64,
    /// All that processes of the run have told of how they grew and shrank, in bytes: its differences say by how much the run
    /// did (`ram.rs`).
    pub grown: AtomicI64,
    /// What `grown` lacks of the sum over all processes, because one was killed before it could tell ([`Audit`]).
    pub untold: AtomicI64,
    /// Processes that there were when `lowtide run` last looked, ...
    pub seen: AtomicU32,
    /// ... and those of them that had adopted memory.
    pub seen_active: AtomicU32,
}

impl Segment {
    /// Bytes to map.
    pub const SIZE: usize = size_of::<Segment>().next_multiple_of(PAGE_SIZE);

    /// Sends a warning line unless the same line has been sent before.
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

    /// The slots that have ever been claimed; all others are free.
    pub fn used_procs(&self) -> &[Proc] {
        let used = self.places();
        // Not an addition in one: that would look like a lock to who counts such instructions. One thread counts.
        #[cfg(feature = "lab")]
        LOOKED_AT.store(LOOKED_AT.load(Ordering::Relaxed) + used.len() as u64, Ordering::Relaxed);
        used
    }

    fn places(&self) -> &[Proc] {
        // Acquire: pairs with the AcqRel in `claim`.
        &self.procs[..(self.procs_high.load(Ordering::Acquire) as usize).min(MAX_PROCS)]
    }

    /// How many processes there were when `lowtide run` last looked, and how many came since, zombies included for a moment: at
    /// least one. Who wakes often asks this rather than all of them.
    pub fn processes(&self) -> u64 {
        u64::from(self.seen.load(Ordering::Relaxed)).max(1)
    }

    /// This one has adopted memory.
    pub fn becomes_active(&self, p: &Proc) {
        // Release: pairs with the Acquire of who looks at its gauges and files.
        if p.state.swap(proc_state::ACTIVE, Ordering::Release) != proc_state::ACTIVE {
            // Until `lowtide run` looks again.
            self.seen_active.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many of them had adopted memory, and those that have done so since.
    pub fn active(&self) -> u64 {
        self.seen_active.load(Ordering::Relaxed).into()
    }

    /// Wakes the reclaimers of all processes that sleep long: something has happened that each has to look at.
    pub fn ring(&self) {
        self.used_procs().iter().filter(|p| p.state.load(Ordering::Relaxed) >= proc_state::WATCHING).for_each(Proc::ring);
    }

    /// Asks `lowtide run` to hold the threads of a process that grows faster than it is looked after, or to hold them no more. By
    /// its reclaimer.
    pub fn ask_to_hold(&self, proc: &Proc, is: bool) {
        // AcqRel: as a Release it pairs with the Acquire in `Proc::is_to_be_held`.
        if proc.is_to_be_held.swap(is.into(), Ordering::AcqRel) != u32::from(is) {
            // SeqCst: pairs with the load in `holds`, which comes before the look at the processes.
            self.holds.fetch_add(1, Ordering::SeqCst);
            let _ = futex::wake(&self.holds, futex::Flags::empty(), 1);
        }
    }

    /// How often that has changed: to be asked before the look at the processes.
    pub fn holds(&self) -> u32 {
        self.holds.load(Ordering::SeqCst)
    }

    /// Sleeps until it has changed since it was `seen`, for so long at most.
    pub fn wait_for_holds(&self, seen: u32, most: Option<&Timespec>) {
        let _ = futex::wait(&self.holds, futex::Flags::empty(), seen, most);
    }

    /// The living processes that share memory with `mine` by forks.
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
        // Most have none, and who wakes often does not look at all others each time.
        let all = if family == 0 { &[] } else { self.used_procs() };
        let mine = core::ptr::from_ref(mine);
        all.iter().filter(move |p| {
            let counts = !core::ptr::eq(*p, mine) && p.state.load(Ordering::Relaxed) >= proc_state::WATCHING;
            // Acquire: pairs with the Release with which a process sets its family, in `found_family` or forked (the agent).
            // Its gauges had been cleared before.
            counts && p.family.load(Ordering::Acquire) == family
        })
    }

    /// Makes a process that is about to fork a member of a family, if it is not yet, and returns the family's number.
    pub fn found_family(&self, mine: &Proc) -> u64 {
        match mine.family.load(Ordering::Relaxed) {
            0 => {
                let family = self.families.fetch_add(1, Ordering::Relaxed) + 1;
                // Several copies may find it without one. Release: pairs with the Acquire in `others_of`.
                match mine.family.compare_exchange(0, family, Ordering::Release, Ordering::Relaxed) {
                    Ok(_) => family,
                    Err(found) => found,
                }
            }
            family => family,
        }
    }

    /// Claims a slot for process `pid`; one that this pid already holds (it called exec) is kept, its counts are folded into
    /// the sums, and the space of its swap files is given back. None: all taken.
    pub fn claim(&self, pid: u32) -> Option<&Proc> {
        use proc_state::*;
        let held = |p: &&Proc| p.pid.load(Ordering::Relaxed) == pid && p.state.load(Ordering::Relaxed) != FREE;
        if let Some(p) = self.used_procs().iter().find(held) {
            p.next_image();
            self.fold(p);
            self.give_back(p);
            self.publish_ram(p, 0);
            p.clear_gauges();
            // Release, here and below: pairs with the Acquire with which `lowtide run` looks for processes.
            p.state.store(WATCHING, Ordering::Release);
            return Some(p);
        }
        let (i, p) = self.procs.iter().enumerate().find(|(_, p)| {
            // A look first: to try, even in vain, costs a page fault of its own for each process that there is. Acquire: pairs
            // with the Release in `reap`, before which the slot was cleared.
            p.state.load(Ordering::Relaxed) == FREE
                && p.state.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })?;
        // AcqRel: pairs with the Acquire in `used_procs`.
        self.procs_high.fetch_max(i as u32 + 1, Ordering::AcqRel);
        p.next_image();
        p.pid.store(pid, Ordering::Relaxed);
        p.state.store(WATCHING, Ordering::Release);
        // Until `lowtide run` looks again.
        self.seen.fetch_add(1, Ordering::Relaxed);
        Some(p)
    }

    /// Folds the counts of a process that is gone into the sums, gives the space of its swap files back, and frees its slot.
    /// Only `lowtide run` calls this.
    pub fn reap(&self, p: &Proc) {
        self.fold(p);
        self.give_back(p);
        self.publish_ram(p, 0);
        p.clear_gauges();
        p.next_image();
        p.pid.store(0, Ordering::Relaxed);
        // Release: pairs with the Acquire in `claim`.
        p.state.store(proc_state::FREE, Ordering::Release);
    }

    /// The image of the process that has a slot, a `Proc` of this segment.
    pub fn image(&self, p: &Proc) -> Image {
        let slot = (core::ptr::from_ref(p).addr() - self.procs.as_ptr().addr()) / size_of::<Proc>();
        let elsewhere = if p.is_elsewhere() { ELSEWHERE } else { 0 };
        // Acquire: pairs with the Release in `Proc::next_image`.
        let image = p.image.load(Ordering::Acquire).wrapping_mul(MAX_PROCS as u64) % ELSEWHERE;
        Image::new(elsewhere | image | slot as u64)
    }

    /// Whether a process image may still be there. False: it is proven that it is gone, because its process has been buried, or
    /// its slot claimed since by a process of the same pid, which is another one or has called exec. (A process of the run that
    /// writes here what is not so can make one that forked stop with a message, because pages that come from a file are known
    /// by their tags; it can't make it read others.)
    pub fn is_alive(&self, image: Image) -> bool {
        if image.number() & ELSEWHERE != 0 {
            return true;
        }
        let (slot, number) = (image.number() as usize % MAX_PROCS, image.number() / MAX_PROCS as u64);
        // Acquire: pairs with the Release in `Proc::next_image`. What the image did comes before what is done because it is
        // gone.
        self.places().get(slot).is_some_and(|p| p.image.load(Ordering::Acquire) == number)
    }

    /// Takes what a process that is gone had of the swap areas off what all use: its files, which have no names, went with it.
    /// (One with a name is used by nobody any more. Forked children may still read their parent's file, whose space is then
    /// used and not counted, until they are gone too.)
    fn give_back(&self, p: &Proc) {
        for (area, now) in self.areas.iter().zip(&p.areas_now) {
            // Acquire: pairs with the Release in the slots' `Quota::take`. What is charged here is in `used` by now.
            let bytes = now.charged.swap(0, Ordering::Acquire);
            let less = |used: u64| Some(used.saturating_sub(bytes));
            let _ = area.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    /// Folds the counts of a process into the sums of the dead, and sets them to zero.
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

/// An empty one, for tests.
#[cfg(test)]
pub(crate) fn segment() -> std::boxed::Box<Segment> {
    let layout = std::alloc::Layout::new::<Segment>();
    // SAFETY: zeros are a valid Segment, and the memory is the global allocator's, of this layout.
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
            p.areas_now[2].state.store(area_state(AreaState::Failing), Ordering::Relaxed);
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
