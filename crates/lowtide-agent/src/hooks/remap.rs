//! mremap.

use core::ffi::c_int;

use linux_raw_sys::general as sys;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_pager::mappings::{Changes, Removed};
use lowtide_sys::Range;
use lowtide_wire::call_filter::DONE;

use crate::hooks::errno::{is_error, result};
use crate::hooks::gate::{self, Call};
use crate::hooks::mark::Mark;
use crate::hooks::{LEFT_ALONE, bytes, changes_in_turn, mlock, release_again, several};
use crate::process::agent;
use crate::process::thread::syscall6;
use crate::reclaimer::{long_nap, wake};

pub extern "C" fn mremap(addr: usize, old_len: usize, new_len: usize, flags: c_int, new_addr: usize) -> isize {
    // SAFETY: the caller's own call.
    result(unsafe { remap([addr, old_len, new_len, flags as usize, new_addr]) })
}

/// mremap with the system call's result.
///
/// # Safety
/// That of the call.
unsafe fn remap(arguments: [usize; 5]) -> isize {
    let [addr, old_len, new_len, flags, new_addr] = arguments;
    let from = bytes(addr, old_len);
    let is_apart = addr.abs_diff(new_addr) >= from.end - from.start;
    if agent::active().is_some()
        && is_apart
        && several::is_possible(old_len, new_len, flags)
        && (addr | new_addr) & (PAGE_SIZE - 1) == 0
    {
        let moved = several::each(from, |part| {
            let len = part.end - part.start;
            // SAFETY: as the caller promises.
            unsafe { remap_one([part.start, len, len, flags, new_addr.wrapping_add(part.start - addr)]) }
        });
        if let Some(moved) = moved {
            return if is_error(moved) { moved } else { new_addr as isize };
        }
    }
    // SAFETY: as above.
    unsafe { remap_one(arguments) }
}

/// # Safety
/// That of the call.
unsafe fn remap_one(arguments: [usize; 5]) -> isize {
    let [addr, old_len, new_len, flags, new_addr] = arguments;
    let stays = new_len <= old_len && flags as u32 & !sys::MREMAP_MAYMOVE == 0;
    let is_fixed = flags as u32 & sys::MREMAP_FIXED != 0;
    let (from, over) = (bytes(addr, old_len), if is_fixed { bytes(new_addr, new_len) } else { Range::NONE });
    if !stays && let Some(pager) = agent::active() {
        // Before the turn, for which others wait.
        pager.outlast_removals([from, over]);
    }
    let (r, left_alone) = {
        let mark = Mark::new();
        let len = bytes(addr, new_len).end.saturating_sub(addr);
        let _turn = gate::change(&mark, if stays { Call::Drops } else { Call::Moves }, Changes { from, to: over, len });
        let mut left_alone = LEFT_ALONE.remove(from);
        let grown = (new_len > old_len).then(|| changes_in_turn::may_grow(bytes(addr, new_len)));
        // `DONE`: the filter tells nobody of this call.
        // SAFETY: as the caller promises.
        let r = unsafe { syscall6(sys::__NR_mremap, addr, old_len, new_len, flags, new_addr, DONE as usize) };
        grown.filter(|_| r as usize != addr).inspect(changes_in_turn::has_not_grown);
        if is_error(r) {
            LEFT_ALONE.add_all(&left_alone);
        } else {
            let place = bytes(r as usize, new_len);
            LEFT_ALONE.remove(place);
            if flags as u32 & sys::MREMAP_DONTUNMAP != 0 {
                // The old place stays mapped, and is wiped in children as before.
                LEFT_ALONE.add_all(&left_alone);
            }
            if r as usize == addr && place.end <= from.end {
                left_alone = left_alone.iter().map(|part| part.within(place)).filter(|part| part.start < part.end).collect();
            } else if !left_alone.is_empty() {
                // Whole: the program may move it again, as one.
                left_alone = Removed::from_iter([place]);
            }
            LEFT_ALONE.add_all(&left_alone);
        }
        (r, left_alone)
    };
    release_again(left_alone);
    if !is_error(r) {
        mlock::remapped(addr, old_len, r as usize, new_len);
        if new_len > old_len {
            // Only the list of mappings tells its kind: files must never be registered.
            wake::look_again();
            long_nap::maps(new_len - old_len);
        }
    }
    r
}
