//! The end of a thread of the program. The kernel tells who joins it by a write to the thread's own memory
//! (CLONE_CHILD_CLEARTID), and looks there which robust mutexes it still had (set_robust_list), at a time at which the thread
//! waits for no userfaultfd any more: where that page is out, who joins waits for ever, and nobody learns that the owner of a
//! mutex is dead.
//!
//! glibc has both on the same page of the thread's own. musl has one word for all threads, whose address it tells the kernel as
//! the program begins (set_tid_address), of which a filter tells `lowtide run` (`moves.rs`), or which the kernel tells the
//! constructor.
//!
//! So that page of each thread is held in memory (`held.rs` of the pager). The reclaimer looks now and then which threads there
//! are; and one that it may not have seen yet says so itself in the last call that the C library makes for it, in which its
//! stack is given back by MADV_DONTNEED.

use core::arch::asm;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use linux_raw_sys::general as sys;
use lowtide_core::vm::{self, PAGE_SIZE};
use lowtide_pager::mappings::Hold;
use lowtide_pager::pager::Pager;
use lowtide_pager::sys::clock;
use rustix::fd::OwnedFd;
use rustix::mm::Advice;

use crate::agent;
use crate::request::{Request, ask};
use crate::thread::{self, syscall3, syscall6};

/// The C library leaves this much of the stack at most below where it is, when it gives it back.
const NEAR: usize = 128 << 10;
/// Where glibc keeps a thread's id and, behind it and on the same page, the list of its robust mutexes, from the beginning of
/// its own data on (x86-64). Where this is something else the reclaimer is asked.
const TID: usize = 0x2d0;
const ROBUST_LIST: usize = 0x2e0;
/// Of prctl(2).
const PR_GET_TID_ADDRESS: usize = 40;
/// The reclaimer looks for new threads so often while pages are evicted, in microseconds; a look that took long is followed by
/// a rest this many times as long, of a second at most.
const EVERY_US: u64 = 50_000;
const REST: u64 = 50;
const MOST_US: u64 = 1_000_000;
/// Before pages are write-protected, it looks again after this many times as long as a look took.
const SHORT_REST: u64 = 20;
/// Robust mutexes of a thread that count: as many as for the kernel (ROBUST_LIST_LIMIT).
const MOST_MUTEXES: usize = 2048;

/// The word that the kernel clears when any thread of the program ends; 0: it is not known, or each has its own.
static WORD_OF_ALL: AtomicUsize = AtomicUsize::new(0);

/// The kernel clears this word when threads end. By a thread of lowtide's that holds no lock, or the constructor.
pub fn clears(word: usize) {
    WORD_OF_ALL.store(word, Ordering::Relaxed);
    if let Some(pager) = agent::active() {
        hold_word_of_all(pager);
    }
}

fn hold_word_of_all(pager: &Pager) {
    let word = WORD_OF_ALL.load(Ordering::Relaxed);
    if word != 0 {
        // As long as the process has its first thread, dead or alive.
        hold(pager, word, agent::pid());
    }
}

/// What the kernel clears when the calling thread ends (PR_GET_TID_ADDRESS); None: nothing, or it does not say.
pub fn word_of_this() -> Option<usize> {
    let mut word = 0usize;
    // SAFETY: the kernel writes an address.
    let r = unsafe { syscall3(sys::__NR_prctl, PR_GET_TID_ADDRESS, (&raw mut word).addr(), 0) };
    (r == 0 && word != 0).then_some(word)
}

/// Where glibc keeps the calling thread's id. None: this is another C library, or another kind of thread.
fn kept() -> Option<*mut u32> {
    let begin: usize;
    // SAFETY: reads the first word of what %fs points to, which by the ABI of x86-64 is the address of that word; threads of
    // the C library have it.
    unsafe { asm!("mov {}, fs:[0]", out(reg) begin, options(nostack, readonly, preserves_flags)) };
    let own: usize;
    // SAFETY: as above: glibc keeps there where the thread's own data are, which begin with all this.
    unsafe { asm!("mov {}, fs:[0x10]", out(reg) own, options(nostack, readonly, preserves_flags)) };
    (own != 0 && own == begin).then_some((own + TID) as *mut u32)
}

/// The calling thread's id as glibc keeps it; in a child of vfork that of the thread that waits for it.
pub fn kept_id() -> Option<u32> {
    // SAFETY: glibc's data of a thread are longer than that. (The agent runs in programs that have glibc only.)
    kept().map(|word| unsafe { AtomicU32::from_ptr(word) }.load(Ordering::Relaxed))
}

/// The calling thread's id as the C library keeps it, which the kernel clears. None: this is another C library, or another kind
/// of thread.
fn tid_word(thread: u32) -> Option<*mut u32> {
    kept().filter(|_| kept_id() == Some(thread))
}

/// Whether a thread ends without a robust mutex, by what the C library keeps of it.
fn has_no_mutex(tid_word: *mut u32) -> bool {
    let list = tid_word.addr() - TID + ROBUST_LIST;
    // SAFETY: as for `tid_word`, a few bytes behind it. The list ends where it begins.
    unsafe { AtomicUsize::from_ptr(list as *mut usize) }.load(Ordering::Relaxed) == list
}

/// The calling thread has given memory back by MADV_DONTNEED: perhaps the last that it does.
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
            // Where there is no room for it: then it is there at least, and can be written, for the moment that this takes.
            let _ = pager.hold(word.addr(), thread);
            // SAFETY: the thread's own word, at a multiple of 16.
            unsafe { vm::write_nothing(word.addr()) };
        }
        None => ask(Request::Ends(thread)),
    }
}

/// Where a thread's list of robust mutexes begins, as the kernel knows it. None: it has none, or is gone.
fn robust_list(thread: u32) -> Option<usize> {
    let (mut head, mut len) = (0usize, 0usize);
    // SAFETY: room for two words.
    let r = unsafe { syscall3(sys::__NR_get_robust_list, thread as usize, (&raw mut head).addr(), (&raw mut len).addr()) };
    (r == 0 && head != 0).then_some(head)
}

/// Words of this process's memory, wherever they are. None: not all of them are mapped.
pub fn read<const N: usize>(addr: usize) -> Option<[usize; N]> {
    let mut words = [0usize; N];
    let (to, from) = ([words.as_mut_ptr().addr(), size_of_val(&words)], [addr, size_of_val(&words)]);
    let pid = rustix::process::getpid().as_raw_nonzero().get() as usize;
    // SAFETY: the lists name as many bytes as there are; what can't be read is an error.
    let r = unsafe { syscall6(sys::__NR_process_vm_readv, pid, to.as_ptr().addr(), 1, from.as_ptr().addr(), 1, 0) };
    (r == size_of_val(&words) as isize).then_some(words)
}

/// Holds the page at `addr` for a thread, and brings it in; where pages may be write-protected, as one that can be written. By the
/// reclaimer, with no lock held: a monitor serves it.
fn hold(pager: &Pager, addr: usize, thread: u32) {
    if pager.hold(addr, thread) == Hold::Begun {
        let advice = if pager.may_protect() { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        // SAFETY: populating changes no bytes, whatever is there; errors (nothing is mapped) are fine.
        let _ = unsafe { rustix::mm::madvise((addr & !(PAGE_SIZE - 1)) as *mut _, PAGE_SIZE, advice) };
    }
}

/// A thread is about to end, and waits, or may end at any moment: holds what the kernel will use. By the reclaimer.
pub fn ends(pager: &Pager, thread: u32) {
    let Some(head) = robust_list(thread) else { return };
    hold(pager, head, thread);
    // As the kernel goes through it: the next one, the distance to the mutex's word, one that is just being taken or let go.
    // The lowest bit of each says what kind of mutex it is.
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

/// The reclaimer's looks at what threads there are.
#[derive(Debug, Default)]
pub struct Look {
    /// The list of them; kept open, because the program may change its root directory.
    threads: Option<OwnedFd>,
    /// Pages that had been evicted at the last one.
    evicted: Option<u64>,
    not_before_us: u64,
    /// The same for [`Look::before_protecting`], and how many forks and threads there were.
    again_us: u64,
    known: (u64, Option<u64>),
}

impl Look {
    /// Opens what it looks at, if that is not open.
    pub fn open(&mut self) {
        if self.threads.is_none() {
            self.threads = thread::list().ok();
        }
    }

    /// Holds what is to be held of all threads, if it is time.
    pub fn look(&mut self, pager: &Pager, now_us: u64) {
        let evicted = pager.counters().evictions_pages.load(Ordering::Relaxed);
        if now_us >= self.not_before_us && self.evicted != Some(evicted) {
            self.evicted = Some(evicted);
            self.look_now(pager);
        }
    }

    /// The same before pages are write-protected that a fork has left shared: always if the process has forked since the last time.
    /// If not, new threads don't share theirs, and where there are many, and as many as before, this would take long.
    pub fn before_protecting(&mut self, pager: &Pager, now_us: u64) {
        self.open();
        let links = self.threads.as_ref().and_then(|threads| rustix::fs::fstat(threads).ok());
        // One for each thread, and two.
        let known = (pager.forks_so_far(), links.map(|stat| stat.st_nlink));
        if core::mem::replace(&mut self.known, known) != known || now_us >= self.again_us {
            // With the mutexes: not all threads say that they end, and those that were taken before the fork are shared.
            self.look_at(pager, |thread| ends(pager, thread));
        }
    }

    /// The same, whenever the last look was.
    pub fn look_now(&mut self, pager: &Pager) {
        self.look_at(pager, |thread| {
            if let Some(list) = robust_list(thread) {
                hold(pager, list, thread);
            }
        });
    }

    fn look_at(&mut self, pager: &Pager, mut f: impl FnMut(u32)) {
        let started = clock::now_us();
        // It could not be opened before, perhaps.
        self.open();
        hold_word_of_all(pager);
        let Some(threads) = &self.threads else { return };
        let _ = thread::each(threads, |thread| {
            f(thread);
            ControlFlow::Continue(())
        });
        let took = clock::now_us().saturating_sub(started);
        self.not_before_us = started + (took * REST).clamp(EVERY_US, MOST_US);
        self.again_us = started + took * SHORT_REST;
    }
}
