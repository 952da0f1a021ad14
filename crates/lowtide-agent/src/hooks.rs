//! The C library's memory calls, as lowtide makes them: the same system calls with the same results, and around them what the
//! pager must know. New mappings near the limit are adopted before the program can touch them; MADV_DONTNEED is known to have
//! ended when it has ended.
//!
//! These run on the program's stacks. They take none of lowtide's locks and keep errno's contract.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use linux_raw_sys::general as sys;
use lowtide_pager::regions::Range;

use crate::patch::{self, Hook};
use crate::request::{Request, ask};
use crate::thread::{syscall3, syscall6};
use crate::{agent, exec, gate, maps, mlock};

const PAGE: usize = 4096;
const EINVAL: isize = 22;
const ENOMEM: isize = 12;

/// Where the C library keeps the program break (`__curbrk`).
static CURBRK: AtomicUsize = AtomicUsize::new(0);
static INSTALLED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

/// Installs all hooks. False: lowtide has to look for new mappings by itself.
///
/// # Safety
/// The process has one thread.
pub unsafe fn install() -> bool {
    let hook = |name, with| Hook { name, with };
    let mut hooks = [hook(c"", core::ptr::null()); 12];
    let mut n = 0;
    let mut push = |name, with: *const c_void| {
        hooks[n] = hook(name, with);
        n += 1;
    };
    push(c"mmap64", mmap as *const c_void);
    push(c"munmap", munmap as *const c_void);
    push(c"mremap", mremap as *const c_void);
    push(c"madvise", madvise as *const c_void);
    push(c"mprotect", mprotect as *const c_void);
    push(c"mlock", mlock_ as *const c_void);
    push(c"mlock2", mlock2 as *const c_void);
    push(c"munlock", munlock as *const c_void);
    push(c"mlockall", mlockall as *const c_void);
    push(c"execve", exec::execve as *const c_void);
    if let Some(curbrk) = patch::variable(c"__curbrk") {
        CURBRK.store(curbrk, Ordering::Relaxed);
        push(c"brk", brk as *const c_void);
    }
    // SAFETY: handed on to the caller; the functions below keep the contracts.
    let done = unsafe { patch::install(&hooks[..n]) };
    INSTALLED.store(done, Ordering::Relaxed);
    done
}

/// Whether the hooks are in.
pub fn installed() -> bool {
    INSTALLED.load(Ordering::Relaxed)
}

/// The C library's convention: -1 and errno for an error.
pub fn result(r: isize) -> isize {
    if (-4095..0).contains(&r) {
        // SAFETY: the C library's errno of this thread.
        unsafe { *__errno_location() = -r as c_int };
        return -1;
    }
    r
}

/// Asks for a new mapping to be adopted, if memory is being adopted and it is worth it.
fn born(start: usize, len: usize) {
    if agent::active().is_some() && len >= maps::SMALLEST {
        ask(Request::Adopt(Range { start, end: start + len.next_multiple_of(PAGE) }));
    }
}

extern "C" fn mmap(addr: usize, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: usize) -> isize {
    if offset & (PAGE - 1) != 0 {
        return result(-EINVAL);
    }
    let anonymous = flags as u32 & sys::MAP_ANONYMOUS != 0 && flags as u32 & sys::MAP_TYPE == sys::MAP_PRIVATE;
    let mut flags = flags as u32;
    if anonymous && flags & sys::MAP_LOCKED != 0 && !mlock::honour(len) {
        flags &= !sys::MAP_LOCKED;
    }
    if anonymous && agent::active().is_some() {
        // A hint; followed, it would fill the mapping before it can be adopted.
        flags &= !sys::MAP_POPULATE;
    }
    let r = {
        let _turn = gate::change();
        // SAFETY: the caller's own call.
        unsafe { syscall6(sys::__NR_mmap, addr, len, prot as usize, flags as usize, fd as usize, offset) }
    };
    let r = result(r);
    if r != -1 && anonymous && prot as u32 & sys::PROT_EXEC == 0 {
        born(r as usize, len);
    }
    r
}

extern "C" fn munmap(addr: usize, len: usize) -> c_int {
    let _turn = gate::change();
    // SAFETY: the caller's own call.
    result(unsafe { syscall3(sys::__NR_munmap, addr, len, 0) }) as c_int
}

// The fifth argument is variadic in the C library's prototype; on x86-64 it is passed like any other.
extern "C" fn mremap(addr: usize, old_len: usize, new_len: usize, flags: c_int, new_addr: usize) -> isize {
    let r = {
        let _turn = gate::change();
        // SAFETY: the caller's own call.
        unsafe { syscall6(sys::__NR_mremap, addr, old_len, new_len, flags as usize, new_addr, 0) }
    };
    let r = result(r);
    if r != -1 && new_len > old_len {
        born(r as usize, new_len);
    }
    r
}

extern "C" fn madvise(addr: usize, len: usize, advice: c_int) -> c_int {
    let r = {
        let _inside = gate::enter();
        // SAFETY: the caller's own call.
        unsafe { syscall3(sys::__NR_madvise, addr, len, advice as usize) }
    };
    let removes = matches!(advice as u32, sys::MADV_DONTNEED | sys::MADV_FREE | sys::MADV_DONTNEED_LOCKED);
    if removes && let Some(pager) = agent::active() {
        pager.removed(addr, len);
    }
    result(r) as c_int
}

extern "C" fn mprotect(addr: usize, len: usize, prot: c_int) -> c_int {
    let _inside = gate::enter();
    // SAFETY: the caller's own call.
    result(unsafe { syscall3(sys::__NR_mprotect, addr, len, prot as usize) }) as c_int
}

extern "C" fn brk(addr: usize) -> c_int {
    let curbrk = CURBRK.load(Ordering::Relaxed) as *mut usize;
    let (old, new) = {
        let _turn = gate::change();
        // SAFETY: the C library's variable, which this call is there to set; callers serialise as they do for the original.
        unsafe {
            let old = *curbrk;
            let new = syscall3(sys::__NR_brk, addr, 0, 0) as usize;
            *curbrk = new;
            (old, new)
        }
    };
    if new < addr {
        return result(-ENOMEM) as c_int;
    }
    let start = old.next_multiple_of(PAGE);
    if old != 0 && new > start {
        born(start, new - start);
    }
    0
}

extern "C" fn mlock_(addr: usize, len: usize) -> c_int {
    if !mlock::honour(len) {
        return 0;
    }
    // SAFETY: the caller's own call.
    result(unsafe { syscall3(sys::__NR_mlock, addr, len, 0) }) as c_int
}

extern "C" fn mlock2(addr: usize, len: usize, flags: c_int) -> c_int {
    if !mlock::honour(len) {
        return 0;
    }
    // SAFETY: the caller's own call.
    result(unsafe { syscall3(sys::__NR_mlock2, addr, len, flags as usize) }) as c_int
}

extern "C" fn munlock(addr: usize, len: usize) -> c_int {
    mlock::unlocked(len);
    // SAFETY: the caller's own call.
    result(unsafe { syscall3(sys::__NR_munlock, addr, len, 0) }) as c_int
}

extern "C" fn mlockall(_flags: c_int) -> c_int {
    mlock::ignored();
    0
}
