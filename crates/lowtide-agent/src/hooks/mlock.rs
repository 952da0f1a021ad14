//! mlock under lowtide.
//!
//! Locked pages would stay in RAM whatever the limit. lowtide honours small locks, which keep
//! secrets off disks, up to a sixteenth of the limit in all. For larger ones and mlockall it only
//! warns once and returns success.
//!
//! Calls that the kernel would refuse fail with the same error, because programs act on it. The
//! kernel itself applies its rules (RLIMIT_MEMLOCK, CAP_IPC_LOCK): a lock from the last page of the
//! address space over its end always fails, with EINVAL, but first comes the check for room
//! (ENOMEM) and for the right to lock (EPERM).
//!
//! These functions run on the program's stacks. Only the program's threads take the table's lock,
//! so no handler waits for it.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use linux_raw_sys::general as sys;
use lowtide_core::vm::{self, PAGE_SIZE, Whose, room};
use lowtide_pager::mappings::{Lock, Locks};
use lowtide_sys::{Line, Range};
use rustix::process::{Resource, getrlimit};
use rustix::thread::Timespec;

use crate::hooks::errno::{EAGAIN, EINVAL, ENOMEM, EPERM};
use crate::hooks::gate;
use crate::process::thread::{self, syscall3};
use crate::process::{agent, say};

/// Tries before a thread checks that the table's user still exists: a child of vfork may have been
/// killed in its use, which takes microseconds with all signals blocked.
const PATIENCE: usize = 10_000;
const GATE_TRIES: u32 = 20;
const EVERYTHING: Range = Range { start: 0, end: !(PAGE_SIZE - 1) };

struct Table {
    by: AtomicU32,
    known: UnsafeCell<Known>,
}
// SAFETY: only the thread whose id is in `by` touches `known`.
unsafe impl Sync for Table {}

struct Known {
    locks: Locks,
    /// By mlockall, ignored. Unmapped memory may stay in it.
    all: Locks,
    future: bool,
}

impl Known {
    const fn new() -> Known {
        Known { locks: Locks::new(), all: Locks::new(), future: false }
    }

    fn ranges(&self) -> usize {
        self.locks.len() + self.all.len() + usize::from(self.future)
    }
}

static TABLE: Table = Table { by: AtomicU32::new(0), known: UnsafeCell::new(Known::new()) };
static RANGES: AtomicUsize = AtomicUsize::new(0);
/// Bytes of address space at the last mlockall, or 0.
static ALL: AtomicUsize = AtomicUsize::new(0);

/// None: a thread that uses the table gets no CPU.
fn with<R>(f: impl FnOnce(&mut Known) -> R) -> Option<R> {
    let signals = thread::block_signals();
    let tid = thread::id();
    let mut result = None;
    for tries in 0..=PATIENCE {
        let by = TABLE.by.load(Ordering::Relaxed);
        let is_free = by == 0 || tries == PATIENCE && !thread::exists(by);
        // Acquire: pairs with the Release below.
        if is_free && TABLE.by.compare_exchange(by, tid, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            // SAFETY: this thread's id is in `by`. A killed user may have duplicated or lost a
            // range: plain numbers.
            let known = unsafe { &mut *TABLE.known.get() };
            result = Some(f(known));
            RANGES.store(known.ranges(), Ordering::Relaxed);
            // Release: pairs with the Acquire above.
            TABLE.by.store(0, Ordering::Release);
            break;
        }
        rustix::thread::sched_yield();
    }
    thread::restore_signals(signals);
    result
}

/// As the lock calls round them; None: empty, or beyond the end.
fn pages(addr: usize, len: usize) -> Option<Range> {
    let start = addr & !(PAGE_SIZE - 1);
    let end = addr.checked_add(len)?.checked_next_multiple_of(PAGE_SIZE)?;
    (start < end).then_some(Range { start, end })
}

/// None: nothing is locked, or as for [`with`] and [`pages`].
fn with_locked<R>(addr: usize, len: usize, f: impl FnOnce(&mut Known, Range) -> R) -> Option<R> {
    if RANGES.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let range = pages(addr, len)?;
    with(|known| f(known, range))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    Yes,
    TooMuch,
    Never,
}

fn room_for(bytes: usize) -> Room {
    if getrlimit(Resource::Memlock).current.is_none() {
        return Room::Yes;
    }
    let last_page = usize::MAX - PAGE_SIZE + 1;
    // SAFETY: the kernel never locks a range over the end of the address space.
    match unsafe { syscall3(sys::__NR_mlock, last_page, bytes.next_multiple_of(PAGE_SIZE).max(PAGE_SIZE), 0) } {
        r if r == -EPERM => Room::Never,
        r if r == -ENOMEM => Room::TooMuch,
        _ => Room::Yes,
    }
}

/// Only for processes with a limit.
fn is_unlimited() -> bool {
    room_for(1 << 62) == Room::Yes
}

fn is_mapped(range: Range) -> bool {
    // SAFETY: msync without flags only checks.
    unsafe { syscall3(sys::__NR_msync, range.start, range.end - range.start, 0) != -ENOMEM }
}

fn most() -> usize {
    agent::settings().ram_limit.load(Ordering::Relaxed) as usize / 16
}

pub fn lock(addr: usize, len: usize, native: impl FnOnce() -> isize) -> isize {
    let Some(range) = pages(addr, len) else { return native() };
    let size = range.end - range.start;
    let known = with(|t| {
        (t.locks.overlap(range, None), t.locks.overlap(range, Some(Lock::Honoured)), ignored_bytes(t), honoured_bytes(t))
    });
    let Some((locked, held, ignored, honoured)) = known else { return native() };
    let honour = honoured + size - held <= most();
    if !honour || ignored > 0 {
        let more = if ALL.load(Ordering::Relaxed) > 0 { 0 } else { size - locked };
        match room_for(more + ignored) {
            Room::Never => return -EPERM,
            Room::TooMuch => return -ENOMEM,
            Room::Yes => {}
        }
    }
    if honour {
        lock_between_removals(range);
        let r = native();
        if r == 0 {
            with(|t| t.locks.lock(range, Lock::Honoured));
        }
        return r;
    }
    if !is_mapped(range) {
        return -ENOMEM;
    }
    with(|t| t.locks.lock(range, Lock::Ignored));
    warn();
    0
}

/// Locks a range, without its pages, while no thread is inside a removal. The kernel reports
/// MADV_DONTNEED before it drops pages: a lock in between makes it keep pages that lowtide has
/// released. Bounded, because the program's fork handler may hold the gate and wait for the
/// caller's lock.
fn lock_between_removals(range: Range) {
    if agent::active().is_none() || gate::is_closed_by_caller() {
        return;
    }
    for _ in 0..GATE_TRIES {
        let signals = thread::block_signals();
        let closed = gate::try_close();
        if closed {
            // SAFETY: a part of the caller's own call, which fails alike.
            unsafe { syscall3(sys::__NR_mlock2, range.start, range.end - range.start, sys::MLOCK_ONFAULT as usize) };
            gate::open();
        }
        thread::restore_signals(signals);
        if closed {
            return;
        }
        let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 });
    }
}

pub enum MapLocked {
    Pass,
    LeaveOut,
    Refuse(isize),
}

/// For a new locked mapping. `managed`: lowtide would manage its memory.
pub fn map_locked(len: usize, managed: bool) -> MapLocked {
    let Some(size) = len.checked_next_multiple_of(PAGE_SIZE).filter(|size| *size > 0) else { return MapLocked::Pass };
    let Some((ignored, honoured)) = with(|t| (ignored_bytes(t), honoured_bytes(t))) else { return MapLocked::Pass };
    let honour = !managed || honoured + size <= most();
    if honour && ignored == 0 {
        return MapLocked::Pass;
    }
    match (room_for(size + ignored), honour) {
        (Room::Yes, true) => MapLocked::Pass,
        (Room::Yes, false) => MapLocked::LeaveOut,
        // The kernel's own refusals keep its order of errors.
        (Room::TooMuch, _) if room_for(size) == Room::Yes => MapLocked::Refuse(-EAGAIN),
        _ => MapLocked::Pass,
    }
}

pub fn mapped_locked(addr: usize, len: usize, lock: Lock) {
    if let Some(range) = pages(addr, len) {
        with(|t| t.locks.lock(range, lock));
    }
    if lock == Lock::Ignored {
        warn();
    }
}

/// The first page that is locked for the program, but not in the kernel.
pub fn first_ignored(addr: usize, len: usize) -> Option<usize> {
    let first =
        |t: &mut Known, range| [&t.locks, &t.all].map(|locks| locks.first(range, Lock::Ignored)).into_iter().flatten().min();
    with_locked(addr, len, first).flatten()
}

pub fn mapped(addr: usize, len: usize) {
    with_locked(addr, len, |t, range| {
        t.locks.unlock(range);
        if t.future { t.all.lock(range, Lock::Ignored) } else { t.all.unlock(range) }
    });
}

pub fn unlocked(addr: usize, len: usize) {
    with_locked(addr, len, |t, range| {
        t.locks.unlock(range);
        t.all.unlock(range);
    });
}

pub fn unmapped(addr: usize, len: usize) {
    with_locked(addr, len, |t, range| t.locks.unlock(range));
}

pub fn remapped(from: usize, old_len: usize, to: usize, new_len: usize) {
    with_locked(from, old_len, |t, from| {
        let Some(to) = pages(to, new_len) else { return };
        t.locks.remapped(from, to);
        if t.future { t.all.lock(to, Lock::Ignored) } else { t.all.remapped(from, to) }
    });
}

pub fn lock_all(flags: u32) -> isize {
    if flags == 0 || flags & !(sys::MCL_CURRENT | sys::MCL_FUTURE | sys::MCL_ONFAULT) != 0 || flags == sys::MCL_ONFAULT {
        return -EINVAL;
    }
    if room_for(PAGE_SIZE) == Room::Never {
        return -EPERM;
    }
    if flags & sys::MCL_CURRENT != 0
        && let Some(limit) = getrlimit(Resource::Memlock).current
        && !is_unlimited()
    {
        let all = address_space();
        if all as u64 > limit {
            return -ENOMEM;
        }
        ALL.store(all, Ordering::Relaxed);
    }
    with(|t| {
        t.future = flags & sys::MCL_FUTURE != 0;
        if flags & sys::MCL_CURRENT != 0 {
            t.all.lock(EVERYTHING, Lock::Ignored);
        }
    });
    warn();
    0
}

pub fn unlocked_all() {
    ALL.store(0, Ordering::Relaxed);
    with(|t| *t = Known::new());
}

pub fn reset_after_fork() {
    TABLE.by.store(0, Ordering::Relaxed);
    unlocked_all();
}

fn ignored_bytes(known: &Known) -> usize {
    known.locks.bytes(Lock::Ignored).max(ALL.load(Ordering::Relaxed))
}

fn honoured_bytes(known: &Known) -> usize {
    known.locks.bytes(Lock::Honoured)
}

/// Without lowtide's; 0: unknown.
fn address_space() -> usize {
    let mut own = 0;
    vm::own_ranges(|start, end, whose| own += if whose == Whose::Lowtide { end - start } else { 0 });
    room::mapped().saturating_sub(own)
}

fn warn() {
    let mut line = Line::new();
    line.push(b"the program locks memory (mlock): lowtide honours 1/16 of --ram and keeps the rest swappable");
    say::warn(line.bytes());
}
