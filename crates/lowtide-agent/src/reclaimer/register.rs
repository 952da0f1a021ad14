//! Memory is adopted: the pager comes to be, and what the program has mapped becomes its business.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;

use lowtide_core::codec::Codec;
use lowtide_core::store::{Store, StoreConfig};
use lowtide_core::vm::room;
use lowtide_pager::fork::Sharing;
use lowtide_pager::mappings::{Range, adoptable};
use lowtide_pager::pager::{Host, Pager};
use lowtide_pager::reclaim::Evicted;
use lowtide_pager::segment;
use lowtide_pager::sys::clock::now_us;
use lowtide_pager::sys::{Line, present};
use rustix::io::Errno;

use super::{ReclaimerThread, answer, make};
use crate::hooks::LEFT_ALONE;
use crate::{
    agent, broker, changes, descriptors, forked_child, gate, hooks, kept, monitor, moves, request, say, swap_file, thread,
    wake, watch,
};

/// Mappings that were made past the C library are looked for this often at least, ...
const LOOK_EVERY_US: u64 = 100_000;
/// ... and no more often than this many times as long as a look takes: it is 5 % of a CPU at most.
const LOOK_REST: u64 = 20;
/// How often that is tried, a few milliseconds each, before memory is adopted for the first time.
const FIRST_TRIES: usize = 25;
/// When the program did not let the reclaimer look, it tries again after this.
const LOOK_LATER_US: u64 = 10_000;
/// Sentinels are set with this much time in between at least: with as much as it took to set the last ones.
const SHORTEST_SENTINELS_REST_US: u64 = 100;
/// When an event must be read first, or the program forks, it goes on after this.
const SENTINELS_LATER_US: u64 = 50;
/// When memory is adopted for the first time, sentinels are set for this long without any rest.
const FIRST_SENTINELS_US: u64 = 100_000;

/// Looks for mappings to adopt.
#[derive(Default)]
pub(super) struct Look {
    /// When the next one is due, and before when there is to be none, in microseconds.
    due_us: u64,
    not_before_us: u64,
    reported: bool,
}

impl Look {
    /// Whether it is time, `hurry`: there is reason to think that something will be found.
    pub(super) fn is_due(&self, now_us: u64, hurry: bool) -> bool {
        now_us >= self.due_us || hurry && now_us >= self.not_before_us
    }
}

/// Where a process may map so little more (`ulimit -v`), the half of it that lowtide's tables take at least is the program's.
const LEAST_ADDRESSES: usize = 256 << 20;

/// Whether the address space that is left is too little for lowtide beside the program.
pub(super) fn is_cramped() -> bool {
    room::left_of_limit().is_some_and(|left| left < LEAST_ADDRESSES)
}

impl ReclaimerThread {
    /// Sets up the pager: milliseconds on a busy machine, in which a program can touch more than the room between the mark
    /// above which memory is adopted and the limit.
    pub(super) fn prepare(&mut self, limit: u64) -> Result<(), Errno> {
        let run = agent::settings();
        let codec = match run.codec {
            segment::CODEC_ZSTD => Codec::Zstd(run.codec_level),
            _ => Codec::Lz4,
        };
        let store =
            Store::new(StoreConfig { pool_limit: run.pool_limit.load(Ordering::Relaxed) as usize, accept_percent: 90, codec })
                .map_err(|_| Errno::NOMEM)?;
        if agent::FORKS_UNSEEN.load(Ordering::Relaxed) {
            // Its children get all of their memory, and agents and stores of their own. (If this fails they are larger.)
            let _ = store.keep_pool_from_children();
        }
        #[cfg(feature = "lab")]
        store.limit_folios(run.folio_order);
        swap_file::add_all(&store);
        let staging = self.staging.target(limit, agent::segment().active() + 1);
        self.reclaimer = Some(make()?);
        self.thread_ends.open();
        moves::start();
        let uffd = self.uffd.take().ok_or(Errno::BADF)?;
        let host = Host {
            fatal: say::fatal,
            lost: |text| say::fatal(text),
            warn: say::warn,
            waits: watch::leave,
            open_uffd: broker::userfaultfd,
            open_page_map: broker::page_map,
            open_memory: present::open_memory,
            has_page_map: descriptors::has_page_map,
            steps: 1,
            turn: gate::changed,
            is_alone: monitor::program_is_alone,
            child_wants_to_run: forked_child::wants_to_run,
            has_thread: thread::exists,
            changes_are_over: changes::are_over,
            undisturbed: thread::without_signals,
        };
        let pager = Pager::new(uffd, store, staging, agent::proc(), host)?;
        self.prepared = Some(Box::leak(Box::new(pager)));
        Ok(())
    }

    /// The pager goes to work, and the handlers, which have been started.
    pub(super) fn activate(&mut self, pager: &'static Pager) -> Result<(), Errno> {
        moves::start();
        moves::wait();
        pager.budget.set_limit(agent::settings().ram_limit.load(Ordering::Relaxed));
        pager.budget.join(agent::segment(), agent::proc());
        pager.activate()?;
        pager.hold_forks();
        agent::set_pager(pager);
        monitor::go();
        agent::segment().becomes_active(agent::proc());
        Ok(())
    }

    /// Adopts the program's memory for the first time: until that is done nothing holds it back.
    pub(super) fn adopt_first(&mut self, pager: &Pager) {
        for _ in 0..FIRST_TRIES {
            if self.adopt_all(pager) {
                break;
            }
        }
        // Not before: the program fills memory while this waits for `lowtide run`.
        kept::hand_over(pager.uffd());
    }

    /// Adopts all memory that can be adopted and is not yet; false: the program did not let it look.
    pub(super) fn adopt_all(&mut self, pager: &Pager) -> bool {
        let started = now_us();
        // Nobody maps or unmaps meanwhile: what the list says is adopted is still there when it is adopted.
        if !gate::try_close() {
            self.leavers.look(pager);
            self.look.not_before_us = started + LOOK_LATER_US;
            self.look.due_us = self.look.not_before_us;
            return false;
        }
        pager.collect_page_map();
        moves::start();
        let (mut adopted, mut ranges, mut too_many) = (0u64, 0u64, false);
        wake::looked();
        let refused = adoptable::each_adoptable(|range: Range, has_heap| {
            if has_heap && !pager.takes_code() {
                return false;
            }
            let mut all = true;
            LEFT_ALONE.each_other(range, |part| {
                let done = pager.adopt_used(part);
                if done.is_ok() {
                    adopted += (part.end - part.start) as u64;
                    ranges += 1;
                }
                too_many |= done == Err(Errno::NOMEM);
                all &= done.is_ok();
            });
            all
        });
        gate::open();
        let now = now_us();
        self.look.not_before_us = now + (now - started) * LOOK_REST;
        self.look.due_us = self.look.not_before_us.max(now + LOOK_EVERY_US);
        if refused.is_err() {
            say::warn(b"the program's mappings can't be read: what it maps from now on is not limited");
        }
        if too_many {
            say::warn(
                b"the program has more mappings than can be adopted (see vm.max_map_count): some of its memory is not limited",
            );
        }
        if adopted > agent::proc().adopted_bytes.swap(adopted, Ordering::Relaxed) {
            self.growth.found(now);
        }
        if !self.look.reported {
            self.look.reported = true;
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
        true
    }

    /// Where the program has only read so far, its writes are to be seen too: some of it. In how many microseconds it goes on.
    pub(super) fn set_sentinels(&mut self, pager: &Pager) -> u64 {
        let Some(reclaimer) = &mut self.reclaimer else { return u64::MAX };
        let started = now_us();
        match pager.set_sentinels(&mut reclaimer.worker) {
            Evicted::Nothing => u64::MAX,
            // So many are found at a time that it is soon done.
            Evicted::Progress if pager.protects() => 0,
            // Meanwhile monitors detach pages.
            Evicted::Progress => (now_us() - started).max(SHORTEST_SENTINELS_REST_US),
            _ => SENTINELS_LATER_US,
        }
    }

    /// The same at once, for a while, until there are many: so far the program may write what it likes.
    pub(super) fn set_first_sentinels(&mut self, pager: &Pager) {
        let until = now_us() + FIRST_SENTINELS_US;
        while now_us() < until {
            // Others want it, too; and a thread that comes to a sentinel is held back by what was last measured.
            answer::all_there_is();
            self.measure();
            match self.set_sentinels(pager) {
                u64::MAX => return,
                SENTINELS_LATER_US => request::sleep(request::bell(), SENTINELS_LATER_US),
                _ => {}
            }
        }
    }

    /// Where the program shares pages by a fork, its writes are to be seen before the kernel makes copies: some of it. In how many
    /// microseconds it goes on.
    pub(super) fn protect_shared(&mut self, pager: &Pager) -> u64 {
        if agent::settings().watch_copies != 1 {
            return u64::MAX;
        }
        let shared = Sharing { others: self.resident.sharers(), may_copy: self.resident.may_copy() };
        // What the kernel writes to at the end of a thread it does not wait for.
        let threads = &mut self.thread_ends;
        pager.protect_shared(shared, now_us(), || threads.before_protecting(pager, now_us()))
    }
}
