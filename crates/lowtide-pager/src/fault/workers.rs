//! What threads of the program borrow to serve a fault: a worker of the pager, and a stack. Made beforehand, so that a signal
//! handler allocates nothing; taken without a lock.

use alloc::boxed::Box;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use lowtide_core::percpu;
use lowtide_core::vm::{self, Mapping, OnFork};
use rustix::io::Errno;
use rustix::thread::futex;

use crate::fault::worker::{Reach, Worker};
use crate::sys::stack;

/// Of a stack pointer at a call.
const STACK_ALIGNMENT: usize = 16;
/// Bytes of a stack; what is used of it takes memory. As much as the threads have that serve faults in `lowtide run`.
const STACK: usize = 256 << 10;

struct Place {
    busy: AtomicBool,
    worker: UnsafeCell<Worker>,
    stack: Mapping,
}

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: `&mut self`: no thread runs on it.
        unsafe { self.stack.retire() }
    }
}

/// The workers of a group of regions, or of a process.
pub struct Workers {
    places: Box<[Place]>,
    /// Threads that wait for one, ...
    waiting: AtomicU32,
    /// ... and how often one was given back while some did.
    given_back: AtomicU32,
}

// SAFETY: a worker and its stack belong to the thread that has set `busy`.
unsafe impl Sync for Workers {}
// SAFETY: a worker may be used by any thread, by one at a time.
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
    /// This many workers, which may use this.
    ///
    /// # Errors
    /// `NOMEM`.
    pub fn new(count: usize, reach: Reach) -> Result<Workers, Errno> {
        let place = |number| {
            Ok(Place {
                busy: AtomicBool::new(false),
                // It must not wait for pages: nobody else may be there to serve them.
                worker: UnsafeCell::new(Worker::new(false)?.within(reach).numbered(number)),
                stack: vm::map(STACK, OnFork::Copy)?,
            })
        };
        let places = (0..count).map(place).collect::<Result<_, Errno>>()?;
        Ok(Workers { places, waiting: AtomicU32::new(0), given_back: AtomicU32::new(0) })
    }

    /// Calls `f`, which is moved there, with a worker and on its stack. A thread whose own stack may be missing must have nothing
    /// there that `f` needs: it is to have all by value. Waits for one if all are in use, which is not for long: a thread that
    /// has one waits for no other. Safe in signal handlers. Signals are to be blocked: a handler must not wait for what the
    /// thread under it has.
    pub fn with<R>(&self, f: impl FnOnce(&mut Worker) -> R) -> R {
        let place = self.take();
        // SAFETY: `busy` is this thread's, hence the worker.
        let worker = unsafe { &mut *place.worker.get() };
        let call = Call { f: Some(f), worker, result: None };
        let entry = entry_of(&call);
        let below = size_of_val(&call).next_multiple_of(STACK_ALIGNMENT);
        debug_assert!(align_of_val(&call) <= STACK_ALIGNMENT && below < STACK / 4);
        // SAFETY: the stack is this thread's as well; mappings end at a page, so there is room for the call, which is aligned.
        // `run` has a frame that no panic passes.
        let result = unsafe {
            let top = place.stack.as_ptr().add(place.stack.len() - below);
            let at = top.cast();
            core::ptr::write(at, call);
            stack::call_on(top, entry, top);
            core::ptr::read(at).result
        };
        self.give_back(place);
        let Some(result) = result else { unreachable!("the call has returned") };
        result
    }

    fn take(&self) -> &Place {
        if let Some(place) = self.try_take() {
            return place;
        }
        // SeqCst: pairs with the load in `give_back`. Who gives one back either sees that this thread waits, or did so before
        // it looks once more.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let place = loop {
            // Acquire: pairs with the Release in `give_back`.
            let given_back = self.given_back.load(Ordering::Acquire);
            match self.try_take() {
                Some(place) => break place,
                // For how long at most, those say who have them.
                None => drop(futex::wait(&self.given_back, futex::Flags::PRIVATE, given_back, None)),
            }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        place
    }

    fn try_take(&self) -> Option<&Place> {
        let (first, count) = (percpu::current(), self.places.len());
        // Acquire: pairs with the Release in `give_back`.
        let is_free = |place: &&Place| !place.busy.load(Ordering::Relaxed) && !place.busy.swap(true, Ordering::Acquire);
        (first..first + count).map(|i| &self.places[i % count]).find(is_free)
    }

    fn give_back(&self, place: &Place) {
        // Release: pairs with the Acquire in `try_take`.
        place.busy.store(false, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            // One for each that is given back: who comes in between and takes it gives it back, too.
            self.given_back.fetch_add(1, Ordering::Release);
            let _ = futex::wake(&self.given_back, futex::Flags::PRIVATE, 1);
        }
    }
}

/// The entry for a call, by its types.
fn entry_of<F: FnOnce(&mut Worker) -> R, R>(_: &Call<'_, F, R>) -> extern "C" fn(*mut u8) {
    run::<F, R>
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_worker_is_one_thread_s_at_a_time_and_nobody_is_left_without() {
        let (workers, inside) = (Workers::new(2, Reach::Everything).unwrap(), AtomicUsize::new(0));
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
    /// Who waits sleeps: it uses no CPU, and is woken when there is one.
    #[test]
    fn who_waits_for_a_worker_sleeps() {
        let workers = Workers::new(1, Reach::Everything).unwrap();
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
