//! Faults of this process, told by BPF programs: what is told to whom, in each way to load the programs.
//!
//! They take root and a kernel that lets programs be loaded. Elsewhere they say SKIPPED, also with `CI` set: what must run is
//! `make kernels`, where that counts as a failure.

#[path = "../../../tests/skipped.rs"]
mod skipped;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lowtide_bpf::record::{Fault, Record, Why};
use lowtide_bpf::{Carrier, Error, Hook, MappedRing, MappedSlots, Notifier, ProcessMaps, Registration};
use lowtide_sys::uffd::{Message, Uffd, Wake, Watched};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::thread::gettid;

const PAGE: usize = 4096;
const PAGES: usize = 256;
const SIGNAL: c_int = libc::SIGSTKFLT;
/// Of the handler, and of a thread's alternate stack.
const HANDLER_STACK: usize = 16 << 10;
const ALTERNATE: usize = 64 << 10;
const PATIENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };
const REMOVE_EVENTS: u64 = 1 << 3;
const WAYS: [(Hook, Carrier); 3] = [(Hook::Entry, Carrier::Value), (Hook::Entry, Carrier::Slot), (Hook::Probe, Carrier::Slot)];

/// The signal has one handler: one at a time.
static TURN: Mutex<()> = Mutex::new(());
/// What the handler serves.
static SERVED: AtomicPtr<Memory> = AtomicPtr::new(std::ptr::null_mut());
static HANDLED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Of this thread; no call of the C library's in the handler.
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// Registered memory, all of it missing, of this process, which is told of its faults.
struct Memory {
    start: usize,
    uffd: Uffd,
    slots: MappedSlots,
    carrier: Carrier,
    maps: ProcessMaps,
    notifier: Notifier,
    counted: Vec<u64>,
    _turn: MutexGuard<'static, ()>,
}

/// In each way that this kernel has, or none.
fn in_each_way(features: u64, test: impl Fn(&Memory)) {
    for way in WAYS {
        match Memory::new(way, features) {
            Ok(memory) => {
                SERVED.store((&raw const *memory).cast_mut(), Ordering::SeqCst);
                test(&memory);
                SERVED.store(std::ptr::null_mut(), Ordering::SeqCst);
            }
            // Linux before 6.13.
            Err(Error::Missing(what)) if what.contains("bpf_send_signal_task") => {}
            Err(e @ (Error::NoTypes(_) | Error::NotAllowed(..) | Error::Namespace)) => return skipped::skipped(e),
            Err(e) => panic!("{way:?}: {e}"),
        }
    }
}

/// The cheap question has the answer of the other one, both where programs can be loaded and where that is not allowed.
#[test]
fn what_can_be_loaded_is_worth_trying() {
    match Notifier::load(SIGNAL) {
        Ok(_) => assert!(Notifier::may_load()),
        Err(Error::NotAllowed(..) | Error::NoTypes(_) | Error::Namespace) => assert!(!Notifier::may_load()),
        // It may be tried in vain.
        Err(e) => skipped::skipped(e),
    }
}

impl Memory {
    fn new(way: (Hook, Carrier), features: u64) -> Result<Box<Memory>, Error> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let notifier = Notifier::load_by(SIGNAL, &[way])?;
        assert_eq!((notifier.hook(), notifier.carrier()), way);
        handle();
        HANDLED.store(0, Ordering::SeqCst);
        let registration = Registration::of_this_process(on_fault as *const () as usize, HANDLER_STACK, 2);
        let maps = notifier.register(std::process::id(), registration)?;
        let slots = MappedSlots::new(maps.slots.as_fd())?;
        let uffd = Uffd::open(features).expect("a userfaultfd");
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping, and advice on it.
        let start = unsafe {
            let map = mmap_anonymous(std::ptr::null_mut(), PAGES * PAGE, access, MapFlags::PRIVATE).expect("memory");
            madvise(map, PAGES * PAGE, Advice::LinuxNoHugepage).expect("advice");
            map.expose_provenance()
        };
        // SAFETY: nothing is there yet; the handler and the threads of the tests serve it.
        unsafe { uffd.register(start, PAGES * PAGE, Watched::Missing) }.expect("registered");
        let counted = Why::ALL.map(|why| notifier.count(why).expect("a count")).to_vec();
        Ok(Box::new(Memory { start, uffd, slots, carrier: way.1, maps, notifier, counted, _turn: turn }))
    }

    fn page(&self, i: usize) -> usize {
        self.start + i * PAGE
    }

    /// Reads the first word of a page.
    fn read(&self, i: usize) -> u64 {
        // SAFETY: of this mapping, which nobody writes to but the kernel.
        unsafe { with_exposed_provenance::<u64>(self.page(i)).read_volatile() }
    }

    /// A page has its own address in each word.
    fn install(&self, page: usize) -> Result<(), Errno> {
        let bytes = [page as u64; PAGE / 8];
        // SAFETY: a missing page of this mapping, which a thread waits for.
        unsafe { self.uffd.copy(page, bytes.as_ptr().cast(), PAGE, Wake::Now) }.error.map_or(Ok(()), Err)
    }

    /// The next record of any ring, which is waited for. `None`: there was none for long; then no fault waits any more.
    fn next_record(&self, rings: &mut [MappedRing]) -> Option<Record> {
        loop {
            if let Some(record) = rings.iter_mut().find_map(|ring| ring.take()) {
                return Some(record);
            }
            let mut fds: Vec<PollFd> = self.maps.rings.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            if poll(&mut fds, Some(&PATIENCE)) == Ok(0) {
                // SAFETY: whoever waits sees zeros, by which the test fails.
                let _ = unsafe { self.uffd.unregister(self.start, PAGES * PAGE) };
                return None;
            }
        }
    }

    fn rings(&self) -> Vec<MappedRing> {
        self.maps.rings.iter().map(|fd| MappedRing::new(fd.as_fd()).expect("mapped")).collect()
    }

    /// What went to rings, or did not, since this was made.
    fn counts(&self) -> Vec<(Why, u64)> {
        let now = Why::ALL.into_iter().zip(&self.counted);
        let since = now.map(|(why, before)| (why, self.notifier.count(why).expect("a count") - before));
        since.filter(|(_, count)| *count != 0).collect()
    }

    /// Runs `faulting` in a thread of its own, whose one record this serves.
    fn served_by_the_ring(&self, faulting: impl FnOnce() + Send) -> Option<Record> {
        let mut rings = self.rings();
        std::thread::scope(|scope| {
            scope.spawn(|| with_alternate_stack(faulting));
            let record = self.next_record(&mut rings)?;
            self.install(record.fault.page).expect("installed");
            Some(record)
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.notifier.unregister(std::process::id()).expect("unregistered");
        // SAFETY: made in `new`; no thread of the test is left that knows of it.
        let _ = unsafe { munmap(with_exposed_provenance_mut(self.start), PAGES * PAGE) };
    }
}

fn handle() {
    // SAFETY: all zeros are a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: a handler of the form that SA_SIGINFO asks for; it blocks all other signals meanwhile.
    let done = unsafe {
        libc::sigfillset(&raw mut action.sa_mask);
        libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut())
    };
    assert_eq!(done, 0);
}

extern "C" fn on_fault(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    const SI_KERNEL: c_int = 0x80;
    // SAFETY: the kernel gives one; and the memory is there as long as the pointer is not null.
    let (info, served) = unsafe { (&*info, SERVED.load(Ordering::SeqCst).as_ref()) };
    let (Some(served), SI_KERNEL) = (served, info.si_code) else { return };
    let fault = match served.carrier {
        // SAFETY: the kernel's signals of this kind have a value.
        Carrier::Value => Some(Fault::of_word(unsafe { info.si_value() }.sival_ptr as u64)),
        Carrier::Slot => served.slots.signalled(THREAD.get()),
    };
    if let Some(fault) = fault {
        HANDLED.fetch_add(1, Ordering::SeqCst);
        let _ = served.install(fault.page);
    }
}

/// Runs `f` with an alternate stack for signals, so that there is room for a frame for sure.
fn with_alternate_stack(f: impl FnOnce()) {
    THREAD.set(gettid().as_raw_nonzero().get().cast_unsigned());
    let mut memory = vec![0u8; ALTERNATE];
    let mut before = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    let own = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: ALTERNATE };
    // SAFETY: memory that is there until the stack of before is in use again.
    assert_eq!(unsafe { libc::sigaltstack(&raw const own, &raw mut before) }, 0);
    f();
    // SAFETY: what this thread had.
    assert_eq!(unsafe { libc::sigaltstack(&raw const before, std::ptr::null_mut()) }, 0);
}

/// How often this thread gave up its CPU to wait.
fn waits() -> i64 {
    // SAFETY: all zeros are a valid rusage, and the call fills one.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        usage.ru_nvcsw
    }
}

#[test]
fn faults_of_the_program_are_served_in_its_thread() {
    in_each_way(0, |memory| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                with_alternate_stack(|| {
                    let before = waits();
                    for i in 0..PAGES {
                        assert_eq!(memory.read(i), memory.page(i) as u64, "page {i}");
                    }
                    // Served by another thread, each would be one. A lock of the kernel's may be waited for now and then.
                    let waits = waits() - before;
                    assert!(waits < PAGES as i64 / 16, "the thread waited for another one {waits} times");
                });
            });
        });
        assert_eq!((HANDLED.load(Ordering::SeqCst), memory.counts()), (PAGES, vec![]));
        assert!(!memory.uffd.wait_readable(0), "a fault is left in the userfaultfd");
    });
}

#[test]
fn a_fault_of_the_kernel_comes_by_the_ring() {
    in_each_way(0, |memory| {
        let (read_end, write_end) = rustix::pipe::pipe().expect("a pipe");
        assert_eq!(rustix::io::write(&write_end, b"lowtide"), Ok(7));
        let (page, mut thread) = (memory.page(9), 0);
        let record = memory.served_by_the_ring(|| {
            thread = THREAD.get();
            // SAFETY: 7 bytes of a page of this mapping, to which nobody has a reference.
            let target = unsafe { std::slice::from_raw_parts_mut(with_exposed_provenance_mut::<u8>(page + 100), 7) };
            assert_eq!(rustix::io::read(&read_end, target), Ok(7));
        });
        assert_eq!(record, Some(Record { fault: Fault { page, write: true }, thread, why: Why::KernelMode, stack: 0 }));
        // SAFETY: as above; the thread has ended.
        let bytes = unsafe { std::slice::from_raw_parts(with_exposed_provenance::<u8>(page + 100), 7) };
        assert_eq!((bytes, memory.read(9)), (&b"lowtide"[..], page as u64));
        assert_eq!(HANDLED.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_thread_that_blocks_the_signal_is_served_by_the_ring() {
    in_each_way(0, |memory| {
        let record = memory.served_by_the_ring(|| {
            // SAFETY: signal sets of this function.
            let pending = unsafe {
                let (mut all, mut pending): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
                libc::sigfillset(&raw mut all);
                assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut()), 0);
                assert_eq!(memory.read(3), memory.page(3) as u64);
                libc::sigpending(&raw mut pending);
                libc::sigismember(&raw const pending, SIGNAL)
            };
            assert_eq!(pending, 0, "a signal waits for later");
        });
        assert_eq!(record.map(|record| (record.fault.page, record.why)), Some((memory.page(3), Why::Blocked)));
        assert_eq!(HANDLED.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_signal_that_the_program_took_for_itself_is_left_to_it() {
    in_each_way(0, |memory| {
        // SAFETY: the default is a valid handler. It would end this process.
        unsafe { libc::signal(SIGNAL, libc::SIG_DFL) };
        let record = memory.served_by_the_ring(|| assert_eq!(memory.read(5), memory.page(5) as u64));
        assert_eq!(record.map(|record| (record.fault.page, record.why)), Some((memory.page(5), Why::OtherHandler)));
    });
}

#[test]
fn an_event_comes_by_the_ring() {
    in_each_way(REMOVE_EVENTS, |memory| {
        let mut rings = memory.rings();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: nobody relies on what is there.
                unsafe { madvise(with_exposed_provenance_mut(memory.start), PAGE, Advice::LinuxDontNeed) }.expect("removed");
            });
            let record = memory.next_record(&mut rings);
            // Else the thread would wait for good. The record is written before the event can be read.
            while !memory.uffd.wait_readable(1000) {}
            let start = memory.start;
            assert!(matches!(memory.uffd.read(), Ok(Message::Remove { start: at, end }) if at == start && end == start + PAGE));
            assert_eq!(record.map(|record| record.why), Some(Why::Event));
        });
    });
}

/// Ends with the test, also by a failed assertion.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_gets_no_record_of_another_one() {
    in_each_way(0, |memory| {
        let other =
            Other(Command::new("sleep").arg("1000").stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("sleep"));
        let registration = Registration { handler: 1, stack: 0, filters: 0, rings: 2, stacks: 0 };
        let others = memory.notifier.register(other.0.id(), registration).expect("registered");
        // SAFETY: the default is a valid handler.
        unsafe { libc::signal(SIGNAL, libc::SIG_DFL) };
        let record = memory.served_by_the_ring(|| assert_eq!(memory.read(5), memory.page(5) as u64));
        assert!(record.is_some());
        for fd in &others.rings {
            assert_eq!(MappedRing::new(fd.as_fd()).expect("mapped").take(), None);
        }
        // What is registered no more is told nothing.
        memory.notifier.unregister(std::process::id()).expect("unregistered");
        let counts = memory.counts();
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(memory.read(6), memory.page(6) as u64));
            while !memory.uffd.wait_readable(1000) {}
            assert!(matches!(memory.uffd.read(), Ok(Message::Fault { addr, .. }) if addr == memory.page(6)));
            memory.install(memory.page(6)).expect("installed");
        });
        assert_eq!(memory.counts(), counts);
        memory.notifier.unregister(other.0.id()).expect("unregistered");
    });
}
