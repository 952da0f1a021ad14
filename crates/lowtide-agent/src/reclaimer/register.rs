//! Makes the pager and registers the program's memory.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;

use lowtide_core::codec::Codec;
use lowtide_core::store::{Store, StoreConfig};
use lowtide_core::vm::room;
use lowtide_pager::mappings::registrable;
use lowtide_pager::pager::{Host, Pager};
use lowtide_pager::reclaim::Evicted;
use lowtide_sys::clock::now_us;
use lowtide_sys::{Line, Range, present};
use lowtide_wire::segment;
use rustix::io::Errno;

use super::{ReclaimerThread, answer, make};
use crate::fork::child_state;
use crate::handlers::{self, descriptors, kept, polling};
use crate::hooks::{self, LEFT_ALONE, changes, changes_in_turn, gate};
use crate::process::{agent, broker, say, swap_areas, thread};
use crate::reclaimer::{request, wake};

/// Longest interval between looks for mappings made past the C library, ...
const LOOK_EVERY_US: u64 = 100_000;
/// ... and the shortest, as a multiple of a look's time: at most 5 % of a CPU.
const LOOK_REST: u64 = 20;
const FIRST_TRIES: usize = 25;
const LOOK_LATER_US: u64 = 10_000;
/// Or as long as the last ones took.
const SHORTEST_SENTINELS_REST_US: u64 = 100;
/// An event must be read first, or the program forks.
const SENTINELS_LATER_US: u64 = 50;
const FIRST_SENTINELS_US: u64 = 100_000;

#[derive(Default)]
pub(super) struct Look {
    /// Latest and earliest time of the next look, in microseconds.
    due_us: u64,
    not_before_us: u64,
    reported: bool,
}

impl Look {
    pub(super) fn is_due(&self, now_us: u64, hurry: bool) -> bool {
        now_us >= self.due_us || hurry && now_us >= self.not_before_us
    }
}

/// If less address space is left (`ulimit -v`), it is the program's: lowtide's tables take half of
/// this at least.
const LEAST_ADDRESSES: usize = 256 << 20;

pub(super) fn is_cramped() -> bool {
    room::left_of_limit().is_some_and(|left| left < LEAST_ADDRESSES)
}

impl ReclaimerThread {
    /// Early, because it takes milliseconds on a busy machine, in which a program can touch more
    /// than lies between the register mark and the limit.
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
            // Children get all of their memory, and stores of their own. A failure only makes them
            // larger.
            let _ = store.keep_pool_from_children();
        }
        #[cfg(feature = "lab")]
        store.limit_folios(run.folio_order);
        swap_areas::add_all(&store);
        let staging = self.staging.target(limit, agent::segment().active() + 1);
        self.reclaimer = Some(make()?);
        self.thread_ends.open();
        let uffd = self.uffd.take().ok_or(Errno::BADF)?;
        let host = Host {
            fatal: say::fatal,
            lost: |text| say::fatal(text),
            warn: say::warn,
            waits: polling::leave,
            open_uffd: broker::userfaultfd,
            open_page_map: broker::page_map,
            open_memory: present::open_memory,
            has_page_map: descriptors::has_page_map,
            steps: 1,
            turn: changes_in_turn::changed,
            is_alone: handlers::program_is_alone,
            may_have_grown: changes_in_turn::may_have_grown,
            child_wants_to_run: child_state::wants_to_run,
            has_thread: thread::exists,
            changes_are_over: changes::are_over,
            undisturbed: thread::without_signals,
        };
        let pager = Pager::new(uffd, store, staging, agent::proc(), host)?;
        self.prepared = Some(Box::leak(Box::new(pager)));
        Ok(())
    }

    pub(super) fn activate(&self, pager: &'static Pager) -> Result<(), Errno> {
        pager.budget().set_limit(agent::settings().ram_limit.load(Ordering::Relaxed));
        pager.budget().join(agent::segment(), agent::proc());
        pager.activate()?;
        pager.hold_forks()?;
        agent::set_pager(pager);
        handlers::go();
        agent::segment().becomes_active(agent::proc());
        Ok(())
    }

    /// Nothing holds the program's growth back until this is done.
    pub(super) fn register_first(&mut self, pager: &Pager) {
        for _ in 0..FIRST_TRIES {
            if self.register_all(pager) {
                break;
            }
        }
        // Last: this waits for `lowtide run`, while the program fills memory.
        kept::hand_over(pager.uffd());
    }

    /// False: the program did not let it look.
    pub(super) fn register_all(&mut self, pager: &Pager) -> bool {
        let started = now_us();
        // No thread maps or unmaps meanwhile, so the list of mappings stays true.
        if !gate::try_close() {
            self.leavers.look(pager);
            self.look.not_before_us = started + LOOK_LATER_US;
            self.look.due_us = self.look.not_before_us;
            return false;
        }
        pager.collect_page_map();
        let (mut registered, mut ranges, mut too_many) = (0u64, 0u64, false);
        wake::looked();
        let refused = registrable::each_registrable(|range: Range, has_heap| {
            if has_heap && !pager.takes_code() {
                return false;
            }
            let mut all = true;
            LEFT_ALONE.each_other(range, |part| {
                let done = pager.register_used(part);
                if done.is_ok() {
                    registered += (part.end - part.start) as u64;
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
                b"the program has more mappings than can be registered (see vm.max_map_count): some of its memory is not limited",
            );
        }
        if registered > agent::proc().adopted_bytes.swap(registered, Ordering::Relaxed) {
            self.growth.found(now);
        }
        if !self.look.reported {
            self.look.reported = true;
            let mut line = Line::new();
            line.push(b"lowtide: process ").number(u64::from(agent::pid())).push(b": registered ").number(registered >> 20);
            line.push(b" MiB of address space in ").number(ranges).push(b" ranges (the limit is near)");
            if let Ok(refused @ 1..) = refused {
                line.push(b"; ").number(refused as u64 >> 20).push(b" MiB can't be registered");
            }
            if !hooks::installed() {
                line.push(b"; the C library could not be hooked, new mappings are looked for");
            }
            say::verbose(&mut line);
        }
        true
    }

    /// Makes some writes to memory only read so far visible. Returns the microseconds until the
    /// next step.
    pub(super) fn set_sentinels(&mut self, pager: &Pager) -> u64 {
        let Some(reclaimer) = &mut self.reclaimer else { return u64::MAX };
        let started = now_us();
        match pager.set_sentinels(&mut reclaimer.worker) {
            Evicted::Nothing => u64::MAX,
            // Each step covers many pages.
            Evicted::Progress if pager.protects() => 0,
            Evicted::Progress => (now_us() - started).max(SHORTEST_SENTINELS_REST_US),
            _ => SENTINELS_LATER_US,
        }
    }

    /// Without a pause: until then writes are unlimited.
    pub(super) fn set_first_sentinels(&mut self, pager: &Pager) {
        let until = now_us() + FIRST_SENTINELS_US;
        while now_us() < until {
            // Threads wait for answers, and the last measurement limits a thread at a sentinel.
            answer::all_there_is();
            self.measure();
            match self.set_sentinels(pager) {
                u64::MAX => return,
                SENTINELS_LATER_US => request::sleep(request::bell(), SENTINELS_LATER_US),
                _ => {}
            }
        }
    }
}
