//! Fork: the child gets a copy-on-write copy of all of lowtide's tables with the rest of its memory, and from then on depends
//! on nobody. What this file takes care of is the moment itself:
//!
//! 1. Before (agent, `pthread_atfork`): operations are paused, so that the copied tables are consistent. Faults are still
//!    served, by copying only. A reference is added to each slot of swap files for the child, which finds in its copy of the
//!    store whose they are.
//! 2. The kernel clones the memory and blocks the forking thread until a monitor has read the fork event, which brings the
//!    child's userfaultfd. Only then does the child run; first the C library's own code, then lowtide's handler.
//! 3. From the event on, the monitor does nothing but serve the child's faults from its own tables, with the exclusive space
//!    lock held, until the child says that its own agent is ready, or for a second. Then it closes the child's userfaultfd
//!    (which unregisters all of the child's memory), says so, and resumes. Only then does fork return in the parent.
//! 4. The child registers its memory with a userfaultfd of its own and serves itself.
//!
//! A child that is not ready after a second, or says that it will never be (no thread can be started there, no file opened), is
//! *whole*: it gets all of its pages at once, and no references. If it comes to itself, what its tables say is out is
//! forgotten.
//!
//! A fork that was not announced (a raw system call) is served otherwise: the monitor fills in every page of the child that is
//! in lowtide's hands, at once, and lets it go: right, but it costs RAM.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lowtide_core::handshake::Handshake;
use lowtide_core::steps;
use lowtide_core::vm::{self, OnFork, PAGE_SIZE};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;

use crate::clock::now_us;
use crate::ids::PageNo;
use crate::pagemap::PageState;
use crate::pager::Pager;
use crate::regions::Range;
use crate::segment::{Proc, Segment};
use crate::space::Exclusive;
use crate::uffd::{Message, Uffd, Wake};
use crate::worker::Worker;

/// Events of the child that can be passed on to it.
const PASSED: usize = 120;

/// The page that a forking parent and its child share.
#[repr(C)]
pub struct Handover {
    handshake: Handshake,
    /// What becomes of the references that were added for the child: UNCLAIMED, then CHILDS or UNDONE.
    references: AtomicU32,
    passed: AtomicU32,
    events: [[AtomicU64; 4]; PASSED],
}

/// The child has not come so far.
const UNCLAIMED: u32 = 0;
/// The child makes them its own. (If it is killed just then, they stay until its parent ends.)
const CHILDS: u32 = 1;
/// The child is whole, and the parent has taken them back. Or it is about to: the parent may fork again and claim the same for
/// another child, so the child must not even try.
const UNDONE: u32 = 2;

/// Why a child can't go on.
const PARENT_KILLED: &[u8] = b"the parent was killed while it forked: the child's memory is not whole";

/// How long a parent serves its child, in microseconds. One that is not ready by then is stopped, or traced step by step, or
/// has no CPU: it gets all of its memory at once, so that it can come to itself when it likes, and the parent goes on.
const SERVES_US: u64 = 1_000_000;

/// What a child needs to come to itself.
pub struct Inheritance<'a> {
    /// The run.
    pub run: &'static Segment,
    /// This process's place in it.
    pub proc: &'static Proc,
    /// Whether the parent's agent still serves this process, or the parent has let go properly. False: it was killed, or has
    /// become another program.
    pub parent_serves: &'a dyn Fn() -> bool,
    /// Opens one of the parent's swap files: see the store.
    pub reopen: &'a mut dyn FnMut(u8, i32) -> Result<OwnedFd, Errno>,
    /// Whether this process can serve itself at all.
    pub able: Result<(), Errno>,
}

/// What became of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakenOver {
    /// It serves itself from now on.
    Serves,
    /// It can't, for this reason, and all of its memory is there. The pager must not be used.
    Whole(Errno),
}

impl Handover {
    /// A fresh page, for the next fork of this process.
    pub(crate) fn new() -> Result<*mut Handover, Errno> {
        Ok(vm::map(size_of::<Handover>(), OnFork::Share)?.as_ptr().cast())
    }

    /// Puts a fresh page in the place of the one that is at `at`. The child of the last fork keeps that one, and what it writes
    /// there no other child must believe.
    ///
    /// # Safety
    /// `at` comes from [`Handover::new`], and nobody looks at it now.
    unsafe fn renew(at: *mut Handover) -> Result<(), Errno> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED);
        // SAFETY: replaces a mapping of lowtide's own, of this size, to which the caller says nobody refers.
        unsafe { rustix::mm::mmap_anonymous(at.cast(), size_of::<Handover>(), prot, flags) }.map(drop)
    }

    /// Decides what becomes of the child's references; false: that has been decided.
    fn claim_references(&self, by: u32) -> bool {
        // AcqRel, and Acquire of a failure: pairs with itself in the other process. A child that finds UNDONE finds its memory
        // filled.
        self.references.compare_exchange(UNCLAIMED, by, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn pass(&self, event: [u64; 4]) -> bool {
        let i = self.passed.load(Ordering::Relaxed) as usize;
        let Some(slot) = self.events.get(i) else { return false };
        for (word, value) in slot.iter().zip(event) {
            word.store(value, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire in `passed_on`.
        self.passed.store(i as u32 + 1, Ordering::Release);
        true
    }

    fn passed_on(&self) -> impl Iterator<Item = Message> + '_ {
        // Acquire: pairs with the Release in `pass`, before which the event was written.
        let n = self.passed.load(Ordering::Acquire) as usize;
        self.events[..n.min(PASSED)].iter().filter_map(|slot| {
            let [kind, a, b, c] = slot.each_ref().map(|w| w.load(Ordering::Relaxed) as usize);
            match kind {
                1 => Some(Message::Unmap { start: a, end: b }),
                2 => Some(Message::Remove { start: a, end: b }),
                3 => Some(Message::Remap { from: a, to: b, len: c }),
                _ => None,
            }
        })
    }
}

impl Pager {
    fn handover(&self) -> &Handover {
        // Acquire: pairs with the Release in `take_over`, the only place where there comes to be another one.
        // SAFETY: a mapping made by `Handover::new`, never unmapped; all its fields are atomics.
        unsafe { &*self.handover.load(Ordering::Acquire) }
    }

    /// A fork that was announced is over; if it failed, no event came, and this resumes.
    pub fn fork_is_over(&self) {
        let lock = self.space.exclusive();
        if self.paused() {
            self.store(&lock).fork_undo_references();
            self.resume();
        }
    }

    /// Before a fork: from here to [`Pager::resume`] the tables don't change. Not to be called by host threads (it locks).
    pub fn announce_fork(&self, run: &Segment) {
        // The last child may still be on its way out of this process's hands.
        drop(self.space.exclusive());
        // Acquire: as in `handover`.
        // SAFETY: only a monitor that serves a fork looks at it, with the exclusive lock, and none does: forks take turns.
        if unsafe { Handover::renew(self.handover.load(Ordering::Acquire)) }.is_err() {
            (self.host.fatal)(b"no memory for a fork");
        }
        debug_assert!(self.handover().handshake.has_just_begun());
        self.has_moved();
        self.forks();
        self.pause();
        steps::taken(steps::Fork::Parent);
        // An event that was read before may still be being applied, and others may wait: of raw system calls, or the C
        // library's own.
        let lock = self.space.exclusive();
        self.read_all(&lock);
        // Before the memory is copied: the child must know what was added for it.
        self.store(&lock).fork_add_references(run.image(self.proc()), &mut |image| run.is_alive(image));
        steps::taken(steps::Fork::Parent);
    }

    /// Applies all events that wait. The kernel reports faults first: those threads fault again.
    fn read_all(&self, lock: &Exclusive<'_>) {
        let mut waiting = arrayvec::ArrayVec::<usize, 256>::new();
        loop {
            self.look_whether_all_was_read(lock);
            match self.uffd().read().inspect(|message| self.look_at_order(lock, message)) {
                Ok(Message::Fault { addr, .. }) => {
                    if waiting.try_push(addr).is_err() {
                        self.uffd().wake(addr, PAGE_SIZE);
                    }
                }
                Ok(Message::Fork(child)) => match Worker::new(false) {
                    Ok(mut worker) => self.forked_unannounced(lock, &child, &mut worker),
                    Err(_) => (self.host.fatal)(b"no memory for a fork"),
                },
                Ok(event) => self.happened(lock, event),
                Err(_) => break,
            }
        }
        for addr in waiting {
            self.uffd().wake(addr, PAGE_SIZE);
        }
    }

    /// A fork event was read of which nobody had said a word.
    fn forked_unannounced(&self, lock: &Exclusive<'_>, child: &Uffd, worker: &mut Worker) {
        (self.host.warn)(
            b"the program forked by a raw system call: the child's memory was brought in whole and is not limited",
        );
        self.fill_child(lock, child, worker);
    }

    /// A fork event was read.
    pub(crate) fn forked(&self, lock: &Exclusive<'_>, child: Uffd, worker: &mut Worker) {
        if !self.paused() {
            self.forked_unannounced(lock, &child, worker);
            return;
        }
        if self.has_moved() {
            (self.host.fatal)(b"memory was moved (mremap) while the program forked: the child can't know where it is");
        }
        let handover = self.handover();
        steps::taken(steps::Fork::Parent);
        let (until, mut alive) = (now_us() + SERVES_US, true);
        while alive && !handover.handshake.is_ready() {
            if handover.handshake.wants_all() || now_us() >= until {
                alive = self.make_whole(lock, &child, worker);
                break;
            }
            match child.read() {
                Ok(Message::Fault { addr, .. }) => {
                    // An event of the child that waits makes this fail; it is read next, and the fault comes again.
                    if self.copy_to(lock, &child, PageNo::of(addr), worker).is_err() {
                        child.wake(addr, PAGE_SIZE);
                    }
                }
                Ok(event) => self.pass_on(&event),
                Err(_) => {
                    alive = self.is_alive(&child);
                    child.wait_readable(1);
                }
            }
        }
        if !alive {
            self.store(lock).fork_child_died();
        }
        steps::taken(steps::Fork::Parent);
        // Closing the last descriptor unregisters all of the child's memory.
        drop(child);
        steps::taken(steps::Fork::Parent);
        handover.handshake.close();
        steps::taken(steps::Fork::Parent);
        let _ = futex::wake(handover.handshake.word(), futex::Flags::empty(), 1);
        self.resume();
    }

    /// The child gets all of its memory, and no references; false: it is dead.
    fn make_whole(&self, lock: &Exclusive<'_>, child: &Uffd, worker: &mut Worker) -> bool {
        let handover = self.handover();
        if handover.passed_on().any(|event| matches!(event, Message::Remap { .. })) {
            (self.host.fatal)(b"a forked child moved memory before its agent was ready");
        }
        let alive = self.fill_child(lock, child, worker);
        // Release: what was filled comes before. If the child has them already, it frees what it refers to by itself.
        if alive && handover.claim_references(UNDONE) {
            self.store(lock).fork_child_died();
        }
        alive
    }

    fn pass_on(&self, event: &Message) {
        let passed = match *event {
            Message::Unmap { start, end } => self.handover().pass([1, start as u64, end as u64, 0]),
            Message::Remove { start, end } => self.handover().pass([2, start as u64, end as u64, 0]),
            Message::Remap { from, to, len } => self.handover().pass([3, from as u64, to as u64, len as u64]),
            Message::Fault { .. } => true,
            // The child forked before its own agent was there.
            Message::Fork(_) => false,
        };
        if !passed {
            (self.host.fatal)(
                b"a forked child changed its mappings more often than lowtide can follow before its agent was ready",
            );
        }
    }

    /// Brings in all of a child's pages that are in lowtide's hands; false: it is dead.
    fn fill_child(&self, lock: &Exclusive<'_>, child: &Uffd, worker: &mut Worker) -> bool {
        // SAFETY of the data: the exclusive lock is held throughout, so no word changes but by operations under way: a page
        // that one of them is storing or loading is still readable where its word says.
        let mut gone = [Range { start: 0, end: 0 }; 32];
        let mut gone_len = 0;
        let mut dead = false;
        self.map.each_used(|page, slot| {
            let word = slot.get();
            let here =
                !matches!(word, PageState::Staged(_) | PageState::Storing(_) | PageState::Swapped(_) | PageState::Loading(_))
                    || word == PageState::Loading(0);
            if dead || here {
                return;
            }
            loop {
                if gone[..gone_len].iter().any(|r| (r.start..r.end).contains(&page.addr())) {
                    return;
                }
                match self.copy_to(lock, child, page, worker) {
                    Ok(()) | Err(Errno::NOENT | Errno::INVAL | Errno::FAULT) => return,
                    Err(Errno::SRCH) => {
                        dead = true;
                        return;
                    }
                    Err(_) => {}
                }
                while let Ok(message) = child.read() {
                    match message {
                        // It is woken when its page comes, or at the end.
                        Message::Fault { .. } => {}
                        Message::Unmap { start, end } | Message::Remove { start, end } if gone_len < gone.len() => {
                            gone[gone_len] = Range { start, end };
                            gone_len += 1;
                        }
                        _ => (self.host.fatal)(b"a forked child changed its mappings before lowtide could follow"),
                    }
                }
            }
        });
        !dead
    }

    /// In a forked child, before anything else of the pager is used there: frees what threads of the parent may have held, and
    /// takes over the store, which has no swap file of its own then.
    ///
    /// # Errors
    /// The parent died too early, or the kernel refuses at the end what it can hardly refuse: the child's memory is not whole.
    ///
    /// # Safety
    /// Only in a child of a process that called [`Pager::announce_fork`], while its host thread waits, and no other of its
    /// threads uses the pager.
    pub unsafe fn take_over(&self, with: Inheritance<'_>) -> Result<TakenOver, &'static [u8]> {
        self.set_proc(with.proc);
        // By how much the parent has grown since it was measured, the parent has told: this process begins with nothing of it.
        let now = self.budget.now();
        self.budget.join(with.run, with.proc);
        self.budget.measured(now);
        self.forget_operations();
        self.guards.reset_after_fork();
        steps::taken(steps::Fork::Child);
        let handover = self.handover();
        // SAFETY: no other thread of this process uses the pager, and the parent's operations were paused.
        let has_files = unsafe {
            self.space.reset_after_fork();
            self.hand.reset_after_fork();
            self.order.reset_after_fork();
            self.map.reset_after_fork();
            self.staging.reset_after_fork();
            self.order.lock().all_is_certain();
            let lock = self.space.exclusive();
            if handover.claim_references(CHILDS) {
                self.store(&lock).fork_child(with.run.image(with.proc), with.reopen).is_ok()
            } else {
                self.store(&lock).fork_child_whole();
                false
            }
        };
        let means = with.able.and_then(|()| {
            let (uffd, present) = ((self.host.open_uffd)()?, (self.host.open_page_map)()?);
            Ok((uffd, present, Handover::new()?))
        });
        steps::taken(steps::Fork::Child);
        // From here the parent may let go, if it has not done so already. A parent that dies now, or was found dead, is found
        // out below.
        if has_files && means.is_ok() {
            handover.handshake.ready();
        } else {
            handover.handshake.want_all();
        }
        steps::taken(steps::Fork::Child);
        self.wait_for_parent(with.parent_serves)?;
        steps::taken(steps::Fork::Child);
        let (uffd, present, next) = match means {
            Ok(means) => means,
            Err(errno) => {
                // Its parent's slots are not needed here any more.
                self.forget_what_is_out(&self.space.exclusive());
                return Ok(TakenOver::Whole(errno));
            }
        };
        self.reopen(uffd, present);
        {
            let lock = self.space.exclusive();
            self.staging.register(self.uffd()).map_err(|_| &b"a forked child can't register its memory"[..])?;
            for event in handover.passed_on() {
                self.apply(&lock, &event);
            }
            if !has_files {
                self.forget_what_is_out(&lock);
            }
        }
        self.register_inherited()?;
        steps::taken(steps::Fork::Child);
        // Release: pairs with the Acquire in `handover`.
        self.handover.store(next, Ordering::Release);
        self.resume();
        Ok(TakenOver::Serves)
    }

    /// In a forked child that can't start an agent thread: asks its parent for all of its memory, and waits for it.
    /// `parent_serves`: see
    /// [`Inheritance`].
    ///
    /// # Errors
    /// The parent died too early.
    pub fn become_whole(&self, parent_serves: &dyn Fn() -> bool) -> Result<(), &'static [u8]> {
        self.handover().handshake.want_all();
        self.wait_for_parent(parent_serves)
    }

    /// In a forked child: waits until its memory is its own.
    fn wait_for_parent(&self, parent_serves: &dyn Fn() -> bool) -> Result<(), &'static [u8]> {
        let handshake = &self.handover().handshake;
        while !handshake.is_closed() {
            let tick = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let said = handshake.word().load(Ordering::Relaxed);
            if !handshake.is_closed() {
                let _ = futex::wait(handshake.word(), futex::Flags::empty(), said, Some(&tick));
            }
            if !parent_serves() && !handshake.is_closed() {
                return Err(PARENT_KILLED);
            }
        }
        Ok(())
    }

    /// In a child that is whole: lets go of all that its tables say is out, or has a copy that is, for all of that is in
    /// memory, and it may have no reference to the slots that it stands for.
    fn forget_what_is_out(&self, lock: &Exclusive<'_>) {
        self.map.each_used(|_, slot| {
            let word = slot.get();
            if matches!(word, PageState::Staged(_) | PageState::Swapped(_) | PageState::Clean(_)) {
                slot.set(PageState::None);
                self.forget(lock, word);
            }
        });
        self.publish_own();
    }

    /// Registers what was adopted in the parent.
    fn register_inherited(&self) -> Result<(), &'static [u8]> {
        let mut at = 0;
        loop {
            let next = {
                let lock = self.space.shared();
                self.regions.next(&lock, at)
            };
            let Some(range) = next else { return Ok(()) };
            at = range.end;
            self.register_mapped(range)?;
        }
    }

    /// Registers what is mapped of a range, and abandons the rest: what the parent had advised not to hand on (MADV_DONTFORK),
    /// and what it had unmapped just before, of which the child's tables did not know yet. What is taken for adopted and is not
    /// registered would be evicted, and never served.
    fn register_mapped(&self, range: Range) -> Result<(), &'static [u8]> {
        const REFUSED: &[u8] = b"a forked child can't register its memory";
        let mut at = range.start;
        while at < range.end {
            let mapping = self.present().mappings.next(at).map_err(|_| REFUSED)?.filter(|mapping| mapping.start < range.end);
            let mapped = mapping.map_or(Range { start: range.end, end: range.end }, |mapping| Range {
                start: mapping.start.max(at),
                end: mapping.end.min(range.end),
            });
            if at < mapped.start {
                self.abandon(&self.space.exclusive(), Range { start: at, end: mapped.start });
            }
            if mapped.start < mapped.end {
                // SAFETY: this child's monitors serve every fault.
                let register = || unsafe { self.uffd().register(mapped.start, mapped.end - mapped.start) };
                match vm::unless_own(mapped.start, mapped.end, register).transpose() {
                    Ok(Some(())) => {}
                    // Something else has been mapped there: the stack of a thread of lowtide's, say, or what can't be adopted.
                    Ok(None) | Err(Errno::INVAL) => self.abandon(&self.space.exclusive(), mapped),
                    Err(_) => return Err(REFUSED),
                }
            }
            at = mapped.end;
        }
        Ok(())
    }

    /// Whether the process of a userfaultfd still has its memory.
    fn is_alive(&self, child: &Uffd) -> bool {
        // The guard page before the handover page is never registered: NOENT while there is an address space, SRCH when it is
        // gone.
        let guard = self.handover.load(Ordering::Relaxed) as usize - PAGE_SIZE;
        // SAFETY: nothing can be copied to an address that is not registered.
        let probe = unsafe { child.copy(guard, self.zeros.as_ptr(), PAGE_SIZE, Wake::Now) };
        probe.error != Some(Errno::SRCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second mapping of the same page, as the child of the last fork has it.
    fn childs(at: *mut Handover) -> &'static Handover {
        // SAFETY: of a shared mapping, a length of 0 makes another one of the same pages; it stays until the test ends.
        unsafe { &*rustix::mm::mremap(at.cast(), 0, PAGE_SIZE, rustix::mm::MremapFlags::MAYMOVE).unwrap().cast() }
    }

    /// A monitor that tries to begin an operation while the program forks counts itself for a moment.
    #[test]
    fn a_child_does_not_wait_for_operations_of_its_parent() {
        let Some(pager) = crate::events::tests::pager() else { return };
        core::mem::forget(pager.enter());
        pager.forget_operations();
        let waited = std::time::Instant::now();
        pager.pause();
        assert!(waited.elapsed().as_secs() < 60);
    }

    #[test]
    fn what_the_child_of_an_earlier_fork_writes_no_later_one_sees() {
        let at = Handover::new().unwrap();
        // SAFETY: lives until the test ends; all its fields are atomics.
        let mine = unsafe { &*at };
        let earlier = childs(at);
        earlier.handshake.ready();
        assert!(mine.handshake.is_ready(), "the page is shared");
        // SAFETY: nobody else looks at it.
        unsafe { Handover::renew(at) }.unwrap();
        assert!(earlier.pass([1, 0x1000, 0x2000, 0]));
        earlier.handshake.close();
        assert_eq!((mine.handshake.has_just_begun(), mine.passed_on().count()), (true, 0));
        let later = childs(at);
        assert_eq!((later.handshake.has_just_begun(), later.passed_on().count()), (true, 0));
    }
}
