//! What the agent knows about this process: where the settings, the segment, the pager and its own threads are.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use lowtide_pager::pager::Pager;
use lowtide_pager::segment::{Proc, Segment, Settings};
use rustix::process::Pid;

/// A process, as `lowtide run` sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    /// Its pid there, as far as that can be found out; else its own.
    pub there: u32,
    /// It has another pid for itself, or may have: what it says of its threads means nothing there.
    pub is_elsewhere: bool,
}

static SETTINGS: AtomicPtr<Settings> = AtomicPtr::new(core::ptr::null_mut());
static SEGMENT: AtomicPtr<Segment> = AtomicPtr::new(core::ptr::null_mut());
static PROC: AtomicPtr<Proc> = AtomicPtr::new(core::ptr::null_mut());
static PAGER: AtomicPtr<Pager> = AtomicPtr::new(core::ptr::null_mut());
/// The process whose agent threads these statics speak of: in a child made by a bare clone they are its parent's.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Thread id of the reclaimer: its descriptors are where a child finds its parent's swap file.
pub static RECLAIMER: AtomicU32 = AtomicU32::new(0);

/// No hook of this process announces its forks. In memory that no other process writes: safety goes by it.
pub static FORKS_UNSEEN: AtomicBool = AtomicBool::new(false);

/// How many threads lowtide has in this process, in memory that no other process writes.
static OWN_THREADS: AtomicU32 = AtomicU32::new(0);

/// How many threads lowtide has in this process at least: those that were counted ([`counts`]).
pub fn own_threads() -> u32 {
    OWN_THREADS.load(Ordering::Relaxed)
}

/// A thread of this id is lowtide's, there, and never ends before the process does.
pub fn counts(thread: u32) {
    proc().thread_begins(thread);
    OWN_THREADS.fetch_add(1, Ordering::Relaxed);
}

/// The calling thread is lowtide's, and never ends before the process does.
pub fn thread_begins() {
    counts(crate::thread::id());
    // Release: pairs with the Acquire with which `lowtide run` looks at the threads (`supervisor/own_threads.rs`).
    proc().agent_at.store((thread_begins as *const ()).addr() as u64, Ordering::Release);
}

/// Whether this process belongs to a run.
pub fn present() -> bool {
    // Acquire: pairs with the Release in `set_run`.
    !SEGMENT.load(Ordering::Acquire).is_null()
}

/// The settings of the run: what stands there may be believed.
pub fn settings() -> &'static Settings {
    // Acquire, here and in `segment`: pairs with the Release in `set_run`.
    // SAFETY: only called once `start` has set it; it is never unmapped.
    unsafe { &*SETTINGS.load(Ordering::Acquire) }
}

/// The segment of the run: any process of it may have written what stands there.
pub fn segment() -> &'static Segment {
    // SAFETY: as above.
    unsafe { &*SEGMENT.load(Ordering::Acquire) }
}

/// This process's place in the segment.
pub fn proc() -> &'static Proc {
    // Acquire: pairs with the Release in `set_proc`.
    // SAFETY: as above.
    unsafe { &*PROC.load(Ordering::Acquire) }
}

/// Sets what `settings` and `segment` return.
pub fn set_run(settings: &'static Settings, segment: &'static Segment) {
    // Release: pairs with the Acquire in `settings`, `segment` and `present`.
    SETTINGS.store(core::ptr::from_ref(settings).cast_mut(), Ordering::Release);
    SEGMENT.store(core::ptr::from_ref(segment).cast_mut(), Ordering::Release);
}

/// The process whose place in the segment `proc` returns.
pub fn owner() -> u32 {
    // Acquire: pairs with the Release in `set_proc`.
    OWNER.load(Ordering::Acquire)
}

/// Sets what `proc` returns, for this process, which `lowtide run` knows by `number`.
pub fn set_proc(proc: &'static Proc, number: Number) {
    if number.is_elsewhere {
        proc.has_another_pid();
    }
    // Release, of both: pairs with the Acquire in `proc` and `owner`.
    PROC.store(core::ptr::from_ref(proc).cast_mut(), Ordering::Release);
    OWNER.store(pid(), Ordering::Release);
}

/// The pager, once memory has been adopted.
pub fn pager() -> Option<&'static Pager> {
    // Acquire: pairs with the Release in `set_pager`, before which the pager was made.
    // SAFETY: set once from a leaked box.
    unsafe { PAGER.load(Ordering::Acquire).as_ref() }
}

/// Whether this process has agent threads of its own to ask.
pub fn has_threads() -> bool {
    // Whose threads these are has a place in the segment.
    owner() == pid()
}

/// The pager, if this process has adopted memory and agent threads of its own to ask.
pub fn active() -> Option<&'static Pager> {
    pager().filter(|_| has_threads())
}

/// Sets what `pager` returns.
pub fn set_pager(pager: &'static Pager) {
    // Release: pairs with the Acquire in `pager`.
    PAGER.store(core::ptr::from_ref(pager).cast_mut(), Ordering::Release);
}

/// In a forked child that takes nothing over: the pager that its memory holds a copy of is an ancestor's.
pub fn forget_pager() {
    // Release: pairs with the Acquire in `pager`.
    PAGER.store(core::ptr::null_mut(), Ordering::Release);
}

/// This process's id.
pub fn pid() -> u32 {
    Pid::as_raw(Some(rustix::process::getpid())) as u32
}
