//! T6: the cost of zero pages on their way out and back, and their share in real programs.

use std::hint::black_box;
use std::sync::atomic::Ordering;

use lowtide_core::codec::{Codec, Workspace};
use lowtide_core::fill::repeated_word;
use lowtide_core::pool::{Handle, Pool};
use lowtide_core::slot::{Area, Entry, Policy};
use lowtide_core::store::{FillWords, Page};
use lowtide_core::vm::PAGE_SIZE;

use crate::experiment::{Experiment, Outcome, Scale};
use crate::kept::{Kept, POOL, RUN};
use crate::measure::{self, Sample};
use crate::programs::PROGRAMS;
use crate::report::{Finding, Table, Target};
use crate::slots::area;

pub const EXPERIMENT: Experiment = Experiment {
    name: "zero",
    question: "what do zero pages cost, kept as a state, as an entry or compressed, and how many pages of real programs are zero?",
    run,
};

/// Percent of zero pages, and whether the pages fit in the CPU's cache. Without the cache, reading
/// a page from memory, which every way does, dominates the cost of a zero page.
const LOADS: [(usize, bool); 6] = [(0, false), (25, false), (50, false), (75, false), (100, false), (100, true)];
/// The places in [`LOADS`] of zero pages only.
const MEMORY: usize = 4;
const CACHE: usize = 5;
const WAYS: [&str; 4] = ["state only (lowtide)", "entry without object", "through LZ4", "through zstd"];
const STATE: usize = 0;
const ENTRY: usize = 1;
const LZ4: usize = 2;

fn run(scale: &Scale) -> Result<Outcome, String> {
    let mut outcome = Outcome::default();
    costs(scale, &mut outcome)?;
    zeros(scale, &mut outcome)?;
    shares(scale, &mut outcome)?;
    Ok(outcome)
}

/// One of [`WAYS`] to keep pages.
trait Way {
    fn store(&mut self, pages: &[&Page]) -> Result<(), String>;
    fn load(&mut self, into: &mut Page) -> Result<(), String>;
    /// Bytes held for them, tables included.
    fn bytes(&self) -> usize;
    fn free(&mut self) -> Result<(), String>;
}

/// lowtide's.
impl Way for Kept {
    fn store(&mut self, pages: &[&Page]) -> Result<(), String> {
        Kept::store(self, pages)
    }

    fn load(&mut self, into: &mut Page) -> Result<(), String> {
        Kept::load(self, into)
    }

    fn bytes(&self) -> usize {
        let stats = self.store.stats();
        let slots = stats.stored_now as usize * SLOT_BYTES;
        stats.pool_bytes + slots
    }

    fn free(&mut self) -> Result<(), String> {
        Kept::free(self);
        Ok(())
    }
}

/// Bytes of a slot: its table word, and its part of the cluster's tables.
const SLOT_BYTES: usize = 9;
/// The table word of a slot that stands for a zero page.
const ZERO_WORD: u64 = 1 << 62;

/// Slots, a pool and a codec: every page has an entry.
struct Entries {
    codec: Codec,
    /// Zero pages have an entry, but are not compressed.
    zero_checked: bool,
    area: Area,
    pool: Pool,
    workspace: Workspace,
    kept: Vec<Entry>,
}

impl Entries {
    fn new(codec: Codec, zero_checked: bool, slots: u64) -> Result<Entries, String> {
        Ok(Entries {
            codec,
            zero_checked,
            area: area(slots, Policy::default())?,
            pool: Pool::new(POOL, 0, 90).map_err(|e| format!("a pool can't be made: {e}"))?,
            workspace: Workspace::new().map_err(|e| format!("no buffers: {e:?}"))?,
            kept: Vec::new(),
        })
    }
}

impl Way for Entries {
    fn store(&mut self, pages: &[&Page]) -> Result<(), String> {
        for page in pages {
            let word = if self.zero_checked && repeated_word(page) == Some(0) {
                ZERO_WORD
            } else {
                let handle = match self.codec.compress(page, &mut self.workspace) {
                    Some(len) => self.pool.insert(&self.workspace.bytes[..len]),
                    None => self.pool.insert(&page[..]),
                };
                handle.ok_or("the pool is full")?.raw()
            };
            let slot = self.area.alloc(0).ok_or("no slot is free")?;
            self.area.word(slot).ok_or("a slot has no word")?.store(word, Ordering::Release);
            self.kept.push(Entry::new(0, slot).ok_or("no entry for a slot")?);
        }
        Ok(())
    }

    fn load(&mut self, into: &mut Page) -> Result<(), String> {
        for e in &self.kept {
            let word = self.area.word(e.offset()).ok_or("a slot has no word")?.load(Ordering::Acquire);
            if word == ZERO_WORD {
                into.fill(0);
            } else {
                let handle = Handle::from_raw(word);
                let loaded = match handle.object_len() {
                    PAGE_SIZE => self.pool.read(handle, into).is_ok(),
                    len => {
                        self.pool.read(handle, &mut self.workspace.bytes).is_ok()
                            && self.codec.decompress(&mut self.workspace, len, into)
                    }
                };
                if !loaded {
                    return Err("an object can't be loaded".into());
                }
            }
            black_box(&into);
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.pool.bytes() + self.kept.len() * SLOT_BYTES
    }

    fn free(&mut self) -> Result<(), String> {
        for e in self.kept.drain(..) {
            let word = self.area.word(e.offset()).ok_or("a slot has no word")?.swap(0, Ordering::AcqRel);
            if word != ZERO_WORD {
                self.pool.remove(Handle::from_raw(word)).map_err(|_| "an object is gone")?;
            }
            self.area.release(e.offset());
        }
        Ok(())
    }
}

fn way(number: usize, slots: u64) -> Result<Box<dyn Way>, String> {
    Ok(match number {
        STATE => Box::new(Kept::new(Codec::Lz4)?),
        ENTRY => Box::new(Entries::new(Codec::Lz4, true, slots)?),
        LZ4 => Box::new(Entries::new(Codec::Lz4, false, slots)?),
        _ => Box::new(Entries::new(Codec::Zstd(3), false, slots)?),
    })
}

/// This many percent of the pages are zero, in random order; the others compress to about a half.
fn pages(n: usize, zero: usize) -> Vec<Page> {
    let mut random = fastrand::Rng::with_seed(6);
    let mut pages: Vec<Page> = (0..n)
        .map(|i| {
            let mut page = [0; PAGE_SIZE];
            if i * 100 >= n * zero {
                for part in page.chunks_exact_mut(16) {
                    random.fill(&mut part[..8]);
                }
            }
            page
        })
        .collect();
    random.shuffle(&mut pages);
    pages
}

fn costs(scale: &Scale, outcome: &mut Outcome) -> Result<(), String> {
    let n = scale.pick(4096, 16384);
    let rounds = scale.pick(7, 21);
    let columns = ["ns for a page", "0 % zero", "25 %", "50 %", "75 %", "100 %", "100 %, in cache"];
    let mut stores = Table::new("storing", &columns);
    let mut loads = Table::new("loading", &columns);
    let mut bytes_of = Table::new("bytes held for a page", &columns);
    // [way][percent]
    let mut samples: [[[Sample; 2]; LOADS.len()]; WAYS.len()] = Default::default();
    let mut bytes = [[0.0; LOADS.len()]; WAYS.len()];
    let mut into = [0; PAGE_SIZE];
    for (at, (zero, in_cache)) in LOADS.into_iter().enumerate() {
        let few = if in_cache { RUN / 4 } else { n };
        let pages = pages(few, zero);
        let pages: Vec<&Page> = pages.iter().cycle().take(n).collect();
        let mut ways = Vec::new();
        for number in 0..WAYS.len() {
            ways.push(way(number, n as u64 * 2 + 4096)?);
        }
        // Once unmeasured: takes the kernel's page faults.
        for way in &mut ways {
            way.store(&pages)?;
            way.load(&mut into)?;
            way.free()?;
        }
        measure::in_turn(&WAYS, rounds, |i, _| {
            let way = &mut ways[i];
            let (stored, store) = measure::cpu_ns(|| way.store(&pages));
            stored?;
            let (loaded, load) = measure::cpu_ns(|| way.load(&mut into));
            loaded?;
            bytes[i][at] = way.bytes() as f64 / n as f64;
            samples[i][at][0].add(store / n as f64);
            samples[i][at][1].add(load / n as f64);
            way.free()
        })?;
    }
    for (i, name) in WAYS.into_iter().enumerate() {
        let row =
            |f: &dyn Fn(usize) -> String| [name.to_owned()].into_iter().chain((0..LOADS.len()).map(f)).collect::<Vec<_>>();
        stores.row(row(&|at| format!("{:.0}", samples[i][at][0].median())));
        loads.row(row(&|at| format!("{:.0}", samples[i][at][1].median())));
        bytes_of.row(row(&|at| format!("{:.1}", bytes[i][at])));
    }
    outcome.tables.extend([stores, loads, bytes_of]);
    let against = |what: &str, other: usize, at: usize, op: usize| {
        let (ours, theirs) = (&samples[STATE][at][op], &samples[other][at][op]);
        let ratio = theirs.over(ours);
        let told = format!("{:.0} ns against {:.0} ns", ours.median(), theirs.median());
        Finding::new(what, told, ratio.median()).spread(ratio.spread())
    };
    let (store, load) = (0, 1);
    outcome.findings.extend([
        against("storing a zero page, in cache, LZ4 / state only", LZ4, CACHE, store).target(Target::AtLeast(10.0)),
        against("storing a zero page, from memory, LZ4 / state only", LZ4, MEMORY, store),
        against("storing a zero page, in cache, entry / state only", ENTRY, CACHE, store),
        against("loading a zero page, in cache, LZ4 / state only", LZ4, CACHE, load),
    ]);
    outcome.findings.push(
        Finding::new(
            "bytes for a zero page",
            format!("{:.1} (entry: {:.1})", bytes[STATE][MEMORY], bytes[ENTRY][MEMORY]),
            bytes[STATE][MEMORY],
        )
        .published("2 MB of metadata less per 3 GB swapped")
        .target(Target::Exactly(0.0)),
    );
    Ok(())
}

/// Zeros only, with and without a state for them: published before and after it was kept.
fn zeros(scale: &Scale, outcome: &mut Outcome) -> Result<(), String> {
    const AT_A_TIME: usize = 16 << 10;
    const COMPARED: [usize; 3] = [STATE, ENTRY, LZ4];
    const GIB: usize = 4;
    let (passes, rounds) = ((GIB << 30) / (AT_A_TIME * PAGE_SIZE), scale.pick(3, 5));
    let pages = pages(AT_A_TIME, 100);
    let pages: Vec<&Page> = pages.iter().collect();
    let mut into = [0; PAGE_SIZE];
    let mut samples: [[Sample; 2]; COMPARED.len()] = Default::default();
    measure::in_turn(&COMPARED, rounds, |i, number| {
        let mut way = way(*number, AT_A_TIME as u64 * 2 + 4096)?;
        let mut took = [0.0; 2];
        for _ in 0..passes {
            let (stored, ns) = measure::cpu_ns(|| way.store(&pages));
            took[0] += ns / 1e9;
            let (loaded, ns) = measure::cpu_ns(|| way.load(&mut into));
            took[1] += ns / 1e9;
            stored.and(loaded)?;
            way.free()?;
        }
        samples[i].iter_mut().zip(took).for_each(|(sample, seconds)| sample.add(seconds));
        Ok::<(), String>(())
    })?;
    let mut table = Table::new(format!("{GIB} GiB of zeros, seconds of CPU"), &["kept as", "out", "+-", "in", "+-"]);
    for (number, of) in COMPARED.iter().zip(&samples) {
        let cells = of.iter().flat_map(|s| [format!("{:.3}", s.median()), format!("{:.0} %", s.spread() * 100.0)]);
        table.row([WAYS[*number].to_owned()].into_iter().chain(cells));
    }
    outcome.tables.push(table);
    let [state, .., lz4] = &samples;
    for (op, what) in ["out", "in"].into_iter().enumerate() {
        let ratio = state[op].over(&lz4[op]);
        let told = format!("{:.2} s -> {:.2} s", lz4[op].median(), state[op].median());
        let finding = Finding::new(format!("{GIB} GiB of zeros {what}: through LZ4 -> state only"), told, ratio.median());
        let finding = finding.published("4 GiB of zeros: shorter with a state").spread(ratio.spread());
        outcome.findings.push(finding.reproduced_if(Target::AtMost(1.0)));
    }
    Ok(())
}

/// Count and words of same-filled pages in real programs. (Over 70 lines: a table and its
/// findings.)
fn shares(scale: &Scale, outcome: &mut Outcome) -> Result<(), String> {
    const SHOWN: usize = 3;
    let most = scale.pick(3_000, 12_000);
    let columns = ["program", "pages", "zero %", "other word %", "most frequent other words (pages)"];
    let mut table = Table::new("same-filled pages of programs", &columns);
    let (mut zero_sum, mut other_sum, mut programs) = (0.0, 0.0, 0.0);
    for (name, read) in PROGRAMS {
        let pages = match read(most) {
            Ok(pages) if !pages.is_empty() => pages,
            Ok(_) => {
                eprintln!("lowtide-lab: zero: {name} is left out: no pages");
                continue;
            }
            Err(why) => {
                eprintln!("lowtide-lab: zero: {name} is left out: {why}");
                continue;
            }
        };
        let words = FillWords::default();
        let (mut zero, mut other) = (0, 0);
        for page in &pages {
            match repeated_word(page) {
                Some(0) => zero += 1,
                Some(word) => {
                    other += 1;
                    words.add(word, 1);
                }
                None => {}
            }
        }
        let percent = |n: usize| n as f64 * 100.0 / pages.len() as f64;
        let shown: Vec<String> =
            words.most().iter().take(SHOWN).filter(|w| w.pages > 0).map(|w| format!("{:#x} ({})", w.word, w.pages)).collect();
        let (zero, other) = (percent(zero), percent(other));
        table.row([
            name.to_owned(),
            pages.len().to_string(),
            format!("{zero:.2}"),
            format!("{other:.2}"),
            if shown.is_empty() { "none".to_owned() } else { shown.join(", ") },
        ]);
        (zero_sum, other_sum, programs) = (zero_sum + zero, other_sum + other, programs + 1.0);
    }
    if programs == 0.0 {
        return Err("no program's memory could be read".into());
    }
    outcome.tables.push(table);
    let finding =
        |what: &str, published: &str, value: f64| Finding::new(what, format!("{value:.2} %"), value).published(published);
    const OTHERS: &str = "a share of other programs' memory";
    // From the discussion of zero pages in zswap, 2024. Of swapped same-filled pages, it gives less
    // than 1 % as nonzero in one place, and 17 to 40 % in another.
    let same = zero_sum + other_sum;
    let not_zero = if same > 0.0 { other_sum * 100.0 / same } else { 0.0 };
    outcome.findings.extend([
        finding("zero pages, mean of programs, % of all", "1.5 % (kernel build)", zero_sum / programs)
            .reproduced_if(Target::AtLeast(1.5))
            .because(OTHERS),
        finding("other same-filled pages, % of all", "", other_sum / programs),
        finding("same-filled pages, % of all", "about 10 %; 10-20 %; 17-22 %", same / programs)
            .reproduced_if(Target::AtLeast(10.0))
            .because(OTHERS),
        finding("of the same-filled pages not zero, %", "17-40 %", not_zero)
            .reproduced_if(Target::AtLeast(17.0))
            .because(OTHERS),
        finding("of the same-filled pages not zero, %, a fleet of servers", "less than 1 %", not_zero)
            .reproduced_if(Target::AtMost(1.0))
            .because(OTHERS),
    ]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_brings_the_pages_back_and_only_state_keeps_nothing() {
        let (zeros, half) = (pages(64, 100), pages(64, 50));
        assert_eq!(half.iter().filter(|p| repeated_word(p) == Some(0)).count(), 32);
        for (number, name) in WAYS.into_iter().enumerate() {
            let mut way = way(number, 4096).unwrap();
            way.store(&zeros.iter().collect::<Vec<_>>()).unwrap();
            assert_eq!(way.bytes() == 0, number == STATE, "{name}");
            way.free().unwrap();
            for page in &half {
                way.store(&[page]).unwrap();
                let mut into = [0x5a; PAGE_SIZE];
                way.load(&mut into).unwrap();
                assert!(into == *page, "{name}");
                way.free().unwrap();
            }
            assert_eq!(way.bytes(), 0, "{name}");
        }
    }
}
