//! The cost of installing pages, alone and while another thread of the process runs: a MOVE must
//! then flush that CPU's TLB.

use std::sync::atomic::{AtomicBool, Ordering};

use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::clock::now_ns;
use lowtide_sys::uffd::{FEATURE_MOVE, Holes, Progress, Uffd, Wake, Watched};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::threads;

const PAGES: usize = 1024;
const PASSES: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// UFFDIO_COPY: loaded pages.
    Copy,
    /// UFFDIO_MOVE: pages still in memory.
    Move,
}

#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub how: How,
    pub pages: usize,
    pub busy: bool,
}

/// Microseconds a page, the median of all calls.
///
/// # Errors
/// A line: what the machine can't do.
pub fn run(setup: Setup) -> Result<f64, String> {
    let cpus = threads::allowed()?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if let (true, Some(cpu)) = (setup.busy, cpus.get(1)) {
            let done = &done;
            scope.spawn(move || {
                // Unpinned it runs elsewhere all the same: the installing thread keeps to its own
                // CPU.
                let _ = threads::pin(*cpu);
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let measured = threads::on_one_cpu(|| install(setup));
        done.store(true, Ordering::Relaxed);
        measured?
    })
}

fn install(setup: Setup) -> Result<f64, String> {
    let uffd = Uffd::open(FEATURE_MOVE).map_err(|e| format!("no userfaultfd: {e}"))?;
    let (from, to) = (Memory::new()?, Memory::new()?);
    // SAFETY: the range is empty, and no code touches what was not installed.
    unsafe { uffd.register(to.0, Memory::BYTES, Watched::Missing) }.map_err(|e| format!("memory can't be registered: {e}"))?;
    let mut calls = Vec::new();
    for _ in 0..PASSES {
        from.fill();
        for offset in (0..Memory::BYTES).step_by(setup.pages * PAGE_SIZE) {
            let (source, target, len) = (from.0 + offset, to.0 + offset, setup.pages * PAGE_SIZE);
            let began = now_ns();
            // SAFETY: both mappings are this function's, the source is filled, and the target is
            // empty.
            let Progress { error, .. } = unsafe {
                match setup.how {
                    How::Copy => uffd.copy(target, std::ptr::with_exposed_provenance(source), len, Wake::Later),
                    How::Move => uffd.move_pages(target, source, len, Holes::Stop, Wake::Later),
                }
            };
            calls.push(now_ns() - began);
            error.map_or(Ok(()), |e| Err(format!("{:?} of {} pages: {e}", setup.how, setup.pages)))?;
        }
        to.empty()?;
    }
    calls.sort_unstable();
    Ok(calls[calls.len() / 2] as f64 / 1000.0 / setup.pages as f64)
}

/// A mapping of its own, by its address.
struct Memory(usize);

impl Memory {
    const BYTES: usize = PAGES * PAGE_SIZE;

    fn new() -> Result<Memory, String> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a fresh mapping, and advice on it.
        let map = unsafe {
            mmap_anonymous(std::ptr::null_mut(), Self::BYTES, access, flags)
                .and_then(|map| madvise(map, Self::BYTES, Advice::LinuxNoHugepage).map(|()| map))
        };
        map.map(|map| Memory(map.expose_provenance())).map_err(|e| format!("no memory: {e}"))
    }

    fn fill(&self) {
        for addr in (self.0..self.0 + Self::BYTES).step_by(PAGE_SIZE) {
            // SAFETY: this mapping, which is not registered.
            unsafe { std::ptr::with_exposed_provenance_mut::<u64>(addr).write_volatile(addr as u64) };
        }
    }

    fn empty(&self) -> Result<(), String> {
        // SAFETY: no code relies on the content.
        let done = unsafe { madvise(std::ptr::with_exposed_provenance_mut(self.0), Self::BYTES, Advice::LinuxDontNeed) };
        done.map_err(|e| format!("MADV_DONTNEED: {e}"))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, unknown to other code.
        let _ = unsafe { munmap(std::ptr::with_exposed_provenance_mut(self.0), Self::BYTES) };
    }
}
