//! In-thread delivery beside other handlers of signals, on small stacks, and in handlers.

use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use lowtide_region::{Delivery, Region, Swap};

use crate::child;
use crate::content::{MIB, PAGE, check_all, fill};

fn region() -> Region {
    let mut region = Region::builder(32 * MIB).ram(16 << 20).swap(Swap::Auto).delivery(Delivery::InThread).build().unwrap();
    fill(&mut region, 0);
    region
}

fn handle(
    signal: libc::c_int,
    handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void),
    flags: libc::c_int,
) {
    // SAFETY: a handler that is one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | flags;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

static FOREIGN: AtomicUsize = AtomicUsize::new(0);
static MAPPED: AtomicUsize = AtomicUsize::new(0);
static BLOCKED_IN_HANDLER: AtomicBool = AtomicBool::new(false);

/// As programs have them that read mapped files: the page gets memory, and the read goes on.
extern "C" fn repair(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: async-signal-safe calls, on a mapping of the test's own.
    unsafe {
        FOREIGN.store((*info).si_addr() as usize, Ordering::Relaxed);
        let mut mask = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &mut mask);
        BLOCKED_IN_HANDLER.store(libc::sigismember(&mask, libc::SIGUSR1) == 1, Ordering::Relaxed);
        let page = MAPPED.load(Ordering::Relaxed) as *mut libc::c_void;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        libc::mmap(page, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
    }
}

#[test]
fn what_is_not_a_region_s_goes_to_the_handler_from_before() {
    if !child::is_child() {
        return child::passes(&mut child::command("signals::what_is_not_a_region_s_goes_to_the_handler_from_before"));
    }
    handle(libc::SIGBUS, repair, 0);
    let region = region();
    // A mapped file that is shorter than its mapping.
    let file = std::fs::File::open("/dev/null").unwrap();
    drop(file);
    // SAFETY: a mapping of an empty file, which is touched on purpose.
    unsafe {
        let fd = libc::memfd_create(c"empty".as_ptr(), 0);
        let page = libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0);
        MAPPED.store(page as usize, Ordering::Relaxed);
        assert_eq!(page.cast::<u8>().add(7).read_volatile(), 0);
        assert_eq!(FOREIGN.load(Ordering::Relaxed), page as usize + 7);
        assert!(!BLOCKED_IN_HANDLER.load(Ordering::Relaxed), "its own mask, not lowtide's");
    }
    check_all(&region, 0);
    // One that is sent by a process.
    // SAFETY: the handler is the one above.
    unsafe { libc::raise(libc::SIGBUS) };
    check_all(&region, 0);
}

#[test]
fn without_a_handler_from_before_what_is_not_a_region_s_ends_the_process() {
    let name = "signals::without_a_handler_from_before_what_is_not_a_region_s_ends_the_process";
    if child::is_child() {
        // SAFETY: what is tested.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        let _region = region();
        if std::env::var_os("LOWTIDE_TEST_SENT").is_some() {
            // SAFETY: what is tested.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        // SAFETY: as above: a mapping of an empty file.
        unsafe {
            let fd = libc::memfd_create(c"empty".as_ptr(), 0);
            let page = libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0);
            page.cast::<u8>().read_volatile();
        }
        unreachable!();
    }
    for sent in [false, true] {
        let mut command = child::command(name);
        if sent {
            command.env("LOWTIDE_TEST_SENT", "1");
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{}", child::text(&output));
    }
}

#[test]
fn an_alternate_stack_of_the_smallest_size_will_do() {
    let region = region();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // What a signal frame takes on this machine, and a little for the handler.
            // SAFETY: asks for a number.
            let least = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
            let mut stack = vec![0u8; least + 4096];
            let bytes = stack.len();
            // SAFETY: memory that outlives its use as a stack, which ends below.
            unsafe {
                let new = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: bytes };
                let mut before = std::mem::zeroed();
                assert_eq!(libc::sigaltstack(&new, &mut before), 0);
                check_all(&region, 0);
                assert_eq!(libc::sigaltstack(&before, std::ptr::null_mut()), 0);
            }
        });
    });
}

static AT: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static PAGES: AtomicUsize = AtomicUsize::new(0);
static TICKS: AtomicU64 = AtomicU64::new(0);
/// Handlers that run now, in any thread.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// A handler that reads pages of a region.
extern "C" fn tick(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    RUNNING.fetch_add(1, Ordering::SeqCst);
    let n = TICKS.fetch_add(1, Ordering::Relaxed);
    let at = AT.load(Ordering::SeqCst);
    if !at.is_null() {
        let page = crate::content::mix(n) as usize % PAGES.load(Ordering::Relaxed);
        // SAFETY: a page of the region, which lives until no handler runs that has its address.
        unsafe { crate::content::check(at.add(page * PAGE), 1 + page as u64) };
    }
    RUNNING.fetch_sub(1, Ordering::SeqCst);
}

/// In a process of its own: its signals would meet other tests.
#[test]
fn handlers_may_touch_regions_wherever_they_interrupt() {
    if !child::is_child() {
        return child::passes(&mut child::command("signals::handlers_may_touch_regions_wherever_they_interrupt"));
    }
    let region = region();
    AT.store(region.as_mut_ptr(), Ordering::Relaxed);
    PAGES.store(region.len() / PAGE, Ordering::Relaxed);
    handle(libc::SIGALRM, tick, libc::SA_RESTART | libc::SA_ONSTACK);
    let every = |us| {
        let time = libc::timeval { tv_sec: 0, tv_usec: us };
        let timer = libc::itimerval { it_interval: time, it_value: time };
        // SAFETY: a timer of the process, whose handler is the one above.
        assert_eq!(unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) }, 0);
    };
    every(200);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..10 {
                check_all(&region, 0);
            }
        });
        for i in 0..300 {
            let start = i * 97 % 24 * MIB;
            region.evict(start..start + MIB).unwrap();
            region.prefetch(start..start + 2 * MIB).unwrap();
            drop(region.resident(start..start + MIB).unwrap());
            drop(Region::builder(MIB).group(region.group()).build().unwrap());
            region.stats().unwrap();
        }
    });
    every(0);
    // On a busy machine another thread may still be in the handler, or get to it only now.
    AT.store(std::ptr::null_mut(), Ordering::SeqCst);
    while RUNNING.load(Ordering::SeqCst) > 0 {
        std::thread::yield_now();
    }
    assert!(TICKS.load(Ordering::Relaxed) > 10, "the handler ran");
}

#[test]
fn errno_is_what_it_was() {
    let region = region();
    region.evict(..).unwrap();
    for at in (0..region.len()).step_by(64 * PAGE) {
        // SAFETY: this thread's errno.
        unsafe { *libc::__errno_location() = 1234 };
        std::hint::black_box(region.as_slice()[at]);
        // SAFETY: as above.
        assert_eq!(unsafe { *libc::__errno_location() }, 1234);
    }
}
