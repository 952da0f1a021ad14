//! Threads that watch common work. Some sleep aside until called, because needless wakeups cost
//! more; some are away, about to block on something else.
//!
//! While one is not away, one watches or is about to. A thread called after it began to step aside
//! watches again.

use crate::sync::Futex;
use crate::sync::atomic::{AtomicU32, Ordering};

/// A thread that has slept aside this long rests.
const REST_MS: u32 = 20;

#[derive(Debug)]
struct Thread {
    /// 0: aside or about to be, and not called.
    called: Futex,
    /// 1: away. Only its own thread uses it.
    away: AtomicU32,
}

/// Up to `N` threads. Only its own thread uses a number, except in [`Watchers::call`].
#[derive(Debug)]
pub struct Watchers<const N: usize> {
    threads: [Thread; N],
    watching: AtomicU32,
    aside: AtomicU32,
}

impl<const N: usize> Watchers<N> {
    /// No thread has begun.
    #[cfg(not(any(feature = "loom", feature = "shuttle")))]
    pub const fn new() -> Watchers<N> {
        let threads = [const { Thread { called: Futex::new(1), away: AtomicU32::new(0) } }; N];
        Watchers { threads, watching: AtomicU32::new(0), aside: AtomicU32::new(0) }
    }

    /// No thread has begun.
    #[cfg(any(feature = "loom", feature = "shuttle"))]
    pub fn new() -> Watchers<N> {
        let threads = core::array::from_fn(|_| Thread { called: Futex::new(1), away: AtomicU32::new(0) });
        Watchers { threads, watching: AtomicU32::new(0), aside: AtomicU32::new(0) }
    }

    /// In a forked child, before other threads begin.
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

    /// Whether no thread but the caller watches: it must not stop then.
    pub fn is_alone(&self) -> bool {
        self.watching.load(Ordering::Acquire) <= 1
    }

    /// Whether all threads are away.
    pub fn are_all_away(&self) -> bool {
        // Acquire: pairs with the AcqRel of `leave`.
        self.watching.load(Ordering::Acquire) == 0 && !self.any_aside()
    }

    /// Whether threads sleep aside, or are about to.
    pub fn any_aside(&self) -> bool {
        // Acquire: pairs with the Release of `begin_to_step_aside`: a thread seen aside can be
        // called.
        self.aside.load(Ordering::Acquire) > 0
    }

    /// Whether thread `i` sleeps aside or is about to, and is not called.
    pub fn is_aside(&self, i: usize) -> bool {
        self.threads[i].called.load(Ordering::Relaxed) == 0
    }

    /// Makes thread `i` watch if it is aside.
    pub fn call(&self, i: usize) {
        if self.threads[i].called.swap(1, Ordering::AcqRel) == 0 {
            self.threads[i].called.wake_one();
        }
    }

    /// Makes all watch.
    pub fn call_all(&self) {
        if self.any_aside() {
            (0..N).for_each(|i| self.call(i));
        }
    }

    /// Call before watching thread `i` may block: the others watch, and the last stays until it is
    /// [back](Watchers::back). May be repeated.
    pub fn leave(&self, i: usize) {
        if self.threads[i].away.swap(1, Ordering::Relaxed) == 0 {
            // Before the call: a thread already aside was counted, and is called; any other finds
            // itself the last. Acquire: pairs with the Release in `is_not_the_last`.
            self.watching.fetch_sub(1, Ordering::AcqRel);
        }
        self.call_all();
    }

    /// Thread `i` watches again, if it was away.
    pub fn back(&self, i: usize) {
        // Avoids a read-modify-write each turn.
        if self.threads[i].away.load(Ordering::Relaxed) != 0 {
            self.threads[i].away.store(0, Ordering::Relaxed);
            self.watching.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Thread `i` sleeps until called, if another one watches. `rests` runs once after a while;
    /// calls count meanwhile.
    pub fn step_aside(&self, i: usize, rests: impl FnOnce()) {
        self.begin_to_step_aside(i);
        if self.is_not_the_last() {
            self.sleep(i, rests);
        }
        self.end_of_step_aside(i);
    }

    fn begin_to_step_aside(&self, i: usize) {
        // Calls count from now on.
        self.threads[i].called.store(0, Ordering::Release);
        // Release: pairs with the Acquire in `any_aside`.
        self.aside.fetch_add(1, Ordering::AcqRel);
    }

    /// Stops counting this thread unless it is the last.
    fn is_not_the_last(&self) -> bool {
        // Release: pairs with the Acquire in `leave`, which then sees this one aside. Acquire:
        // pairs with the Release of threads that begin, come back or wake: counted threads watch.
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
        watchers.leave(0);
        watchers.step_aside(1, || unreachable!());
    }
}

/// Of two or three threads. A missing watcher leaves all asleep, which loom reports, as it must for
/// wrong variants.
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
