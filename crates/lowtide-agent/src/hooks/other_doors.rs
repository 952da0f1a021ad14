//! Other calls that change memory: shmat, process_madvise, and UFFDIO_MOVE of the program's own
//! userfaultfd.

use core::ffi::{c_int, c_uint};

use linux_raw_sys::general as sys;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_pager::mappings::Changes;
use lowtide_sys::Range;
use lowtide_wire::call_filter::{DONE, SHM_REMAP};

use crate::hooks::errno::{EFAULT, ENOMEM, is_error, result};
use crate::hooks::gate::{self, Call};
use crate::hooks::mark::Mark;
use crate::hooks::{self, several};
use crate::process::thread::{syscall3, syscall6};
use crate::process::{agent, thread_end};
use crate::reclaimer::request::{Request, ask};

const MOST_RANGES: usize = 1024;

/// PIDFD_SELF_THREAD; PIDFD_SELF_THREAD_GROUP since Linux 6.17, and before.
const PIDFD_SELF: [c_int; 3] = [-10000, -10001, -20000];
/// PIDFD_GET_INFO (Linux 6.13) with a structure of 64 bytes; the process id is at byte 20.
const PIDFD_GET_INFO: usize = 0xc040_ff0b;
const TGID: usize = 20;
/// UFFDIO_MOVE and UFFDIO_UNREGISTER.
pub const MOVE: u32 = 0xc028_aa05;
pub const UNREGISTER: u32 = 0x8010_aa01;

/// SHM_REMAP unmaps old memory without an event.
pub extern "C" fn shmat(id: c_int, addr: usize, flags: c_int) -> isize {
    // `DONE`: the filter tells nobody of this call.
    // SAFETY: the caller's own call.
    let call = || unsafe { syscall6(sys::__NR_shmat, id as usize, addr, flags as usize, 0, 0, DONE as usize) };
    if flags as u32 & SHM_REMAP == 0 {
        return result(call());
    }
    let mark = Mark::new();
    let _turn = gate::change(&mark, Call::Drops, Changes::NONE);
    let at = call();
    if !is_error(at) && agent::active().is_some() {
        let start = at as usize;
        ask(Request::Replaced(Range { start, end: start + PAGE_SIZE }));
    }
    result(at)
}

/// On this process it is madvise.
pub extern "C" fn process_madvise(pidfd: c_int, ranges: usize, count: usize, advice: c_int, flags: c_uint) -> isize {
    // SAFETY: the caller's own call.
    let call = |count| unsafe {
        syscall6(sys::__NR_process_madvise, pidfd as usize, ranges, count, advice as usize, flags as usize, DONE as usize)
    };
    if !hooks::changes_memory(advice as u32) || !is_self(pidfd) || count > MOST_RANGES {
        return result(call(count));
    }
    let r = call(0);
    result(if is_error(r) { r } else { advise_each(ranges, count, advice as u32) })
}

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

fn is_self(pidfd: c_int) -> bool {
    if PIDFD_SELF.contains(&pidfd) {
        return true;
    }
    let mut info = [0u32; 16];
    // SAFETY: the call writes the size in its number, to a structure of this function.
    let r = unsafe { syscall3(sys::__NR_ioctl, pidfd as usize, PIDFD_GET_INFO, info.as_mut_ptr() as usize) };
    // SAFETY: a query.
    r == 0 && info[TGID / 4] as isize == unsafe { syscall3(sys::__NR_getpid, 0, 0, 0) }
}

/// UFFDIO_MOVE of the program's own userfaultfd would see evicted pages as holes: excludes the
/// source from registration. False: some of it is still evicted.
pub fn before_move(argument: usize) -> bool {
    let Some([_to, start, len]) = thread_end::read(argument) else { return true };
    let (start, end) = (start & !(PAGE_SIZE - 1), start.saturating_add(len));
    let left_alone = {
        let mark = Mark::new();
        // Parts of the mapping may be others', who must not replace them before they are in the
        // table.
        let _turn = gate::change(&mark, Call::Silent, Changes::NONE);
        // The whole mapping: the program may move it as one.
        let mapping = if agent::active().is_some() { several::mapping(start) } else { None };
        let around = mapping.filter(|mapping| mapping.start <= start).unwrap_or(Range { start, end });
        let range = Range { start: around.start, end: around.end.max(end) };
        hooks::LEFT_ALONE.add(range);
        range
    };
    hooks::release(left_alone)
}

/// UFFDIO_UNREGISTER: before Linux 6.17 the kernel ignores which userfaultfd has registered a
/// range; later it refuses a range registered in part with another.
pub fn unregister(argument: usize, call: impl Fn() -> isize) -> isize {
    let Some([start, len]) = thread_end::read(argument) else { return call() };
    let range = Range { start, end: start.saturating_add(len) };
    let before = hooks::LEFT_ALONE.remove(range);
    let is_free = hooks::leave_alone(range);
    let r = if is_free { call() } else { -ENOMEM };
    hooks::LEFT_ALONE.remove(range);
    for part in before {
        hooks::leave_alone(part);
    }
    r
}
