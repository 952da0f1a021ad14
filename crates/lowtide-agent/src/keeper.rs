//! The keeper: one thread in each process. Below the limit it looks at the process's memory now and then, and that is all lowtide
//! costs. Near the limit it adopts the program's memory; above the high mark it evicts down to the low one.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lowtide_core::codec::Codec;
use lowtide_core::store::{AreaState, MAX_AREAS, Store, StoreConfig};
use lowtide_core::vm;
use lowtide_pager::evict::Evicted;
use lowtide_pager::line::Line;
use lowtide_pager::pager::{Host, Pager, Worker};
use lowtide_pager::regions::Range;
use lowtide_pager::segment::{self, area_state, proc_state};
use lowtide_pager::uffd::{NEEDED_FEATURES, Uffd};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::idle::Idle;
use crate::request::Request;
use crate::{agent, atfork, gate, hooks, maps, monitor, request, say, swap_file, thread};

/// Looks at the memory are at most this far apart.
const LONGEST_SLEEP_US: u64 = 100_000;
const SHORTEST_SLEEP_US: u64 = 1_000;
/// In a process in which nothing happens (`idle.rs`) they are at least so far apart: a monitor wakes the keeper when something does.
const QUIET_NAP_US: u64 = 5_000;
/// What a program can touch in a microsecond, with threads on several CPUs.
const TOUCH_BYTES_PER_US: u64 = 6_000;
/// A process smaller than this is not worth adopting while there are larger ones.
const WORTHWHILE: u64 = 2 << 20;
/// How long it takes to adopt memory where more threads touch it than there are CPUs: the kernel lets nobody change a mapping while a
/// thread is in a page fault there, and most threads that wait for a CPU wait in one.
const ADOPTION_US: u64 = 20_000;
/// Growth that nobody counted: there must be mappings that are not adopted.
const UNACCOUNTED: u64 = 1 << 20;
/// Adopted memory is looked for this often at least.
const LOOK_EVERY_US: u64 = 100_000;
/// What lowtide's tables take is measured this often, and after so many pages: they grow by as much as a hundred bytes for each page
/// that is evicted for the first time.
const MEASURE_REST_US: u64 = 100_000;
const MEASURE_REST_PAGES: u64 = 4096;
/// No tier could take a page: tried again after this.
const FULL_PAUSE_US: u64 = 100_000;
/// Objects of the pool that are moved at a time while there is nothing else to do: a fraction of a millisecond.
const COMPACT_PAGES: usize = 256;
/// Cold pages that are compressed again at a time, while nothing happens at all: half a millisecond.
const RECOMPRESS_PAGES: usize = 16;
/// For each microsecond of that, the keeper sleeps so many: it takes a quarter of a CPU at most.
const RECOMPRESS_REST: u64 = 3;

/// Said where the keeper can't be started.
pub const NO_THREAD: &[u8] = b"a process of the run is not limited: lowtide's thread can't be started";

static ASLEEP: AtomicBool = AtomicBool::new(false);
static LOOK_AGAIN: AtomicBool = AtomicBool::new(false);
/// Resident bytes at the time of the fork that made this process: shared with the parent, so they are the parent's.
static INHERITED: AtomicU64 = AtomicU64::new(0);

/// Wakes the keeper if it sleeps: the high mark was passed.
pub fn wake_if_asleep() {
    if ASLEEP.swap(false, Ordering::AcqRel) {
        request::ring();
    }
}

/// Mappings changed: there may be some to adopt.
pub fn look_again() {
    LOOK_AGAIN.store(true, Ordering::Release);
}

/// Thread entry: the keeper of a process that starts with nothing adopted.
pub extern "C" fn fresh(_: usize) -> ! {
    begin();
    let uffd = match Uffd::open(NEEDED_FEATURES) {
        Ok(uffd) => uffd,
        Err(e) => {
            let mut line = Line::new();
            line.push(b"a process of the run is not limited: it can't open a userfaultfd, error ")
                .number(e.raw_os_error() as u64);
            say::warn(line.bytes());
            sleep_for_ever();
        }
    };
    INHERITED.store(0, Ordering::Relaxed);
    let mut keeper = Keeper::new(Some(uffd));
    keeper.urgent = thread::Urgent::new();
    keeper.run()
}

/// Thread entry: the keeper of a forked child whose parent had adopted memory.
pub extern "C" fn inherited(_: usize) -> ! {
    let parent_keeper = agent::KEEPER.load(Ordering::Acquire);
    begin();
    let Some(pager) = agent::pager() else { sleep_for_ever() };
    let Some(parent) = rustix::process::getppid() else { say::fatal(b"a forked child has no parent") };
    let mut reopen = |_area: u8, fd: i32| {
        let mut path = Line::new();
        path.push(b"/proc/").number(parent.as_raw_nonzero().get() as u64).push(b"/task/").number(u64::from(parent_keeper));
        path.push(b"/fd/").number(fd as u64).push(b"\0");
        swap_file::open_path(path.bytes())
    };
    // SAFETY: the handler of the fork waits for this thread, and there is no other.
    let result = unsafe { pager.take_over(parent, agent::proc(), &mut reopen) };
    if let Err(why) = result {
        say::fatal(why);
    }
    swap_file::add_all(&pager.store);
    let mut keeper = Keeper::new(None);
    INHERITED.store(keeper.resident(), Ordering::Relaxed);
    agent::proc().state.store(proc_state::ACTIVE, Ordering::Release);
    monitor::start();
    atfork::child_is_ready();
    keeper.run()
}

/// What every keeper does first.
fn begin() {
    thread::name(c"lowtide-keeper");
    if thread::own_files().is_err() {
        say::fatal(b"Linux 5.9 or later is needed (close_range)");
    }
    agent::KEEPER.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::Release);
}

fn sleep_for_ever() -> ! {
    loop {
        request::sleep(request::bell(), u64::MAX >> 20);
        request::answer(|| {}, |_| {});
    }
}

struct Keeper {
    /// Until it is the pager's.
    uffd: Option<Uffd>,
    /// Made well before, used when it is time to adopt memory.
    prepared: Option<&'static Pager>,
    /// Until memory is adopted: it does little, and that in time.
    urgent: Option<thread::Urgent>,
    /// What the run used when [`Keeper::watch`] last looked, and when that was, in microseconds.
    last_watched: (u64, u64),
    statm: Option<OwnedFd>,
    worker: Option<Worker>,
    idle: Idle,
    since_look_us: u64,
    /// When lowtide's tables were last measured, in microseconds, and how many pages had been evicted then.
    rest_measured: (u64, u64),
    /// The run was above the low mark when last measured.
    above_low: bool,
    warned_full: bool,
    /// Of which swap areas it was said that they can't be written.
    said_failing: [bool; MAX_AREAS],
    reported: bool,
}

/// Compresses some cold pages of the pool again; for how long to sleep afterwards.
fn recompress(pager: &Pager, worker: &mut Worker, idle: &mut Idle, now_us: u64) -> Option<u64> {
    // The pool of a forked child is its parent's too, copy-on-write, until one of them changes it: that would take memory in both.
    let shared = INHERITED.load(Ordering::Relaxed) > 0 || pager.was_forked();
    if shared || !pager.store.wants_recompression(now_us) || !idle.is_cpu_free(now_us) {
        return None;
    }
    if pager.recompress(worker, RECOMPRESS_PAGES, now_us) == 0 {
        return None;
    }
    let took = (monitor::now_ns() / 1000).saturating_sub(now_us);
    Some((took * RECOMPRESS_REST).clamp(SHORTEST_SLEEP_US, LONGEST_SLEEP_US))
}

/// Compacts the pool a bit if that is worth its while; whether there is more to do.
fn compact(pager: &Pager) -> bool {
    let Some(_operation) = pager.enter() else { return false };
    pager.store.wants_compaction() && pager.store.compact(COMPACT_PAGES)
}

impl Keeper {
    fn new(uffd: Option<Uffd>) -> Keeper {
        let statm = rustix::fs::open(c"/proc/self/statm", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        Keeper {
            uffd,
            prepared: None,
            urgent: None,
            last_watched: (0, 0),
            statm,
            worker: None,
            idle: Idle::new(),
            since_look_us: 0,
            rest_measured: (0, 0),
            above_low: false,
            warned_full: false,
            said_failing: [false; MAX_AREAS],
            reported: false,
        }
    }

    /// Anonymous resident bytes of this process, lowtide's own included.
    fn resident(&mut self) -> u64 {
        let mut text = [0u8; 128];
        let Some(fd) = &self.statm else { return 0 };
        let n = rustix::io::pread(fd, &mut text, 0).unwrap_or(0);
        let mut fields = text[..n]
            .split(|&c| c == b' ')
            .map(|f| f.iter().take_while(|c| c.is_ascii_digit()).fold(0u64, |n, c| n * 10 + u64::from(c - b'0')));
        let resident = fields.nth(1).unwrap_or(0);
        let shared = fields.next().unwrap_or(0);
        resident.saturating_sub(shared) * 4096
    }

    /// Measures this process, publishes it, and returns what the whole run uses.
    fn measure(&mut self) -> u64 {
        let resident = self.resident();
        let counted = resident.saturating_sub(INHERITED.load(Ordering::Relaxed));
        agent::proc().ram_bytes.store(counted, Ordering::Relaxed);
        agent::segment().ram_now()
    }

    fn run(mut self) -> ! {
        loop {
            let bell = request::bell();
            self.answer();
            let total = self.measure();
            let sleep = match agent::pager() {
                None => self.watch(total),
                Some(pager) => self.keep(pager, total),
            };
            if sleep > 0 {
                self.since_look_us += sleep;
                ASLEEP.store(true, Ordering::Release);
                request::sleep(bell, sleep);
                ASLEEP.store(false, Ordering::Release);
            }
        }
    }

    fn answer(&mut self) {
        let Some(pager) = agent::pager() else {
            request::answer(|| {}, |_| {});
            return;
        };
        request::answer(
            || pager.fork_is_over(),
            |request| match request {
                // What can't be adopted (a kind of memory, too many ranges) stays with the program.
                Request::Adopt(range) => drop(pager.adopt(range)),
                Request::Fork => pager.announce_fork(),
            },
        );
    }

    /// How long to sleep when `room` bytes may be touched before something has to happen.
    fn nap(room: u64) -> u64 {
        (room / TOUCH_BYTES_PER_US).clamp(SHORTEST_SLEEP_US, LONGEST_SLEEP_US)
    }

    /// Nothing is adopted: is it time? Returns for how long to sleep.
    fn watch(&mut self, total: u64) -> u64 {
        let limit = agent::segment().settings.ram_limit.load(Ordering::Relaxed);
        let marks = lowtide_pager::budget::Budget::default();
        marks.set_limit(limit);
        // A named swap file goes to the largest process when it prepares, and until the limit is near nobody knows which that is.
        let prepare_mark = if swap_file::any_named() { marks.adopt_mark() } else { marks.prepare_mark() };
        if total <= prepare_mark {
            return Self::nap(prepare_mark - total);
        }
        let now = monitor::now_ns() / 1000;
        let (last, at) = core::mem::replace(&mut self.last_watched, (total, now));
        let ahead = total.saturating_sub(last) * ADOPTION_US / now.saturating_sub(at).max(1);
        let mark = marks.adopt_mark().saturating_sub(ahead).max(marks.earliest_adopt_mark());
        let room = mark.saturating_sub(total);
        if agent::proc().ram_bytes.load(Ordering::Relaxed) < WORTHWHILE.max(total / 64) {
            return Self::nap(room).max(SHORTEST_SLEEP_US * 5);
        }
        if self.prepared.is_some() && room > 0 {
            return Self::nap(room);
        }
        // It comes near the limit too; until then this one has little that would be better off in a swap file.
        if self.prepared.is_none() && total <= marks.high_mark() && swap_file::named_is_left_to_another() {
            return Self::nap(marks.high_mark() - total);
        }
        // A fork is under way otherwise.
        if !gate::keep_forks_away() {
            return SHORTEST_SLEEP_US;
        }
        let done = match self.prepared {
            None => self.prepare(limit),
            Some(pager) => self.activate(pager),
        };
        gate::open();
        if let Err(e) = done {
            let mut line = Line::new();
            line.push(b"memory can't be adopted, error ")
                .number(e.raw_os_error() as u64)
                .push(b": this process is not limited");
            say::warn(line.bytes());
            sleep_for_ever()
        }
        if let Some(pager) = agent::pager() {
            self.adopt_all(pager);
            self.urgent = None;
        }
        0
    }

    /// Sets up the pager: milliseconds on a busy machine, in which a program can touch more than the room between the mark above
    /// which memory is adopted and the limit.
    fn prepare(&mut self, limit: u64) -> Result<(), Errno> {
        let run = agent::segment();
        let codec = match run.settings.codec {
            segment::CODEC_ZSTD => Codec::Zstd(run.settings.codec_level),
            _ => Codec::Lz4,
        };
        let store = Store::new(StoreConfig {
            pool_limit: run.settings.pool_limit.load(Ordering::Relaxed) as usize,
            accept_percent: 90,
            codec,
        })
        .map_err(|_| Errno::NOMEM)?;
        swap_file::add_all(&store);
        let staging = (limit / 16).clamp(512 << 10, 64 << 20) as usize;
        self.worker = Some(Worker::new(true)?);
        let uffd = self.uffd.take().ok_or(Errno::BADF)?;
        let pager = Pager::new(uffd, store, staging, agent::proc(), Host { fatal: say::fatal, warn: say::warn })?;
        self.prepared = Some(Box::leak(Box::new(pager)));
        Ok(())
    }

    /// The pager goes to work.
    fn activate(&mut self, pager: &'static Pager) -> Result<(), Errno> {
        pager.budget.set_limit(agent::segment().settings.ram_limit.load(Ordering::Relaxed));
        pager.activate()?;
        agent::set_pager(pager);
        monitor::start();
        agent::proc().state.store(proc_state::ACTIVE, Ordering::Release);
        Ok(())
    }

    /// Adopts all memory that can be adopted and is not yet.
    fn adopt_all(&mut self, pager: &Pager) {
        let (mut adopted, mut ranges) = (0u64, 0u64);
        // Nobody maps or unmaps meanwhile: what the list says is adopted is still there when it is adopted.
        if !gate::try_close() {
            return;
        }
        self.since_look_us = 0;
        LOOK_AGAIN.store(false, Ordering::Release);
        let refused = maps::each_adoptable(|range: Range| {
            let done = pager.adopt(range).is_ok();
            if done {
                adopted += (range.end - range.start) as u64;
                ranges += 1;
            }
            done
        });
        gate::open();
        if refused.is_err() {
            say::warn(b"the program's mappings can't be read: what it maps from now on is not limited");
        }
        agent::proc().adopted_bytes.store(adopted, Ordering::Relaxed);
        if !self.reported {
            self.reported = true;
            let mut line = Line::new();
            line.push(b"lowtide: process ").number(u64::from(agent::pid())).push(b": adopted ").number(adopted >> 20);
            line.push(b" MiB of address space in ").number(ranges).push(b" ranges (the limit is near)");
            if let Ok(refused @ 1..) = refused {
                line.push(b"; ").number(refused as u64 >> 20).push(b" MiB can't be adopted");
            }
            if !hooks::installed() {
                line.push(b"; the C library could not be hooked, new mappings are looked for");
            }
            say::verbose(&mut line);
        }
    }

    /// Memory is adopted: keep it under the limit. Returns for how long to sleep.
    fn keep(&mut self, pager: &Pager, total: u64) -> u64 {
        let run = agent::segment();
        pager.budget.set_limit(run.settings.ram_limit.load(Ordering::Relaxed));
        let expected = pager.budget.now();
        pager.budget.measured(total);
        let now = monitor::now_ns() / 1000;
        let evicted = pager.counters().evictions_pages.load(Ordering::Relaxed);
        let (at, then) = self.rest_measured;
        if now.saturating_sub(at) >= MEASURE_REST_US || evicted.saturating_sub(then) >= MEASURE_REST_PAGES {
            self.rest_measured = (now, evicted);
            pager.measure_rest();
        }
        pager.publish();
        if self.areas_fail() {
            swap_file::say_what_fails(&pager.store, &mut self.said_failing);
        }
        pager.store.set_pool_limit(self.pool_share() as usize);
        let grown = total.saturating_sub(expected) > UNACCOUNTED && total > pager.budget.adopt_mark();
        if grown || LOOK_AGAIN.load(Ordering::Acquire) || self.since_look_us >= LOOK_EVERY_US {
            self.adopt_all(pager);
        }
        if self.worker.is_none() {
            self.worker = Worker::new(true).ok();
        }
        let Some(worker) = &mut self.worker else { return SHORTEST_SLEEP_US };
        let low = pager.budget.low_mark();
        let was_above = core::mem::replace(&mut self.above_low, total > low);
        let quiet = self.idle.is_quiet(pager, now);
        if total <= low {
            // Well below the limit, or when nothing happens: while this works, nobody watches what the program touches.
            if quiet || total <= pager.budget.adopt_mark() {
                pager.maintain();
                if pager.shrink_pool(worker) || compact(pager) {
                    return SHORTEST_SLEEP_US;
                }
            }
            if quiet && let Some(sleep) = recompress(pager, worker, &mut self.idle, monitor::now_ns() / 1000) {
                return sleep;
            }
            worker.forget_compressor();
            let nap = Self::nap((pager.budget.high_mark() - total).min(64 << 20));
            return if quiet { nap.max(QUIET_NAP_US) } else { nap };
        }
        // What is free already goes first. While eviction goes on it would only take the drained frames again.
        if !was_above {
            pager.drain_frames();
        }
        // This process's part of what is too much; measured again after at most 2 MiB, because new mappings may have appeared.
        let mine = agent::proc().ram_bytes.load(Ordering::Relaxed);
        let excess = (total - low) as u128 * u128::from(mine) / u128::from(total.max(1));
        let segment = (pager.staging.segment_frames() * vm::PAGE_SIZE) as u64;
        let batches = (excess as u64 / segment).clamp(1, (2 << 20) / segment);
        for _ in 0..batches {
            let before = pager.counters().evictions_pages.load(Ordering::Relaxed);
            match pager.evict(worker) {
                Evicted::Some => {
                    let n = pager.counters().evictions_pages.load(Ordering::Relaxed) - before;
                    pager.counters().evictions_background.fetch_add(n, Ordering::Relaxed);
                }
                Evicted::Later => return 50,
                Evicted::Nothing => {
                    pager.drain_frames();
                    return SHORTEST_SLEEP_US;
                }
                Evicted::Full => {
                    pager.drain_frames();
                    // Room inside the pool's spans is the last resort.
                    if compact(pager) {
                        return 0;
                    }
                    self.full(pager);
                    return FULL_PAUSE_US;
                }
            }
        }
        0
    }

    /// Whether a swap area of this process can't be written, as was last published.
    fn areas_fail(&self) -> bool {
        let failing = area_state(AreaState::Failing);
        agent::proc().areas_now.iter().any(|area| area.state.load(Ordering::Relaxed) == failing)
    }

    /// No tier takes a page.
    fn full(&mut self, pager: &Pager) {
        let run = agent::segment();
        pager.publish();
        if self.areas_fail() {
            swap_file::say_what_fails(&pager.store, &mut self.said_failing);
        }
        if run.settings.when_full == segment::WHEN_FULL_STOP {
            say::fatal(match self.areas_fail() {
                true => b"the rest of swap is full, an area can't be written, and --when-full stop was given: see the warnings",
                false => b"swap is full and --when-full stop was given: raise --ram or --pool, or give more --swap",
            });
        }
        // Being full at times is normal for a small pool; being over the limit because of it is worth a word.
        if !self.warned_full && pager.budget.now() > pager.budget.limit() {
            self.warned_full = true;
            say::warn(b"swap is full: the run goes over its limit (raise --ram or --pool, or give more --swap)");
        }
    }

    /// What the pool limit of the run leaves for this process.
    fn pool_share(&self) -> u64 {
        let run = agent::segment();
        let mine = core::ptr::from_ref(agent::proc());
        let others: u64 = run
            .used_procs()
            .iter()
            .filter(|p| !core::ptr::eq(*p, mine) && p.state.load(Ordering::Relaxed) == proc_state::ACTIVE)
            .map(|p| p.pool_bytes.load(Ordering::Relaxed))
            .sum();
        run.settings.pool_limit.load(Ordering::Relaxed).saturating_sub(others)
    }
}
