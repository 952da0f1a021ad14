//! lowtide's threads inside the program, made with the bare system call.
//!
//! The C library does not know them: a program whose last thread calls `pthread_exit` still ends,
//! the library stays single-threaded, and no start of a thread calls malloc. In return they must
//! not call the C library, except functions like memcpy, and have no thread-local storage. Their
//! own descriptor table keeps lowtide's descriptors from the program.

use core::arch::asm;
use core::mem::MaybeUninit;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicUsize, Ordering};

use linux_raw_sys::general as sys;
use lowtide_core::kernel_text;
use lowtide_core::vm::{self, OnFork};
use lowtide_sys::Line;
use lowtide_sys::stat::{parse_is_io_worker, parse_work};
use lowtide_wire::segment::OWN_THREADS;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

use crate::handlers::cpus::CpuMask;

const STACK: usize = 256 << 10;
const TLS: usize = 4096;
const CLOSE_RANGE_UNSHARE: usize = 1 << 1;

/// 0: free. Only one thread at a time starts others.
static STACKS: [AtomicUsize; OWN_THREADS] = [const { AtomicUsize::new(0) }; OWN_THREADS];

/// The thread runs `f(arg)` with all signals blocked and shares the caller's descriptor table. For
/// the reclaimer, or before there is one.
///
/// # Errors
/// Those of clone and of mapping its stack.
pub fn spawn(f: extern "C" fn(usize) -> !, arg: usize) -> Result<u32, Errno> {
    let memory = vm::map(TLS + STACK, OnFork::Copy)?;
    // Before clone: the new thread may start others, and the process may fork. A stack without a
    // place leaks in children.
    let place = STACKS.iter().find(|stack| stack.load(Ordering::Relaxed) == 0);
    place.inspect(|place| place.store(memory.addr(), Ordering::Relaxed));
    let tls = memory.addr() + TLS / 2;
    // SAFETY: inside the fresh mapping. The first word points to itself, as code that reads %fs:0
    // expects. Compiled C may read a stack canary at %fs:0x28: any constant will do.
    unsafe { (tls as *mut usize).write(tls) };
    let top = memory.addr() + TLS + STACK;
    let old = block_signals();
    // CLONE_FILES: the first thread unshares (`own_files`). CLONE_UNTRACED hides lowtide's threads
    // from strace and debuggers, which would stop them at system calls.
    let flags = sys::CLONE_VM
        | sys::CLONE_FS
        | sys::CLONE_FILES
        | sys::CLONE_SIGHAND
        | sys::CLONE_THREAD
        | sys::CLONE_SYSVSEM
        | sys::CLONE_SETTLS
        | sys::CLONE_UNTRACED;
    let result: isize;
    // SAFETY: the child runs on its own stack and never returns from `f`; the parent sees an
    // ordinary system call.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") sys::__NR_clone as isize => result,
            in("rdi") flags as usize,
            in("rsi") top,
            in("rdx") 0usize,
            in("r10") 0usize,
            in("r8") tls,
            in("r12") arg,
            in("r13") f,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    restore_signals(old);
    if result < 0 {
        place.inspect(|place| place.store(0, Ordering::Relaxed));
        // SAFETY: mapped here, and no thread has it.
        unsafe { memory.retire() };
        return Err(Errno::from_raw_os_error(-result as i32));
    }
    Ok(result as u32)
}

/// Frees the stacks of the parent's threads in a forked child.
///
/// # Safety
/// This process has no thread of lowtide's.
pub unsafe fn retire_stacks() {
    for stack in &STACKS {
        let addr = stack.swap(0, Ordering::Relaxed);
        if addr != 0 {
            // SAFETY: mapped by `spawn`; unused, as the caller promises.
            unsafe { vm::retire_at(addr) };
        }
    }
}

/// Gives the calling thread an empty descriptor table of its own.
///
/// # Errors
/// `NOSYS` before Linux 5.9.
pub fn own_files() -> Result<(), Errno> {
    // Unshare and close in one step: a held copy of a pipe's end would keep its reader waiting.
    // SAFETY: the program's descriptors stay open in its own table.
    let r = unsafe { syscall3(sys::__NR_close_range, 0, u32::MAX as usize, CLOSE_RANGE_UNSHARE) };
    if r < 0 { Err(Errno::from_raw_os_error(-r as i32)) } else { Ok(()) }
}

/// SCHED_FLAG_RESET_ON_FORK.
const RESET_ON_FORK: u64 = 1;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

impl SchedAttr {
    fn get() -> Option<SchedAttr> {
        let mut attributes = SchedAttr { size: size_of::<SchedAttr>() as u32, ..SchedAttr::default() };
        // SAFETY: room for the given size.
        let r = unsafe { syscall4(sys::__NR_sched_getattr, 0, &raw mut attributes as usize, size_of::<SchedAttr>(), 0) };
        (r == 0).then_some(attributes)
    }

    fn set(&self) -> bool {
        // SAFETY: the structure has the size that it states.
        unsafe { syscall3(sys::__NR_sched_setattr, 0, core::ptr::from_ref(self) as usize, 0) == 0 }
    }
}

pub fn id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// Until dropped, the calling thread runs as soon as it wakes.
pub struct Urgent(SchedAttr);

impl Urgent {
    /// None: not allowed (needs CAP_SYS_NICE, or a limit such as RLIMIT_RTPRIO). A woken thread
    /// then waits its turn: 10 ms with eight busy threads on each CPU, which touch 20 MiB.
    pub fn new() -> Option<Urgent> {
        let old = SchedAttr::get()?;
        let urgent = SchedAttr { flags: RESET_ON_FORK, runtime_ns: 0, ..old };
        let fifo = SchedAttr { policy: sys::SCHED_FIFO, priority: 1, nice: 0, ..urgent };
        // A cgroup may have no real-time share.
        let nice = SchedAttr { policy: sys::SCHED_NORMAL, priority: 0, nice: -20, ..urgent };
        (fifo.set() || nice.set()).then_some(Urgent(old))
    }

    /// For much work: shares the CPU with others of its kind.
    pub fn nice() -> Option<Urgent> {
        let old = SchedAttr::get()?;
        let nice = SchedAttr { policy: sys::SCHED_NORMAL, priority: 0, nice: -20, flags: RESET_ON_FORK, runtime_ns: 0, ..old };
        nice.set().then_some(Urgent(old))
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        // Clearing the flag needs CAP_SYS_NICE; it does not matter for ordinary threads.
        if !self.0.set() {
            SchedAttr { flags: self.0.flags | RESET_ON_FORK, ..self.0 }.set();
        }
    }
}

/// CPU time of a thread in microseconds.
///
/// # Errors
/// `INVAL`: this process has no such thread.
fn spent_us(thread: u32) -> Result<u64, Errno> {
    // A thread's clock: CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED.
    let clock = !(thread as i32) << 3 | 6;
    let mut time = [0u64; 2];
    // SAFETY: room for a timespec.
    let r = unsafe { syscall3(sys::__NR_clock_gettime, clock as usize, &raw mut time as usize, 0) };
    if r < 0 { Err(Errno::from_raw_os_error(-r as i32)) } else { Ok(time[0] * 1_000_000 + time[1] / 1000) }
}

/// In microseconds; 0 stands for no thread.
pub fn cpu_us(others: impl Iterator<Item = u32>) -> u64 {
    others.filter(|thread| *thread != 0).chain([id()]).filter_map(|thread| spent_us(thread).ok()).sum()
}

/// User time of the program's threads, in microseconds; clock ticks are 10 ms. None: it can't be
/// read.
pub fn program_user_us(own: impl Iterator<Item = u32>) -> Option<u64> {
    let mut ticks = read_stat(b"/proc/self/stat", parse_work)?.user_ticks;
    for thread in own.filter(|thread| *thread != 0).chain([id()]) {
        ticks = ticks.saturating_sub(stat(thread, parse_work)?.user_ticks);
    }
    Some(ticks * 10_000)
}

pub fn exists(thread: u32) -> bool {
    spent_us(thread) != Err(Errno::INVAL)
}

/// Threads of this process except `own` of lowtide's; None: unknown.
pub fn others(own: usize) -> Option<usize> {
    // One link for each thread's directory, and two more; needs no descriptor.
    let links = rustix::fs::stat(c"/proc/self/task").ok()?.st_nlink as usize;
    links.checked_sub(2 + own)
}

/// For [`each`].
///
/// # Errors
/// Those of open.
pub fn list() -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(c"/proc/self/task", flags, Mode::empty())
}

/// Calls `f` with the id of each thread, lowtide's included, until it breaks. One thread at a time
/// for each list.
///
/// # Errors
/// Those of reading the list, which `f` then saw in part.
pub fn each(list: &OwnedFd, mut f: impl FnMut(u32) -> ControlFlow<()>) -> Result<(), Errno> {
    rustix::fs::seek(list, SeekFrom::Start(0))?;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut names = RawDir::new(list, &mut buffer);
    while let Some(name) = names.next() {
        if let Some(thread) = name?.file_name().to_str().ok().and_then(|name| name.parse().ok())
            && f(thread).is_break()
        {
            break;
        }
    }
    Ok(())
}

/// Whether one thread is left except `own` of lowtide's and the kernel's io_uring workers, which
/// execute none of the program's code.
pub fn has_one(own: usize) -> bool {
    if others(own) == Some(1) {
        return true;
    }
    let Ok(list) = list() else { return false };
    for _ in 0..LOOKS {
        let (mut threads, mut has_ended) = (0, false);
        let whole = each(&list, |thread| {
            match stat(thread, parse_is_io_worker) {
                Some(is_io_worker) => threads += usize::from(!is_io_worker),
                None => has_ended = true,
            }
            if threads > own + 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if whole.is_err() || threads > own + 1 || !has_ended {
            return whole.is_ok() && threads == own + 1;
        }
    }
    false
}

/// While threads end, of which it is not known any more what they were.
const LOOKS: usize = 8;

pub fn stat<T>(thread: u32, parse: fn(&[u8]) -> Option<T>) -> Option<T> {
    let mut path = Line::new();
    path.push(b"/proc/self/task/").number(u64::from(thread)).push(b"/stat");
    read_stat(path.bytes(), parse)
}

pub fn read_stat<T>(path: &[u8], parse: fn(&[u8]) -> Option<T>) -> Option<T> {
    parse(kernel_text::read(path, &mut [0u8; 512])?)
}

/// On the main thread of a process, named as in `/proc`. None: unknown.
pub fn filters(process: &[u8]) -> Option<u64> {
    let (mut text, mut path) = ([0u8; 4096], Line::new());
    path.push(b"/proc/").push(process).push(b"/status");
    let status = kernel_text::read(path.bytes(), &mut text)?;
    const KEY: &[u8] = b"\nSeccomp_filters:\t";
    let Some(at) = status.windows(KEY.len()).position(|window| window == KEY) else { return Some(0) };
    Some(kernel_text::number(&status[at + KEY.len()..]))
}

/// 0: the calling thread. None: no such thread.
pub fn affinity(thread: u32) -> Option<CpuMask> {
    let mut cpus = CpuMask::new();
    let words = cpus.words();
    // SAFETY: room for the given size; the kernel writes less if it supports fewer CPUs.
    let r = unsafe { syscall3(sys::__NR_sched_getaffinity, thread as usize, size_of_val(words), words.as_mut_ptr().addr()) };
    (r > 0).then_some(cpus)
}

/// 0: the calling thread. False: no usable CPU, or no such thread.
pub fn set_affinity(thread: u32, mut cpus: CpuMask) -> bool {
    let words = cpus.words();
    // SAFETY: the kernel only reads the given size.
    unsafe { syscall3(sys::__NR_sched_setaffinity, thread as usize, size_of_val(words), words.as_ptr().addr()) == 0 }
}

pub fn name(name: &core::ffi::CStr) {
    let _ = rustix::thread::set_name(name);
}

pub fn block_signals() -> u64 {
    let all = u64::MAX;
    let mut old = 0u64;
    // SAFETY: both pointers are to eight bytes, the given size.
    unsafe {
        syscall4(sys::__NR_rt_sigprocmask, 2 /* SIG_SETMASK */, &raw const all as usize, &raw mut old as usize, 8)
    };
    old
}

pub fn restore_signals(old: u64) {
    // SAFETY: as above.
    unsafe { syscall4(sys::__NR_rt_sigprocmask, 2, &raw const old as usize, 0, 8) };
}

pub fn without_signals(call: &mut dyn FnMut()) {
    let old = block_signals();
    call();
    restore_signals(old);
}

/// The result is minus the error number on failure.
///
/// # Safety
/// That of the call.
pub unsafe fn syscall3(nr: u32, a: usize, b: usize, c: usize) -> isize {
    // SAFETY: as the caller promises.
    unsafe { syscall6(nr, a, b, c, 0, 0, 0) }
}

/// # Safety
/// That of the call.
pub unsafe fn syscall4(nr: u32, a: usize, b: usize, c: usize, d: usize) -> isize {
    // SAFETY: as the caller promises.
    unsafe { syscall6(nr, a, b, c, d, 0, 0) }
}

/// # Safety
/// That of the call.
#[inline]
pub unsafe fn syscall6(nr: u32, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let result;
    // SAFETY: the kernel preserves all other registers; the caller answers for the call's effects.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") nr as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}
