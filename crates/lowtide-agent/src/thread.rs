//! lowtide's threads inside the program, made with the bare system call.
//!
//! They are none of the C library's: it does not count them (a program whose last thread ends by `pthread_exit` still ends), it
//! goes on knowing that it is single-threaded where it is, and nothing calls the program's malloc for their sake. In return
//! they must not call the C library, but for functions like memcpy, and have no thread-local storage. They have a descriptor
//! table of their own: the program can't see or close lowtide's descriptors.

use core::arch::asm;
use core::mem::MaybeUninit;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicUsize, Ordering};

use linux_raw_sys::general as sys;
use lowtide_core::kernel_text;
use lowtide_core::vm::{self, OnFork};
use lowtide_pager::segment::OWN_THREADS;
use lowtide_pager::sys::Line;
use lowtide_pager::sys::stat::parse_is_io_worker;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

use crate::cpus::CpuMask;

const STACK: usize = 256 << 10;
const TLS: usize = 4096;
const CLOSE_RANGE_UNSHARE: usize = 1 << 1;

/// Where the memory of lowtide's threads begins; 0: there is no such thread. By who starts them, of whom there is one at a
/// time.
static STACKS: [AtomicUsize; OWN_THREADS] = [const { AtomicUsize::new(0) }; OWN_THREADS];

/// Starts a thread that runs `f(arg)` with all signals blocked. It shares the descriptor table of the calling thread. By the
/// reclaimer, or where there is none.
///
/// # Errors
/// Those of clone and of mapping its stack.
pub fn spawn(f: extern "C" fn(usize) -> !, arg: usize) -> Result<u32, Errno> {
    let memory = vm::map(TLS + STACK, OnFork::Copy)?;
    // Before the thread is there: it starts others, and the process may be forked at once. What has no place here stays with
    // forked children.
    let place = STACKS.iter().find(|stack| stack.load(Ordering::Relaxed) == 0);
    place.inspect(|place| place.store(memory.addr(), Ordering::Relaxed));
    let tls = memory.addr() + TLS / 2;
    // SAFETY: inside the fresh mapping. The block's first word points to itself, as code that reads %fs:0 expects (compiled C
    // may read the stack protector's canary at %fs:0x28: any constant will do).
    unsafe { (tls as *mut usize).write(tls) };
    let top = memory.addr() + TLS + STACK;
    let old = block_signals();
    // CLONE_FILES: the first thread unshares right after; see `own_files`. CLONE_UNTRACED: who follows the program's threads
    // (strace, a debugger) neither shows ours nor stops them at each of their system calls.
    let flags = sys::CLONE_VM
        | sys::CLONE_FS
        | sys::CLONE_FILES
        | sys::CLONE_SIGHAND
        | sys::CLONE_THREAD
        | sys::CLONE_SYSVSEM
        | sys::CLONE_SETTLS
        | sys::CLONE_UNTRACED;
    let result: isize;
    // SAFETY: the child runs on its own stack and never returns from `f`; the parent sees an ordinary system call.
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

/// In a forked child: the stacks of its parent's threads are nobody's, and the child's threads may have the room.
///
/// # Safety
/// This process has no thread of lowtide's.
pub unsafe fn retire_stacks() {
    for stack in &STACKS {
        let addr = stack.swap(0, Ordering::Relaxed);
        if addr != 0 {
            // SAFETY: mapped by `spawn`; the caller says that nobody uses it.
            unsafe { vm::retire_at(addr) };
        }
    }
}

/// Gives the calling thread an empty descriptor table of its own.
///
/// # Errors
/// `NOSYS` before Linux 5.9.
pub fn own_files() -> Result<(), Errno> {
    // Unshare and close in one step: no copy of a pipe's end is ever held, which would keep its reader waiting.
    // SAFETY: the program's descriptors stay open in its own table.
    let r = unsafe { syscall3(sys::__NR_close_range, 0, u32::MAX as usize, CLOSE_RANGE_UNSHARE) };
    if r < 0 { Err(Errno::from_raw_os_error(-r as i32)) } else { Ok(()) }
}

/// The threads that it starts are not like it.
const RESET_ON_FORK: u64 = 1;

/// The kernel's `struct sched_attr`, in its first version.
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
    /// Those of the calling thread.
    fn get() -> Option<SchedAttr> {
        let mut attributes = SchedAttr { size: size_of::<SchedAttr>() as u32, ..SchedAttr::default() };
        // SAFETY: room for as many bytes as are said.
        let r = unsafe { syscall4(sys::__NR_sched_getattr, 0, &raw mut attributes as usize, size_of::<SchedAttr>(), 0) };
        (r == 0).then_some(attributes)
    }

    /// Makes them the calling thread's, if that is allowed.
    fn set(&self) -> bool {
        // SAFETY: a structure of the size that it says.
        unsafe { syscall3(sys::__NR_sched_setattr, 0, core::ptr::from_ref(self) as usize, 0) == 0 }
    }
}

/// The calling thread's id.
pub fn id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// The calling thread runs as soon as it wakes, until this is dropped.
pub struct Urgent(SchedAttr);

impl Urgent {
    /// None: not allowed (it takes CAP_SYS_NICE, or a limit such as RLIMIT_RTPRIO). Where all CPUs are busy a thread that wakes
    /// waits its turn then: 10 ms with eight busy threads to a CPU, in which they can touch 20 MiB.
    pub fn new() -> Option<Urgent> {
        let old = SchedAttr::get()?;
        let urgent = SchedAttr { flags: RESET_ON_FORK, runtime_ns: 0, ..old };
        let fifo = SchedAttr { policy: sys::SCHED_FIFO, priority: 1, nice: 0, ..urgent };
        // Groups of processes may have no real-time share.
        let nice = SchedAttr { policy: sys::SCHED_NORMAL, priority: 0, nice: -20, ..urgent };
        (fifo.set() || nice.set()).then_some(Urgent(old))
    }

    /// The same for one that has much to do: beside other threads of its kind it gets its part of the CPU. None: as above.
    pub fn nice() -> Option<Urgent> {
        let old = SchedAttr::get()?;
        let nice = SchedAttr { policy: sys::SCHED_NORMAL, priority: 0, nice: -20, flags: RESET_ON_FORK, runtime_ns: 0, ..old };
        nice.set().then_some(Urgent(old))
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        // Without CAP_SYS_NICE the flag can't be taken away again. It changes nothing for a thread like any other.
        if !self.0.set() {
            SchedAttr { flags: self.0.flags | RESET_ON_FORK, ..self.0 }.set();
        }
    }
}

/// Microseconds of CPU that a thread of this process has had.
///
/// # Errors
/// `INVAL`: it has no such thread.
fn spent_us(thread: u32) -> Result<u64, Errno> {
    // The clock of a thread, by its id: CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED.
    let clock = !(thread as i32) << 3 | 6;
    let mut time = [0u64; 2];
    // SAFETY: room for a timespec.
    let r = unsafe { syscall3(sys::__NR_clock_gettime, clock as usize, &raw mut time as usize, 0) };
    if r < 0 { Err(Errno::from_raw_os_error(-r as i32)) } else { Ok(time[0] * 1_000_000 + time[1] / 1000) }
}

/// Microseconds of CPU that the calling thread and `others` of this process have had; 0 stands for no thread.
pub fn cpu_us(others: impl Iterator<Item = u32>) -> u64 {
    others.filter(|thread| *thread != 0).chain([id()]).filter_map(|thread| spent_us(thread).ok()).sum()
}

/// Whether this process has a thread of this id, as far as the kernel tells.
pub fn exists(thread: u32) -> bool {
    spent_us(thread) != Err(Errno::INVAL)
}

/// How many threads this process has beside `own` of lowtide's; None: nobody says.
pub fn others(own: usize) -> Option<usize> {
    // The kernel counts a directory for each thread there, and two more links. It takes no descriptor, and little time.
    let links = rustix::fs::stat(c"/proc/self/task").ok()?.st_nlink as usize;
    links.checked_sub(2 + own)
}

/// The list of the threads of this process, for [`each`].
///
/// # Errors
/// Those of open.
pub fn list() -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(c"/proc/self/task", flags, Mode::empty())
}

/// Calls `f` with the id of each thread of this process, lowtide's own too, until it breaks or there are no more. By one thread at
/// a time for each list.
///
/// # Errors
/// Those of reading the list: then it was not all of them.
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

/// Whether this process has one thread beside `own` of lowtide's and the workers that the kernel starts in it for io_uring. They
/// execute nothing of the program's.
pub fn has_one(own: usize) -> bool {
    if others(own) == Some(1) {
        return true;
    }
    let Ok(list) = list() else { return false };
    let mut threads = 0;
    let whole = each(&list, |thread| {
        threads += usize::from(stat(thread, parse_is_io_worker) != Some(true));
        if threads > own + 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    whole.is_ok() && threads == own + 1
}

/// What `parse` finds in the kernel's line about a thread of this process.
pub fn stat<T>(thread: u32, parse: fn(&[u8]) -> Option<T>) -> Option<T> {
    let mut path = Line::new();
    path.push(b"/proc/self/task/").number(u64::from(thread)).push(b"/stat");
    read_stat(path.bytes(), parse)
}

/// What `parse` finds in a file of the kernel's, of which the first 512 bytes count.
pub fn read_stat<T>(path: &[u8], parse: fn(&[u8]) -> Option<T>) -> Option<T> {
    parse(kernel_text::read(path, &mut [0u8; 512])?)
}

/// How many seccomp filters the main thread of a process has, by its name in `/proc`. None: nobody says.
pub fn filters(process: &[u8]) -> Option<u64> {
    let (mut text, mut path) = ([0u8; 4096], Line::new());
    path.push(b"/proc/").push(process).push(b"/status");
    let status = kernel_text::read(path.bytes(), &mut text)?;
    const KEY: &[u8] = b"\nSeccomp_filters:\t";
    // (A kernel without them says nothing.)
    let Some(at) = status.windows(KEY.len()).position(|window| window == KEY) else { return Some(0) };
    Some(kernel_text::number(&status[at + KEY.len()..]))
}

/// The CPUs on which a thread of this process may run; 0: the calling one. None: there is no such thread.
pub fn affinity(thread: u32) -> Option<CpuMask> {
    let mut cpus = CpuMask::new();
    let words = cpus.words();
    // SAFETY: room for as many bytes as are said; the kernel writes fewer where it can't have that many CPUs.
    let r = unsafe { syscall3(sys::__NR_sched_getaffinity, thread as usize, size_of_val(words), words.as_mut_ptr().addr()) };
    (r > 0).then_some(cpus)
}

/// Keeps a thread of this process on these CPUs; 0: the calling one. False: none of them can be used, or there is no such
/// thread.
pub fn set_affinity(thread: u32, mut cpus: CpuMask) -> bool {
    let words = cpus.words();
    // SAFETY: as many bytes as are said, which the kernel only reads.
    unsafe { syscall3(sys::__NR_sched_setaffinity, thread as usize, size_of_val(words), words.as_ptr().addr()) == 0 }
}

/// Names the calling thread, for `ps -L` and debuggers.
pub fn name(name: &core::ffi::CStr) {
    let _ = rustix::thread::set_name(name);
}

/// Blocks all signals for the calling thread; what was blocked before, for [`restore_signals`].
pub fn block_signals() -> u64 {
    let all = u64::MAX;
    let mut old = 0u64;
    // SAFETY: both pointers are to eight bytes, which is what the size says.
    unsafe {
        syscall4(sys::__NR_rt_sigprocmask, 2 /* SIG_SETMASK */, &raw const all as usize, &raw mut old as usize, 8)
    };
    old
}

/// Ends a [`block_signals`].
pub fn restore_signals(old: u64) {
    // SAFETY: as above.
    unsafe { syscall4(sys::__NR_rt_sigprocmask, 2, &raw const old as usize, 0, 8) };
}

/// Calls this with all signals blocked.
pub fn without_signals(call: &mut dyn FnMut()) {
    let old = block_signals();
    call();
    restore_signals(old);
}

/// A system call with three arguments; a negative result is minus the error number.
///
/// # Safety
/// That of the call.
pub unsafe fn syscall3(nr: u32, a: usize, b: usize, c: usize) -> isize {
    // SAFETY: handed on to the caller.
    unsafe { syscall6(nr, a, b, c, 0, 0, 0) }
}

/// A system call with four arguments.
///
/// # Safety
/// That of the call.
pub unsafe fn syscall4(nr: u32, a: usize, b: usize, c: usize, d: usize) -> isize {
    // SAFETY: handed on to the caller.
    unsafe { syscall6(nr, a, b, c, d, 0, 0) }
}

/// A system call with six arguments.
///
/// # Safety
/// That of the call.
#[inline]
pub unsafe fn syscall6(nr: u32, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let result;
    // SAFETY: the kernel keeps all registers but these; what the call does is the caller's affair.
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
