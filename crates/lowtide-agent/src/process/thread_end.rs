//! The end of a thread of the program. The kernel clears a word in the thread's memory to wake its
//! joiner (CLONE_CHILD_CLEARTID), and reads there which robust mutexes it holds (set_robust_list).
//! By then the thread waits for no userfaultfd: if that page is evicted, the joiner waits for ever,
//! and no thread learns that a mutex's owner died.
//!
//! glibc keeps both on one page of each thread. musl has one word for all threads
//! (set_tid_address): a filter reports it to `lowtide run`, which writes it into the segment, or
//! the constructor asks the kernel.
//!
//! So these pages are held in memory (`held.rs` of the pager). The reclaimer looks for threads now
//! and then. A thread that it may have missed reports itself in its last call, the MADV_DONTNEED of
//! its stack.

use core::arch::asm;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use linux_raw_sys::general as sys;
use lowtide_core::vm::{self, PAGE_SIZE};
use lowtide_pager::mappings::Hold;
use lowtide_pager::pager::Pager;
use lowtide_sys::clock;
use rustix::fd::OwnedFd;
use rustix::mm::Advice;

use crate::process::agent;
use crate::process::thread::{self, syscall3, syscall6};
use crate::reclaimer::request::{Request, ask};

/// The most that the C library keeps of the stack.
const NEAR: usize = 128 << 10;
/// In glibc's thread data (x86-64), on one page. For other libraries the thread asks the reclaimer.
const TID: usize = 0x2d0;
const ROBUST_LIST: usize = 0x2e0;
const PR_GET_TID_ADDRESS: usize = 40;
/// Interval in microseconds between looks while pages are evicted; after a slow one, `REST` times
/// its time up to `MOST_US`.
const EVERY_US: u64 = 50_000;
const REST: u64 = 50;
const MOST_US: u64 = 1_000_000;
/// The kernel's ROBUST_LIST_LIMIT.
const MOST_MUTEXES: usize = 2048;
const MOST_WORDS: u32 = 16;

/// Asks the kernel for the calling thread's word, in a program with one for all threads.
pub fn tells_word() {
    if agent::has_threads()
        && let Some(word) = word_of_this()
    {
        agent::proc().cleared_word.store(word as u64, Ordering::Relaxed);
    }
}

/// Other processes of the run may write the word, so few changes count. For the reclaimer.
fn hold_word_of_all(pager: &Pager) {
    static WORD: AtomicUsize = AtomicUsize::new(0);
    static CHANGES: AtomicU32 = AtomicU32::new(0);
    let told = agent::proc().cleared_word.load(Ordering::Relaxed) as usize;
    let is_new = told != WORD.load(Ordering::Relaxed);
    if is_new && CHANGES.fetch_add(1, Ordering::Relaxed) < MOST_WORDS {
        WORD.store(told, Ordering::Relaxed);
    }
    let word = WORD.load(Ordering::Relaxed);
    if word != 0 {
        // As long as the process has its first thread, dead or alive.
        hold(pager, word, agent::pid());
    }
}

/// Address of the word that the kernel clears when the calling thread ends; None: none, or unknown.
fn word_of_this() -> Option<usize> {
    let mut word = 0usize;
    // SAFETY: the kernel writes an address.
    let r = unsafe { syscall3(sys::__NR_prctl, PR_GET_TID_ADDRESS, (&raw mut word).addr(), 0) };
    (r == 0 && word != 0).then_some(word)
}

/// glibc's copy of the thread's id; None in lowtide's threads. Not for other C libraries.
fn kept() -> Option<*mut u32> {
    let begin: usize;
    // SAFETY: %fs points to a readable block in every thread: the C library's by the x86-64 ABI,
    // which puts its address into the first word; lowtide's by `thread.rs`.
    unsafe { asm!("mov {}, fs:[0]", out(reg) begin, options(nostack, readonly, preserves_flags)) };
    let own: usize;
    // SAFETY: likewise: glibc keeps the address of the thread's data, which begin with all this.
    unsafe { asm!("mov {}, fs:[0x10]", out(reg) own, options(nostack, readonly, preserves_flags)) };
    (own != 0 && own == begin).then_some((own + TID) as *mut u32)
}

/// In a child of vfork: the id of the thread that waits for it.
pub fn kept_id() -> Option<u32> {
    // SAFETY: glibc's thread data are longer. Callers are hooks, which only glibc gets, and
    // lowtide's threads, for which `kept` is None.
    kept().map(|word| unsafe { AtomicU32::from_ptr(word) }.load(Ordering::Relaxed))
}

/// None: as for [`kept`].
fn tid_word(thread: u32) -> Option<*mut u32> {
    kept().filter(|_| kept_id() == Some(thread))
}

fn has_no_mutex(tid_word: *mut u32) -> bool {
    let list = tid_word.addr() - TID + ROBUST_LIST;
    // SAFETY: a few bytes behind `tid_word`. An empty list points to itself.
    unsafe { AtomicUsize::from_ptr(list as *mut usize) }.load(Ordering::Relaxed) == list
}

/// Perhaps the calling thread's last call.
pub fn gave_back(addr: usize, len: usize) {
    let here = 0u8;
    let (here, end) = (core::ptr::from_ref(&here).addr(), addr.saturating_add(len));
    if end > here || here - end > NEAR {
        return;
    }
    let Some(pager) = agent::active() else { return };
    let thread = thread::id();
    match tid_word(thread).filter(|word| has_no_mutex(*word)) {
        Some(word) => {
            // Even without the hold, the page is present and writable for this moment.
            let _ = pager.hold(word.addr(), thread);
            // SAFETY: the thread's own word, at a multiple of 16.
            unsafe { vm::write_nothing(word.addr()) };
        }
        None => ask(Request::Ends(thread)),
    }
}

/// None: none, or the thread is gone.
fn robust_list(thread: u32) -> Option<usize> {
    let (mut head, mut len) = (0usize, 0usize);
    // SAFETY: room for two words.
    let r = unsafe { syscall3(sys::__NR_get_robust_list, thread as usize, (&raw mut head).addr(), (&raw mut len).addr()) };
    (r == 0 && head != 0).then_some(head)
}

/// Reads this process's memory anywhere. None: part of it is unmapped.
pub fn read<const N: usize>(addr: usize) -> Option<[usize; N]> {
    let mut words = [0usize; N];
    let (to, from) = ([words.as_mut_ptr().addr(), size_of_val(&words)], [addr, size_of_val(&words)]);
    let pid = rustix::process::getpid().as_raw_nonzero().get() as usize;
    // SAFETY: both lists name the given sizes; unreadable memory is an error.
    let r = unsafe { syscall6(sys::__NR_process_vm_readv, pid, to.as_ptr().addr(), 1, from.as_ptr().addr(), 1, 0) };
    (r == size_of_val(&words) as isize).then_some(words)
}

/// Brings the page in, writable if pages may be write-protected. For the reclaimer without locks: a
/// handler serves the fault.
fn hold(pager: &Pager, addr: usize, thread: u32) {
    if pager.hold(addr, thread) == Hold::Begun {
        let advice = if pager.protects() { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        // SAFETY: populating changes no bytes; errors (unmapped) are harmless.
        let _ = unsafe { rustix::mm::madvise((addr & !(PAGE_SIZE - 1)) as *mut _, PAGE_SIZE, advice) };
    }
}

/// A thread is about to end: holds what the kernel will use. For the reclaimer.
pub fn ends(pager: &Pager, thread: u32) {
    let Some(head) = robust_list(thread) else { return };
    hold(pager, head, thread);
    // The kernel's layout: next entry, offset of the mutex's word, pending entry. An entry's lowest
    // bit is the mutex's kind.
    let Some([mut next, to_word, pending]) = read::<3>(head) else { return };
    let hold_one = |mutex: usize| {
        hold(pager, mutex, thread);
        hold(pager, mutex.wrapping_add(to_word), thread);
    };
    if pending & !1 != 0 {
        hold_one(pending & !1);
    }
    for _ in 0..MOST_MUTEXES {
        let mutex = next & !1;
        if mutex == head || mutex == 0 {
            break;
        }
        hold_one(mutex);
        match read::<1>(mutex) {
            Some([following]) => next = following,
            None => break,
        }
    }
}

#[derive(Debug, Default)]
pub struct Look {
    /// Kept open, because the program may change its root directory.
    threads: Option<OwnedFd>,
    evicted: Option<u64>,
    not_before_us: u64,
}

impl Look {
    pub fn open(&mut self) {
        if self.threads.is_none() {
            self.threads = thread::list().ok();
        }
    }

    pub fn look(&mut self, pager: &Pager, now_us: u64) {
        let evicted = pager.counters().evictions_pages.load(Ordering::Relaxed);
        if now_us >= self.not_before_us && self.evicted != Some(evicted) {
            self.evicted = Some(evicted);
            self.look_now(pager);
        }
    }

    pub fn look_now(&mut self, pager: &Pager) {
        let started = clock::now_us();
        self.open();
        hold_word_of_all(pager);
        let Some(threads) = &self.threads else { return };
        let _ = thread::each(threads, |thread| {
            if let Some(list) = robust_list(thread) {
                hold(pager, list, thread);
            }
            ControlFlow::Continue(())
        });
        let took = clock::now_us().saturating_sub(started);
        self.not_before_us = started + (took * REST).clamp(EVERY_US, MOST_US);
    }
}
