//! This process's settings, segment, pager and agent threads.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use lowtide_pager::pager::Pager;
use lowtide_wire::segment::{Proc, Segment, Settings};
use rustix::process::Pid;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    pub there: u32,
    /// Its own pid differs, or may: its thread ids mean nothing there.
    pub is_elsewhere: bool,
}

static SETTINGS: AtomicPtr<Settings> = AtomicPtr::new(core::ptr::null_mut());
static SEGMENT: AtomicPtr<Segment> = AtomicPtr::new(core::ptr::null_mut());
static PROC: AtomicPtr<Proc> = AtomicPtr::new(core::ptr::null_mut());
static PAGER: AtomicPtr<Pager> = AtomicPtr::new(core::ptr::null_mut());
/// In a child of a bare clone: the parent.
static OWNER: AtomicU32 = AtomicU32::new(0);
pub static RECLAIMER: AtomicU32 = AtomicU32::new(0);

/// Safety depends on this, so no other process may write it.
pub static FORKS_UNSEEN: AtomicBool = AtomicBool::new(false);

pub fn thread_begins() {
    proc().thread_begins(crate::process::thread::id());
    // Release: pairs with the Acquire of `lowtide run`'s look at the threads
    // (`supervisor/own_threads.rs`).
    proc().agent_at.store((thread_begins as *const ()).addr() as u64, Ordering::Release);
}

pub fn present() -> bool {
    // Acquire: pairs with the Release in `set_run`.
    !SEGMENT.load(Ordering::Acquire).is_null()
}

/// Trustworthy: only `lowtide run` writes it.
pub fn settings() -> &'static Settings {
    // Acquire, here and in `segment`: pairs with the Release in `set_run`.
    // SAFETY: called only after `start` has set it; never unmapped.
    unsafe { &*SETTINGS.load(Ordering::Acquire) }
}

/// Untrusted: any process of the run may write it.
pub fn segment() -> &'static Segment {
    // SAFETY: as above.
    unsafe { &*SEGMENT.load(Ordering::Acquire) }
}

pub fn proc() -> &'static Proc {
    // Acquire: pairs with the Release in `set_proc`.
    // SAFETY: as above.
    unsafe { &*PROC.load(Ordering::Acquire) }
}

pub fn set_run(settings: &'static Settings, segment: &'static Segment) {
    // Release: pairs with the Acquire in `settings`, `segment` and `present`.
    SETTINGS.store(core::ptr::from_ref(settings).cast_mut(), Ordering::Release);
    SEGMENT.store(core::ptr::from_ref(segment).cast_mut(), Ordering::Release);
}

pub fn owner() -> u32 {
    // Acquire: pairs with the Release in `set_proc`.
    OWNER.load(Ordering::Acquire)
}

pub fn set_proc(proc: &'static Proc, number: Number) {
    if number.is_elsewhere {
        proc.has_another_pid();
    }
    // Release, both: pairs with the Acquire in `proc` and `owner`.
    PROC.store(core::ptr::from_ref(proc).cast_mut(), Ordering::Release);
    OWNER.store(pid(), Ordering::Release);
}

pub fn pager() -> Option<&'static Pager> {
    // Acquire: pairs with the Release in `set_pager`.
    // SAFETY: set once from a leaked box.
    unsafe { PAGER.load(Ordering::Acquire).as_ref() }
}

pub fn has_threads() -> bool {
    // Their owner has a place in the segment.
    owner() == pid()
}

pub fn active() -> Option<&'static Pager> {
    pager().filter(|_| has_threads())
}

pub fn set_pager(pager: &'static Pager) {
    // Release: pairs with the Acquire in `pager`.
    PAGER.store(core::ptr::from_ref(pager).cast_mut(), Ordering::Release);
}

/// In a forked child: the pager is an ancestor's copy.
pub fn forget_pager() {
    // Release: pairs with the Acquire in `pager`.
    PAGER.store(core::ptr::null_mut(), Ordering::Release);
}

pub fn pid() -> u32 {
    Pid::as_raw(Some(rustix::process::getpid())) as u32
}
