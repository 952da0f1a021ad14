//! Threads pinned to CPUs of their own, as far as there are enough.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that this process may use.
///
/// # Errors
/// The kernel's error, in a line.
pub fn allowed() -> Result<Vec<usize>, String> {
    let set = sched_getaffinity(None).map_err(|e| format!("can't ask which CPUs there are: {e}"))?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Keeps this thread on a CPU.
///
/// # Errors
/// The kernel's error, in a line.
pub fn pin(cpu: usize) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|e| format!("can't stay on CPU {cpu}: {e}"))
}

/// Makes this thread SCHED_IDLE.
///
/// # Errors
/// The kernel's error, in a line.
pub fn run_only_when_idle() -> Result<(), String> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: a structure that the call only reads.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameters) } {
        0 => Ok(()),
        _ => Err(format!("SCHED_IDLE: {}", std::io::Error::last_os_error())),
    }
}

/// Runs `f` with the thread's number on `n` threads at once, pinned to the CPUs in turn, calls
/// `meanwhile` on this one, and returns the results by number.
///
/// # Errors
/// A line: a thread could not be pinned; `f` has run all the same.
pub fn pinned<T: Send>(n: usize, f: impl Fn(usize) -> T + Sync, meanwhile: impl FnOnce()) -> Result<Vec<T>, String> {
    let cpus = allowed()?;
    std::thread::scope(|scope| {
        let start = |i: usize| {
            let (cpu, f) = (cpus[i % cpus.len()], &f);
            scope.spawn(move || {
                let pinned = pin(cpu);
                // Runs all the same: the others may be waiting for this one.
                let value = f(i);
                pinned.map(|()| value)
            })
        };
        let threads: Vec<_> = (0..n).map(start).collect();
        meanwhile();
        threads.into_iter().map(|t| t.join().map_err(|_| "a thread of the experiment panicked".to_owned())?).collect()
    })
}

/// Runs `f` on a thread that stays on one CPU.
///
/// # Errors
/// As [`pinned`].
pub fn on_one_cpu<T: Send>(f: impl Fn() -> T + Sync) -> Result<T, String> {
    pinned(1, |_| f(), || ()).and_then(|mut one| one.pop().ok_or_else(|| "no thread".to_owned()))
}
