//! The user's requests: to move pages out whatever the limit, and to tell how much can't be moved.

use core::sync::atomic::Ordering;

use lowtide_pager::pager::Pager;
use lowtide_pager::reclaim::{Nap, Reclaimer, Requested};

use super::ReclaimerThread;
use crate::process::agent;

#[derive(Default)]
pub(super) struct Reclaim {
    number: u64,
    left: u64,
}

pub(super) fn asked() -> Option<u64> {
    // Acquire: pairs with the Release of `lowtide run`'s request (`live/reclaim.rs`), whose data
    // come before.
    let number = agent::settings().reclaim.number.load(Ordering::Acquire);
    (number != agent::proc().reclaimed.load(Ordering::Relaxed)).then_some(number)
}

pub(super) fn done(number: u64) {
    // Release: pairs with the Acquire of `lowtide run` (`live/reclaim.rs`). The result comes
    // before.
    agent::proc().reclaimed.store(number, Ordering::Release);
}

/// Nothing more is movable: the user should not wait.
pub(super) fn give_up() {
    if let Some(number) = asked() {
        done(number);
    }
}

impl ReclaimerThread {
    pub(super) fn reclaim(&mut self, pager: &Pager) -> Option<Nap> {
        let number = asked()?;
        let reclaimer = self.reclaimer.as_mut()?;
        let proc = agent::proc();
        if self.reclaim.number != number {
            let request = &agent::settings().reclaim;
            let (bytes, of) = (request.bytes.load(Ordering::Relaxed), request.of.load(Ordering::Relaxed).max(1));
            let mine = proc.ram_bytes.load(Ordering::Relaxed).min(of);
            let part = u128::from(bytes) * u128::from(mine) / u128::from(of);
            self.reclaim = Reclaim { number, left: part as u64 };
        }
        let came = reclaimer.evict_on_request(pager, self.reclaim.left);
        let (Requested::Bytes(bytes) | Requested::Last(bytes) | Requested::Later(bytes)) = came;
        proc.reclaimed_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.reclaim.left = self.reclaim.left.saturating_sub(bytes);
        match came {
            Requested::Bytes(_) => {}
            Requested::Later(_) => return Some(Reclaimer::later()),
            Requested::Last(_) => self.reclaim.left = 0,
        }
        if self.reclaim.left > 0 || pager.empty_staging(&mut reclaimer.worker) {
            return Some(Nap::UntilFaults(0));
        }
        pager.drain_frames();
        pager.publish();
        done(number);
        None
    }

    pub(super) fn answer_what_is_fixed(&mut self, pager: &Pager) {
        // Acquire: pairs with the AcqRel of `lowtide run`'s question (`live/limit.rs`).
        let question = agent::settings().question.load(Ordering::Acquire);
        let proc = agent::proc();
        if question == proc.answered.load(Ordering::Relaxed) {
            return;
        }
        let get = |gauge: &core::sync::atomic::AtomicU64| gauge.load(Ordering::Relaxed);
        let movable = pager.registered_in_memory().unwrap_or(0).saturating_sub(self.judge.floor.stuck(pager));
        let can_go = movable + get(&proc.staged_bytes) + get(&proc.pool_bytes);
        let fixed = get(&proc.ram_bytes).saturating_sub(can_go);
        proc.fixed_bytes.store(fixed, Ordering::Relaxed);
        // Release: pairs with the Acquire of `lowtide run` (`live/limit.rs`).
        // The answer comes before.
        proc.answered.store(question, Ordering::Release);
    }
}
