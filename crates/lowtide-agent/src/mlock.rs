//! mlock: what it means under lowtide.
//!
//! Locked pages can't be moved, so they would stay in RAM whatever the limit. Small locks, which programs use to keep secrets
//! off disks, are honoured, up to a sixteenth of the limit in all. Larger ones, and mlockall, are answered with success and
//! otherwise ignored: the run warns about it once.
//!
//! But a call that the kernel would have refused is refused, with the same error: programs say so and decide by it. The rules
//! are the kernel's (RLIMIT_MEMLOCK, CAP_IPC_LOCK), so it is asked: a lock of the last page of the address space and n - 1
//! pages behind the end is never made (EINVAL), but before that is found out it is decided whether n pages more may be locked
//! (else ENOMEM) and whether anything may be (else EPERM).
//!
//! These functions run on the program's stacks. The table's lock is used by the program's threads only, so no monitor ever
//! waits for it.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use linux_raw_sys::general as sys;
use lowtide_core::vm::{self, PAGE_SIZE, Whose, room};
use lowtide_pager::mappings::{Lock, Locks, Range};
use lowtide_pager::sys::Line;
use rustix::process::{Resource, getrlimit};

use crate::thread::{self, syscall3};
use crate::{agent, say};

const EPERM: isize = 1;
const EAGAIN: isize = 11;
const ENOMEM: isize = 12;
const EINVAL: isize = 22;

/// How often a thread looks whether the table is free, which is used for microseconds with all signals blocked: no handler can
/// leave by longjmp, or end the thread, in the middle of that. Then it may have been a child of vfork that was killed.
const PATIENCE: usize = 10_000;

struct Table {
    /// Thread id of who uses it.
    by: AtomicU32,
    locks: UnsafeCell<Locks>,
}
// SAFETY: `locks` is only touched by the thread whose id is in `by`.
unsafe impl Sync for Table {}

static TABLE: Table = Table { by: AtomicU32::new(0), locks: UnsafeCell::new(Locks::new()) };
/// Ranges in the table, so that calls that unmap need not look when there are none.
static RANGES: AtomicUsize = AtomicUsize::new(0);
/// Bytes of address space when the program last locked all of it (mlockall); 0: it has not, or has unlocked it.
static ALL: AtomicUsize = AtomicUsize::new(0);

/// Calls `f` with the table. None: a thread that is in the middle of using it gets no CPU.
fn with<R>(f: impl FnOnce(&mut Locks) -> R) -> Option<R> {
    let signals = thread::block_signals();
    let tid = thread::id();
    let mut result = None;
    for tries in 0..=PATIENCE {
        let by = TABLE.by.load(Ordering::Relaxed);
        let is_free = by == 0 || tries == PATIENCE && !thread::exists(by);
        // Acquire: pairs with the Release below.
        if is_free && TABLE.by.compare_exchange(by, tid, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            // SAFETY: this thread's id is in `by`. (Who was killed may have left a range twice, or lost one: these are numbers.)
            let locks = unsafe { &mut *TABLE.locks.get() };
            result = Some(f(locks));
            RANGES.store(locks.len(), Ordering::Relaxed);
            // Release: pairs with the Acquire above.
            TABLE.by.store(0, Ordering::Release);
            break;
        }
        rustix::thread::sched_yield();
    }
    thread::restore_signals(signals);
    result
}

/// The pages of `addr .. addr + len`, as the lock calls round them; None: there are none, or they go over the end.
fn pages(addr: usize, len: usize) -> Option<Range> {
    let start = addr & !(PAGE_SIZE - 1);
    let end = addr.checked_add(len)?.checked_next_multiple_of(PAGE_SIZE)?;
    (start < end).then_some(Range { start, end })
}

/// Whether the kernel would let the program lock more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    Yes,
    /// RLIMIT_MEMLOCK does not allow this much.
    TooMuch,
    /// It may lock nothing at all.
    Never,
}

/// Whether there is room for `bytes` beside what the kernel holds locked already.
fn room_for(bytes: usize) -> Room {
    if getrlimit(Resource::Memlock).current.is_none() {
        return Room::Yes;
    }
    let last_page = usize::MAX - PAGE_SIZE + 1;
    // SAFETY: a range that goes over the end of the address space is never locked.
    match unsafe { syscall3(sys::__NR_mlock, last_page, bytes.next_multiple_of(PAGE_SIZE).max(PAGE_SIZE), 0) } {
        r if r == -EPERM => Room::Never,
        r if r == -ENOMEM => Room::TooMuch,
        _ => Room::Yes,
    }
}

/// Whether CAP_IPC_LOCK spares the program the limit; asked only where there is one.
fn is_unlimited() -> bool {
    // More than any limit that is one.
    room_for(1 << 62) == Room::Yes
}

/// Whether each page of a range is mapped, which is what a lock needs.
fn is_mapped(range: Range) -> bool {
    // SAFETY: without flags msync only looks.
    unsafe { syscall3(sys::__NR_msync, range.start, range.end - range.start, 0) != -ENOMEM }
}

/// What is honoured in all.
fn most() -> usize {
    agent::settings().ram_limit.load(Ordering::Relaxed) as usize / 16
}

/// mlock and mlock2: what the call returns. `native` makes it.
pub fn lock(addr: usize, len: usize, native: impl FnOnce() -> isize) -> isize {
    let Some(range) = pages(addr, len) else { return native() };
    let size = range.end - range.start;
    let known =
        with(|t| (t.overlap(range, None), t.overlap(range, Some(Lock::Honoured)), ignored_bytes(t), t.bytes(Lock::Honoured)));
    let Some((locked, held, ignored, honoured)) = known else { return native() };
    let honour = honoured + size - held <= most();
    if !honour || ignored > 0 {
        // What is locked already is not counted again.
        let more = if ALL.load(Ordering::Relaxed) > 0 { 0 } else { size - locked };
        match room_for(more + ignored) {
            Room::Never => return -EPERM,
            Room::TooMuch => return -ENOMEM,
            Room::Yes => {}
        }
    }
    if honour {
        let r = native();
        if r == 0 {
            with(|t| t.lock(range, Lock::Honoured));
        }
        return r;
    }
    if !is_mapped(range) {
        return -ENOMEM;
    }
    with(|t| t.lock(range, Lock::Ignored));
    warn();
    0
}

/// What becomes of MAP_LOCKED.
pub enum MapLocked {
    /// It is passed on, and may be refused.
    Pass,
    /// It is left out.
    LeaveOut,
    /// The call fails with this result.
    Refuse(isize),
}

/// What to do with a new mapping of `len` bytes that is to be locked. `managed`: lowtide would manage its memory.
pub fn map_locked(len: usize, managed: bool) -> MapLocked {
    let Some(size) = len.checked_next_multiple_of(PAGE_SIZE).filter(|size| *size > 0) else { return MapLocked::Pass };
    let Some((ignored, honoured)) = with(|t| (ignored_bytes(t), t.bytes(Lock::Honoured))) else { return MapLocked::Pass };
    let honour = !managed || honoured + size <= most();
    if honour && ignored == 0 {
        return MapLocked::Pass;
    }
    match (room_for(size + ignored), honour) {
        (Room::Yes, true) => MapLocked::Pass,
        (Room::Yes, false) => MapLocked::LeaveOut,
        // What the kernel refuses by itself it refuses in the right order of errors.
        (Room::TooMuch, _) if room_for(size) == Room::Yes => MapLocked::Refuse(-EAGAIN),
        _ => MapLocked::Pass,
    }
}

/// A mapping with MAP_LOCKED was made.
pub fn mapped_locked(addr: usize, len: usize, lock: Lock) {
    if let Some(range) = pages(addr, len) {
        with(|t| t.lock(range, lock));
    }
    if lock == Lock::Ignored {
        warn();
    }
}

/// munlock was called.
pub fn unlocked(addr: usize, len: usize) {
    unmapped(addr, len);
}

/// A range was unmapped, or something else was mapped there: its locks are gone.
pub fn unmapped(addr: usize, len: usize) {
    if RANGES.load(Ordering::Relaxed) > 0
        && let Some(range) = pages(addr, len)
    {
        with(|t| t.unlock(range));
    }
}

/// mremap made `to .. to + new_len` of `from .. from + old_len`.
pub fn remapped(from: usize, old_len: usize, to: usize, new_len: usize) {
    if RANGES.load(Ordering::Relaxed) > 0
        && let (Some(from), Some(to)) = (pages(from, old_len), pages(to, new_len))
    {
        with(|t| t.remapped(from, to));
    }
}

/// mlockall: what the call returns.
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
    warn();
    0
}

/// munlockall was called.
pub fn unlocked_all() {
    ALL.store(0, Ordering::Relaxed);
    with(|t| *t = Locks::new());
}

/// In a forked child, which inherits no locks.
pub fn reset_after_fork() {
    TABLE.by.store(0, Ordering::Relaxed);
    unlocked_all();
}

fn ignored_bytes(locks: &Locks) -> usize {
    locks.bytes(Lock::Ignored).max(ALL.load(Ordering::Relaxed))
}

/// Bytes of address space that this process has mapped, lowtide's own left out; 0 if that can't be told.
fn address_space() -> usize {
    let mut own = 0;
    vm::own_ranges(|start, end, whose| own += if whose == Whose::Lowtide { end - start } else { 0 });
    room::mapped().saturating_sub(own)
}

/// A lock was ignored.
fn warn() {
    let mut line = Line::new();
    line.push(b"the program locks memory (mlock): lowtide honours 1/16 of --ram and keeps the rest swappable");
    say::warn(line.bytes());
}
