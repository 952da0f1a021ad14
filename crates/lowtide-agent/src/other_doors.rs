//! Calls that change memory and are not those of mmap's and madvise's kind, but do the same: shmat, process_madvise, and
//! UFFDIO_MOVE of a userfaultfd of the program's own.

use core::ffi::{CStr, c_int, c_uint};

use linux_raw_sys::general as sys;
use lowtide_core::kernel_text;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_pager::mappings::Range;
use lowtide_pager::sys::call_filter::{DONE, SHM_REMAP};
use lowtide_pager::sys::{Line, release};

use crate::errno::{is_error, result};
use crate::gate::{self, Call};
use crate::mark::Mark;
use crate::request::{Request, ask};
use crate::thread::{syscall3, syscall6};
use crate::{agent, hooks, several};

const EFAULT: isize = 14;
/// From this Linux on the kernel takes any advice for the process itself.
const SELF_ADVICE: (u32, u32, u32) = (6, 13, 0);
/// UIO_MAXIOV.
const MOST_RANGES: usize = 1024;

/// The same process, without a descriptor.
const PIDFD_SELF: [c_int; 2] = [-10000, -20000];
/// PIDFD_GET_INFO (Linux 6.13), of a structure of 64 bytes whose second word and a half from byte 16 on is the process.
const PIDFD_GET_INFO: usize = 0xc040_ff0b;
const TGID: usize = 20;
/// UFFDIO_MOVE.
pub const MOVE: u32 = 0xc028_aa05;

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

/// process_madvise of a program without hooks, as the system call returns it, by a thread of lowtide's, which has another table of
/// descriptors. None: it is not of this process, or wrong.
pub fn advise_for(pidfd: c_int, ranges: usize, count: usize, advice: u32, flags: u32) -> Option<isize> {
    let mut path = Line::new();
    path.push(b"/proc/self/fdinfo/").number(pidfd as u64).push(b"\0");
    let mut text = [0; 256];
    let is_self = PIDFD_SELF.contains(&pidfd)
        || kernel_text::read(CStr::from_bytes_with_nul(path.bytes()).ok()?, &mut text).is_some_and(|text| {
            let pid = text.split(|c| *c == b'\n').find_map(|line| line.strip_prefix(b"Pid:\t"));
            pid.is_some_and(|pid| kernel_text::number(pid) as u32 == agent::pid())
        });
    let is_taken = release::running() >= SELF_ADVICE;
    (is_taken && is_self && flags == 0 && count <= MOST_RANGES).then(|| advise_each(ranges, count, advice))
}

/// The advice for one range after the other, up to the first that is refused.
fn advise_each(ranges: usize, count: usize, advice: u32) -> isize {
    let mut done = 0;
    for i in 0..count {
        let mut range = [0usize; 2];
        let r = match read(ranges + i * size_of_val(&range), &mut range) {
            false => -EFAULT,
            true => hooks::advise_as_asked(range[0], range[1], advice),
        };
        if is_error(r) {
            return if done > 0 { done } else { r };
        }
        done += range[1] as isize;
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

/// Copies words of the program's; false: it has none there.
fn read<const N: usize>(from: usize, to: &mut [usize; N]) -> bool {
    let len = size_of_val(to);
    let (local, remote) = ([to.as_mut_ptr() as usize, len], [from, len]);
    // SAFETY: it writes to `to` and nowhere else.
    let r = unsafe {
        let pid = syscall3(sys::__NR_getpid, 0, 0, 0) as usize;
        let (local, remote) = (local.as_ptr() as usize, remote.as_ptr() as usize);
        syscall6(sys::__NR_process_vm_readv, pid, local, 1, remote, 1, 0)
    };
    r == len as isize
}

/// Before a userfaultfd of the program's own moves pages (UFFDIO_MOVE; `argument`: where it says what): what is out of them would
/// be holes to it, so lowtide keeps its hands off where they come from.
pub fn before_move(argument: usize) {
    let mut what = [0usize; 3];
    if read(argument, &mut what) {
        let [_to, start, len] = what;
        // All of the mapping: to the program it is one, and may be moved as one.
        let mapping = if agent::active().is_some() { several::mapping(start) } else { Range::NONE };
        let (start, end) = (start & !(PAGE_SIZE - 1), start.saturating_add(len));
        let around = if mapping.start <= start { mapping } else { Range { start, end } };
        hooks::leave_alone(Range { start: around.start, end: around.end.max(end) });
    }
}
