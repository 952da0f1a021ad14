//! bpf(2) and perf_event_open(2).

use std::ffi::{CStr, c_int, c_long, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::assembler::Instruction;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    Hash = 1,
    Array = 2,
    HashOfMaps = 13,
    Ring = 27,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct MapPlan {
    pub kind: MapKind,
    pub key: u32,
    pub value: u32,
    /// At most; of a ring, its bytes.
    pub entries: u32,
    pub flags: u32,
    /// The descriptor of a map like the inner ones.
    pub inner: c_int,
}

/// Of a hash: entries take memory only when made.
pub const AS_NEEDED: u32 = 1 << 0;
pub const MAPPABLE: u32 = 1 << 10;

const MAP_CREATE: c_int = 0;
const MAP_LOOK_UP: c_int = 1;
const MAP_UPDATE: c_int = 2;
const MAP_DELETE: c_int = 3;
const PROGRAM_LOAD: c_int = 5;
const LINK_CREATE: c_int = 28;

/// # Safety
/// `of` is `command`'s structure, fully set, with valid addresses.
unsafe fn bpf<T>(command: c_int, of: &mut T) -> Result<c_long, Errno> {
    // SAFETY: as the caller promises.
    match unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(of), size_of::<T>()) } {
        -1 => Err(last_error()),
        value => Ok(value),
    }
}

fn last_error() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// # Safety
/// The kernel has just made this descriptor.
unsafe fn owned(descriptor: c_long) -> OwnedFd {
    // SAFETY: as the caller promises. Descriptors fit into an int.
    unsafe { OwnedFd::from_raw_fd(descriptor as c_int) }
}

/// exec closes it.
///
/// # Errors
/// The kernel's.
pub fn make_map(mut plan: MapPlan) -> Result<OwnedFd, Errno> {
    // SAFETY: MAP_CREATE takes these fields and zeros behind.
    unsafe { bpf(MAP_CREATE, &mut plan).map(|fd| owned(fd)) }
}

#[repr(C)]
struct Element {
    map: u32,
    rest: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Keys and values of maps.
///
/// # Safety
/// No padding, and any bytes are valid.
pub unsafe trait Plain: Copy {}

// SAFETY: as the trait demands.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for c_int {}
// SAFETY: as above.
unsafe impl Plain for [u32; 2] {}

fn element<K: Plain>(command: c_int, map: BorrowedFd<'_>, key: &K, value: u64) -> Result<(), Errno> {
    let key = std::ptr::from_ref(key) as u64;
    let mut of = Element { map: map.as_raw_fd().cast_unsigned(), rest: 0, key, value, flags: 0 };
    // SAFETY: the callers answer for the sizes of key and value, which outlive the call.
    unsafe { bpf(command, &mut of).map(drop) }
}

/// # Errors
/// The kernel's.
///
/// # Safety
/// The map has these types.
pub unsafe fn set<K: Plain, V: Plain>(map: BorrowedFd<'_>, key: K, value: V) -> Result<(), Errno> {
    element(MAP_UPDATE, map, &key, std::ptr::from_ref(&value) as u64)
}

/// # Errors
/// The kernel's.
///
/// # Safety
/// The map has these types.
pub unsafe fn get<K: Plain, V: Plain>(map: BorrowedFd<'_>, key: K, value: &mut V) -> Result<(), Errno> {
    element(MAP_LOOK_UP, map, &key, std::ptr::from_mut(value) as u64)
}

/// # Errors
/// The kernel's.
///
/// # Safety
/// The map has this type of keys.
pub unsafe fn remove<K: Plain>(map: BorrowedFd<'_>, key: K) -> Result<(), Errno> {
    // The kernel refuses a value here.
    element(MAP_DELETE, map, &key, 0)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramKind {
    /// The entry of the function with this type number: typed arguments.
    Function(u32),
    /// A probe: registers, and pointers as plain numbers.
    Probe,
}

/// BPF_TRACE_FENTRY.
const AT_ENTRY: u32 = 24;

#[repr(C)]
struct Program {
    kind: u32,
    instructions_len: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_len: u32,
    log: u64,
    kernel: u32,
    flags: u32,
    name: [u8; 16],
    device: u32,
    attached_as: u32,
    types: u32,
    function_info_len: u32,
    function_info: u64,
    functions: u32,
    line_info_len: u32,
    line_info: u64,
    lines: u32,
    attached_to: u32,
}

/// The programs call functions for GPL programs only.
const LICENCE: &CStr = c"Dual MIT/GPL";

/// `log` gets the verifier's output, unless empty.
///
/// # Errors
/// The kernel's.
pub fn load_program(kind: ProgramKind, name: &str, program: &[Instruction], log: &mut [u8]) -> Result<OwnedFd, Errno> {
    let (kind, attached_as, attached_to) = match kind {
        ProgramKind::Function(function) => (26, AT_ENTRY, function),
        ProgramKind::Probe => (2, 0, 0),
    };
    let mut short = [0; 16];
    short.iter_mut().zip(name.bytes().take(15)).for_each(|(to, from)| *to = from);
    let asked = !log.is_empty();
    let mut of = Program {
        kind,
        instructions_len: program.len() as u32,
        instructions: program.as_ptr() as u64,
        licence: LICENCE.as_ptr() as u64,
        log_level: u32::from(asked),
        log_len: log.len() as u32,
        log: if asked { log.as_mut_ptr() as u64 } else { 0 },
        kernel: 0,
        flags: 0,
        name: short,
        device: 0,
        attached_as,
        types: 0,
        function_info_len: 0,
        function_info: 0,
        functions: 0,
        line_info_len: 0,
        line_info: 0,
        lines: 0,
        attached_to,
    };
    // SAFETY: PROG_LOAD takes these fields and zeros behind; the memory they name outlives the
    // call.
    unsafe { bpf(PROGRAM_LOAD, &mut of).map(|fd| owned(fd)) }
}

/// Until the descriptor is closed.
///
/// # Errors
/// The kernel's.
pub fn attach_to_function(program: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut of = [program.as_raw_fd().cast_unsigned(), 0, AT_ENTRY, 0];
    // SAFETY: LINK_CREATE takes a program, no target, the attachment and no flags.
    unsafe { bpf(LINK_CREATE, &mut of).map(|fd| owned(fd)) }
}

#[repr(C)]
struct Event {
    kind: u32,
    size: u32,
    config: u64,
    sample: [u64; 4],
    wake: [u32; 2],
    function: u64,
    offset: u64,
}

const PERF_EVENT_SET_BPF: libc::Ioctl = 0x4004_2408;
const PERF_EVENT_ENABLE: libc::Ioctl = 0x2400;

/// Until the descriptor is closed. `kind` is the kernel's number for probes.
///
/// # Errors
/// The kernel's.
pub fn attach_by_probe(program: BorrowedFd<'_>, kind: u32, function: &CStr) -> Result<OwnedFd, Errno> {
    let size = size_of::<Event>() as u32;
    let function = function.as_ptr() as u64;
    let event = Event { kind, size, config: 0, sample: [0; 4], wake: [0; 2], function, offset: 0 };
    const CLOSED_BY_EXEC: libc::c_ulong = 1 << 3;
    let of: *const c_void = std::ptr::from_ref(&event).cast();
    // SAFETY: an event for no process (-1) on the first CPU, as probes are made, in no group; the
    // event and the name outlive the call.
    let fd = match unsafe { libc::syscall(libc::SYS_perf_event_open, of, -1, 0, -1, CLOSED_BY_EXEC) } {
        -1 => return Err(last_error()),
        // SAFETY: the kernel just made it.
        fd => unsafe { owned(fd) },
    };
    // SAFETY: both take a number.
    let done = unsafe {
        libc::ioctl(fd.as_raw_fd(), PERF_EVENT_SET_BPF, program.as_raw_fd()) == 0
            && libc::ioctl(fd.as_raw_fd(), PERF_EVENT_ENABLE, 0) == 0
    };
    if done { Ok(fd) } else { Err(last_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_sizes() {
        let sizes = [size_of::<MapPlan>(), size_of::<Element>(), size_of::<Program>(), size_of::<Event>()];
        assert_eq!(sizes, [24, 32, 112, 72]);
        assert_eq!(std::mem::offset_of!(Program, attached_to), 108);
        assert_eq!(std::mem::offset_of!(Event, function), 56);
    }
}
