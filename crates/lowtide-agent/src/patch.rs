//! Hooks in the C library: the first instructions of a function are replaced by a jump to ours.
//!
//! Interposing symbols would miss the C library's own calls (malloc's mmap and brk, the madvise of a thread stack that is put
//! aside), and those are the ones that matter. The functions hooked are bare wrappers of one system call, which ours make
//! themselves, so the original is never needed again. Done once, by the constructor. Mostly the process has one thread then;
//! `beside.rs` is for the others.

use core::ffi::{CStr, c_void};

use arrayvec::ArrayVec;

use crate::beside::{self, Jump};
use crate::code::{self, Change};
use crate::objects::Object;

/// Most hooks that can be installed.
pub const MAX_HOOKS: usize = 24;

/// `jmp *0(%rip)`: to the address behind it.
const JUMP: [u8; code::LEN - size_of::<usize>()] = [0xff, 0x25, 0, 0, 0, 0];
/// A function of the C library and what replaces it.
#[derive(Clone, Copy)]
pub struct Hook {
    /// Its name.
    pub name: &'static CStr,
    /// Ours, with the same signature.
    pub with: *const c_void,
}

/// Installs the hooks in the C library, `object`. False: none of them (the system does not allow to change code, or the C
/// library looks strange).
///
/// # Safety
/// To be called by the constructor, and each hook keeps the contract of the function it replaces.
pub unsafe fn install(object: &Object, hooks: &[Hook]) -> bool {
    let mut jumps = ArrayVec::<Jump, MAX_HOOKS>::new();
    for hook in hooks {
        // Long enough to be patched?
        if let Some(from) = object.symbol(hook.name).filter(|found| found.size >= code::LEN) {
            jumps.push(Jump { from, to: hook.with as usize });
        }
    }
    if !beside::is_alone() {
        // SAFETY: functions of the C library.
        return unsafe { beside::change(&jumps) };
    }
    let mut changes: ArrayVec<Change, MAX_HOOKS> = jumps.iter().map(whole).collect();
    // SAFETY: functions of the C library that are at least as long; nobody but this thread runs, and it runs elsewhere.
    !changes.is_empty() && unsafe { code::change(&mut changes) }
}

/// A jump that stands in the first bytes of the function.
fn whole(jump: &Jump) -> Change {
    let mut bytes = [0; code::LEN];
    bytes[..JUMP.len()].copy_from_slice(&JUMP);
    bytes[JUMP.len()..].copy_from_slice(&jump.to.to_ne_bytes());
    Change { at: jump.from.at, bytes }
}
