//! Changes code that other threads may be executing. This library is initialised first (`-z
//! initfirst`), usually before there are any. But the loader honours only the last loaded of such
//! libraries (libpthread before glibc 2.34 is one): an earlier constructor may have started
//! threads.
//!
//! Threads inside a function go on in its old code, and none may see half a change. So one store
//! replaces only the first two bytes, which lie within the first instruction, by a short jump to
//! filling bytes between functions. No thread executes those, and they already hold a jump to
//! lowtide's function; in between, membarrier makes all other CPUs drop prefetched filling. The
//! code stays executable throughout.

use core::sync::atomic::{AtomicU16, Ordering};

use arrayvec::ArrayVec;
use linux_raw_sys::general as sys;
use lowtide_core::vm::PAGE_SIZE;

use crate::hooks::code::{byte_at, protect};
use crate::hooks::objects::Found;
use crate::hooks::patch::MAX_HOOKS;
use crate::process::thread::{self, syscall3};

const SHORT: usize = 2;
const NEAR: usize = 5;
const ALIGN: usize = 16;

#[derive(Clone, Copy)]
pub struct Jump {
    pub from: Found,
    pub to: usize,
}

struct Route {
    from: usize,
    by: usize,
    near: [u8; NEAR],
    short: [u8; SHORT],
}

pub fn is_alone() -> bool {
    thread::others(0) == Some(1)
}

/// Makes all jumps. False: none (the system forbids it, or filling bytes are missing).
///
/// # Safety
/// The functions are readable, executable memory of one mapping of an ELF file's code, and may be
/// replaced.
pub unsafe fn change(jumps: &[Jump]) -> bool {
    let mut routes = ArrayVec::<Route, MAX_HOOKS>::new();
    for jump in jumps {
        // SAFETY: as the caller promises.
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
            // SAFETY: filling bytes, writable now, which no thread executes.
            unsafe { (route.by as *mut u8).add(i).write_volatile(*byte) };
        }
    }
    fetch_anew();
    for route in &routes {
        // SAFETY: writable and aligned; other threads only execute it. Release: the filling comes
        // first.
        unsafe { AtomicU16::from_ptr(route.from as *mut u16) }.store(u16::from_le_bytes(route.short), Ordering::Release);
    }
    // On failure the code merely stays writable.
    protect(start, len, executable);
    fetch_anew();
    true
}

fn membarrier(command: sys::membarrier_cmd) -> bool {
    // SAFETY: touches no memory.
    unsafe { syscall3(sys::__NR_membarrier, command as usize, 0, 0) == 0 }
}

fn fetch_anew() {
    membarrier(sys::membarrier_cmd::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE);
}

/// A route that no other jump uses.
///
/// # Safety
/// The function is mapped code of an ELF file.
unsafe fn route(jump: Jump, others: &[Route]) -> Option<Route> {
    let from = jump.from.at;
    let end = from + jump.from.size;
    // SAFETY: code on both sides: a function is not first on the file's first page, nor last on its
    // last.
    let (first, behind, before) = unsafe {
        let before = (from - ALIGN + 1..from).map(|start| fillings(start, from)).find(|found| !found.is_empty());
        (byte_at(from), fillings(end, end.next_multiple_of(ALIGN)), before)
    };
    // A first instruction of two bytes or more: it has a prefix, an operand byte or a constant.
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

/// Places for a [`NEAR`] jump in filling that covers all of `start .. end`; otherwise none.
/// Prefixes don't count: they could end the previous function, but five bytes exceed the operand of
/// its last jump.
///
/// # Safety
/// The bytes, and eight behind them, are readable.
unsafe fn fillings(start: usize, end: usize) -> ArrayVec<usize, { ALIGN / NEAR }> {
    let mut found = ArrayVec::new();
    let mut at = start;
    while at < end {
        // SAFETY: as the caller promises.
        let Some(without_prefixes) = (unsafe { nop(&mut at) }).filter(|_| at <= end) else { return ArrayVec::new() };
        if without_prefixes >= NEAR {
            found.push(at - NEAR);
        }
    }
    found
}

/// Steps over the instruction at `at` if it is an assembler's filling, and returns its length
/// without prefixes.
///
/// # Safety
/// It is readable.
unsafe fn nop(at: &mut usize) -> Option<usize> {
    // SAFETY: as the caller promises; each byte is read only if those before it belong to such an
    // instruction.
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
