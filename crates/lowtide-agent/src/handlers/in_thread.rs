//! Faults served in the faulting thread: a BPF program signals the fault
//! (docs/design/in-thread.md), and the thread brings its page in. It declines what needs a device,
//! room, or the end of a fork or event: the fault repeats and goes to a handler thread.
//!
//! The signal handler runs with all signals blocked, on a stack of lowtide's own. It takes no lock
//! that the interrupted code can hold: lowtide's hooks hold none while they touch the program's
//! memory.

use core::arch::global_asm;
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use alloc::boxed::Box;
use linux_raw_sys::general as sys;
use lowtide_bpf::SIGNAL;
use lowtide_bpf::record::Fault;
use lowtide_bpf::slot::Slots;
use lowtide_core::percpu;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_pager::fault::{Handler, Served, Workers};
use lowtide_pager::pager::Pager;
use lowtide_pager::pages::{Rights, Worker};
use lowtide_sys::clock::{now_ns, now_us};
use lowtide_sys::uffd::Access;
use lowtide_wire::broker::{Connection, REGISTER};
use lowtide_wire::segment::{FAULTS_BY_HANDLERS, FAULTS_IN_THREAD};
use rustix::io::Errno;
use rustix::param::linux_hwcap;

use crate::handlers::descriptors::{self, Found};
use crate::handlers::fault_ring::{self, FaultRing};
use crate::hooks::objects;
use crate::process::thread::{self, syscall3, syscall4};
use crate::process::{agent, broker, pid_in_run};
use crate::reclaimer::wake;

/// Fewer faults do not justify registration by default: each saves microseconds, but loading and
/// detaching costs 10 ms and more.
const WORTHWHILE: u64 = 16_384;
const ASK_AGAIN_US: u64 = 5_000_000;
const MAX_WORKERS: usize = 32;
const MOST_IN_A_ROW: u64 = 4;

struct Serving {
    workers: &'static Workers,
    slots: Slots,
}

/// Offset of `struct rseq` from the thread pointer; wraps.
static RSEQ_OFFSET: AtomicUsize = AtomicUsize::new(UNKNOWN_OFFSET);
/// No multiple of four.
const UNKNOWN_OFFSET: usize = 1;

static SERVING: AtomicPtr<Serving> = AtomicPtr::new(core::ptr::null_mut());

/// Set before `lowtide run` answers: a child forked meanwhile finds the workers here.
static WORKERS: AtomicPtr<Workers> = AtomicPtr::new(core::ptr::null_mut());

/// By page number modulo the length: the last page, and how often in a row.
static LAST: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];

#[derive(Default)]
pub enum InThread {
    #[default]
    NotYet,
    /// Not before this time ([`now_us`]).
    Later(u64),
    Asked(Connection),
    Settled,
}

impl InThread {
    /// Never waits. For the reclaimer, outside forks.
    pub fn go_on(&mut self, pager: &Pager) {
        *self = match core::mem::take(self) {
            InThread::NotYet if !is_worthwhile(pager) => InThread::NotYet,
            InThread::Later(at) if now_us() < at => InThread::Later(at),
            InThread::NotYet | InThread::Later(_) => ask(pager).map_or_else(InThread::refused, InThread::Asked),
            InThread::Asked(connection) => match connection.answer_if_there() {
                None => InThread::Asked(connection),
                Some(answer) => answer.and_then(begin).map_or_else(
                    |error| {
                        // SAFETY: none was lent: nothing has begun.
                        unsafe { drop_workers() };
                        InThread::refused(error)
                    },
                    |()| InThread::Settled,
                ),
            },
            InThread::Settled => {
                if let Some(serving) = serving() {
                    serving.workers.rest(now_us());
                }
                InThread::Settled
            }
        };
    }
}

impl InThread {
    /// Handler threads go on: for a while if others came first or the process has changed its
    /// rights; else for good.
    fn refused(error: Errno) -> InThread {
        if matches!(error, Errno::AGAIN | Errno::SRCH) { InThread::Later(now_us() + ASK_AGAIN_US) } else { InThread::Settled }
    }
}

fn is_worthwhile(pager: &Pager) -> bool {
    match agent::settings().faults {
        FAULTS_BY_HANDLERS => false,
        FAULTS_IN_THREAD => true,
        _ => pager.counters().faults_total.load(Ordering::Relaxed) >= WORTHWHILE,
    }
}

/// # Errors
/// `AGAIN`: `lowtide run` has too many processes to answer. Others: unsupported here.
fn ask(pager: &Pager) -> Result<Connection, Errno> {
    let has_rseq = RSEQ_OFFSET.load(Ordering::Relaxed) != UNKNOWN_OFFSET;
    // The BPF programs know ids of `lowtide run`'s namespace. Filters may forbid the handler's
    // calls. The program may use the signal.
    if pid_in_run::is_elsewhere() || has_filters() || !is_signal_free() || !has_rseq {
        return Err(Errno::NOTSUP);
    }
    let workers = Workers::new((2 * percpu::count()).clamp(4, MAX_WORKERS), Rights::Memory)?;
    descriptors::choose(pager)?;
    let connection = broker::connect_at_once()?;
    connection.post(REGISTER, (on_fault as *const c_void).addr() as u64)?;
    WORKERS.store(Box::into_raw(Box::new(workers)), Ordering::Relaxed);
    Ok(connection)
}

fn begin(mut files: lowtide_wire::broker::Files) -> Result<(), Errno> {
    let (Some(slots), Some(ring)) = (files.pop(), files.pop()) else { return Err(Errno::BADMSG) };
    // SAFETY: a box of `ask`, not freed while threads may have it.
    let workers = unsafe { WORKERS.load(Ordering::Relaxed).as_ref() }.ok_or(Errno::NOMEM)?;
    let ring = FaultRing::new(ring, &slots)?;
    // Release: pairs with the Acquire in `serving`.
    SERVING.store(Box::into_raw(Box::new(Serving { workers, slots: ring.slots })), Ordering::Release);
    fault_ring::begin(ring);
    // Last: signals may arrive from here on. The program's own handler stays.
    let before = put_handler((on_fault as *const c_void).addr());
    if !is_free(&before) {
        set_action(&before);
    }
    Ok(())
}

/// This thread's `struct rseq`, which the kernel writes when it schedules the thread, beside the C
/// library's thread variables; `None`: there are none.
fn rseq() -> Option<usize> {
    let thread: usize;
    // SAFETY: reads a register; `find_rseq` has checked that the CPU has the instruction.
    unsafe { core::arch::asm!("rdfsbase {}", out(reg) thread, options(nomem, nostack, preserves_flags)) };
    (thread != 0).then(|| thread.wrapping_add(RSEQ_OFFSET.load(Ordering::Relaxed)))
}

/// From the constructor, because the loader locks its list. On failure no thread serves its faults.
pub fn find_rseq() {
    const HAS_FSGSBASE: usize = 1 << 1;
    if agent::settings().faults == FAULTS_BY_HANDLERS || linux_hwcap().1 & HAS_FSGSBASE == 0 {
        return;
    }
    let Some(loader) = objects::find(|object| object.symbol(c"__rseq_offset").is_some()) else { return };
    let of = |name| loader.symbol(name).map(|symbol| symbol.at);
    let (Some(offset), Some(size)) = (of(c"__rseq_offset"), of(c"__rseq_size")) else { return };
    // SAFETY: variables of the C library with these types, constant after its start.
    let (offset, size) = unsafe { ((offset as *const isize).read(), (size as *const u32).read()) };
    if size > 0 {
        RSEQ_OFFSET.store(offset.cast_unsigned(), Ordering::Relaxed);
    }
}

fn serving() -> Option<&'static Serving> {
    // Acquire: pairs with the Release in `begin`.
    // SAFETY: a box that is not freed while threads may have it.
    unsafe { SERVING.load(Ordering::Acquire).as_ref() }
}

/// In a forked child. `is_whole`: the parent's heap was quiescent. `has_files`: the child has its
/// own descriptor table.
///
/// # Safety
/// This process has one thread.
pub unsafe fn reset_after_fork(is_whole: bool, has_files: bool) {
    descriptors::reset_after_fork(has_files);
    let serving = SERVING.swap(core::ptr::null_mut(), Ordering::Relaxed);
    if !is_whole {
        WORKERS.store(core::ptr::null_mut(), Ordering::Relaxed);
        return;
    }
    if !serving.is_null() {
        // SAFETY: a box of `begin`, which no thread here has.
        drop(unsafe { Box::from_raw(serving) });
    }
    // SAFETY: the threads that had workers are not in this process.
    unsafe { drop_workers() };
}

/// # Safety
/// No thread has a worker, or can get one.
unsafe fn drop_workers() {
    let workers = WORKERS.swap(core::ptr::null_mut(), Ordering::Relaxed);
    if !workers.is_null() {
        // SAFETY: a box of `ask`. Its workers own what they owned when made.
        drop(unsafe { Box::from_raw(workers) });
    }
}

fn has_filters() -> bool {
    thread::filters(b"self") != Some(0)
}

#[repr(C)]
#[derive(Default)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

// A handler's return address: rt_sigreturn.
global_asm!(".globl lowtide_signal_returns", "lowtide_signal_returns:", "mov eax, 15", "syscall");

unsafe extern "C" {
    fn lowtide_signal_returns();
}

fn is_signal_free() -> bool {
    let mut action = Action::default();
    // SAFETY: room for the structure.
    unsafe { syscall4(sys::__NR_rt_sigaction, SIGNAL as usize, 0, (&raw mut action).addr(), 8) };
    is_free(&action)
}

fn is_free(action: &Action) -> bool {
    let own = [on_fault as *const c_void, put_aside as *const c_void].map(|handler| handler.addr());
    action.handler == DEFAULT || own.contains(&action.handler)
}

fn put_handler(handler: usize) -> Action {
    const SA_RESTORER: u64 = 0x0400_0000;
    let flags = u64::from(sys::SA_SIGINFO | sys::SA_ONSTACK | sys::SA_RESTART) | SA_RESTORER;
    let action = match handler {
        DEFAULT => Action::default(),
        _ => Action { handler, flags, restorer: (lowtide_signal_returns as *const c_void).addr(), mask: u64::MAX },
    };
    set_action(&action)
}

fn set_action(action: &Action) -> Action {
    let mut before = Action::default();
    let (new, old) = (core::ptr::from_ref(action).addr(), (&raw mut before).addr());
    // SAFETY: the structure is complete; its handler is one of those below, which may run at any
    // time, or the previous one.
    unsafe { syscall4(sys::__NR_rt_sigaction, SIGNAL as usize, new, old, 8) };
    before
}

/// The part of `siginfo_t` that lowtide reads.
#[repr(C)]
struct Info {
    signal: i32,
    errno: i32,
    code: i32,
    rest: i32,
    sender: [u32; 2],
    value: u64,
}

/// SIG_DFL.
const DEFAULT: usize = 0;
/// SI_KERNEL.
const FROM_KERNEL: i32 = 0x80;

extern "C" fn on_fault(_: i32, info: &Info, _: *mut c_void) {
    if info.code != FROM_KERNEL {
        return as_if_there_were_none(info);
    }
    let Some(serving) = serving() else { return serve_no_more() };
    // Before Linux 6.13 the signal has no value: the thread's slot holds the fault.
    let fault = if info.value != 0 { Some(Fault::of_word(info.value)) } else { serving.slots.signalled(thread::id()) };
    let Some(fault) = fault else { return };
    if is_stuck(fault.page) || !serve(serving, fault) {
        serving.slots.decline(thread::id(), fault.page);
    }
}

/// Stops the BPF programs, which see another handler.
extern "C" fn put_aside(_: i32, info: &Info, _: *mut c_void) {
    if info.code != FROM_KERNEL {
        as_if_there_were_none(info);
    }
}

fn serve_no_more() {
    put_handler((put_aside as *const c_void).addr());
}

/// A program sent the signal without having a handler.
fn as_if_there_were_none(info: &Info) {
    // Short of memory, the kernel sends its signal without details. The fault repeats.
    if info.code == 0 && info.sender[0] == 0 {
        return;
    }
    put_handler(DEFAULT);
    // SAFETY: passes numbers. The signal ends the process when this handler returns.
    unsafe { syscall3(sys::__NR_tgkill, agent::pid() as usize, thread::id() as usize, SIGNAL as usize) };
}

/// Brings in the stack page for the signal's frame. For a handler thread.
pub fn make_stack(pager: &Pager, handler: &mut Handler, addr: usize) {
    if pager.has_registered(addr) {
        return handler.bring_in(pager, addr);
    }
    // The main thread's stack grows by a touch: the kernel reads the set for an unknown operation,
    // or fails.
    const UNKNOWN: usize = 99;
    // SAFETY: the kernel reads eight bytes, or fails, and ignores them.
    unsafe { syscall4(sys::__NR_rt_sigprocmask, UNKNOWN, addr, 0, 8) };
}

fn is_stuck(page: usize) -> bool {
    let last = &LAST[page / PAGE_SIZE % LAST.len()];
    let seen = last.load(Ordering::Relaxed);
    let times = if seen & !0xfff == page as u64 { (seen & 0xfff) + 1 } else { 1 };
    last.store(page as u64 | (times % MOST_IN_A_ROW), Ordering::Relaxed);
    times == MOST_IN_A_ROW
}

fn serve(serving: &Serving, fault: Fault) -> bool {
    let Some(pager) = agent::active() else { return false };
    match descriptors::find() {
        Found::There if descriptors::has_userfaultfd() => {}
        Found::Coming => return false,
        // The program has closed the descriptors, or may not have them.
        Found::There | Found::Refused => {
            serve_no_more();
            return false;
        }
    }
    let Fault { page, write } = fault;
    let access = if write { Access::Write } else { Access::Read };
    // By value: the program's stack may be evicted, and no thread may wait for it under a lock.
    let Some(rseq) = rseq() else { return false };
    let served = serving.workers.with(move |worker| {
        let serve = |worker: &mut Worker| {
            if !pager.has_registered(page) {
                return false;
            }
            let served = pager.serve_within_limit(page, access, now_ns(), worker);
            if served == Served::Done {
                pager.stage_ahead(worker);
            }
            served == Served::Done
        };
        // SAFETY: this thread's `struct rseq`; only the kernel writes its first word, for this
        // thread.
        let served = unsafe { pager.keeping(rseq, worker, serve) };
        // A handler thread wakes other waiters.
        worker.forget_waiters();
        served
    });
    if !served && !descriptors::has_page_map() {
        serve_no_more();
    }
    if served {
        pager.counters().faults_in_thread.fetch_add(1, Ordering::Relaxed);
    }
    if pager.wants_reclaimer() {
        wake::wake_if_asleep();
    }
    served
}
