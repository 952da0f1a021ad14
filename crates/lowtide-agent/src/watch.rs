//! Which monitors watch the userfaultfd. A fault wakes all that do, and one of them gets it; waking another CPU for nothing is the larger part
//! of what a fault costs. So a monitor that finds twice in a row that another one was faster steps aside, as long as one
//! watches. Now and then all watch again for a moment: threads move from CPU to CPU. (A leader and its followers.)

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lowtide_pager::clock::now_us;
use rustix::thread::futex;

/// Monitors that watch, or are about to.
static WATCHING: AtomicU32 = AtomicU32::new(0);
/// Monitors that have stepped aside.
static ASIDE: AtomicU32 = AtomicU32::new(0);
/// How often all were called back; those aside sleep on it.
static CALLS: AtomicU32 = AtomicU32::new(0);
/// When that was last done, in microseconds.
static CALLED_US: AtomicU64 = AtomicU64::new(0);

/// Faults found taken in a row after which a monitor steps aside.
const LOSSES: u32 = 2;
/// Faults served by one monitor, and time, after which all are called back.
const FAULTS: u32 = 64;
const CALL_US: u64 = 2_000;

/// In a new process image or a forked child, before its monitors start.
pub fn reset() {
    for count in [&WATCHING, &ASIDE] {
        count.store(0, Ordering::Relaxed);
    }
}

/// All watch again: the one that does may be about to wait for a device, or can't run.
pub fn call_all() {
    if ASIDE.load(Ordering::Acquire) > 0 {
        CALLS.fetch_add(1, Ordering::AcqRel);
        let _ = futex::wake(&CALLS, futex::Flags::PRIVATE, i32::MAX as u32);
    }
}

/// What one monitor knows of its luck. Watches from its first use on.
#[derive(Default)]
pub struct Watch {
    watches: bool,
    losses: u32,
    faults: u32,
}

impl Watch {
    fn begin(&mut self) {
        if !self.watches {
            self.watches = true;
            WATCHING.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// It has got a message.
    pub fn won(&mut self) {
        self.begin();
        self.losses = 0;
        self.faults += 1;
        if self.faults < FAULTS || ASIDE.load(Ordering::Relaxed) == 0 {
            return;
        }
        let now = now_us();
        if now.saturating_sub(CALLED_US.load(Ordering::Relaxed)) >= CALL_US {
            CALLED_US.store(now, Ordering::Relaxed);
            self.faults = 0;
            call_all();
        }
    }

    /// It was woken, and another one has got the message. Sleeps if others watch.
    pub fn lost(&mut self) {
        self.begin();
        self.losses += 1;
        if self.losses < LOSSES {
            return;
        }
        self.losses = 0;
        let calls = CALLS.load(Ordering::Acquire);
        // One always watches.
        let aside = |watching: u32| (watching > 1).then(|| watching - 1);
        if WATCHING.fetch_update(Ordering::AcqRel, Ordering::Acquire, aside).is_err() {
            return;
        }
        ASIDE.fetch_add(1, Ordering::AcqRel);
        while CALLS.load(Ordering::Acquire) == calls {
            let _ = futex::wait(&CALLS, futex::Flags::PRIVATE, calls, None);
        }
        ASIDE.fetch_sub(1, Ordering::AcqRel);
        WATCHING.fetch_add(1, Ordering::AcqRel);
        self.faults = 0;
    }
}
