//! Pages are moved out because the user asks for it, whether the limit is near or not; and the user is told how much can't be.

use core::sync::atomic::Ordering;

use lowtide_pager::pager::Pager;
use lowtide_pager::reclaim::{Nap, Reclaimer, Requested};

use super::ReclaimerThread;
use crate::agent;

/// A request that is being dealt with.
#[derive(Default)]
pub(super) struct Reclaim {
    number: u64,
    left: u64,
}

/// The latest request, if it has not been dealt with.
pub(super) fn asked() -> Option<u64> {
    // Acquire: pairs with the Release with which `lowtide run` asks (`live/reclaim.rs`). The rest of it was written before.
    let number = agent::settings().reclaim.number.load(Ordering::Acquire);
    (number != agent::proc().reclaimed.load(Ordering::Relaxed)).then_some(number)
}

/// It has been dealt with.
pub(super) fn done(number: u64) {
    // Release: pairs with the Acquire of `lowtide run` (`live/reclaim.rs`). How much it came to was written before.
    agent::proc().reclaimed.store(number, Ordering::Release);
}

/// Nothing more can be moved out now, and the limit is not even reached: whoever asks for less is told so rather than left to
/// wait.
pub(super) fn give_up() {
    if let Some(number) = asked() {
        done(number);
    }
}

impl ReclaimerThread {
    /// Memory is adopted: moves some of what is asked for out, if anything is. `None`: there is nothing of the kind to do.
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
            // That is all that can go.
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

    /// Answers how much of what this process counts for can't be moved out, if that is asked.
    pub(super) fn answer_what_is_fixed(&mut self, pager: &Pager) {
        // Acquire: pairs with the AcqRel with which `lowtide run` asks (`live/limit.rs`).
        let question = agent::settings().question.load(Ordering::Acquire);
        let proc = agent::proc();
        if question == proc.answered.load(Ordering::Relaxed) {
            return;
        }
        let get = |gauge: &core::sync::atomic::AtomicU64| gauge.load(Ordering::Relaxed);
        let movable = pager.adopted_in_memory().unwrap_or(0).saturating_sub(self.judge.floor.stuck(pager));
        let can_go = movable + get(&proc.staged_bytes) + get(&proc.pool_bytes);
        let fixed = get(&proc.ram_bytes).saturating_sub(can_go);
        proc.fixed_bytes.store(fixed, Ordering::Relaxed);
        // Release: pairs with the Acquire of `lowtide run` (`live/limit.rs`, `live/admission.rs`). The answer was written
        // before.
        proc.answered.store(question, Ordering::Release);
    }
}
