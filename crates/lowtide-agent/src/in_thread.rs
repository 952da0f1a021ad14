//! Faults in the faulting thread: where a BPF program tells it by a signal (docs/design/in-thread.md), a thread of the program
//! brings its page in itself. What it can't do (a device, room, a fork or an event that is under way) it declines: then the
//! fault comes once more, and goes to a handler thread.
//!
//! The handler of the signal runs with all signals blocked, and at once goes to a stack of lowtide's own. It takes no lock that
//! the code under it can hold: that is the program's, or lowtide's hooks, which hold none while they touch the program's memory.

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
use lowtide_pager::fault::{Monitor, Reach, Served, Worker, Workers};
use lowtide_pager::pager::Pager;
use lowtide_pager::segment::{FAULTS_BY_MONITORS, FAULTS_IN_THREAD};
use lowtide_pager::sys::broker::{Connection, REGISTER};
use lowtide_pager::sys::clock::{now_ns, now_us};
use lowtide_pager::sys::uffd::Access;
use rustix::io::Errno;
use rustix::param::linux_hwcap;

use crate::descriptors::{self, Found};
use crate::thread::{self, syscall3, syscall4};
use crate::told::{self, Told};
use crate::{agent, broker, objects, pid_in_run, wake};

/// A process that has had fewer faults is not worth registering, unless the user wants it: each fault saves some microseconds, and
/// to load the programs and to detach them at the end takes lowtide some ten milliseconds and more.
const WORTHWHILE: u64 = 16_384;
/// A process that was refused because others were before it asks again after so long, in microseconds.
const ASK_AGAIN_US: u64 = 5_000_000;
/// Most threads that serve their faults at a time: more wait for a moment.
const MAX_WORKERS: usize = 32;
/// Who faults on one page so often in a row gets nowhere alone.
const MOST_IN_A_ROW: u64 = 4;

/// What serves, once it does.
struct Serving {
    workers: &'static Workers,
    slots: Slots,
}

/// From the thread's own address; wraps.
static RSEQ_OFFSET: AtomicUsize = AtomicUsize::new(UNKNOWN_OFFSET);
/// No multiple of four.
const UNKNOWN_OFFSET: usize = 1;

static SERVING: AtomicPtr<Serving> = AtomicPtr::new(core::ptr::null_mut());

/// The workers, from when `lowtide run` is asked: a process that is forked meanwhile finds them here.
static WORKERS: AtomicPtr<Workers> = AtomicPtr::new(core::ptr::null_mut());

/// The page that was served last of those whose number is the same modulo theirs, and how often in a row.
static LAST: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];

/// How far this process is. The reclaimer's.
#[derive(Default)]
pub enum InThread {
    /// It may come to it.
    #[default]
    NotYet,
    /// The same, but not before this time ([`now_us`]).
    Later(u64),
    /// `lowtide run` was asked by this.
    Asked(Connection),
    /// Its threads serve, or never will.
    Settled,
}

impl InThread {
    /// Goes on, as far as that can be without waiting. By the reclaimer, while no fork is under way.
    pub fn go_on(&mut self, pager: &Pager) {
        *self = match core::mem::take(self) {
            InThread::NotYet if !is_worthwhile(pager) => InThread::NotYet,
            InThread::Later(at) if now_us() < at => InThread::Later(at),
            InThread::NotYet | InThread::Later(_) => ask(pager).map_or_else(InThread::refused, InThread::Asked),
            InThread::Asked(connection) => match connection.answer_if_there() {
                None => InThread::Asked(connection),
                Some(answer) => answer.and_then(begin).map_or_else(
                    |error| {
                        // SAFETY: none of them was lent: nothing has begun.
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
    /// Handler threads go on: for a while where others were before this process, or it got other rights after it had connected, or
    /// else for good (without memory, descriptors or `lowtide run`, or where nobody is told).
    fn refused(error: Errno) -> InThread {
        if matches!(error, Errno::AGAIN | Errno::SRCH) { InThread::Later(now_us() + ASK_AGAIN_US) } else { InThread::Settled }
    }
}

fn is_worthwhile(pager: &Pager) -> bool {
    match agent::settings().faults {
        FAULTS_BY_MONITORS => false,
        FAULTS_IN_THREAD => true,
        _ => pager.counters().faults_total.load(Ordering::Relaxed) >= WORTHWHILE,
    }
}

/// # Errors
/// `AGAIN`: `lowtide run` has too many to answer. Others: not here.
fn ask(pager: &Pager) -> Result<Connection, Errno> {
    let has_rseq = RSEQ_OFFSET.load(Ordering::Relaxed) != UNKNOWN_OFFSET;
    // The kernel's programs know processes and threads by the numbers that `lowtide run` knows. Where accesses are armed, faults
    // are of more kinds. Filters may forbid what the handler does. And the signal may be in use.
    if pid_in_run::is_elsewhere() || pager.uffd().has_accessed_bits() || has_filters() || !is_signal_free() || !has_rseq {
        return Err(Errno::NOTSUP);
    }
    let workers = Workers::new((2 * percpu::count()).clamp(4, MAX_WORKERS), Reach::Memory)?;
    descriptors::choose(pager)?;
    let connection = broker::connect_at_once()?;
    connection.post(REGISTER, (on_fault as *const c_void).addr() as u64)?;
    WORKERS.store(Box::into_raw(Box::new(workers)), Ordering::Relaxed);
    Ok(connection)
}

fn begin(mut files: lowtide_pager::sys::broker::Files) -> Result<(), Errno> {
    let (Some(slots), Some(ring)) = (files.pop(), files.pop()) else { return Err(Errno::BADMSG) };
    // SAFETY: a box of `ask`, which is not freed while there are threads that may have it.
    let workers = unsafe { WORKERS.load(Ordering::Relaxed).as_ref() }.ok_or(Errno::NOMEM)?;
    let told = Told::new(ring, &slots)?;
    // Release: pairs with the Acquire in `serving`.
    SERVING.store(Box::into_raw(Box::new(Serving { workers, slots: told.slots })), Ordering::Release);
    told::begin(told);
    // Last: signals come from here on. A handler that the program has put there meanwhile stays.
    let before = put_handler((on_fault as *const c_void).addr());
    if !is_free(&before) {
        set_action(&before);
    }
    Ok(())
}

/// The address of this thread's `struct rseq`, to which the kernel writes whenever the thread goes on after another one. The C
/// library has it beside the thread's variables; `None`: this thread has none of those.
fn rseq() -> Option<usize> {
    let thread: usize;
    // SAFETY: `find_rseq` has seen that there is the instruction. It reads a register.
    unsafe { core::arch::asm!("rdfsbase {}", out(reg) thread, options(nomem, nostack, preserves_flags)) };
    (thread != 0).then(|| thread.wrapping_add(RSEQ_OFFSET.load(Ordering::Relaxed)))
}

/// Finds out where that is. By the constructor: the loader has a lock for its list. What is not found (then somebody else than
/// the C library may have one elsewhere), or where there is no such instruction, no thread serves its faults.
pub fn find_rseq() {
    const HAS_FSGSBASE: usize = 1 << 1;
    if agent::settings().faults == FAULTS_BY_MONITORS || linux_hwcap().1 & HAS_FSGSBASE == 0 {
        return;
    }
    let Some(loader) = objects::find(|object| object.symbol(c"__rseq_offset").is_some()) else { return };
    let of = |name| loader.symbol(name).map(|symbol| symbol.at);
    let (Some(offset), Some(size)) = (of(c"__rseq_offset"), of(c"__rseq_size")) else { return };
    // SAFETY: variables of the C library's, of these types, which never change after it has started.
    let (offset, size) = unsafe { ((offset as *const isize).read(), (size as *const u32).read()) };
    if size > 0 {
        RSEQ_OFFSET.store(offset.cast_unsigned(), Ordering::Relaxed);
    }
}

fn serving() -> Option<&'static Serving> {
    // Acquire: pairs with the Release in `begin`.
    // SAFETY: a box that is never freed while there are threads that may have it.
    unsafe { SERVING.load(Ordering::Acquire).as_ref() }
}

/// In a forked child, whose parent's threads may have served. `is_whole`: nothing changed the parent's heap when it was forked.
/// `has_files`: it has a descriptor table of its own.
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
        // SAFETY: a box of `begin`, which nobody here has.
        drop(unsafe { Box::from_raw(serving) });
    }
    // SAFETY: those who had some of them are not here.
    unsafe { drop_workers() };
}

/// # Safety
/// No thread has one of them, or can get one.
unsafe fn drop_workers() {
    let workers = WORKERS.swap(core::ptr::null_mut(), Ordering::Relaxed);
    if !workers.is_null() {
        // SAFETY: a box of `ask`. What they own they have owned since they were made.
        drop(unsafe { Box::from_raw(workers) });
    }
}

/// Whether the main thread has seccomp filters, as far as that can be seen.
fn has_filters() -> bool {
    thread::filters(b"self") != Some(0)
}

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Default)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

// What a handler returns to: rt_sigreturn.
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

/// Whether what is done about the signal is nothing of the program's.
fn is_free(action: &Action) -> bool {
    let own = [on_fault as *const c_void, put_aside as *const c_void].map(|handler| handler.addr());
    action.handler == DEFAULT || own.contains(&action.handler)
}

/// Makes this the handler of the signal, or the default; what was done about it before.
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
    // SAFETY: the structure is complete, and the handler one of those below, which may run at any time, or what was there.
    unsafe { syscall4(sys::__NR_rt_sigaction, SIGNAL as usize, new, old, 8) };
    before
}

/// What the kernel says of a signal: the part that is looked at.
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

/// The handler of the signal. The kernel's programs send it only as long as this is the one.
extern "C" fn on_fault(_: i32, info: &Info, _: *mut c_void) {
    if info.code != FROM_KERNEL {
        return as_if_there_were_none(info);
    }
    let Some(serving) = serving() else { return serve_no_more() };
    // What has no value has its fault in the thread's slot (Linux before 6.13).
    let fault = if info.value != 0 { Some(Fault::of_word(info.value)) } else { serving.slots.signalled(thread::id()) };
    // Another thread's came meanwhile: this one faults again.
    let Some(fault) = fault else { return };
    if is_stuck(fault.page) || !serve(serving, fault) {
        serving.slots.decline(thread::id(), fault.page);
    }
}

/// The handler where threads don't serve any more: the kernel's programs see that it is another one.
extern "C" fn put_aside(_: i32, info: &Info, _: *mut c_void) {
    if info.code != FROM_KERNEL {
        as_if_there_were_none(info);
    }
}

/// Handler threads do it from now on.
fn serve_no_more() {
    put_handler((put_aside as *const c_void).addr());
}

/// Somebody has sent the signal to this process, which has no handler as far as it knows.
fn as_if_there_were_none(info: &Info) {
    // Without memory for what it would say, the kernel's own signal says nothing. The fault comes again.
    if info.code == 0 && info.sender[0] == 0 {
        return;
    }
    put_handler(DEFAULT);
    // SAFETY: takes numbers. It ends the process when this handler has returned.
    unsafe { syscall3(sys::__NR_tgkill, agent::pid() as usize, thread::id() as usize, SIGNAL as usize) };
}

/// A page of a thread's stack is missing to which the signal's frame would go: it is brought in, for the thread's next fault. By a
/// handler thread.
pub fn make_stack(pager: &Pager, monitor: &mut Monitor, addr: usize) {
    if pager.has_adopted(addr) {
        return monitor.bring_in(pager, addr);
    }
    // The main thread's grows by a touch. The kernel touches it here: it reads a set of signals, with which it is to do what it
    // does not know. Where nothing is, that is an error.
    const UNKNOWN: usize = 99;
    // SAFETY: eight bytes are read from there, if that can be, and nothing is done with them.
    unsafe { syscall4(sys::__NR_rt_sigprocmask, UNKNOWN, addr, 0, 8) };
}

/// Whether this page is faulted on again and again.
fn is_stuck(page: usize) -> bool {
    let last = &LAST[page / PAGE_SIZE % LAST.len()];
    let seen = last.load(Ordering::Relaxed);
    let times = if seen & !0xfff == page as u64 { (seen & 0xfff) + 1 } else { 1 };
    last.store(page as u64 | (times % MOST_IN_A_ROW), Ordering::Relaxed);
    times == MOST_IN_A_ROW
}

/// False: a handler thread has to serve it.
fn serve(serving: &Serving, fault: Fault) -> bool {
    let Some(pager) = agent::active() else { return false };
    match descriptors::find() {
        Found::There if descriptors::has_userfaultfd() => {}
        Found::Coming => return false,
        // The program has closed what it did not open, or may not have it.
        Found::There | Found::Refused => {
            serve_no_more();
            return false;
        }
    }
    let Fault { page, write } = fault;
    let access = if write { Access::Write } else { Access::Read };
    // By value: what lies on the program's stack may be evicted meanwhile, and is not to be waited for under a lock.
    let Some(rseq) = rseq() else { return false };
    let served = serving.workers.with(move |worker| {
        let serve = |worker: &mut Worker| {
            // Of a userfaultfd of the program's own, perhaps.
            if !pager.has_adopted(page) {
                return false;
            }
            let served = pager.serve_within_limit(page, access, now_ns(), worker);
            if served == Served::Done {
                pager.stage_ahead(worker);
            }
            served == Served::Done
        };
        // SAFETY: this thread's `struct rseq`, whose first word only the kernel writes, for this thread.
        let served = unsafe { pager.keeping(rseq, worker, serve) };
        // Whoever else waits for a page that came with it is looked after by a handler thread.
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
