//! Read-ahead: how many neighbours to bring in with a page.
//!
//! Faults behind pages just brought in form a stream, forwards or backwards, which gets as many
//! pages again as it had, up to [`MAX_WINDOW`], while experience says that streams of its length go
//! on ([`Chance`]). A new stream begins with as many pages as are probably wanted; some with one,
//! to find out if that is enough. (Linux counts hits of read-ahead by access bits,
//! `swap_vma_readahead`. User space has none.)
//!
//! All handlers share the table without a lock: a torn entry costs a wrong guess, never a wrong
//! page.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::pagemap::ids::PageNo;

/// Largest window in pages.
pub const MAX_WINDOW: usize = 512;
const STREAMS: usize = 16;
/// Classes of stream lengths, by powers of two up to [`MAX_WINDOW`].
const LENGTHS: usize = MAX_WINDOW.ilog2() as usize + 1;
const TRY_ONE: u32 = 16;

/// The pages to bring in, upwards or downwards from the faulting page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Pages, the faulting one included; at least 1.
    pub pages: usize,
    /// Towards lower addresses.
    pub backwards: bool,
    /// Earlier neighbours that turned out to be wanted.
    pub used: usize,
    stream: usize,
}

struct Stream {
    up: AtomicU64,
    down: AtomicU64,
    /// Pages of its latest window, ...
    latest: AtomicU32,
    /// ... and of all, at most [`MAX_WINDOW`]; 0: none yet.
    pages: AtomicU32,
    backwards: AtomicBool,
    /// It has gone on since `begin` last passed it.
    went_on: AtomicBool,
}

impl Stream {
    const fn none() -> Stream {
        Stream {
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            latest: AtomicU32::new(0),
            pages: AtomicU32::new(0),
            backwards: AtomicBool::new(false),
            went_on: AtomicBool::new(false),
        }
    }
}

/// How probable it is that a stream goes on.
struct Chance(AtomicU32);

impl Chance {
    const CERTAIN: u32 = 1 << 12;
    /// About this many streams change its mind.
    const MEMORY: u32 = 32;

    fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    fn learn(&self, went_on: bool) {
        let was = self.get();
        let now = if went_on { was + (Self::CERTAIN - was) / Self::MEMORY } else { was - was / Self::MEMORY };
        self.0.store(now, Ordering::Relaxed);
    }
}

/// The streams of one kind of fault.
pub struct Streams {
    table: [Stream; STREAMS],
    next: AtomicU32,
    begun: AtomicU32,
    chances: [Chance; LENGTHS],
    most_at_first: usize,
    worthwhile: u32,
}

fn length(pages: usize) -> usize {
    pages.clamp(1, MAX_WINDOW).ilog2() as usize
}

impl Streams {
    /// New streams begin with at most `most_at_first` pages. A page pays if it is wanted in
    /// `percent` of cases, by the costs of a fault and of a page in vain.
    pub const fn new(most_at_first: usize, percent: u32) -> Streams {
        Streams {
            table: [const { Stream::none() }; STREAMS],
            next: AtomicU32::new(0),
            begun: AtomicU32::new(0),
            chances: [const { Chance(AtomicU32::new(Chance::CERTAIN / 8 * 7)) }; LENGTHS],
            most_at_first,
            worthwhile: Chance::CERTAIN * percent / 100,
        }
    }

    /// The window for a fault on `page`.
    pub fn window(&self, page: PageNo) -> Window {
        let page = page.raw();
        for (i, s) in self.table.iter().enumerate() {
            let had = s.pages.load(Ordering::Relaxed) as usize;
            if had == 0 {
                continue;
            }
            let (up, down) = (s.up.load(Ordering::Relaxed), s.down.load(Ordering::Relaxed));
            let latest = s.latest.load(Ordering::Relaxed) as usize;
            // A few pages may have been in memory already.
            let slack = (latest as u64 / 4).max(2);
            let forwards = (up..up + slack).contains(&page);
            if forwards || (page <= down && page + slack > down) {
                self.chances[length(had)].learn(true);
                let goes_on = self.chances[length(had * 2)].get() >= self.worthwhile;
                // Most streams end here; this one went on.
                let pages = if goes_on { had } else { (had / 4).max(1) };
                s.went_on.store(true, Ordering::Relaxed);
                // The other direction's pages may have been useless.
                let turned = s.backwards.load(Ordering::Relaxed) == forwards;
                return Window {
                    pages,
                    backwards: !forwards,
                    used: if turned { 0 } else { latest.saturating_sub(1) },
                    stream: i,
                };
            }
        }
        self.begin()
    }

    fn begin(&self) -> Window {
        let next = || self.next.fetch_add(1, Ordering::Relaxed) as usize % STREAMS;
        let stream = (0..STREAMS).map(|_| next()).find(|i| !self.table[*i].went_on.swap(false, Ordering::Relaxed));
        let stream = stream.unwrap_or_else(next);
        let s = &self.table[stream];
        let had = s.pages.load(Ordering::Relaxed) as usize;
        if had > 0 {
            self.chances[length(had)].learn(false);
        }
        let pages = match self.begun.fetch_add(1, Ordering::Relaxed) % TRY_ONE {
            0 => 1,
            _ => self.at_first(),
        };
        s.pages.store(0, Ordering::Relaxed);
        s.backwards.store(false, Ordering::Relaxed);
        Window { pages, backwards: false, used: 0, stream }
    }

    fn at_first(&self) -> usize {
        let (mut pages, mut probable) = (1, Chance::CERTAIN);
        while pages < self.most_at_first {
            probable = probable * self.chances[length(pages)].get() / Chance::CERTAIN;
            if probable < self.worthwhile {
                break;
            }
            pages *= 2;
        }
        pages
    }

    /// Pages `first .. end` came in by a window: the stream goes on behind them.
    pub fn advance(&self, window: Window, first: PageNo, end: PageNo) {
        let s = &self.table[window.stream];
        let (had, came) = (s.pages.load(Ordering::Relaxed) as usize, end - first);
        s.up.store(end.raw(), Ordering::Relaxed);
        s.down.store(first.back(1).raw(), Ordering::Relaxed);
        s.backwards.store(window.backwards, Ordering::Relaxed);
        s.latest.store(came as u32, Ordering::Relaxed);
        s.pages.store((had + came).min(MAX_WINDOW) as u32, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(s: &Streams, page: usize) -> Window {
        let page = PageNo::new(page);
        let w = s.window(page);
        if w.backwards {
            s.advance(w, (page + 1).back(w.pages), page + 1);
        } else {
            s.advance(w, page, page + w.pages);
        }
        w
    }

    #[test]
    fn sequential_faults_grow_the_window_and_random_ones_do_not() {
        let s = Streams::new(4, 50);
        fault(&s, 1);
        let mut page = 1000;
        let mut seen = std::vec::Vec::new();
        for _ in 0..10 {
            let w = fault(&s, page);
            assert!(!w.backwards);
            page += w.pages;
            seen.push(w.pages);
        }
        assert_eq!(seen, [4, 4, 8, 16, 32, 64, 128, 256, 512, 512]);
        let mut last = 0;
        for i in 0..300 {
            last = fault(&s, 1_000_000 + i * 7919).pages;
        }
        assert_eq!(last, 1, "random faults bring in nothing but the page");
    }

    #[test]
    fn backward_streams_are_followed() {
        let s = Streams::new(4, 50);
        fault(&s, 1);
        fault(&s, 5000);
        let w = fault(&s, 4999);
        assert_eq!((w.pages, w.backwards), (4, true));
        let w = fault(&s, 4995);
        assert_eq!((w.pages, w.backwards, w.used), (8, true, 3));
    }

    #[test]
    fn pages_that_come_in_pairs_are_brought_in_as_pairs() {
        let s = Streams::new(8, 50);
        let (mut pages, mut used) = (0, 0);
        for i in 0..4000 {
            let first = 1_000_000 + i * 7919;
            let mut have = first..first;
            for page in [first, first + 1] {
                if !have.contains(&page) {
                    let w = fault(&s, page);
                    have.end = have.end.max(page + w.pages);
                    if i >= 1000 {
                        (pages, used) = (pages + w.pages, used + w.used);
                    }
                }
            }
        }
        assert!((6000..6800).contains(&pages), "{pages} pages for 3000 pairs");
        assert!(used < 800, "{used}: who wants two pages does not show that it wanted the second, unless it was tried without");
    }

    #[test]
    fn a_stream_outlives_random_faults() {
        let s = Streams::new(4, 50);
        let mut page = 1000;
        for i in 0..200 {
            page += fault(&s, page).pages;
            (0..4).for_each(|j| assert!(fault(&s, 1_000_000 + (i * 4 + j) * 7919).pages <= 4));
        }
        assert!(page > 50_000, "{page}");
    }
}
