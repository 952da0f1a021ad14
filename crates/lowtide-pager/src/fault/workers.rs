//! Workers and stacks that threads of the program borrow to serve a fault. Made beforehand, because
//! a signal handler can't allocate; taken without a lock.

use alloc::boxed::Box;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use lowtide_core::percpu;
use lowtide_core::vm::{self, Mapping, OnFork};
use lowtide_sys::stack::call_on;
use rustix::io::Errno;
use rustix::thread::futex;

use crate::pages::worker::{Rights, Worker};

const STACK_ALIGNMENT: usize = 16;
/// Bytes, as for the fault handler threads of `lowtide run`.
const STACK: usize = 256 << 10;

/// In microseconds.
const LOOK_EVERY_US: u64 = 100_000;
const UNNEEDED: u32 = 2;

struct Place {
    busy: AtomicBool,
    means: UnsafeCell<Means>,
}

struct Means {
    worker: Worker,
    stack: Mapping,
    unneeded: u32,
}

impl Means {
    fn gives_all_back(&mut self) {
        self.worker.gives_all_back();
        // SAFETY: `&mut self`: no thread runs on it.
        unsafe { self.stack.discard(0, self.stack.len()) }
    }
}

impl Drop for Means {
    fn drop(&mut self) {
        // SAFETY: `&mut self`: no thread runs on it.
        unsafe { self.stack.retire() }
    }
}

impl Place {
    fn try_take(&self) -> bool {
        // Acquire: pairs with the Release in `give_back`.
        !self.busy.load(Ordering::Relaxed) && !self.busy.swap(true, Ordering::Acquire)
    }
}

/// The workers of a group of regions, or of a process.
pub struct Workers {
    places: Box<[Place]>,
    /// Threads that wait for one, ...
    waiting: AtomicU32,
    /// ... and returns while some did.
    given_back: AtomicU32,
    looked_us: AtomicU64,
}

// SAFETY: the thread that has set `busy` owns what the place holds.
unsafe impl Sync for Workers {}
// SAFETY: any thread may use a worker, one at a time.
unsafe impl Send for Workers {}

struct Call<'a, F, R> {
    f: Option<F>,
    worker: &'a mut Worker,
    result: Option<R>,
}

extern "C" fn run<F: FnOnce(&mut Worker) -> R, R>(call: *mut u8) {
    // SAFETY: `with` passes its own Call of these types and waits.
    let call = unsafe { &mut *call.cast::<Call<'_, F, R>>() };
    call.result = call.f.take().map(|f| f(call.worker));
}

impl Workers {
    /// `count` workers with these rights.
    ///
    /// # Errors
    /// `NOMEM`.
    pub fn new(count: usize, rights: Rights) -> Result<Workers, Errno> {
        let place = |number| {
            Ok(Place {
                busy: AtomicBool::new(false),
                means: UnsafeCell::new(Means {
                    // It must not wait for pages: nobody else may be there to serve them.
                    worker: Worker::new(rights)?.numbered(number),
                    stack: vm::map(STACK, OnFork::Copy)?,
                    unneeded: 0,
                }),
            })
        };
        let places = (0..count).map(place).collect::<Result<_, Errno>>()?;
        Ok(Workers { places, waiting: AtomicU32::new(0), given_back: AtomicU32::new(0), looked_us: AtomicU64::new(0) })
    }

    /// Moves `f` to a worker's stack and calls it there. `f` must own all it needs: the caller's
    /// stack may be missing. Waits for a worker if necessary: a thread that has one waits for no
    /// other. Safe in signal handlers. Signals must be blocked: a handler must not wait for the
    /// worker of the thread under it.
    pub fn with<R>(&self, f: impl FnOnce(&mut Worker) -> R) -> R {
        let place = self.take();
        // SAFETY: this thread has set `busy`, so it owns the means.
        let Means { worker, stack, unneeded } = unsafe { &mut *place.means.get() };
        *unneeded = 0;
        let stack: &Mapping = stack;
        let call = Call { f: Some(f), worker, result: None };
        let entry = entry_of(&call);
        let below = size_of_val(&call).next_multiple_of(STACK_ALIGNMENT);
        debug_assert!(align_of_val(&call) <= STACK_ALIGNMENT && below < STACK / 4);
        // SAFETY: the stack is this thread's too; it has room for the call, aligned. No panic
        // passes `run`'s frame.
        let result = unsafe {
            let top = stack.as_ptr().add(stack.len() - below);
            let at = top.cast();
            core::ptr::write(at, call);
            call_on(top, entry, top);
            core::ptr::read(at).result
        };
        self.give_back(place);
        let Some(result) = result else { unreachable!("the call has returned") };
        result
    }

    /// Frees the memory of unused workers, up to half a megabyte each. The reclaimer calls it now
    /// and then, and borrows each worker for that. Never waits.
    pub fn rest(&self, now_us: u64) {
        if now_us.saturating_sub(self.looked_us.load(Ordering::Relaxed)) < LOOK_EVERY_US {
            return;
        }
        self.looked_us.store(now_us, Ordering::Relaxed);
        for place in self.places.iter().filter(|place| place.try_take()) {
            // SAFETY: this thread has set `busy`, so it owns the means.
            let means = unsafe { &mut *place.means.get() };
            means.unneeded = means.unneeded.saturating_add(1);
            if means.unneeded == UNNEEDED {
                means.gives_all_back();
            }
            self.give_back(place);
        }
    }

    fn take(&self) -> &Place {
        if let Some(place) = self.try_take() {
            return place;
        }
        // SeqCst: pairs with the load in `give_back`: either the returning thread sees this one
        // waiting, or the look below finds its worker.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let place = loop {
            // Acquire: pairs with the Release in `give_back`.
            let given_back = self.given_back.load(Ordering::Acquire);
            match self.try_take() {
                Some(place) => break place,
                None => drop(futex::wait(&self.given_back, futex::Flags::PRIVATE, given_back, None)),
            }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        place
    }

    fn try_take(&self) -> Option<&Place> {
        let (first, count) = (percpu::current(), self.places.len());
        (first..first + count).map(|i| &self.places[i % count]).find(|place| place.try_take())
    }

    fn give_back(&self, place: &Place) {
        // Release: pairs with the Acquire in `try_take`.
        place.busy.store(false, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            // One for each return: a thread that takes it first returns it, too.
            self.given_back.fetch_add(1, Ordering::Release);
            let _ = futex::wake(&self.given_back, futex::Flags::PRIVATE, 1);
        }
    }
}

fn entry_of<F: FnOnce(&mut Worker) -> R, R>(_: &Call<'_, F, R>) -> extern "C" fn(*mut u8) {
    run::<F, R>
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_worker_is_one_thread_s_at_a_time_and_nobody_is_left_without() {
        let (workers, inside) = (Workers::new(2, Rights::Serve).unwrap(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for t in 0..4usize {
                let (workers, inside) = (&workers, &inside);
                scope.spawn(move || {
                    for i in 0..500 {
                        let answer = workers.with(|_| {
                            assert!(inside.fetch_add(1, Ordering::SeqCst) < 2);
                            std::thread::yield_now();
                            inside.fetch_sub(1, Ordering::SeqCst);
                            i * t
                        });
                        assert_eq!(answer, i * t);
                    }
                });
            }
        });
    }

    const PAGES: usize = 40;

    fn held(workers: &Workers, byte: u8) -> (usize, bool) {
        // SAFETY: no other thread has these workers.
        let means = unsafe { &mut *workers.places[0].means.get() };
        // SAFETY: this many bytes, which nobody writes now.
        let stack = unsafe { core::slice::from_raw_parts(means.stack.as_ptr(), means.stack.len()) };
        let pages = means.worker.buffer_and_waiters().0.iter().filter(|page| page[9] == byte).count();
        (pages, stack.iter().any(|byte| *byte != 0))
    }

    #[test]
    fn who_is_not_needed_gives_its_memory_back_and_who_is_does_not() {
        let workers = Workers::new(1, Rights::Memory).unwrap();
        let fill = || workers.with(|worker| worker.parts(PAGES).0[..PAGES].iter_mut().for_each(|page| page.fill(7)));
        let mut now = LOOK_EVERY_US;
        let mut look = || {
            workers.rest(now);
            workers.rest(now + LOOK_EVERY_US / 2);
            now += LOOK_EVERY_US;
            held(&workers, 7)
        };
        fill();
        assert_eq!(look(), (PAGES, true), "at once");
        assert_eq!(look(), (0, false), "not at all");
        for _ in 0..5 {
            fill();
            assert_eq!(look(), (PAGES, true), "although it was needed");
        }
    }

    #[test]
    fn who_has_a_worker_loses_nothing_to_one_that_rests() {
        const ROUNDS: usize = 2000;
        let (workers, ended) = (Workers::new(3, Rights::Memory).unwrap(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..2u8 {
                let (workers, ended) = (&workers, &ended);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let byte = (round as u8).wrapping_mul(2).wrapping_add(thread) | 1;
                        workers.with(move |worker| {
                            let mut on_stack = [byte; 3000];
                            worker.parts(2).0[..2].iter_mut().for_each(|page| page.fill(byte));
                            std::thread::yield_now();
                            assert!(core::hint::black_box(&mut on_stack).iter().all(|b| *b == byte));
                            assert!(worker.parts(2).0[..2].iter().flatten().all(|b| *b == byte));
                        });
                    }
                    ended.fetch_add(1, Ordering::SeqCst);
                });
            }
            let mut now = 0;
            while ended.load(Ordering::SeqCst) < 2 {
                now += LOOK_EVERY_US;
                workers.rest(now);
            }
        });
    }

    #[test]
    fn who_waits_for_a_worker_sleeps() {
        let workers = Workers::new(1, Rights::Serve).unwrap();
        let woken = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
            line.trim().parse::<u64>().unwrap()
        };
        std::thread::scope(|scope| {
            let (taken, is_taken) = std::sync::mpsc::channel();
            let workers = &workers;
            scope.spawn(move || {
                workers.with(|_| {
                    taken.send(()).unwrap();
                    std::thread::sleep(std::time::Duration::from_millis(300));
                });
            });
            is_taken.recv().unwrap();
            let before = woken();
            workers.with(|_| {});
            assert!(woken() - before < 10, "woken {} times", woken() - before);
        });
    }
}
