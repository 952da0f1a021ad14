//! Calls that change memory and are not those of mmap's and madvise's kind, but do the same: shmat, process_madvise, and
//! UFFDIO_MOVE of a userfaultfd of the program's own.

use core::ffi::{c_int, c_uint};

use linux_raw_sys::general as sys;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_pager::mappings::Range;
use lowtide_pager::sys::call_filter::{DONE, SHM_REMAP};

use crate::errno::{is_error, result};
use crate::gate::{self, Call};
use crate::mark::Mark;
use crate::request::{Request, ask};
use crate::thread::{syscall3, syscall6};
use crate::{agent, hooks, several, thread_end};

const EFAULT: isize = 14;
const EINVAL: isize = 22;
const ENOMEM: isize = 12;
/// UIO_MAXIOV.
const MOST_RANGES: usize = 1024;

/// The same process, without a descriptor.
const PIDFD_SELF: [c_int; 2] = [-10000, -20000];
/// PIDFD_GET_INFO (Linux 6.13), of a structure of 64 bytes whose second word and a half from byte 16 on is the process.
const PIDFD_GET_INFO: usize = 0xc040_ff0b;
const TGID: usize = 20;
/// UFFDIO_MOVE and UFFDIO_UNREGISTER.
pub const MOVE: u32 = 0xc028_aa05;
pub const UNREGISTER: u32 = 0x8010_aa01;

/// shmat(SHM_REMAP) unmaps what was there, and no event tells.
pub extern "C" fn shmat(id: c_int, addr: usize, flags: c_int) -> isize {
    result(attach(id, addr, flags))
}

/// The same, as the system call returns it.
pub fn attach(id: c_int, addr: usize, flags: c_int) -> isize {
    // `lowtide run` need not be told of it, where it is of others.
    // SAFETY: the caller's own call.
    let call = || unsafe { syscall6(sys::__NR_shmat, id as usize, addr, flags as usize, 0, 0, DONE as usize) };
    if flags as u32 & SHM_REMAP == 0 {
        return call();
    }
    let mark = Mark::new();
    let _turn = gate::change(&mark, Call::Drops, [Range::NONE; 2]);
    let at = call();
    if !is_error(at) && agent::active().is_some() {
        let start = at as usize;
        ask(Request::Replaced(Range { start, end: start + PAGE_SIZE }));
    }
    at
}

/// process_madvise: on this process it is madvise.
pub extern "C" fn process_madvise(pidfd: c_int, ranges: usize, count: usize, advice: c_int, flags: c_uint) -> isize {
    // SAFETY: the caller's own call.
    let call = |count| unsafe {
        syscall6(sys::__NR_process_madvise, pidfd as usize, ranges, count, advice as usize, flags as usize, DONE as usize)
    };
    if !hooks::changes_memory(advice as u32) || !is_self(pidfd) || count > MOST_RANGES {
        return result(call(count));
    }
    // Whether it is one that the kernel takes here.
    let r = call(0);
    result(if is_error(r) { r } else { advise_each(ranges, count, advice as u32) })
}

/// process_madvise of a program without hooks, as the system call returns it, by a thread of lowtide's. (`lowtide run` has looked
/// that it is of this process.)
pub fn advise_for(ranges: usize, count: usize, advice: u32) -> isize {
    if count <= MOST_RANGES { advise_each(ranges, count, advice) } else { -EINVAL }
}

/// The advice for one range after the other, up to the first that is refused.
fn advise_each(ranges: usize, count: usize, advice: u32) -> isize {
    let mut done = 0;
    for i in 0..count {
        let range = thread_end::read::<2>(ranges + i * size_of::<[usize; 2]>());
        let r = range.map_or(-EFAULT, |[start, len]| hooks::advise_as_asked(start, len, advice));
        if is_error(r) {
            return if done > 0 { done } else { r };
        }
        done += range.map_or(0, |[_, len]| len as isize);
    }
    done
}

/// Whether a descriptor is one of this process.
fn is_self(pidfd: c_int) -> bool {
    if PIDFD_SELF.contains(&pidfd) {
        return true;
    }
    let mut info = [0u32; 16];
    // SAFETY: the call writes as many bytes as its number says, to a structure of this function's.
    let r = unsafe { syscall3(sys::__NR_ioctl, pidfd as usize, PIDFD_GET_INFO, info.as_mut_ptr() as usize) };
    // SAFETY: it only asks.
    r == 0 && info[TGID / 4] as isize == unsafe { syscall3(sys::__NR_getpid, 0, 0, 0) }
}

/// Before a userfaultfd of the program's own moves pages (UFFDIO_MOVE; `argument`: where it says what): what is out of them would
/// be holes to it, so lowtide keeps its hands off where they come from. False: some of it is still out.
pub fn before_move(argument: usize) -> bool {
    let Some([_to, start, len]) = thread_end::read(argument) else { return true };
    let (start, end) = (start & !(PAGE_SIZE - 1), start.saturating_add(len));
    // All of the mapping: to the program it is one, and may be moved as one.
    let mapping = if agent::active().is_some() { several::mapping(start) } else { None };
    let around = mapping.filter(|mapping| mapping.start <= start).unwrap_or(Range { start, end });
    hooks::leave_alone(Range { start: around.start, end: around.end.max(end) })
}

/// UFFDIO_UNREGISTER: before Linux 6.17 the kernel does not ask with which userfaultfd a range is registered, and later it refuses
/// a range of which a part is registered with another one.
pub fn unregister(argument: usize, call: impl Fn() -> isize) -> isize {
    let Some([start, len]) = thread_end::read(argument) else { return call() };
    let range = Range { start, end: start.saturating_add(len) };
    let is_free = hooks::leave_alone(range);
    let r = if is_free { call() } else { -ENOMEM };
    hooks::LEFT_ALONE.remove(range);
    r
}
