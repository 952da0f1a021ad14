//! lowtide's versions of the C library's memory calls: the same system calls and results, plus
//! notice to the pager. Near the limit new mappings are registered before the program touches them.
//!
//! They run on the program's stacks, take no lock that lowtide's threads take and keep errno's
//! contract.

pub mod beside;
pub mod changes;
pub mod changes_in_turn;
pub mod code;
pub mod errno;
pub mod gate;
pub mod mark;
pub mod mlock;
pub mod objects;
pub mod other_doors;
pub mod patch;
pub mod populate;
pub mod remap;
pub mod several;
pub mod system_calls;

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use linux_raw_sys::general as sys;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_pager::mappings::{Changes, LeftAlone, Lock, Removed, registrable};
use lowtide_pager::pager::Pager;
use lowtide_sys::{Range, uffd};
use lowtide_wire::call_filter::DONE;

use crate::exec;
use crate::fork::{self, clones};
use crate::hooks::errno::{EAGAIN, EBUSY, EINVAL, ENOMEM, EPERM, is_error, result};
use crate::hooks::gate::Call;
use crate::hooks::mark::Mark;
use crate::hooks::mlock::MapLocked;
use crate::hooks::objects::Object;
use crate::hooks::patch::Hook;
use crate::process::thread::{syscall3, syscall6};
use crate::process::{agent, say, thread_end};
use crate::reclaimer::long_nap;
use crate::reclaimer::request::{Request, ask};

/// Each retry needs a touch that meets the guards within microseconds.
const GUARD_TRIES: usize = 100;
const RELEASES: usize = 8;
/// Linux 6.11; a mapping type.
const MAP_DROPPABLE: u32 = 8;

static CURBRK: AtomicUsize = AtomicUsize::new(0);
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// Release requests that the reclaimer refused.
pub static NOT_RELEASED: AtomicU32 = AtomicU32::new(0);
pub static LEFT_ALONE: LeftAlone = LeftAlone::new();

/// Installs all hooks. False: lowtide has to find new mappings itself.
///
/// # Safety
/// Only the constructor calls it.
pub unsafe fn install(library: &Object) -> bool {
    let mut hooks = ArrayVec::<Hook, { patch::MAX_HOOKS }>::new();
    let mut push = |name, with: *const c_void| hooks.push(Hook { name, with });
    push(c"mmap64", mmap as *const c_void);
    push(c"munmap", munmap as *const c_void);
    push(c"mremap", remap::mremap as *const c_void);
    push(c"madvise", madvise as *const c_void);
    push(c"mprotect", mprotect as *const c_void);
    push(c"mlock", mlock_ as *const c_void);
    push(c"mlock2", mlock2 as *const c_void);
    push(c"munlock", munlock as *const c_void);
    push(c"mlockall", mlockall as *const c_void);
    push(c"munlockall", munlockall as *const c_void);
    push(c"ioctl", ioctl as *const c_void);
    push(c"shmat", other_doors::shmat as *const c_void);
    push(c"process_madvise", other_doors::process_madvise as *const c_void);
    push(c"execve", exec::execve as *const c_void);
    push(c"execveat", exec::execveat as *const c_void);
    push(c"fexecve", exec::fexecve as *const c_void);
    push(c"_exit", exit as *const c_void);
    push(c"clone", clones::clone as *const c_void);
    push(c"syscall", system_calls::syscall as *const c_void);
    if let Some(curbrk) = library.symbol(c"__curbrk") {
        CURBRK.store(curbrk.at, Ordering::Relaxed);
        push(c"brk", brk as *const c_void);
    }
    // SAFETY: as the caller promises; the functions below keep the contracts.
    let done = unsafe { patch::install(library, &hooks) };
    INSTALLED.store(done, Ordering::Relaxed);
    if !done {
        say::warn(
            b"the C library's code can't be changed here (MemoryDenyWriteExecute=, a library that started threads first): new \
              mappings are looked for, so the limit can be passed further; mlock keeps memory in RAM; threads that map memory at the same time, and children \
              without LD_PRELOAD, are not managed safely",
        );
    }
    done
}

pub fn installed() -> bool {
    INSTALLED.load(Ordering::Relaxed)
}

fn born(start: usize, len: usize, prot: u32) {
    // Code mapped to be read: it could not be evicted.
    if prot & (sys::PROT_EXEC | sys::PROT_WRITE) == sys::PROT_EXEC {
        return;
    }
    if let Some(pager) = agent::active()
        && len >= registrable::SMALLEST
    {
        if prot & sys::PROT_EXEC != 0 {
            pager.sees_code();
        }
        ask(Request::Register(Range { start, end: start + len.next_multiple_of(PAGE_SIZE) }));
    }
}

pub extern "C" fn mmap(addr: usize, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: usize) -> isize {
    if offset & (PAGE_SIZE - 1) != 0 {
        return result(-EINVAL);
    }
    let (prot, mut flags) = (prot as u32, flags as u32);
    // Huge pages are not registrable: a fault needs a whole one.
    let anonymous =
        flags & sys::MAP_ANONYMOUS != 0 && flags & sys::MAP_TYPE == sys::MAP_PRIVATE && flags & sys::MAP_HUGETLB == 0;
    let lock = if flags & sys::MAP_LOCKED == 0 {
        None
    } else {
        match mlock::map_locked(len, anonymous) {
            MapLocked::Pass => Some(Lock::Honoured).filter(|_| anonymous),
            MapLocked::LeaveOut => {
                flags &= !sys::MAP_LOCKED;
                Some(Lock::Ignored)
            }
            MapLocked::Refuse(r) => return result(r),
        }
    };
    // In the call itself the hint would fill memory before registration, and hold up all other
    // mapping changes while a file is read. The kernel fills locked memory anyway.
    let fills = anonymous && lock != Some(Lock::Honoured) && populate::is_in_steps(len);
    let populates = flags & sys::MAP_POPULATE != 0 && (fills || agent::active().is_some());
    if populates {
        flags &= !sys::MAP_POPULATE;
    }
    let r = {
        let call = if flags & sys::MAP_FIXED == 0 { Call::Silent } else { Call::Drops };
        let mark = Mark::new();
        let _turn = gate::change(&mark, call, Changes::of(bytes(addr, len)));
        // SAFETY: the caller's own call.
        let r = unsafe { syscall6(sys::__NR_mmap, addr, len, prot as usize, flags as usize, fd as usize, offset) };
        if !is_error(r) {
            LEFT_ALONE.remove(bytes(r as usize, len));
        }
        r
    };
    let r = result(r);
    if r == -1 {
        return r;
    }
    mlock::mapped(r as usize, len);
    if flags & sys::MAP_TYPE == MAP_DROPPABLE {
        leave_alone(bytes(r as usize, len));
    }
    if let Some(lock) = lock {
        mlock::mapped_locked(r as usize, len, lock);
    }
    if flags & sys::MAP_TYPE == sys::MAP_PRIVATE && prot & sys::PROT_WRITE != 0 {
        long_nap::maps(len);
    }
    if anonymous {
        born(r as usize, len, prot);
    }
    if populates && flags & sys::MAP_NONBLOCK == 0 {
        populate::mapped(r as usize, len, prot, flags, anonymous);
    }
    r
}

fn bytes(addr: usize, len: usize) -> Range {
    Range { start: addr & !(PAGE_SIZE - 1), end: addr.saturating_add(len).saturating_add(PAGE_SIZE - 1) & !(PAGE_SIZE - 1) }
}

pub extern "C" fn munmap(addr: usize, len: usize) -> c_int {
    let range = bytes(addr, len);
    let (r, left_alone) = {
        let mark = Mark::new();
        let _turn = gate::change(&mark, Call::Drops, Changes::of(range));
        let left_alone = LEFT_ALONE.remove(range);
        // SAFETY: the caller's own call.
        let r = unsafe { syscall3(sys::__NR_munmap, addr, len, 0) };
        if r != 0 {
            LEFT_ALONE.add_all(&left_alone);
        }
        (r, left_alone)
    };
    if r == 0 {
        mlock::unmapped(addr, len);
    } else {
        release_again(left_alone);
    }
    result(r) as c_int
}

fn removes(advice: u32) -> bool {
    matches!(advice, sys::MADV_DONTNEED | sys::MADV_DONTNEED_LOCKED | sys::MADV_REMOVE)
}

/// Inside the gate, because the kernel reports removals.
fn remove(addr: usize, len: usize, advice: u32) -> isize {
    let mark = Mark::new();
    let inside = gate::enter(&mark, Call::Drops);
    let drops = matches!(advice, sys::MADV_DONTNEED | sys::MADV_DONTNEED_LOCKED);
    let begun = agent::active().filter(|_| drops).map(|pager| pager.removal_begins(addr, len, inside.who()));
    // SAFETY: the caller's own call.
    let r = unsafe { advise(addr, len, advice) };
    if drops && let Some(pager) = agent::active() {
        let has_removed = was_taken(r);
        match begun {
            Some(call) => pager.removal_ends(&call, has_removed),
            None if has_removed => pager.removed(addr, len),
            None => {}
        }
    }
    r
}

/// # Safety
/// That of the call.
unsafe fn advise(addr: usize, len: usize, advice: u32) -> isize {
    // SAFETY: as the caller promises.
    unsafe { syscall6(sys::__NR_madvise, addr, len, advice as usize, 0, 0, DONE as usize) }
}

/// ENOMEM: the kernel skipped unmapped parts and did the rest.
fn was_taken(r: isize) -> bool {
    r == 0 || r == -ENOMEM
}

/// The kernel could drop the pages at any time without an event, even while lowtide moves them, and
/// those it kept could never be evicted again. MADV_FREE's contract allows dropping at once.
fn free(addr: usize, len: usize) -> isize {
    let r = remove(addr, len, sys::MADV_FREE);
    if was_taken(r) && agent::active().is_some() {
        remove(addr, len, sys::MADV_DONTNEED);
    }
    r
}

fn make_guards(addr: usize, len: usize) -> isize {
    // SAFETY: the caller's own call.
    let r = unsafe { advise(addr, len, sys::MADV_GUARD_INSTALL) };
    match agent::active() {
        // Evicted pages would be back after the guard is removed.
        Some(pager) if was_taken(r) => guard(pager, addr, len).err().unwrap_or(r),
        _ => r,
    }
}

/// Drops evicted pages under new guards, again where a page came in over one (COPY on Linux 6.18
/// allows that). Then only zeros can be on their way, and the pager records when they meet a guard.
fn guard(pager: &Pager, addr: usize, len: usize) -> Result<(), isize> {
    let taken = |r| if was_taken(r) { Ok(()) } else { Err(r) };
    taken(remove(addr, len, sys::MADV_DONTNEED))?;
    for _ in 0..GUARD_TRIES {
        let (guarded, made) = {
            let mark = Mark::new();
            let inside = gate::enter(&mark, Call::Silent);
            // SAFETY: the caller's own call, once more.
            pager.guards().make(inside.who(), || unsafe { advise(addr, len, sys::MADV_GUARD_INSTALL) })
        };
        taken(guarded)?;
        taken(remove(addr, len, sys::MADV_DONTNEED))?;
        if !pager.guards().were_met(made) {
            break;
        }
    }
    Ok(())
}

pub extern "C" fn madvise(addr: usize, len: usize, advice: c_int) -> c_int {
    result(advise_as_asked(addr, len, advice as u32)) as c_int
}

pub fn changes_memory(advice: u32) -> bool {
    const OTHERS: [u32; 6] = [
        sys::MADV_FREE,
        sys::MADV_GUARD_INSTALL,
        sys::MADV_POPULATE_READ,
        sys::MADV_POPULATE_WRITE,
        sys::MADV_WIPEONFORK,
        sys::MADV_KEEPONFORK,
    ];
    removes(advice) || OTHERS.contains(&advice)
}

pub fn advise_as_asked(addr: usize, len: usize, advice: u32) -> isize {
    const REFUSED_WHERE_LOCKED: [u32; 4] = [sys::MADV_DONTNEED, sys::MADV_FREE, sys::MADV_REMOVE, sys::MADV_GUARD_INSTALL];
    if REFUSED_WHERE_LOCKED.contains(&advice)
        && addr & (PAGE_SIZE - 1) == 0
        && let Some(locked) = mlock::first_ignored(addr, len)
    {
        if advice == sys::MADV_DONTNEED {
            thread_end::gave_back(addr, len);
        }
        // Like the kernel: up to the locked part.
        let before = locked.saturating_sub(addr);
        let r = if before > 0 { advise_as_asked(addr, before, advice) } else { 0 };
        return if r == 0 { -EINVAL } else { r };
    }
    if advice == sys::MADV_FREE {
        free(addr, len)
    } else if removes(advice) {
        let r = remove(addr, len, advice);
        if advice == sys::MADV_DONTNEED && r == 0 {
            thread_end::gave_back(addr, len);
        }
        r
    } else if advice == sys::MADV_GUARD_INSTALL {
        make_guards(addr, len)
    } else if advice == sys::MADV_WIPEONFORK {
        // Evicted pages would be back in the child.
        if !leave_alone(bytes(addr, len)) {
            return -EAGAIN;
        }
        // SAFETY: the caller's own call.
        unsafe { advise(addr, len, advice) }
    } else if advice == sys::MADV_KEEPONFORK {
        // SAFETY: as above.
        let r = unsafe { advise(addr, len, advice) };
        if r == 0 {
            LEFT_ALONE.remove(bytes(addr, len));
        }
        r
    } else if matches!(advice, sys::MADV_POPULATE_READ | sys::MADV_POPULATE_WRITE) {
        populate::advise(addr, len, advice)
    } else {
        // No event and no unmap: outside the gate, because it may wait for many pages.
        // SAFETY: the caller's own call.
        unsafe { advise(addr, len, advice) }
    }
}

/// The reclaimer may have registered these while they were out of the table.
fn release_again(left_alone: Removed) {
    for part in left_alone {
        release(part);
    }
}

pub fn leave_alone(range: Range) -> bool {
    LEFT_ALONE.add(range);
    release(range)
}

/// Gives registered memory back to the program. False: some of it is still evicted.
pub fn release(range: Range) -> bool {
    for _ in 0..RELEASES {
        if agent::active().is_none() {
            return true;
        }
        // The reclaimer releases nothing during a fork.
        gate::wait_for_forks();
        let before = NOT_RELEASED.load(Ordering::Relaxed);
        ask(Request::Release(range));
        // Another thread's refusal costs one needless retry.
        if NOT_RELEASED.load(Ordering::Relaxed) == before {
            return true;
        }
    }
    false
}

pub extern "C" fn mprotect(addr: usize, len: usize, prot: c_int) -> c_int {
    let r = {
        let mark = Mark::new();
        let _inside = gate::enter(&mark, Call::Silent);
        // SAFETY: the caller's own call.
        unsafe { syscall3(sys::__NR_mprotect, addr, len, prot as usize) }
    };
    if r == 0 && prot as u32 & sys::PROT_WRITE != 0 {
        long_nap::maps(len);
        if prot as u32 & sys::PROT_EXEC != 0
            && let Some(pager) = agent::pager()
        {
            pager.sees_code();
        }
    }
    result(r) as c_int
}

extern "C" fn brk(addr: usize) -> c_int {
    let curbrk = CURBRK.load(Ordering::Relaxed) as *mut usize;
    let new = move_break(addr);
    // SAFETY: the C library's variable, which this call exists to set; callers serialise as for the
    // original.
    unsafe { *curbrk = new };
    if new < addr { result(-ENOMEM) as c_int } else { 0 }
}

pub fn move_break(addr: usize) -> usize {
    // SAFETY: a query, or the caller's own call.
    let call = |addr| unsafe { syscall3(sys::__NR_brk, addr, 0, 0) as usize };
    let end = call(0);
    let goes = bytes(addr, end.saturating_sub(addr));
    let grows = addr == 0 || addr >= end;
    let new = {
        let mark = Mark::new();
        let _turn = gate::change(&mark, if grows { Call::Silent } else { Call::Drops }, Changes::of(goes));
        let grown = (addr > end).then(|| changes_in_turn::may_grow(bytes(end, addr - end)));
        let whole = Range { start: addr.next_multiple_of(PAGE_SIZE), end: goes.end };
        if !grows && agent::active().is_some() && whole.start < whole.end && is_sealed(whole) {
            return end;
        }
        let new = call(addr);
        grown.filter(|_| new < addr).inspect(changes_in_turn::has_not_grown);
        new
    };
    let start = end.next_multiple_of(PAGE_SIZE);
    if new > start {
        long_nap::maps(new - start);
        born(start, new - start, sys::PROT_READ | sys::PROT_WRITE);
    }
    new
}

/// The kernel would refuse to unmap a sealed part (mseal) of the break and leave its count of
/// changes wrong for good: no page could come in any more.
fn is_sealed(range: Range) -> bool {
    // SAFETY: the memory is readable and writable, or about to go.
    let r = unsafe {
        let all = (sys::PROT_READ | sys::PROT_WRITE) as usize;
        syscall3(sys::__NR_mprotect, range.start, range.end - range.start, all)
    };
    r == -EPERM
}

pub extern "C" fn mlock_(addr: usize, len: usize) -> c_int {
    // SAFETY: the caller's own call.
    result(mlock::lock(addr, len, || unsafe { syscall3(sys::__NR_mlock, addr, len, 0) })) as c_int
}

pub extern "C" fn mlock2(addr: usize, len: usize, flags: c_int) -> c_int {
    // SAFETY: the caller's own call.
    let native = || unsafe { syscall3(sys::__NR_mlock2, addr, len, flags as usize) };
    result(if flags as u32 & !sys::MLOCK_ONFAULT != 0 { native() } else { mlock::lock(addr, len, native) }) as c_int
}

pub extern "C" fn munlock(addr: usize, len: usize) -> c_int {
    mlock::unlocked(addr, len);
    // SAFETY: the caller's own call.
    result(unsafe { syscall3(sys::__NR_munlock, addr, len, 0) }) as c_int
}

pub extern "C" fn mlockall(flags: c_int) -> c_int {
    result(mlock::lock_all(flags as u32)) as c_int
}

pub extern "C" fn munlockall() -> c_int {
    mlock::unlocked_all();
    // SAFETY: the caller's own call.
    result(unsafe { syscall3(sys::__NR_munlockall, 0, 0, 0) }) as c_int
}

/// A range has one userfaultfd: lowtide releases what the program registers with its own.
///
/// Variadic third argument in C; x86-64 passes it alike.
pub extern "C" fn ioctl(fd: c_int, request: usize, argument: usize) -> c_int {
    // SAFETY: the caller's own call.
    let call = || unsafe { syscall3(sys::__NR_ioctl, fd as usize, request, argument) };
    if request as u32 == other_doors::MOVE && agent::present() && !other_doors::before_move(argument) {
        return result(-EAGAIN) as c_int;
    }
    if request as u32 == other_doors::UNREGISTER && agent::active().is_some() {
        return result(other_doors::unregister(argument, call)) as c_int;
    }
    let mut r = call();
    if request as u32 == uffd::REGISTER && agent::active().is_some() {
        for _ in 0..RELEASES {
            if r != -EBUSY {
                break;
            }
            // SAFETY: the kernel has read this structure, else the error would differ.
            let [start, len] = unsafe { (argument as *const [usize; 2]).read() };
            ask(Request::Release(Range { start, end: start.saturating_add(len) }));
            gate::wait_for_forks();
            r = call();
        }
    }
    result(r) as c_int
}

pub extern "C" fn exit(status: c_int) -> ! {
    let mark = Mark::new();
    let _leaving = fork::leaves(&mark);
    loop {
        // SAFETY: the caller's own call; it does not return.
        unsafe { syscall3(sys::__NR_exit_group, status as usize, 0, 0) };
    }
}
