//! Read-ahead: how many neighbours to bring in with a page. Sequential faults, forwards or backwards, double the window up to
//! 512 pages; a fault that continues no stream starts one with a small window, or with one page while few streams go on.
//!
//! The table is shared by all monitors and read and written without a lock: a torn entry costs a wrong guess, never a wrong page.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Largest window in pages.
pub const MAX_WINDOW: usize = 512;
/// Streams followed at a time.
const STREAMS: usize = 16;

/// What to bring in: `pages` pages, upwards from the faulting page or downwards from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Pages, the faulting one included; at least 1.
    pub pages: usize,
    /// Towards lower addresses.
    pub backwards: bool,
}

struct Stream {
    /// The page at which a forward continuation would fault.
    up: AtomicU64,
    /// The page at which a backward continuation would fault.
    down: AtomicU64,
    window: AtomicU32,
}

/// The streams of one kind of fault.
pub struct Streams {
    table: [Stream; STREAMS],
    next: AtomicU32,
    initial: u32,
    /// Up with each fault that goes on with a stream, down with each that begins one.
    luck: AtomicI32,
}

/// Bound of `luck`: so many faults, about, change its mind.
const MEMORY: i32 = 64;
/// A stream that goes on outweighs this many that do not.
const WEIGHT: i32 = 3;

impl Streams {
    /// No streams yet; a new one begins with `initial` pages.
    pub const fn new(initial: u32) -> Streams {
        Streams {
            table: [const { Stream { up: AtomicU64::new(0), down: AtomicU64::new(0), window: AtomicU32::new(0) } }; STREAMS],
            next: AtomicU32::new(0),
            initial,
            luck: AtomicI32::new(MEMORY),
        }
    }

    /// The window for a fault on `page`.
    pub fn window(&self, page: usize) -> Window {
        for s in &self.table {
            let window = s.window.load(Ordering::Relaxed);
            if window == 0 {
                continue;
            }
            let (up, down) = (s.up.load(Ordering::Relaxed) as usize, s.down.load(Ordering::Relaxed) as usize);
            // A stream may step over a few pages that were in memory already.
            let slack = (window as usize / 4).max(2);
            let forwards = (up..up + slack).contains(&page);
            if forwards || (page <= down && page + slack > down) {
                let pages = (window as usize * 2).min(MAX_WINDOW);
                s.window.store(pages as u32, Ordering::Relaxed);
                self.learn(WEIGHT);
                return Window { pages, backwards: !forwards };
            }
        }
        let s = &self.table[self.next.fetch_add(1, Ordering::Relaxed) as usize % STREAMS];
        self.learn(-1);
        let initial = if self.luck.load(Ordering::Relaxed) > 0 { self.initial } else { 1 };
        s.window.store(initial, Ordering::Relaxed);
        s.up.store(page as u64 + 1, Ordering::Relaxed);
        s.down.store((page as u64).saturating_sub(1), Ordering::Relaxed);
        Window { pages: initial as usize, backwards: false }
    }

    fn learn(&self, by: i32) {
        let luck = self.luck.load(Ordering::Relaxed);
        self.luck.store((luck + by).clamp(-MEMORY, MEMORY), Ordering::Relaxed);
    }

    /// Pages `first .. end` came in for a fault on `page`: the stream goes on behind them.
    pub fn advance(&self, page: usize, first: usize, end: usize) {
        for s in &self.table {
            let (up, down) = (s.up.load(Ordering::Relaxed) as usize, s.down.load(Ordering::Relaxed) as usize);
            let slack = (s.window.load(Ordering::Relaxed) as usize / 4).max(2);
            if (page + 1 == up && page == down + 1) || (up..up + slack).contains(&page) || (page <= down && page + slack > down)
            {
                s.up.store(end as u64, Ordering::Relaxed);
                s.down.store(first.saturating_sub(1) as u64, Ordering::Relaxed);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_faults_grow_the_window_and_random_ones_do_not() {
        let s = Streams::new(4);
        let mut page = 1000;
        let mut seen = std::vec::Vec::new();
        for _ in 0..10 {
            let w = s.window(page);
            assert!(!w.backwards);
            s.advance(page, page, page + w.pages);
            page += w.pages;
            seen.push(w.pages);
        }
        assert_eq!(seen, [4, 8, 16, 32, 64, 128, 256, 512, 512, 512]);
        let mut last = 0;
        for i in 0..300 {
            let random = 1_000_000 + i * 7919;
            last = s.window(random).pages;
            assert!(last == 4 || last == 1);
            s.advance(random, random, random + last);
        }
        assert_eq!(last, 1, "random faults bring in nothing but the page");
    }

    #[test]
    fn backward_streams_are_followed() {
        let s = Streams::new(4);
        let w = s.window(5000);
        s.advance(5000, 5000, 5000 + w.pages);
        let w = s.window(4999);
        assert_eq!(w, Window { pages: 8, backwards: true });
        s.advance(4999, 5000 - 8, 5000);
        assert_eq!(s.window(5000 - 9), Window { pages: 16, backwards: true });
    }
}
