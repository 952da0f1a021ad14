//! Guards (MADV_GUARD_INSTALL) that one thread makes while another's fault is served. Zeros are brought in ahead up to the next
//! guard; but a COPY of the kernel (Linux 6.18) puts a page in the place of one that is made between the look and the COPY, and
//! tells nobody.
//!
//! So who makes guards says so before and after ([`Guards::make`]), and who serves a touch finds out that this has happened
//! meanwhile ([`Guards::end_look`]), still holding the space lock. Then a MADV_DONTNEED of the range: its event is read by who
//! has that lock alone, so that all touches have ended that had begun before; and it drops the pages that took the place of
//! guards. If a touch has met the call ([`Guards::were_met`]), it is made again.

use core::sync::atomic::{AtomicUsize, Ordering};

/// Counts of calls that make guards, and of touches that met one. Nobody waits for anybody.
#[derive(Debug, Default)]
pub struct Guards {
    begun: AtomicUsize,
    ended: AtomicUsize,
    met: AtomicUsize,
}

/// How many touches had met a call before one was made.
#[derive(Debug, Clone, Copy)]
pub struct Made(usize);

/// What was so before a look: calls that had begun, and that had ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen(usize, usize);

impl Guards {
    /// Makes guards by `call`. By threads of the program.
    pub fn make<T>(&self, call: impl FnOnce() -> T) -> (T, Made) {
        // SeqCst, here and below: pairs with those in `begin_look` and `end_look`. A look that began before this call ended
        // sees that it had begun, in the end at the latest; then `were_met` sees that it was met.
        let before = Made(self.met.load(Ordering::SeqCst));
        self.begun.fetch_add(1, Ordering::SeqCst);
        let result = call();
        self.ended.fetch_add(1, Ordering::SeqCst);
        (result, before)
    }

    /// Whether a touch has met a call since: after a MADV_DONTNEED of the range that followed it.
    pub fn were_met(&self, since: Made) -> bool {
        // SeqCst: pairs with the count in `end_look`.
        self.met.load(Ordering::SeqCst) != since.0
    }

    /// Whether the program has made any while lowtide was at work.
    pub(crate) fn any(&self) -> bool {
        // SeqCst: pairs with the count in `make`.
        self.begun.load(Ordering::SeqCst) != 0
    }

    /// Before a look where guards are. With the space lock shared, up to [`Guards::end_look`].
    pub(crate) fn begin_look(&self) -> Seen {
        // SeqCst: pairs with the counts in `make`. Calls that end in between are taken for not ended.
        let ended = self.ended.load(Ordering::SeqCst);
        Seen(self.begun.load(Ordering::SeqCst), ended)
    }

    /// Pages have been installed by what was seen then.
    pub(crate) fn end_look(&self, seen: Seen) {
        // SeqCst: pairs with the counts in `make`, and with the look in `were_met`.
        if seen.0 != seen.1 || self.begun.load(Ordering::SeqCst) != seen.0 {
            self.met.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// In a forked child: other threads of the parent are not here, and what they were making is not made.
    pub(crate) fn reset_after_fork(&self) {
        // SeqCst: pairs with `begin_look`, once the child has more threads.
        self.ended.store(self.begun.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}
