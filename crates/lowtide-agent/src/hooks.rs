//! The C library's memory calls, as lowtide makes them: the same system calls with the same results, and around them what the
//! pager must know. New mappings near the limit are adopted before the program can touch them; MADV_DONTNEED is known to have
//! ended when it has ended.
//!
//! These run on the program's stacks. They take none of lowtide's locks and keep errno's contract.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use linux_raw_sys::general as sys;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_pager::mappings::{LeftAlone, Lock, Move, Range, adoptable};
use lowtide_pager::pager::Pager;
use lowtide_pager::sys::call_filter::DONE;
use lowtide_pager::sys::uffd;

use crate::errno::{is_error, result};
use crate::gate::Call;
use crate::mark::Mark;
use crate::mlock::MapLocked;
use crate::objects::Object;
use crate::patch::{self, Hook};
use crate::request::{Request, ask};
use crate::thread::{syscall3, syscall6};
use crate::{
    agent, atfork, clones, exec, gate, long_nap, mlock, other_doors, populate, say, several, system_calls, thread_end, wake,
};

const EINVAL: isize = 22;
const ENOMEM: isize = 12;
const EBUSY: isize = 16;
const EAGAIN: isize = 11;

/// How often guards are made again that a page may have come in over. Each time a touch has to meet them in the same
/// microseconds.
const GUARD_TRIES: usize = 100;
/// How often memory is given back for it: lowtide may look for memory to adopt just then.
const RELEASES: usize = 8;
/// MAP_DROPPABLE (Linux 6.11): a type of mapping.
const MAP_DROPPABLE: u32 = 8;

/// Where the C library keeps the program break (`__curbrk`).
static CURBRK: AtomicUsize = AtomicUsize::new(0);
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// How often the reclaimer did not release what it was asked to.
pub static NOT_RELEASED: AtomicU32 = AtomicU32::new(0);
/// What the reclaimer does not adopt.
pub static LEFT_ALONE: LeftAlone = LeftAlone::new();

/// Installs all hooks in the C library. False: lowtide has to look for new mappings by itself.
///
/// # Safety
/// To be called by the constructor.
pub unsafe fn install(library: &Object) -> bool {
    let mut hooks = ArrayVec::<Hook, { patch::MAX_HOOKS }>::new();
    let mut push = |name, with: *const c_void| hooks.push(Hook { name, with });
    push(c"mmap64", mmap as *const c_void);
    push(c"munmap", munmap as *const c_void);
    push(c"mremap", mremap as *const c_void);
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
    // SAFETY: handed on to the caller; the functions below keep the contracts.
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

/// Whether the hooks are in.
pub fn installed() -> bool {
    INSTALLED.load(Ordering::Relaxed)
}

/// Asks for a new mapping to be adopted, if memory is being adopted and it is worth it. `prot`: what may be done there.
fn born(start: usize, len: usize, prot: u32) {
    // What is executed and not written is code that is mapped to be read: it could not be evicted.
    if prot & (sys::PROT_EXEC | sys::PROT_WRITE) == sys::PROT_EXEC {
        return;
    }
    if let Some(pager) = agent::active()
        && len >= adoptable::SMALLEST
    {
        if prot & sys::PROT_EXEC != 0 {
            pager.sees_code();
        }
        ask(Request::Adopt(Range { start, end: start + len.next_multiple_of(PAGE_SIZE) }));
    }
}

pub extern "C" fn mmap(addr: usize, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: usize) -> isize {
    if offset & (PAGE_SIZE - 1) != 0 {
        return result(-EINVAL);
    }
    let (prot, mut flags) = (prot as u32, flags as u32);
    // Memory that can be adopted. Huge pages can't: their faults are not served a page at a time.
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
    // A hint, followed as far as that is possible. Followed in the call, it would fill memory before it can be adopted, and
    // hold up all others that change mappings while a file is read. (What is locked in memory the kernel fills in any case.)
    let fills = anonymous && lock != Some(Lock::Honoured) && populate::is_in_steps(len);
    let populates = flags & sys::MAP_POPULATE != 0 && (fills || agent::active().is_some());
    if populates {
        flags &= !sys::MAP_POPULATE;
    }
    let r = {
        let call = if flags & sys::MAP_FIXED == 0 { Call::Silent } else { Call::Drops };
        let mark = Mark::new();
        let _turn = gate::change(&mark, call, [bytes(addr, len), Range::NONE]);
        // SAFETY: the caller's own call.
        let r = unsafe { syscall6(sys::__NR_mmap, addr, len, prot as usize, flags as usize, fd as usize, offset) };
        if !is_error(r) && !LEFT_ALONE.is_empty() {
            LEFT_ALONE.remove(bytes(r as usize, len));
        }
        r
    };
    let r = result(r);
    if r == -1 {
        return r;
    }
    if flags & sys::MAP_FIXED != 0 {
        mlock::unmapped(r as usize, len);
    }
    if flags & sys::MAP_TYPE == MAP_DROPPABLE {
        // The kernel may drop it, and wipes it in children.
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

/// What a call names, to whole pages.
fn bytes(addr: usize, len: usize) -> Range {
    Range { start: addr & !(PAGE_SIZE - 1), end: addr.saturating_add(len).saturating_add(PAGE_SIZE - 1) & !(PAGE_SIZE - 1) }
}

pub extern "C" fn munmap(addr: usize, len: usize) -> c_int {
    let r = {
        let mark = Mark::new();
        let _turn = gate::change(&mark, Call::Drops, [bytes(addr, len), Range::NONE]);
        // SAFETY: the caller's own call.
        let r = unsafe { syscall3(sys::__NR_munmap, addr, len, 0) };
        if r == 0 && !LEFT_ALONE.is_empty() {
            LEFT_ALONE.remove(bytes(addr, len));
        }
        r
    };
    if r == 0 {
        mlock::unmapped(addr, len);
    }
    result(r) as c_int
}

// The fifth argument is variadic in the C library's prototype; on x86-64 it is passed like any other.
pub extern "C" fn mremap(addr: usize, old_len: usize, new_len: usize, flags: c_int, new_addr: usize) -> isize {
    // SAFETY: the caller's own call.
    result(unsafe { remap([addr, old_len, new_len, flags as usize, new_addr], |_, call| call()) })
}

/// mremap, as the system call returns it. `make` is called with what may move, if anything may, and makes the call.
///
/// # Safety
/// That of the call.
pub unsafe fn remap(arguments: [usize; 5], make: impl Fn(Option<Move>, &dyn Fn() -> isize) -> isize) -> isize {
    let [addr, old_len, new_len, flags, new_addr] = arguments;
    let is_apart = addr.abs_diff(new_addr) >= old_len;
    if agent::active().is_some()
        && is_apart
        && several::is_possible(old_len, new_len, flags)
        && (addr | new_addr) & (PAGE_SIZE - 1) == 0
    {
        let moved = several::each(bytes(addr, old_len), |part| {
            let len = part.end - part.start;
            // SAFETY: handed on to the caller.
            unsafe { remap_one([part.start, len, len, flags, new_addr.wrapping_add(part.start - addr)], &make) }
        });
        if let Some(moved) = moved {
            return if is_error(moved) { moved } else { new_addr as isize };
        }
    }
    // SAFETY: as above.
    unsafe { remap_one(arguments, make) }
}

/// The same of one mapping.
///
/// # Safety
/// That of the call.
unsafe fn remap_one(arguments: [usize; 5], make: impl Fn(Option<Move>, &dyn Fn() -> isize) -> isize) -> isize {
    let [addr, old_len, new_len, flags, new_addr] = arguments;
    let has = |flag: u32| flags as u32 & flag != 0;
    // What only makes shorter moves nothing.
    let stays = new_len <= old_len && flags as u32 & !sys::MREMAP_MAYMOVE == 0;
    let (from, to) = (bytes(addr, old_len), has(sys::MREMAP_FIXED).then(|| bytes(new_addr, new_len)));
    let over = to.unwrap_or(Range::NONE);
    if !stays && let Some(pager) = agent::active() {
        // Before its turn, which others wait for.
        pager.outlast_removals([from, over]);
    }
    let r = {
        let mark = Mark::new();
        let _turn = gate::change(&mark, if stays { Call::Drops } else { Call::Moves }, [from, over]);
        let asked = Move { from, to, leaves: has(sys::MREMAP_DONTUNMAP), shortens: new_len < old_len };
        // `lowtide run` need not be told of it, where it is of others.
        // SAFETY: handed on to the caller.
        let r = make((!stays).then_some(asked), &|| unsafe {
            syscall6(sys::__NR_mremap, addr, old_len, new_len, flags, new_addr, DONE as usize)
        });
        if !is_error(r) {
            // What it has grown by is of the same kind.
            LEFT_ALONE.moved(from, bytes(r as usize, new_len));
        }
        r
    };
    if !is_error(r) {
        mlock::remapped(addr, old_len, r as usize, new_len);
        if new_len > old_len {
            // Of what kind it is only the list of mappings tells: a file's, in memory or not, must never be adopted.
            wake::look_again();
            long_nap::maps(new_len - old_len);
        }
    }
    r
}

/// Whether an advice takes pages away at once, which the kernel reports.
fn removes(advice: u32) -> bool {
    matches!(advice, sys::MADV_DONTNEED | sys::MADV_DONTNEED_LOCKED | sys::MADV_REMOVE)
}

/// A call of madvise that takes pages away: inside the gate, because an event reports it.
fn remove(addr: usize, len: usize, advice: u32) -> isize {
    let mark = Mark::new();
    let inside = gate::enter(&mark, Call::Drops);
    // (After MADV_FREE the pages may still go; MADV_DONTNEED follows it.)
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

/// An advice that `lowtide run` need not be told of, where it is of others.
///
/// # Safety
/// That of the call.
unsafe fn advise(addr: usize, len: usize, advice: u32) -> isize {
    // SAFETY: handed on to the caller.
    unsafe { syscall6(sys::__NR_madvise, addr, len, advice as usize, 0, 0, DONE as usize) }
}

/// Whether an advice has been taken: it passes over what is not mapped, and says so at the end.
fn was_taken(r: isize) -> bool {
    r == 0 || r == -ENOMEM
}

/// MADV_FREE, as the system call returns it. The kernel would drop the pages when it likes, without an event, from lowtide's hands
/// too, and those that it has not dropped could never be evicted again. It may drop them at once, says its contract.
pub fn free(addr: usize, len: usize) -> isize {
    let r = remove(addr, len, sys::MADV_FREE);
    if was_taken(r) && agent::active().is_some() {
        remove(addr, len, sys::MADV_DONTNEED);
    }
    r
}

/// MADV_GUARD_INSTALL, as the system call returns it.
pub fn make_guards(addr: usize, len: usize) -> isize {
    // SAFETY: the call of a thread of this process, which waits for it.
    let r = unsafe { advise(addr, len, sys::MADV_GUARD_INSTALL) };
    match agent::active() {
        // What is out would be back when the guard is taken away.
        Some(pager) if was_taken(r) => guard(pager, addr, len).err().unwrap_or(r),
        _ => r,
    }
}

/// Guards were made: drops what is out there, and makes them again where a page came in over one (Linux 6.18's COPY does that).
/// Then nothing is on its way there from before but zeros, and it is known when those have met a guard. The error is a call's.
fn guard(pager: &Pager, addr: usize, len: usize) -> Result<(), isize> {
    let taken = |r| if was_taken(r) { Ok(()) } else { Err(r) };
    taken(remove(addr, len, sys::MADV_DONTNEED))?;
    for _ in 0..GUARD_TRIES {
        let (guarded, made) = {
            let mark = Mark::new();
            let inside = gate::enter(&mark, Call::Silent);
            // SAFETY: the caller's own call, once more.
            pager.guards.make(inside.who(), || unsafe { advise(addr, len, sys::MADV_GUARD_INSTALL) })
        };
        taken(guarded)?;
        taken(remove(addr, len, sys::MADV_DONTNEED))?;
        if !pager.guards.were_met(made) {
            break;
        }
    }
    Ok(())
}

pub extern "C" fn madvise(addr: usize, len: usize, advice: c_int) -> c_int {
    result(advise_as_asked(addr, len, advice as u32)) as c_int
}

/// Whether an advice is one that [`advise_as_asked`] does something about.
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

/// madvise, as the system call returns it.
pub fn advise_as_asked(addr: usize, len: usize, advice: u32) -> isize {
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
        // What is out would be back in the child.
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
        // Nothing is reported and nothing unmapped, so it passes by the gate, as what waits for many pages must.
        // SAFETY: the caller's own call.
        unsafe { advise(addr, len, advice) }
    }
}

/// lowtide keeps its hands off a range from now on, as long as it is mapped. False: some of it is still out.
pub fn leave_alone(range: Range) -> bool {
    LEFT_ALONE.add(range);
    release(range)
}

/// What is adopted of a range is given back to the program. False: some of it is still out.
pub fn release(range: Range) -> bool {
    for _ in 0..RELEASES {
        if agent::active().is_none() {
            return true;
        }
        // While the program forks nothing is given back.
        gate::wait_for_forks();
        let before = NOT_RELEASED.load(Ordering::Relaxed);
        ask(Request::Release(range));
        // (Others' may have been refused; then it is asked once more.)
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
        let r = unsafe { syscall3(sys::__NR_mprotect, addr, len, prot as usize) };
        if r == 0
            && prot as u32 != sys::PROT_NONE
            && let Some(pager) = agent::pager().filter(|pager| pager.has_inaccessible())
            && agent::active().is_some()
        {
            pager.made_accessible(bytes(addr, len));
        }
        r
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
    // SAFETY: the C library's variable, which this call is there to set; callers serialise as they do for the original.
    unsafe { *curbrk = new };
    if new < addr { result(-ENOMEM) as c_int } else { 0 }
}

/// The system call: where the break is then.
pub fn move_break(addr: usize) -> usize {
    // SAFETY: it only asks, or is the caller's own call.
    let call = |addr| unsafe { syscall3(sys::__NR_brk, addr, 0, 0) as usize };
    let end = call(0);
    let goes = bytes(addr, end.saturating_sub(addr));
    let grows = addr == 0 || addr >= end;
    let new = {
        let mark = Mark::new();
        let _turn = gate::change(&mark, if grows { Call::Silent } else { Call::Drops }, [goes, Range::NONE]);
        let whole = Range { start: addr.next_multiple_of(PAGE_SIZE), end: goes.end };
        if !grows && agent::active().is_some() && whole.start < whole.end && is_sealed(whole) {
            return end;
        }
        call(addr)
    };
    let start = end.next_multiple_of(PAGE_SIZE);
    if new > start {
        long_nap::maps(new - start);
        born(start, new - start, sys::PROT_READ | sys::PROT_WRITE);
    }
    new
}

/// Whether a part of the break that is to go is sealed (mseal). The kernel would refuse the call, and keep its own account of
/// changes under way wrong for ever: no page could be brought in any more.
fn is_sealed(range: Range) -> bool {
    const EPERM: isize = 1;
    // SAFETY: what is there can be read and written, and if it is not, it goes next.
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
    // Unknown flags are refused before anything else.
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

/// A range has one userfaultfd: what the program wants to register with its own is given back to it.
///
/// The third argument is variadic in the C library's prototype; on x86-64 it is passed like any other.
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
            // SAFETY: the kernel has read the structure there, else the error were another.
            let [start, len] = unsafe { (argument as *const [usize; 2]).read() };
            ask(Request::Release(Range { start, end: start.saturating_add(len) }));
            // While the program forks nothing is given back: then it is tried again afterwards.
            gate::wait_for_forks();
            r = call();
        }
    }
    result(r) as c_int
}

pub extern "C" fn exit(status: c_int) -> ! {
    let mark = Mark::new();
    let _leaving = atfork::leaves(&mark);
    loop {
        // SAFETY: the caller's own call, which does not return.
        unsafe { syscall3(sys::__NR_exit_group, status as usize, 0, 0) };
    }
}
