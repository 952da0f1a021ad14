//! Which of several threads watch what all of them serve, and which sleep aside until they are called, because being woken in
//! vain costs them more. One that watches may have to wait for something else: then it goes away, for a while.
//!
//! As long as one is not away, one watches, or was called and is about to. A call is not lost: who is called after it began to
//! step aside watches again. (These are monitors; why they step aside, and whom they call, is the affair of `lowtide-agent`'s
//! watch.rs.)

use crate::sync::Futex;
use crate::sync::atomic::{AtomicU32, Ordering};

/// Who has slept aside for so long is not called soon again.
const REST_MS: u32 = 20;

/// A thread that watches or sleeps aside.
#[derive(Debug)]
struct Thread {
    /// 0: it is aside, or about to be, and nobody has called it.
    called: Futex,
    /// 1: it waits for something else. Only its own thread uses it.
    away: AtomicU32,
}

/// Up to `N` threads, by number. Each number is used by one thread, but for [`Watchers::call`], which all may use.
#[derive(Debug)]
pub struct Watchers<const N: usize> {
    threads: [Thread; N],
    /// How many watch.
    watching: AtomicU32,
    /// How many sleep aside, or are about to.
    aside: AtomicU32,
}

impl<const N: usize> Watchers<N> {
    /// No thread has begun so far.
    #[cfg(not(any(feature = "loom", feature = "shuttle")))]
    pub const fn new() -> Watchers<N> {
        let threads = [const { Thread { called: Futex::new(1), away: AtomicU32::new(0) } }; N];
        Watchers { threads, watching: AtomicU32::new(0), aside: AtomicU32::new(0) }
    }

    /// No thread has begun so far.
    #[cfg(any(feature = "loom", feature = "shuttle"))]
    pub fn new() -> Watchers<N> {
        let threads = core::array::from_fn(|_| Thread { called: Futex::new(1), away: AtomicU32::new(0) });
        Watchers { threads, watching: AtomicU32::new(0), aside: AtomicU32::new(0) }
    }

    /// No thread has begun any more: in a forked child, whose threads are gone, before others begin.
    pub fn reset(&self) {
        for count in self.threads.iter().map(|thread| &thread.away).chain([&self.watching, &self.aside]) {
            count.store(0, Ordering::Relaxed);
        }
        self.threads.iter().for_each(|thread| thread.called.store(1, Ordering::Relaxed));
    }

    /// Thread `i` begins to watch.
    pub fn begin(&self, i: usize) {
        self.threads[i].called.store(1, Ordering::Release);
        self.watching.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether no other watches than the one that asks: then it must not stop.
    pub fn is_alone(&self) -> bool {
        self.watching.load(Ordering::Acquire) <= 1
    }

    /// Whether nobody watches, nor is about to: all that there are wait for something else.
    pub fn are_all_away(&self) -> bool {
        // Acquire: pairs with the AcqRel of `leave`.
        self.watching.load(Ordering::Acquire) == 0 && !self.any_aside()
    }

    /// Whether some sleep aside, or are about to.
    pub fn any_aside(&self) -> bool {
        // Acquire: pairs with the Release of `begin_to_step_aside`. Who is seen aside can be called.
        self.aside.load(Ordering::Acquire) > 0
    }

    /// Whether thread `i` sleeps aside, or is about to, and nobody has called it.
    pub fn is_aside(&self, i: usize) -> bool {
        self.threads[i].called.load(Ordering::Relaxed) == 0
    }

    /// Thread `i` is to watch, if it is aside.
    pub fn call(&self, i: usize) {
        if self.threads[i].called.swap(1, Ordering::AcqRel) == 0 {
            self.threads[i].called.wake_one();
        }
    }

    /// All watch.
    pub fn call_all(&self) {
        if self.any_aside() {
            (0..N).for_each(|i| self.call(i));
        }
    }

    /// Thread `i`, which watches, is about to wait for something else: the others watch, and the last of them won't step aside
    /// until it is [back](Watchers::back). May be said again.
    pub fn leave(&self, i: usize) {
        if self.threads[i].away.swap(1, Ordering::Relaxed) == 0 {
            // Before the call: a thread that has stepped aside by then was counted as aside before that, and is called; one
            // that has not finds that it is the last. Acquire: pairs with the Release in `is_not_the_last`.
            self.watching.fetch_sub(1, Ordering::AcqRel);
        }
        self.call_all();
    }

    /// Thread `i` watches again, if it was away.
    pub fn back(&self, i: usize) {
        // No read-modify-write after each turn for what happens seldom.
        if self.threads[i].away.load(Ordering::Relaxed) != 0 {
            self.threads[i].away.store(0, Ordering::Relaxed);
            self.watching.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Thread `i`, which watches, sleeps until it is called, if another one watches. `rests`: what it does, once, when that has
    /// taken a while; a call counts meanwhile.
    pub fn step_aside(&self, i: usize, rests: impl FnOnce()) {
        self.begin_to_step_aside(i);
        if self.is_not_the_last() {
            self.sleep(i, rests);
        }
        self.end_of_step_aside(i);
    }

    fn begin_to_step_aside(&self, i: usize) {
        // Before anybody can know: a call from now on counts.
        self.threads[i].called.store(0, Ordering::Release);
        // Release: pairs with the Acquire in `any_aside`.
        self.aside.fetch_add(1, Ordering::AcqRel);
    }

    /// One always watches: whether this one need not, and is not counted any more.
    fn is_not_the_last(&self) -> bool {
        // Release: pairs with the Acquire in `leave`, which then sees this one aside. Acquire: pairs with the Release of those
        // that begin to watch, come back, or are woken: who is counted watches.
        let others = |watching: u32| (watching > 1).then(|| watching - 1);
        self.watching.fetch_update(Ordering::AcqRel, Ordering::Acquire, others).is_ok()
    }

    fn sleep(&self, i: usize, rests: impl FnOnce()) {
        let called = &self.threads[i].called;
        if !called.changes_within(0, REST_MS) {
            rests();
            called.wait_while(0);
        }
        self.watching.fetch_add(1, Ordering::AcqRel);
    }

    fn end_of_step_aside(&self, i: usize) {
        self.threads[i].called.store(1, Ordering::Release);
        self.aside.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<const N: usize> Default for Watchers<N> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn who_sleeps_aside_rests_after_a_while_and_can_be_called_then() {
        let watchers = Watchers::<2>::new();
        (0..2).for_each(|i| watchers.begin(i));
        let (rested, has_rested) = channel();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| watchers.step_aside(1, || rested.send(()).unwrap()));
            has_rested.recv().unwrap();
            assert!(watchers.is_alone() && !thread.is_finished());
            watchers.call(1);
        });
        assert!(!watchers.is_alone() && !watchers.any_aside());
        // The last one does not sleep, and does not rest.
        watchers.leave(0);
        watchers.step_aside(1, || unreachable!());
    }
}

/// All orders of events of two or three that watch; and the same with a step missing or in another place, which has to fail.
/// Where nobody watches and somebody has to, all threads of a model sleep, which is what loom finds.
#[cfg(all(test, feature = "loom"))]
mod models {
    use super::*;
    use loom::sync::{Condvar, Mutex};
    use loom::thread;
    use std::sync::Arc;
    use std::vec::Vec;

    type StepAside<const N: usize> = fn(&Watchers<N>, usize);

    fn by_the_rules<const N: usize>(watchers: &Watchers<N>, i: usize) {
        watchers.step_aside(i, || ());
    }

    fn without_asking_who_else_watches<const N: usize>(watchers: &Watchers<N>, i: usize) {
        watchers.begin_to_step_aside(i);
        watchers.watching.fetch_sub(1, Ordering::AcqRel);
        watchers.sleep(i, || ());
        watchers.end_of_step_aside(i);
    }

    fn forgetting_a_call<const N: usize>(watchers: &Watchers<N>, i: usize) {
        watchers.aside.fetch_add(1, Ordering::AcqRel);
        if watchers.is_not_the_last() {
            watchers.threads[i].called.store(0, Ordering::Release);
            watchers.sleep(i, || ());
        }
        watchers.end_of_step_aside(i);
    }

    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound.get_or_insert(3);
        builder.max_branches = 10_000;
        builder.check(model);
    }

    fn all_watch<const N: usize>() -> Arc<Watchers<N>> {
        let watchers = Arc::new(Watchers::new());
        (0..N).for_each(|i| watchers.begin(i));
        watchers
    }

    /// All want to step aside at once. Who is not let to, or was called, calls the others.
    fn all_step_aside<const N: usize>(step_aside: StepAside<N>) {
        check(move || {
            let watchers = all_watch::<N>();
            let of = |i: usize| {
                let watchers = watchers.clone();
                move || {
                    step_aside(&watchers, i);
                    watchers.call_all();
                }
            };
            let others: Vec<_> = (1..N).map(|i| thread::spawn(of(i))).collect();
            of(0)();
            others.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(watchers.watching.load(Ordering::Relaxed), N as u32);
            assert!(!watchers.any_aside());
        });
    }

    /// One steps aside and is called by the other one as soon as that sees it.
    fn one_is_called(step_aside: StepAside<2>) {
        check(move || {
            let watchers = all_watch::<2>();
            let other = watchers.clone();
            let one = thread::spawn(move || step_aside(&other, 1));
            while !watchers.any_aside() {
                thread::yield_now();
            }
            watchers.call(1);
            one.join().unwrap();
            assert_eq!(watchers.watching.load(Ordering::Relaxed), 2);
        });
    }

    /// A page that a thread waits for, and those who wait for the thread.
    #[derive(Default)]
    struct Fault {
        served: Mutex<bool>,
        bell: Condvar,
    }

    impl Fault {
        fn serve(&self) {
            *self.served.lock().unwrap() = true;
            self.bell.notify_all();
        }

        fn wait(&self) {
            let mut served = self.served.lock().unwrap();
            while !*served {
                served = self.bell.wait(served).unwrap();
            }
        }
    }

    /// One goes away for longer than a thread can wait for its page, while the other one wants to step aside.
    fn one_goes_away(leave: fn(&Watchers<2>), step_aside: StepAside<2>) {
        check(move || {
            let (watchers, fault) = (all_watch::<2>(), Arc::new(Fault::default()));
            let (other, to_serve) = (watchers.clone(), fault.clone());
            let one = thread::spawn(move || {
                step_aside(&other, 1);
                to_serve.serve();
            });
            leave(&watchers);
            fault.wait();
            watchers.back(0);
            one.join().unwrap();
            assert_eq!(watchers.watching.load(Ordering::Relaxed), 2);
        });
    }

    fn leaving_by_the_rules(watchers: &Watchers<2>) {
        watchers.leave(0);
    }

    #[test]
    fn one_always_watches() {
        all_step_aside::<2>(by_the_rules);
        all_step_aside::<3>(by_the_rules);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn two_that_do_not_ask_who_else_watches_are_found() {
        all_step_aside::<2>(without_asking_who_else_watches);
    }

    #[test]
    fn who_is_called_watches() {
        one_is_called(by_the_rules);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn one_that_forgets_a_call_is_found() {
        one_is_called(forgetting_a_call);
    }

    #[test]
    fn while_one_is_away_another_one_watches() {
        one_goes_away(leaving_by_the_rules, by_the_rules);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn one_that_only_calls_before_it_goes_is_found() {
        one_goes_away(Watchers::call_all, by_the_rules);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_call_that_is_forgotten_by_the_last_one_is_found() {
        one_goes_away(leaving_by_the_rules, forgetting_a_call);
    }
}
