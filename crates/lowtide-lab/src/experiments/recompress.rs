//! Recompression of the pool's cold pages with zstd: its saving and its cost, with pages of real
//! programs.

use std::hint::black_box;

use lowtide_core::codec::{Codec, Workspace};
use lowtide_core::store::{Entry, Page, RECOMPRESS_LEVEL, ROUND_US, Scratch, Store, StoreConfig, StoreError, Stored};
use lowtide_core::vm::PAGE_SIZE;

use crate::experiment::{Experiment, Outcome, Scale};
use crate::measure;
use crate::programs::{CODE, PROGRAMS};
use crate::report::{Finding, Table, Target};

pub const EXPERIMENT: Experiment = Experiment {
    name: "recompress",
    question: "what does compressing cold pages again with zstd save, and what does it cost?",
    run,
};

const LEVELS: [i32; 8] = [-3, 1, 2, 3, 4, 6, 9, 15];
/// Largest new length that replaces a page, in sixteenths of the old one.
const THRESHOLDS: [usize; 4] = [16, 15, 14, 12];

fn run(scale: &Scale) -> Result<Outcome, String> {
    let most = scale.pick(3_000, 12_000);
    let mut programs: Vec<(&str, Vec<Page>)> = Vec::new();
    for (name, read) in PROGRAMS.into_iter().chain([CODE]) {
        match read(most) {
            // Zero pages never come to the pool.
            Ok(pages) => programs.push((name, pages.into_iter().filter(|p| p.iter().any(|b| *b != 0)).collect())),
            Err(why) => eprintln!("lowtide-lab: recompress: {name} is left out: {why}"),
        }
    }
    programs.retain(|(_, pages)| !pages.is_empty());
    if programs.is_empty() {
        return Err("no program's memory could be read".into());
    }
    let mut outcome = Outcome::default();
    let columns = [
        "memory",
        "pages",
        "page/object LZ4",
        "recompressed",
        "replaced %",
        "pool MiB",
        "then",
        "ns/page",
        "load ns LZ4",
        "zstd",
    ];
    let mut table = Table::new(format!("the store, zstd level {RECOMPRESS_LEVEL}"), &columns);
    let (mut before, mut after) = (0, 0);
    for (name, pages) in &programs {
        let s = in_store(pages)?;
        before += s.pool_bytes[0];
        after += s.pool_bytes[1];
        let mib = |bytes: usize| format!("{:.2}", bytes as f64 / (1 << 20) as f64);
        table.row([
            (*name).to_owned(),
            s.pages.to_string(),
            format!("{:.2}", s.ratio[0]),
            format!("{:.2}", s.ratio[1]),
            format!("{:.1}", s.replaced * 100.0),
            mib(s.pool_bytes[0]),
            mib(s.pool_bytes[1]),
            format!("{:.0}", s.recompress_ns),
            format!("{:.0}", s.load_ns[0]),
            format!("{:.0}", s.load_ns[1]),
        ]);
    }
    outcome.tables.push(table);
    let all: Vec<Page> = programs.into_iter().flat_map(|(_, pages)| pages).collect();
    outcome.tables.push(levels(&all)?);
    let left = after as f64 / before as f64;
    let told = format!("{:.1} MiB of {:.1} MiB", after as f64 / (1 << 20) as f64, before as f64 / (1 << 20) as f64);
    outcome.findings.push(Finding::new("pool after / before, all programs", told, left).target(Target::AtMost(0.9)));
    Ok(outcome)
}

struct InStore {
    pages: usize,
    /// Bytes of pages to bytes of objects, before and after.
    ratio: [f64; 2],
    replaced: f64,
    pool_bytes: [usize; 2],
    recompress_ns: f64,
    load_ns: [f64; 2],
}

fn scratch() -> Result<Scratch, String> {
    Scratch::new().map_err(|e| format!("no buffers: {e:?}"))
}

/// Stores the pages, lets them get cold, and loads them before and after.
fn in_store(pages: &[Page]) -> Result<InStore, String> {
    let cfg = StoreConfig { pool_limit: 1 << 30, accept_percent: 90, codec: Codec::Lz4 };
    let store = Store::new(cfg).map_err(|e| format!("no store: {e:?}"))?;
    let mut scratch = scratch()?;
    let mut stored = vec![Err(StoreError::Full); pages.len()];
    let refs: Vec<&Page> = pages.iter().collect();
    store.store_run(&refs, &[], &mut stored, &mut scratch);
    let entries: Vec<Entry> =
        stored.iter().filter_map(|r| if let Ok(Stored::Entry(e)) = r { Some(*e) } else { None }).collect();
    if entries.len() < pages.len() {
        return Err("a page was not stored".into());
    }
    let n = pages.len() as f64;
    let load = |scratch: &mut Scratch| {
        let mut into = [0; PAGE_SIZE];
        let (wrong, ns) = measure::cpu_ns(|| {
            let wrong =
                |(e, page): &(&Entry, &Page)| store.load(**e, &mut into, scratch).is_err() || *black_box(&into) != **page;
            entries.iter().zip(pages).filter(wrong).count()
        });
        if wrong == 0 { Ok(ns / n) } else { Err(format!("{wrong} pages came back wrong")) }
    };
    let figures = || {
        let stats = store.stats();
        ((pages.len() * PAGE_SIZE) as f64 / stats.pool_stored_bytes as f64, stats.pool_bytes)
    };
    let (ratio, bytes) = figures();
    load(&mut scratch)?;
    let load_lz4 = load(&mut scratch)?;
    let (mut now_us, mut recompress_ns) = (0, 0.0);
    // The first round finds every page used.
    for _ in 0..2 {
        now_us += ROUND_US;
        let ((), ns) = measure::cpu_ns(|| while store.recompress(64, now_us, &mut scratch).looked > 0 {});
        recompress_ns = ns;
    }
    while store.compact(256) {}
    let (ratio_after, bytes_after) = figures();
    load(&mut scratch)?;
    Ok(InStore {
        pages: pages.len(),
        ratio: [ratio, ratio_after],
        replaced: store.stats().recompressed as f64 / n,
        pool_bytes: [bytes, bytes_after],
        recompress_ns: recompress_ns / n,
        load_ns: [load_lz4, load(&mut scratch)?],
    })
}

/// Each level's saving of LZ4's bytes, for each threshold, and its time.
fn levels(pages: &[Page]) -> Result<Table, String> {
    let mut workspace = Workspace::new().map_err(|e| format!("no buffers: {e:?}"))?;
    let lz4: Vec<usize> = pages.iter().map(|page| Codec::Lz4.compress(page, &mut workspace).unwrap_or(PAGE_SIZE)).collect();
    let whole: usize = lz4.iter().sum();
    let columns =
        ["zstd level", "compress ns", "decompress ns", "saved %", "if 1/16 each", "1/8 (lowtide)", "1/4", "replaced % at 1/8"];
    let mut table =
        Table::new("levels: all pages, bytes saved of LZ4's if pages are replaced that get smaller by so much", &columns);
    for level in LEVELS {
        let codec = Codec::Zstd(level);
        let lengths = |workspace: &mut Workspace| -> Vec<usize> {
            pages.iter().map(|page| codec.compress(page, workspace).unwrap_or(PAGE_SIZE)).collect()
        };
        lengths(&mut workspace);
        let (zstd, compress) = measure::cpu_ns(|| lengths(&mut workspace));
        // Each page once: one or few objects again and again would stay in the cache.
        let mut decompress = 0.0;
        let mut into = [0; PAGE_SIZE];
        for page in pages.iter().step_by(16) {
            if let Some(len) = codec.compress(page, &mut workspace) {
                decompress += measure::cpu_ns(|| codec.decompress(&mut workspace, len, black_box(&mut into))).1;
            }
        }
        let saved = |sixteenths: usize| {
            let saved = |(old, new): (&usize, &usize)| if *new <= old / 16 * sixteenths { old - new.min(old) } else { 0 };
            lz4.iter().zip(&zstd).map(saved).sum::<usize>() as f64 * 100.0 / whole as f64
        };
        let replaced = lz4.iter().zip(&zstd).filter(|(old, new)| **new <= **old / 16 * 14).count() as f64 * 100.0;
        let n = pages.len() as f64;
        let cells = [level.to_string(), format!("{:.0}", compress / n), format!("{:.0}", decompress / (n / 16.0))];
        let cells = cells.into_iter().chain(THRESHOLDS.map(|t| format!("{:.1}", saved(t))));
        table.row(cells.chain([format!("{:.1}", replaced / n)]));
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_few_letters_get_smaller_and_noise_does_not() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut page = |letters: u8| core::array::from_fn(|_| random.u8(..letters));
        let pages: Vec<Page> = (0..64).map(|i| page(if i % 2 == 0 { 16 } else { 255 })).collect();
        let figures = in_store(&pages).unwrap();
        assert_eq!((figures.pages, figures.replaced), (64, 0.5));
        assert!(figures.ratio[0] == 1.0 && figures.ratio[1] > 1.3 && figures.pool_bytes[1] < figures.pool_bytes[0]);
    }
}
