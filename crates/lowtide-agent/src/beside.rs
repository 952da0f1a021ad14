//! Changing code that other threads may be executing. This library is linked to be the first that is initialised (`-z
//! initfirst`), so mostly there are none. But only one library of a process can be that, the last that was loaded of those that
//! ask for it: libpthread of C libraries before 2.34 is one. Then a constructor that comes first may have started threads.
//!
//! Whoever is inside a function goes on in its old code, so nothing of that may change, and nobody may see half of a change. So
//! only the first two bytes are replaced, by one store: they lie within the first instruction, and a thread is either in front
//! of it or behind it. They become a short jump to filling bytes between functions, which nobody executes, and where a jump to
//! ours has been written before. In between all other CPUs are made to forget what they may have fetched of the filling
//! (membarrier). The code stays executable all the time.

use core::sync::atomic::{AtomicU16, Ordering};

use arrayvec::ArrayVec;
use linux_raw_sys::general as sys;
use lowtide_core::vm::PAGE_SIZE;

use crate::code::{byte_at, protect};
use crate::objects::Found;
use crate::patch::MAX_HOOKS;
use crate::thread::{self, syscall3};

/// Bytes of a short jump, and of one that reaches 2 GiB.
const SHORT: usize = 2;
const NEAR: usize = 5;
/// To what functions of the C library are aligned, at least.
const ALIGN: usize = 16;

/// From which function to where.
#[derive(Clone, Copy)]
pub struct Jump {
    /// The function of the C library.
    pub from: Found,
    /// Ours.
    pub to: usize,
}

/// By way of which filling bytes.
struct Route {
    from: usize,
    by: usize,
    /// What is written there, and at `from`.
    near: [u8; NEAR],
    short: [u8; SHORT],
}

/// Whether the calling thread is the only one of the process.
pub fn is_alone() -> bool {
    thread::others(0) == Some(1)
}

/// Makes all of the jumps. False: none of them (the system does not allow it, or there are no filling bytes for one of them).
///
/// # Safety
/// The functions are readable, executable memory of one mapping of the calling process, which is that of an ELF file's code,
/// and may be replaced.
pub unsafe fn change(jumps: &[Jump]) -> bool {
    let mut routes = ArrayVec::<Route, MAX_HOOKS>::new();
    for jump in jumps {
        // SAFETY: handed on to the caller.
        match unsafe { route(*jump, &routes) } {
            Some(route) => routes.push(route),
            None => return false,
        }
    }
    let places = || routes.iter().flat_map(|route| [route.from, route.by]);
    let (Some(low), Some(high)) = (places().min(), places().max()) else { return false };
    let start = low & !(PAGE_SIZE - 1);
    let len = (high + NEAR).next_multiple_of(PAGE_SIZE) - start;
    let executable = sys::PROT_READ | sys::PROT_EXEC;
    if !membarrier(sys::membarrier_cmd::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE)
        || !protect(start, len, executable | sys::PROT_WRITE)
    {
        return false;
    }
    for route in &routes {
        for (i, byte) in route.near.iter().enumerate() {
            // SAFETY: filling bytes of the code, writable now, which nobody executes.
            unsafe { (route.by as *mut u8).add(i).write_volatile(*byte) };
        }
    }
    fetch_anew();
    for route in &routes {
        // SAFETY: writable, and aligned; other threads execute it and nobody writes it. Release: the filling comes first.
        unsafe { AtomicU16::from_ptr(route.from as *mut u16) }.store(u16::from_le_bytes(route.short), Ordering::Release);
    }
    // What is refused here takes nothing away: then the code stays writable.
    protect(start, len, executable);
    fetch_anew();
    true
}

fn membarrier(command: sys::membarrier_cmd) -> bool {
    // SAFETY: touches no memory.
    unsafe { syscall3(sys::__NR_membarrier, command as usize, 0, 0) == 0 }
}

/// Each thread of the process executes from now on what stands in memory.
fn fetch_anew() {
    membarrier(sys::membarrier_cmd::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE);
}

/// A way for a jump that no other takes.
///
/// # Safety
/// The function is code of an ELF file, and mapped.
unsafe fn route(jump: Jump, others: &[Route]) -> Option<Route> {
    let from = jump.from.at;
    let end = from + jump.from.size;
    // SAFETY: code of a file on both sides; a function is not the first thing on its first page, nor the last on its last.
    let (first, behind, before) = unsafe {
        let before = (from - ALIGN + 1..from).map(|start| fillings(start, from)).find(|found| !found.is_empty());
        (byte_at(from), fillings(end, end.next_multiple_of(ALIGN)), before)
    };
    // Two bytes of the first instruction: it has a prefix, an operand in a byte of its own, or a constant.
    let is_long = matches!(first, 0x40..=0x4f | 0xb8..=0xbf | 0x31 | 0x33 | 0x83 | 0x85 | 0x89 | 0x8b | 0xf3);
    if !is_long || !from.is_multiple_of(align_of::<u16>()) {
        return None;
    }
    behind.into_iter().chain(before.unwrap_or_default()).filter(|by| others.iter().all(|other| other.by != *by)).find_map(
        |by| {
            let short = i8::try_from(by.wrapping_sub(from + SHORT) as isize).ok()?;
            let near = i32::try_from(jump.to.wrapping_sub(by + NEAR) as isize).ok()?;
            let [a, b, c, d] = near.to_le_bytes();
            Some(Route { from, by, near: [0xe9, a, b, c, d], short: [0xeb, short as u8] })
        },
    )
}

/// Places for a [`NEAR`] jump in filling bytes that take all of `start .. end`; none if anything else is there. Only those
/// without prefixes that are long enough are used: what seems to be a prefix could be the end of the function before, but five
/// bytes are more than the operand of the jump that may be its last instruction.
///
/// # Safety
/// The bytes, and eight behind them, are readable.
unsafe fn fillings(start: usize, end: usize) -> ArrayVec<usize, { ALIGN / NEAR }> {
    let mut found = ArrayVec::new();
    let mut at = start;
    while at < end {
        // SAFETY: handed on to the caller.
        let Some(without_prefixes) = (unsafe { nop(&mut at) }).filter(|_| at <= end) else { return ArrayVec::new() };
        if without_prefixes >= NEAR {
            found.push(at - NEAR);
        }
    }
    found
}

/// Goes to behind the instruction at `at` if it is one of those that do nothing, as assemblers fill with, and returns its
/// length without prefixes.
///
/// # Safety
/// What stands there is readable.
unsafe fn nop(at: &mut usize) -> Option<usize> {
    // SAFETY: handed on to the caller; no byte is read before all those in front of it were of such an instruction.
    let byte = |i: usize| unsafe { byte_at(*at + i) };
    let prefixes = (0..4).take_while(|i| matches!(byte(*i), 0x66 | 0x2e)).count();
    let len = match byte(prefixes) {
        0x90 => 1,
        0x0f if byte(prefixes + 1) == 0x1f => match byte(prefixes + 2) {
            0x00 => 3,
            0x40 => 4,
            0x44 => 5,
            0x80 => 7,
            0x84 => 8,
            _ => return None,
        },
        _ => return None,
    };
    if (3..len).any(|i| byte(prefixes + i) != 0) {
        return None;
    }
    *at += prefixes + len;
    Some(len)
}
