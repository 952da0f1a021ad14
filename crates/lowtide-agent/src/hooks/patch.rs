//! Hooks in the C library: a jump to lowtide's function replaces the first instructions.
//!
//! Symbol interposition would miss the C library's internal calls (malloc's mmap and brk, the
//! madvise of a cached thread stack), which matter most. The hooked functions wrap one system call
//! each, so the originals are never needed. The constructor does this, usually with one thread;
//! else see `beside.rs`.

use core::ffi::{CStr, c_void};

use arrayvec::ArrayVec;

use crate::hooks::beside::{self, Jump};
use crate::hooks::code::{self, Change};
use crate::hooks::objects::Object;

pub const MAX_HOOKS: usize = 24;

const JUMP: [u8; code::LEN - size_of::<usize>()] = [0xff, 0x25, 0, 0, 0, 0];
#[derive(Clone, Copy)]
pub struct Hook {
    pub name: &'static CStr,
    pub with: *const c_void,
}

/// Installs the hooks. False: none (the system forbids changing code, or the C library looks
/// strange).
///
/// # Safety
/// Only the constructor calls it; each hook keeps the contract of its function.
pub unsafe fn install(object: &Object, hooks: &[Hook]) -> bool {
    let mut jumps = ArrayVec::<Jump, MAX_HOOKS>::new();
    for hook in hooks {
        if let Some(from) = object.symbol(hook.name).filter(|found| found.size >= code::LEN) {
            jumps.push(Jump { from, to: hook.with as usize });
        }
    }
    if !beside::is_alone() {
        // SAFETY: functions of the C library.
        return unsafe { beside::change(&jumps) };
    }
    let mut changes: ArrayVec<Change, MAX_HOOKS> = jumps.iter().map(whole).collect();
    // SAFETY: functions of the C library of sufficient length; only this thread runs, and
    // elsewhere.
    !changes.is_empty() && unsafe { code::change(&mut changes) }
}

fn whole(jump: &Jump) -> Change {
    let mut bytes = [0; code::LEN];
    bytes[..JUMP.len()].copy_from_slice(&JUMP);
    bytes[JUMP.len()..].copy_from_slice(&jump.to.to_ne_bytes());
    Change { at: jump.from.at, bytes }
}
