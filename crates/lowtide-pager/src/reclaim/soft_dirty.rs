//! Soft-dirty bits (CONFIG_MEM_SOFT_DIRTY): a collector or a checkpointer clears them by `/proc/PID/clear_refs`, and reads later
//! in pagemap which pages were written since. A page that is out has none: a page that was written and then evicted would look
//! as if it had not been written. So once somebody has cleared them, nothing is evicted any more.
//!
//! What was out already does no harm: it was not written since, and COPY and MOVE set the bit of a page that comes in.
//!
//! How that is seen: the kernel sets the bit of a new mapping, and clears it in all mappings together. The vDSO is mapped before
//! the program runs (the agent may come later, into a copy that a fork has made), nobody writes there, and no later mapping becomes
//! one with it. So its bit is gone if anybody, in this process or in another one, has ever cleared the bits. That costs one read of
//! pagemap for each step of eviction, and nothing on kernels without soft-dirty bits.

use core::sync::atomic::{AtomicU8, Ordering};

use lowtide_core::kernel_text;

use crate::fault::worker::Worker;
use crate::pager::{Operation, Pager};
use crate::reclaim::drain::Drained;

/// The kernel has no such bits.
const NONE: u8 = 0;
/// Nobody has cleared them.
const SET: u8 = 1;
const CLEARED: u8 = 2;

/// What is known of soft-dirty bits in this process.
#[derive(Debug)]
pub(crate) struct SoftDirty {
    state: AtomicU8,
    /// Where it is seen.
    old: usize,
}

impl SoftDirty {
    /// `is_new_set`: whether a mapping that was made just now has the bit.
    pub(crate) fn new(is_new_set: bool) -> SoftDirty {
        // Without a vDSO: lowtide's own code.
        let old = if is_new_set { vdso().unwrap_or(vdso as fn() -> Option<usize> as usize) } else { 0 };
        SoftDirty { state: AtomicU8::new(if is_new_set { SET } else { NONE }), old }
    }

    /// Somebody has cleared the bits, as far as was seen.
    fn were_cleared(&self) -> bool {
        self.state.load(Ordering::Relaxed) == CLEARED
    }

    /// The same after a look; `is_set` looks at the page at an address. True the first time it is seen: the second of the two.
    fn look(&self, is_set: impl Fn(usize) -> Option<bool>) -> (bool, bool) {
        match self.state.load(Ordering::Relaxed) {
            SET => match is_set(self.old) {
                Some(true) => (false, false),
                Some(false) => (true, self.state.swap(CLEARED, Ordering::Relaxed) == SET),
                // It may be told the next time.
                None => (true, false),
            },
            state => (state == CLEARED, false),
        }
    }
}

/// Where the kernel has mapped the vDSO when this program was executed. None: nowhere, for all that it says.
fn vdso() -> Option<usize> {
    /// AT_SYSINFO_EHDR.
    const VDSO: u64 = 33;
    let mut text = [0; 1024];
    let auxv = kernel_text::read(c"/proc/self/auxv", &mut text)?;
    let mut pairs = auxv.as_chunks::<8>().0.as_chunks::<2>().0.iter().map(|pair| pair.map(u64::from_ne_bytes));
    pairs.find(|[key, _]| *key == VDSO).map(|[_, addr]| addr as usize)
}

impl Pager {
    /// Whether all must stay that is in memory; the user is told the first time. By a thread that can ask the page map. A look
    /// after pages have left says whether the bits were cleared before: then they go back ([`Operation::all_goes_back`]).
    pub(crate) fn all_must_stay(&self) -> bool {
        let (stays, is_news) = self.soft_dirty.look(|old| self.present().is_soft_dirty(old));
        if is_news {
            (self.host.warn)(
                b"somebody follows what the program writes by soft-dirty bits (/proc/PID/clear_refs), which pages lose that are moved out: \
                  what this process has in RAM stays there, whatever the limit",
            );
        }
        stays
    }

    /// The same as far as was seen.
    pub(crate) fn all_stays(&self) -> bool {
        self.soft_dirty.were_cleared()
    }
}

impl Operation<'_> {
    /// Takes back all that waits in staging. What an event keeps out goes back by the next call.
    pub(crate) fn all_goes_back(&self, worker: &mut Worker) {
        while matches!(self.drain(worker), Drained::Full | Drained::Freed) {}
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
