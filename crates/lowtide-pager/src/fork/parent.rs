//! Fork, in the parent: before, and while it serves the child.

use core::sync::atomic::Ordering;

use lowtide_core::steps;
use lowtide_core::vm::PAGE_SIZE;
use rustix::thread::{futex, nanosleep};

use super::Whose;
use super::handover::Handover;
use super::hold::SOON_MS;
use super::whole::PAUSE;
use crate::fault::patience::Patience;
use crate::fault::worker::Worker;
use crate::mappings::going::Gone;
use crate::mappings::regions::Range;
use crate::mappings::space::Exclusive;
use crate::pagemap::ids::PageNo;
use crate::pager::Pager;
use crate::segment::Segment;
use crate::sys::clock::now_us;
use crate::sys::uffd::{Message, Standing, Uffd};

/// How long a parent serves a child that does not want to run, in microseconds. One that is not ready by then is stopped, or
/// traced step by step: it gets all of its memory at once, so that it can come to itself when it likes, and the parent goes on.
const SERVES_US: u64 = 1_000_000;
/// How long it serves one that wants to, and gets next to no CPU. To be whole costs it, and the run, more than to wait.
const LONGEST_US: u64 = 60_000_000;
/// How often it looks for that.
const LOOK_US: u64 = 100_000;
/// How long it waits until changes of mappings that are on their way when the child is there have been read. It is that of the
/// forking thread in most cases, which must run to be no more on its way, and the child can't run before that.
const CHANGE_SECONDS: u32 = 20;
/// Large removals that are done in parts when all is ready for a fork. They come past the gate, and what comes after them is
/// done at once.
const LARGE_REMOVALS: usize = 4;
/// Said where that is more than can be remembered.
const TOO_OFTEN: &[u8] = b"a forked child changed its mappings more often than lowtide can follow before its agent was ready";

/// What a child does before it is told what came before.
type Early = arrayvec::ArrayVec<Message, 32>;

impl Pager {
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
        // While pages still can be evicted.
        self.let_go_before_fork();
        self.pause();
        steps::taken(steps::Fork::Parent);
        let lock = self.read_all_and_let_go();
        if self.store(&lock).keeps_pool_from_children() {
            // It would find none, and take what lies there instead for pages.
            (self.host.fatal)(b"a process without hooks has announced a fork");
        }
        // Before the memory is copied: the child must know what was added for it.
        self.store(&lock).fork_add_references(run.image(self.proc()), &mut |image| run.is_alive(image));
        self.held_back.announce(&lock);
        steps::taken(steps::Fork::Parent);
    }

    /// Applies all events that wait, and leaves nothing of what was dropped for later. An event that was read before may still be
    /// being applied, and others may wait: of raw system calls, or the C library's own.
    fn read_all_and_let_go(&self) -> Exclusive<'_> {
        for _ in 0..LARGE_REMOVALS {
            let mut lock = self.space.exclusive();
            self.read_all(&mut lock);
            if !self.going.is_on() {
                return lock;
            }
            drop(lock);
            self.let_go_before_fork();
        }
        let mut lock = self.space.exclusive();
        self.read_all(&mut lock);
        self.let_go_of_all(&lock);
        lock
    }

    /// Applies all events that wait. The kernel reports faults first: those threads fault again.
    fn read_all(&self, lock: &mut Exclusive<'_>) {
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
                    Ok(mut worker) => self.forked_unannounced(lock, child, &mut worker),
                    Err(_) => (self.host.fatal)(b"no memory for a fork"),
                },
                Ok(event) => self.happened(lock, event),
                Err(_) => break,
            }
        }
        self.let_be_born(lock, SOON_MS);
        for addr in waiting {
            self.uffd().wake(addr, PAGE_SIZE);
        }
    }

    /// A fork that was announced is over; if it failed, no event came, and this resumes. False: it came to a child, which does
    /// not serve itself yet ([`Pager::outlast_child`]).
    pub fn fork_is_over(&self) -> bool {
        // Whoever has read the event of a fork has taken note of it by then.
        let lock = self.space.exclusive();
        if self.held_back.was_cloned() {
            return false;
        }
        if self.paused() {
            self.store(&lock).fork_undo_references();
            self.apply_held_back(&lock);
            self.resume();
        }
        true
    }

    /// Waits until no child is served, in the process that forked. For host threads: it takes nothing.
    pub fn outlast_child(&self) {
        self.held_back.outlast_child();
    }

    /// The event was read of a fork that was announced. No lock may be held.
    pub(crate) fn forked(&self, child: Uffd, worker: &mut Worker) {
        let lock = &mut self.space.exclusive();
        let early = self.tell_what_came_before(lock, &child);
        let handover = self.handover();
        steps::taken(steps::Fork::Parent);
        let (mut term, mut alive, mut has_moved, mut has_left) = (Term::new(now_us()), true, false, false);
        for event in early {
            has_moved |= matches!(event, Message::Remap { .. });
            self.pass_on(&event);
        }
        // While it waits nothing is evicted here. That is to cost less than the child's pages would.
        let out = self.staging.staged() + self.store(lock).stats().stored_now as usize;
        // And the run is not to pass its limit by more than a part of it.
        let out = out.min((self.budget.limit() / 8) as usize / PAGE_SIZE);
        let arrived = self.arrived.load(Ordering::Relaxed);
        let pays = || self.arrived.load(Ordering::Relaxed).wrapping_sub(arrived) < out;
        while alive && !handover.handshake.is_ready() {
            let is_over = !handover.handshake.wants_all()
                && (self.held_back.is_nearly_full(lock)
                    || term.is_over(now_us(), || pays() && lock.while_free(self.host.child_wants_to_run)));
            if is_over {
                (self.host.warn)(
                    b"a forked child was brought in whole: it was stopped or traced, or got no CPU, before it could serve itself",
                );
            }
            if is_over || handover.handshake.wants_all() {
                if has_moved {
                    (self.host.fatal)(b"a forked child moved memory before its agent was ready");
                }
                alive = self.make_whole(lock, &child, worker);
                break;
            }
            match child.read() {
                Ok(Message::Fault { addr, .. }) => {
                    // An event of the child that waits makes this fail; it is read next, and the fault comes again.
                    if self.copy_to(lock, &child, Whose::Childs, PageNo::of(addr), worker).is_err() {
                        child.wake(addr, PAGE_SIZE);
                    }
                }
                Ok(event) => {
                    has_moved |= matches!(event, Message::Remap { .. });
                    self.pass_on(&event);
                }
                Err(_) => {
                    alive = self.is_alive(&child);
                    // The child's own, in most cases: before that it can't begin.
                    if self.hold.is_owed() {
                        self.let_be_born(lock, 1);
                        // Its thread gets no CPU, or there is no descriptor.
                        if self.hold.is_owed() {
                            let leaves = !core::mem::replace(&mut has_left, true);
                            lock.while_free(|| {
                                if leaves {
                                    self.is_about_to_wait(worker);
                                }
                                drop(nanosleep(&PAUSE));
                            });
                        }
                        continue;
                    }
                    // Others serve this process's faults, and are told so if it takes longer.
                    if !lock.while_free(|| child.wait_readable(1)) && !core::mem::replace(&mut has_left, true) {
                        lock.while_free(|| self.is_about_to_wait(worker));
                    }
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
        self.apply_held_back(lock);
        // Before anybody protects pages by what it knew of threads before the fork.
        self.shared_writes.forked(now_us());
        self.resume();
    }

    fn apply_held_back(&self, lock: &Exclusive<'_>) {
        self.held_back.end(lock, |event, has_ended| match *event {
            // What is in memory there is new: to mark it would keep it there for ever. (Unless it is another call that has
            // ended, and the one that is still on its way will take the marks away.)
            Message::Remove { start, end } if has_ended && !self.removal_calls.any_covers(Range { start, end }) => {
                self.gone(lock, Range { start, end }, Gone::Already)
            }
            _ => self.apply(lock, event),
        });
    }

    /// Tells the child of the events that came before the cloning, of which its tables know nothing.
    ///
    /// A change is counted by the kernel from before the lock of the mappings is let go of, which the cloning takes, until its
    /// event has been read. So what came before is known when none is on its way. What the child's userfaultfd says then is what
    /// was registered at the cloning: while the program forks nothing is registered, so what is not there was unmapped or moved
    /// away before, and what was moved later is where it was. Returns what the child itself has done meanwhile. That pages were removed (MADV_DONTNEED) it can't say: if the call
    /// had returned, the child finds that in its copy.
    fn tell_what_came_before(&self, lock: &mut Exclusive<'_>, child: &Uffd) -> Early {
        let mut patience = Patience::new();
        let is_known = loop {
            self.read_all(lock);
            if self.uffd().standing(self.staging.addresses().start) != Standing::Changing {
                break true;
            }
            if !lock.while_free(|| patience.wait(CHANGE_SECONDS)) {
                break false;
            }
        };
        if self.held_back.have_moves_that_meet(lock) || self.has_moved() && !is_known {
            (self.host.fatal)(b"memory was moved (mremap) while the program forked: the child can't know where it is");
        }
        let mut early = Early::new();
        self.held_back.tell_childs(lock, |event, later| match *event {
            Message::Remap { .. } => {
                let came_before = self.had_moved_to(lock, child, event, &mut early).is_some();
                if came_before {
                    self.pass_on(event);
                }
                came_before
            }
            Message::Unmap { start, end } => {
                let range = Range { start, end };
                // What has moved there before the cloning is there again.
                if later.iter().any(|event| self.had_moved_to(lock, child, event, &mut early).is_some_and(|to| to.meets(range)))
                {
                    self.pass_on(event);
                    return true;
                }
                // The call may have been for more than was registered, and only of that the kernel can tell.
                let mut from = start;
                let mut came_before = false;
                while let Some(part) = self.regions.first_in(lock, Range { start: from, end }) {
                    if !self.is_registered_in(child, part.start, &mut early) {
                        self.pass_on(&Message::Unmap { start: part.start, end: part.end });
                        came_before = true;
                    }
                    from = part.end;
                }
                came_before
            }
            _ => false,
        });
        early
    }

    /// To where an event moved memory before the cloning.
    fn had_moved_to(&self, lock: &Exclusive<'_>, child: &Uffd, event: &Message, early: &mut Early) -> Option<Range> {
        let Message::Remap { from, to, len } = *event else { return None };
        let to = Range { start: to, end: to + len };
        // (MREMAP_DONTUNMAP leaves the old place registered.)
        let came_before = self.is_registered_in(child, to.start, early)
            && (!self.is_registered_in(child, from, early) || !self.regions.overlaps(lock, to));
        came_before.then_some(to)
    }

    /// Whether the child has memory at `addr` that is registered. A call of its own that is under way leaves its event in `early`.
    fn is_registered_in(&self, child: &Uffd, addr: usize, early: &mut Early) -> bool {
        let mut patience = Patience::new();
        loop {
            match child.standing(addr) {
                Standing::Registered => return true,
                Standing::NotRegistered => return false,
                // Until its event is read nothing can be said.
                Standing::Changing => match child.read() {
                    Ok(Message::Fault { addr, .. }) => child.wake(addr, PAGE_SIZE),
                    Ok(event) => {
                        if early.try_push(event).is_err() {
                            (self.host.fatal)(TOO_OFTEN);
                        }
                    }
                    // It is dead, or stopped between the two.
                    Err(_) if !self.is_alive(child) || !patience.wait(CHANGE_SECONDS) => return false,
                    Err(_) => {}
                },
            }
        }
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
            (self.host.fatal)(TOO_OFTEN);
        }
    }

    /// Whether the process of a userfaultfd still has its memory.
    fn is_alive(&self, child: &Uffd) -> bool {
        !child.is_gone(self.staging.addresses().start)
    }
}

/// For how long a parent serves its child.
struct Term {
    until: u64,
    latest: u64,
    look_at: u64,
}

impl Term {
    fn new(now_us: u64) -> Term {
        Term { until: now_us + SERVES_US, latest: now_us + LONGEST_US, look_at: now_us + LOOK_US }
    }

    fn is_over(&mut self, now_us: u64, wants_to_run: impl FnOnce() -> bool) -> bool {
        if now_us >= self.look_at {
            self.look_at = now_us + LOOK_US;
            if wants_to_run() {
                self.until = (now_us + SERVES_US).min(self.latest);
            }
        }
        now_us >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When it is over for a child that wants to run in these milliseconds.
    fn over_at(wants_to_run: impl Fn(u64) -> bool) -> u64 {
        let mut term = Term::new(5_000_000);
        (0..).find(|ms| term.is_over(5_000_000 + ms * 1000, || wants_to_run(*ms))).unwrap()
    }

    #[test]
    fn a_child_that_wants_to_run_is_waited_for() {
        assert_eq!(over_at(|_| false), 1000, "it is stopped");
        assert_eq!(over_at(|_| true), 60_000);
        // It is seen at work now and then.
        assert_eq!(over_at(|ms| ms % 900 == 0), 60_000);
        assert_eq!(over_at(|ms| ms < 2050), 3000, "it was stopped later");
    }
}
