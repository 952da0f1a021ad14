//! What a run says of itself while it goes on: its segment, read from outside.

use std::fs::{self, OpenOptions};

use lowtide_wire::segment::proc_state::{self, CLAIMED, FREE};
use lowtide_wire::segment::{MAX_PROCS, Proc, Segment};
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::atomic::Ordering;

/// The segment of a run, mapped until the test ends.
pub struct Gauges(&'static Segment);

impl Gauges {
    /// The segment of the run that the process `lowtide` supervises; None while there is none.
    pub fn of(lowtide: u32) -> Option<Self> {
        let entries = fs::read_dir(format!("/proc/{lowtide}/fd")).ok()?;
        let is_segment = |link: &fs::DirEntry| {
            fs::read_link(link.path()).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:lowtide-run"))
        };
        let link = entries.filter_map(Result::ok).find(is_segment)?;
        let file = OpenOptions::new().read(true).write(true).open(link.path()).ok()?;
        if file.metadata().ok()?.len() < Segment::SIZE as u64 {
            return None;
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, of a file that is never made shorter from here on
        // (sealed).
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), Segment::SIZE, prot, MapFlags::SHARED, &file, 0) };
        // SAFETY: as large as a Segment and page-aligned, any bytes are one, and it is never unmapped; all of it is atomics.
        Some(Self(unsafe { &*at.ok()?.cast::<Segment>() }))
    }

    /// Takes each free place, for processes that never come to themselves: nobody buries those.
    pub fn take_all_places(&self) {
        for p in &self.0.procs {
            let _ = p.state.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed);
        }
        self.0.procs_high.store(MAX_PROCS as u32, Ordering::Release);
    }

    /// Processes with registered memory that have published their figures: pid and place.
    pub fn active(&self) -> impl Iterator<Item = (u32, &Proc)> {
        let active = |p: &&Proc| p.state.load(Ordering::Acquire) == proc_state::ACTIVE && own(p) > 0;
        self.0.used_procs().iter().filter(active).map(|p| (p.pid.load(Ordering::Relaxed), p))
    }
}

/// lowtide's own bytes in a process, as it says now.
pub fn own(process: &Proc) -> u64 {
    process.own_bytes.load(Ordering::Relaxed)
}

/// The same without what holds the program's pages: tables, buffers, stacks.
pub fn own_tables(process: &Proc) -> u64 {
    let pages = [&process.staged_bytes, &process.pool_bytes].map(|gauge| gauge.load(Ordering::Relaxed));
    own(process).saturating_sub(pages.into_iter().sum())
}
