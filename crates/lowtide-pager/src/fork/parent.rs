//! Fork, in the parent: before, and while it serves the child.

use core::sync::atomic::Ordering;

use lowtide_core::steps;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::Range;
use lowtide_sys::clock::now_us;
use lowtide_sys::uffd::{Message, SECOND_REPORT_MS, Standing, Uffd};
use lowtide_wire::segment::Segment;
use rustix::thread::{futex, nanosleep};

use super::Whose;
use super::handover::Handover;
use super::whole::PAUSE;
use crate::mappings::going::Gone;
use crate::pagemap::ids::PageNo;
use crate::pager::Pager;
use crate::pages::patience::Patience;
use crate::pages::space::Exclusive;
use crate::pages::worker::{Rights, Worker};

/// Microseconds for a child that is stopped or traced; then it gets all of its memory at once.
const SERVES_US: u64 = 1_000_000;
/// For a child that gets no CPU: waiting costs the run less than making it whole.
const LONGEST_US: u64 = 60_000_000;
const LOOK_US: u64 = 100_000;
/// Wait for changes on their way: mostly the forking thread's, which must run before the child can.
const CHANGE_SECONDS: u32 = 20;
/// Large removals, past the gate, to do in parts before a fork; more are done at once.
const LARGE_REMOVALS: usize = 4;
const TOO_OFTEN: &[u8] = b"a forked child changed its mappings more often than lowtide can follow before its agent was ready";

type Early = arrayvec::ArrayVec<Message, 32>;

impl Pager {
    /// Notes a move that should have awaited a fork: the child's tables may lack it.
    pub fn moves_during_fork(&self) {
        // SeqCst: pairs with the swap in `has_moved`. Before the move: if it overlaps the cloning,
        // the reader of the fork's event, after the cloning, sees this.
        self.forks.has_moved.store(true, Ordering::SeqCst);
    }

    /// Whether that happened since the last call.
    pub(crate) fn has_moved(&self) -> bool {
        // SeqCst: pairs with the store in `moves_during_fork`.
        self.forks.has_moved.swap(false, Ordering::SeqCst)
    }

    /// The tables don't change from here to [`Pager::resume`]. Locks, so not for host threads.
    pub fn announce_fork(&self, run: &Segment) {
        drop(self.pages.space.exclusive());
        // Acquire: as in `handover`.
        // SAFETY: only a handler that serves a fork uses it, under the exclusive lock; forks take
        // turns.
        if unsafe { Handover::renew(self.forks.handover.load(Ordering::Acquire)) }.is_err() {
            (self.host.fatal)(b"no memory for a fork");
        }
        debug_assert!(self.handover().handshake.has_just_begun());
        self.has_moved();
        self.forks();
        self.let_go_before_fork();
        self.pause();
        steps::taken(steps::Fork::Parent);
        let lock = self.read_all_and_let_go();
        if self.store(&lock).keeps_pool_from_children() {
            // The child would find no pool, and take other memory for pages.
            (self.host.fatal)(b"a process without hooks has announced a fork");
        }
        // Before the memory is copied: the child must know its references.
        self.store(&lock).fork_add_references(run.image(self.proc()), &mut |image| run.is_alive(image));
        self.forks.held_back.announce(&lock);
        steps::taken(steps::Fork::Parent);
    }

    fn read_all_and_let_go(&self) -> Exclusive<'_> {
        for _ in 0..LARGE_REMOVALS {
            let mut lock = self.pages.space.exclusive();
            self.read_all(&mut lock);
            if !self.mappings.going.is_on() {
                return lock;
            }
            drop(lock);
            self.let_go_before_fork();
        }
        let mut lock = self.pages.space.exclusive();
        self.read_all(&mut lock);
        self.let_go_of_all(&lock);
        lock
    }

    /// The kernel reports faults first: their threads are woken and fault again.
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
                Ok(Message::Fork(child)) => match Worker::new(Rights::Serve) {
                    Ok(mut worker) => self.forked_unannounced(lock, child, &mut worker),
                    Err(_) => (self.host.fatal)(b"no memory for a fork"),
                },
                Ok(event) => self.happened(lock, event),
                Err(_) => break,
            }
        }
        self.let_be_born(lock, SECOND_REPORT_MS);
        for addr in waiting {
            self.uffd().wake(addr, PAGE_SIZE);
        }
    }

    /// Ends an announced fork. If it failed, no event came, and this resumes. False: the child does
    /// not serve itself yet ([`Pager::outlast_child`]).
    pub fn fork_is_over(&self) -> bool {
        let lock = self.pages.space.exclusive();
        if self.forks.held_back.was_cloned() {
            return false;
        }
        if self.paused() {
            self.store(&lock).fork_undo_references();
            self.apply_held_back(&lock);
            self.resume();
        }
        true
    }

    /// Waits until no child is served. For host threads: takes nothing.
    pub fn outlast_child(&self) {
        self.forks.held_back.outlast_child();
    }

    /// Serves the child of an announced fork. The caller holds no lock. (Over 70 lines: steps in
    /// order, under one lock.)
    pub(crate) fn forked(&self, child: Uffd, worker: &mut Worker) {
        let lock = &mut self.pages.space.exclusive();
        let early = self.tell_what_came_before(lock, &child);
        let handover = self.handover();
        steps::taken(steps::Fork::Parent);
        let (mut term, mut alive, mut has_moved, mut has_left) = (Term::new(now_us()), true, false, false);
        for event in early {
            has_moved |= matches!(event, Message::Remap { .. });
            self.pass_on(&event);
        }
        // Nothing is evicted here meanwhile: the wait must cost less than the child's pages would,
        // ...
        let out = self.pages.staging.staged() + self.store(lock).stats().stored_now as usize;
        // ... and the run must not pass its limit by more than a part of it.
        let out = out.min((self.accounts.budget.limit() / 8) as usize / PAGE_SIZE);
        let arrived = self.pages.arrived.load(Ordering::Relaxed);
        let pays = || self.pages.arrived.load(Ordering::Relaxed).wrapping_sub(arrived) < out;
        while alive && !handover.handshake.is_ready() {
            let is_over = !handover.handshake.wants_all()
                && (self.forks.held_back.is_nearly_full(lock)
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
                    // Fails if an event of the child waits: the fault comes again after that.
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
                    if self.forks.hold.is_owed() {
                        self.let_be_born(lock, 1);
                        if self.forks.hold.is_owed() {
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
                    // Other handlers then serve this process's faults.
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
        drop(child);
        steps::taken(steps::Fork::Parent);
        handover.handshake.close();
        steps::taken(steps::Fork::Parent);
        let _ = futex::wake(handover.handshake.word(), futex::Flags::empty(), 1);
        self.apply_held_back(lock);
        self.resume();
    }

    fn apply_held_back(&self, lock: &Exclusive<'_>) {
        self.forks.held_back.end(lock, |event, has_ended| match *event {
            // New pages would keep their marks for ever. (A call still under way clears them.)
            Message::Remove { start, end } if has_ended && !self.mappings.removal_calls.any_covers(Range { start, end }) => {
                self.gone(lock, Range { start, end }, Gone::Already)
            }
            _ => self.apply(lock, event),
        });
    }

    /// Passes to the child the events from before the cloning; returns what the child itself has
    /// done meanwhile.
    ///
    /// The kernel counts a change from before it releases the mappings' lock, which the cloning
    /// takes, until its event was read: with no change on its way all older events were read. The
    /// child's userfaultfd shows the registrations of the cloning, because nothing is registered
    /// while the program forks: memory absent there was unmapped or moved before, memory moved
    /// later is at its old place. Of removals (MADV_DONTNEED) the child finds in its copy whether
    /// the call had returned.
    fn tell_what_came_before(&self, lock: &mut Exclusive<'_>, child: &Uffd) -> Early {
        let mut patience = Patience::new();
        let is_known = loop {
            self.read_all(lock);
            if self.uffd().standing(self.pages.staging.addresses().start) != Standing::Changing {
                break true;
            }
            if !lock.while_free(|| patience.wait(CHANGE_SECONDS)) {
                break false;
            }
        };
        if self.forks.held_back.have_moves_that_meet(lock) || self.has_moved() && !is_known {
            (self.host.fatal)(b"memory was moved (mremap) while the program forked: the child can't know where it is");
        }
        let mut early = Early::new();
        self.forks.held_back.tell_childs(lock, |event, later| match *event {
            Message::Remap { .. } => {
                let came_before = self.had_moved_to(lock, child, event, &mut early).is_some();
                if came_before {
                    self.pass_on(event);
                }
                came_before
            }
            Message::Unmap { start, end } => {
                let range = Range { start, end };
                if later.iter().any(|event| self.had_moved_to(lock, child, event, &mut early).is_some_and(|to| to.meets(range)))
                {
                    self.pass_on(event);
                    return true;
                }
                let mut from = start;
                let mut came_before = false;
                while let Some(part) = self.mappings.regions.first_in(lock, Range { start: from, end }) {
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

    fn had_moved_to(&self, lock: &Exclusive<'_>, child: &Uffd, event: &Message, early: &mut Early) -> Option<Range> {
        let Message::Remap { from, to, len } = *event else { return None };
        let to = Range { start: to, end: to + len };
        // MREMAP_DONTUNMAP leaves the old place registered.
        let came_before = self.is_registered_in(child, to.start, early)
            && (!self.is_registered_in(child, from, early) || !self.mappings.regions.overlaps(lock, to));
        came_before.then_some(to)
    }

    /// Events of the child that this reads go to `early`.
    fn is_registered_in(&self, child: &Uffd, addr: usize, early: &mut Early) -> bool {
        let mut patience = Patience::new();
        loop {
            match child.standing(addr) {
                Standing::Registered => return true,
                Standing::NotRegistered => return false,
                Standing::Changing => match child.read() {
                    Ok(Message::Fault { addr, .. }) => child.wake(addr, PAGE_SIZE),
                    Ok(event) => {
                        if early.try_push(event).is_err() {
                            (self.host.fatal)(TOO_OFTEN);
                        }
                    }
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
            Message::Fork(_) => false,
        };
        if !passed {
            (self.host.fatal)(TOO_OFTEN);
        }
    }

    fn is_alive(&self, child: &Uffd) -> bool {
        !child.is_gone(self.pages.staging.addresses().start)
    }
}

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

    fn over_at(wants_to_run: impl Fn(u64) -> bool) -> u64 {
        let mut term = Term::new(5_000_000);
        (0..).find(|ms| term.is_over(5_000_000 + ms * 1000, || wants_to_run(*ms))).unwrap()
    }

    #[test]
    fn a_child_that_wants_to_run_is_waited_for() {
        assert_eq!(over_at(|_| false), 1000, "it is stopped");
        assert_eq!(over_at(|_| true), 60_000);
        assert_eq!(over_at(|ms| ms % 900 == 0), 60_000);
        assert_eq!(over_at(|ms| ms < 2050), 3000, "it was stopped later");
    }
}
