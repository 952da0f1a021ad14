//! Hooks in the C library: the first instructions of a function are replaced by a jump to ours.
//!
//! Interposing symbols would miss the C library's own calls (malloc's mmap and brk, the madvise of a thread stack that is put
//! aside), and those are the ones that matter. The functions hooked are bare wrappers of one system call, which ours make
//! themselves, so the original is never needed again. Done once, by the constructor, while the process has one thread.

use core::ffi::{CStr, c_char, c_int, c_void};

use arrayvec::ArrayVec;

use crate::code::{self, Change};

/// Most hooks that can be installed.
pub const MAX_HOOKS: usize = 20;

/// `jmp *0(%rip)`: to the address behind it.
const JUMP: [u8; code::LEN - size_of::<usize>()] = [0xff, 0x25, 0, 0, 0, 0];
const RTLD_NEXT: *mut c_void = -1isize as *mut c_void;
const RTLD_DL_SYMENT: c_int = 1;
const PAGE: usize = 4096;

#[repr(C)]
struct DlInfo {
    file: *const c_char,
    base: *const c_void,
    symbol: *const c_char,
    address: *const c_void,
}

#[repr(C)]
struct ElfSym {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

#[link(name = "c")]
unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dladdr1(address: *const c_void, info: *mut DlInfo, extra: *mut *const c_void, flags: c_int) -> c_int;
}

/// A function of the C library and what replaces it.
#[derive(Clone, Copy)]
pub struct Hook {
    /// Its name.
    pub name: &'static CStr,
    /// Ours, with the same signature.
    pub with: *const c_void,
}

/// The address of `name` in the C library, if it is there and long enough to be patched.
fn find(name: &CStr) -> Option<usize> {
    // SAFETY: plain look-ups; `info` and `symbol` are written by dladdr1 before they are read.
    unsafe {
        let address = dlsym(RTLD_NEXT, name.as_ptr());
        if address.is_null() {
            return None;
        }
        let mut info = core::mem::zeroed::<DlInfo>();
        let mut symbol = core::ptr::null::<c_void>();
        if dladdr1(address, &mut info, &mut symbol, RTLD_DL_SYMENT) == 0 || symbol.is_null() || info.file.is_null() {
            return None;
        }
        let in_libc = CStr::from_ptr(info.file).to_bytes().windows(7).any(|w| w == b"libc.so");
        let long_enough = (*symbol.cast::<ElfSym>()).size >= code::LEN as u64;
        (in_libc && long_enough).then_some(address as usize)
    }
}

/// The addresses of the loaded object that holds `name`, its zero-initialised data included.
pub fn object_of(name: &CStr) -> Option<(usize, usize)> {
    // SAFETY: look-ups as above; `base` is the object's ELF header, mapped with its program headers, as the loader needs them.
    unsafe {
        let address = dlsym(RTLD_NEXT, name.as_ptr());
        let mut info = core::mem::zeroed::<DlInfo>();
        let mut symbol = core::ptr::null::<c_void>();
        if address.is_null() || dladdr1(address, &mut info, &mut symbol, RTLD_DL_SYMENT) == 0 || info.base.is_null() {
            return None;
        }
        let base = info.base as usize;
        let header = base as *const u8;
        let offset = header.add(32).cast::<u64>().read() as usize;
        let (size, count) = (header.add(54).cast::<u16>().read() as usize, header.add(56).cast::<u16>().read() as usize);
        let mut end = 0;
        for i in 0..count {
            let program = header.add(offset + i * size);
            if program.cast::<u32>().read() == 1 {
                // PT_LOAD: virtual address and size in memory.
                end = end.max(program.add(16).cast::<u64>().read() as usize + program.add(40).cast::<u64>().read() as usize);
            }
        }
        (end != 0).then_some((base, (base + end).next_multiple_of(PAGE)))
    }
}

/// The address of a variable of the C library.
pub fn variable(name: &CStr) -> Option<usize> {
    // SAFETY: a plain look-up.
    let address = unsafe { dlsym(RTLD_NEXT, name.as_ptr()) } as usize;
    (address != 0).then_some(address)
}

/// Installs the hooks. False: none of them (the system does not allow to change code, or the C library looks strange).
///
/// # Safety
/// The process has one thread, and each hook keeps the contract of the function it replaces.
pub unsafe fn install(hooks: &[Hook]) -> bool {
    let mut changes = ArrayVec::<Change, MAX_HOOKS>::new();
    for hook in hooks {
        if let Some(at) = find(hook.name) {
            let mut bytes = [0; code::LEN];
            bytes[..JUMP.len()].copy_from_slice(&JUMP);
            bytes[JUMP.len()..].copy_from_slice(&(hook.with as usize).to_ne_bytes());
            changes.push(Change { at, bytes });
        }
    }
    // SAFETY: functions of the C library that are at least as long; nobody but this thread runs, and it runs elsewhere.
    !changes.is_empty() && unsafe { code::change(&changes) }
}
