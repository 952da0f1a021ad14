//! Soft-dirty bits (CONFIG_MEM_SOFT_DIRTY): collectors and checkpointers clear them by
//! `/proc/PID/clear_refs` and later read from pagemap which pages were written. Evicted pages have
//! none and would look unwritten, so eviction stops once the bits are cleared.
//!
//! Pages already out were not written since, and COPY and MOVE set the bit.
//!
//! Detection: the kernel sets the bit in new mappings and clears it in all. The vDSO precedes the
//! program, is never written and never merges, so its bit is lost once any process clears them.
//! Costs a pagemap read a step.

use core::sync::atomic::{AtomicU8, Ordering};

use lowtide_core::kernel_text;

use crate::pager::Pager;
use crate::pages::Operation;
use crate::pages::worker::Worker;
use crate::reclaim::evicted::Evicted;

/// The kernel has no such bits.
const NONE: u8 = 0;
/// Never cleared.
const SET: u8 = 1;
const CLEARED: u8 = 2;

#[derive(Debug)]
pub(crate) struct SoftDirty {
    state: AtomicU8,
    /// Address to check.
    old: usize,
}

impl SoftDirty {
    pub(crate) fn new(is_new_set: bool) -> SoftDirty {
        // Without a vDSO: lowtide's own code.
        let old = if is_new_set { vdso().unwrap_or(vdso as fn() -> Option<usize> as usize) } else { 0 };
        SoftDirty { state: AtomicU8::new(if is_new_set { SET } else { NONE }), old }
    }

    fn were_cleared(&self) -> bool {
        self.state.load(Ordering::Relaxed) == CLEARED
    }

    /// Whether cleared, and whether that is new.
    fn look(&self, is_set: impl Fn(usize) -> Option<bool>) -> (bool, bool) {
        match self.state.load(Ordering::Relaxed) {
            SET => match is_set(self.old) {
                Some(true) => (false, false),
                Some(false) => (true, self.state.swap(CLEARED, Ordering::Relaxed) == SET),
                // Check again next time.
                None => (true, false),
            },
            state => (state == CLEARED, false),
        }
    }
}

fn vdso() -> Option<usize> {
    /// AT_SYSINFO_EHDR.
    const VDSO: u64 = 33;
    let mut text = [0; 1024];
    let auxv = kernel_text::read(c"/proc/thread-self/auxv", &mut text)?;
    let mut pairs = auxv.as_chunks::<8>().0.as_chunks::<2>().0.iter().map(|pair| pair.map(u64::from_ne_bytes));
    pairs.find(|[key, _]| *key == VDSO).map(|[_, addr]| addr as usize)
}

impl Pager {
    /// Whether eviction must stop: asks the kernel, and warns once. The caller can read the page
    /// map. If true after pages have left, put them back ([`Operation::put_staged_back`]).
    pub(crate) fn soft_dirty_is_read(&self) -> bool {
        let (stays, is_news) = self.reclaim.soft_dirty.look(|old| self.present().is_soft_dirty(old));
        if is_news {
            (self.host.warn)(
                b"somebody follows what the program writes by soft-dirty bits (/proc/PID/clear_refs), which pages lose that are moved out: \
                  what this process has in RAM stays there, whatever the limit",
            );
        }
        stays
    }

    /// The same, as last found.
    pub(crate) fn soft_dirty_was_read(&self) -> bool {
        self.reclaim.soft_dirty.were_cleared()
    }
}

impl Operation<'_> {
    /// Puts staged pages back; an event may delay some.
    pub(crate) fn put_staged_back(&self, worker: &mut Worker) {
        while matches!(self.drain(worker), Evicted::Full | Evicted::Progress) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cleared_once_was_cleared_for_good() {
        let soft_dirty = SoftDirty::new(true);
        assert_eq!(soft_dirty.look(|_| Some(true)), (false, false));
        assert_eq!(soft_dirty.look(|_| None), (true, false), "nobody knows");
        assert_eq!(soft_dirty.look(|_| Some(true)), (false, false), "but for that moment");
        assert_eq!(soft_dirty.look(|_| Some(false)), (true, true), "said once");
        assert_eq!(soft_dirty.look(|_| Some(true)), (true, false), "a neighbour's new mapping is no proof");
        assert!(soft_dirty.were_cleared());
    }

    #[test]
    fn a_kernel_without_them_is_not_asked() {
        let soft_dirty = SoftDirty::new(false);
        assert_eq!(soft_dirty.look(|_| unreachable!("asked")), (false, false));
        assert!(!soft_dirty.were_cleared());
    }

    #[test]
    fn they_are_seen_where_the_kernel_has_mapped_something_first() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap();
        let start = line.split_once('-').map(|(start, _)| usize::from_str_radix(start, 16));
        assert_eq!(Some(SoftDirty::new(true).old), start.and_then(Result::ok));
    }
}
