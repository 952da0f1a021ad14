//! What threads of the program borrow to serve a fault: a worker of the pager, and a stack. Made beforehand, so that a signal
//! handler allocates nothing; taken without a lock.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

use lowtide_core::percpu;
use lowtide_core::vm::{self, Mapping, OnFork};
use lowtide_pager::fault::{IN_HAND_SECONDS, Patience, Worker};
use rustix::io::Errno;

use crate::stack;

/// Bytes of a stack; what is used of it takes memory. As much as the threads have that serve faults in `lowtide run`.
const STACK: usize = 256 << 10;

struct Place {
    busy: AtomicBool,
    worker: UnsafeCell<Worker>,
    stack: Mapping,
}

/// The workers of a group.
pub struct Workers(Box<[Place]>);

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
    /// This many workers.
    ///
    /// # Errors
    /// `NOMEM`.
    pub fn new(count: usize) -> Result<Workers, Errno> {
        let place = |_| {
            Ok(Place {
                busy: AtomicBool::new(false),
                // It must not wait for pages: nobody else may be there to serve them.
                worker: UnsafeCell::new(Worker::new(false)?),
                stack: vm::map(STACK, OnFork::Copy)?,
            })
        };
        Ok(Workers((0..count).map(place).collect::<Result<_, Errno>>()?))
    }

    /// Calls `f` with a worker and on its stack; waits for one if all are in use, which is not for long: a thread that has one
    /// waits for no other. Safe in signal handlers. Signals are to be blocked: a handler must not wait for what the thread
    /// under it has.
    pub fn with<R>(&self, f: impl FnOnce(&mut Worker) -> R) -> R {
        let place = self.take();
        // SAFETY: `busy` is this thread's, hence the worker.
        let worker = unsafe { &mut *place.worker.get() };
        let mut call = Call { f: Some(f), worker, result: None };
        let entry = entry_of(&call);
        // SAFETY: the stack is this thread's as well; mappings end at a page. `run` has a frame that no panic passes.
        unsafe { stack::call_on(place.stack.as_ptr().add(place.stack.len()), entry, (&raw mut call).cast()) };
        let result = call.result;
        // Release: pairs with the Acquire in `take`.
        place.busy.store(false, Ordering::Release);
        let Some(result) = result else { unreachable!("the call has returned") };
        result
    }

    fn take(&self) -> &Place {
        let (first, count) = (percpu::current(), self.0.len());
        let mut patience = Patience::new();
        loop {
            for place in (first..first + count).map(|i| &self.0[i % count]) {
                if !place.busy.load(Ordering::Relaxed) && !place.busy.swap(true, Ordering::Acquire) {
                    return place;
                }
            }
            // How long that takes, those say who have them.
            let _ = patience.wait(IN_HAND_SECONDS);
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
        let (workers, inside) = (Workers::new(2).unwrap(), AtomicUsize::new(0));
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
}
