//! How dense could the pool be? The pages of the race's own loads, read from their memory while
//! they run: bytes and time of a page by filter and codec, and what a page's neighbour tells of its
//! best filter.

use std::hint::black_box;

use lowtide_core::codec::{Choice, Codec, Filter, Workspace};
use lowtide_core::fill::repeated_word;
use lowtide_core::store::Page;
use lowtide_core::vm::PAGE_SIZE;

use crate::experiment::{Experiment, Outcome, Scale};
use crate::measure;
use crate::race::{self, Site, Swap};
use crate::report::{Finding, Table, Target};

pub const EXPERIMENT: Experiment = Experiment {
    name: "density",
    question: "how many bytes does a page of the race's loads take, by filter and codec, and what does it cost?",
    run,
};

const COLD: Codec = Codec::Zstd(-1);

struct Sizes {
    /// Bytes of each page.
    bytes: Vec<usize>,
    compress_ns: f64,
    decompress_ns: f64,
}

fn sizes(codec: Codec, filter: Filter, pages: &[Page], workspace: &mut Workspace) -> Sizes {
    let mut lengths = || -> Vec<usize> {
        pages.iter().map(|page| codec.compress_filtered(filter, page, workspace).unwrap_or(PAGE_SIZE)).collect()
    };
    lengths();
    let (bytes, compress_ns) = measure::cpu_ns(lengths);
    let (mut into, mut decompress_ns, mut decompressed) = ([0; PAGE_SIZE], 0.0, 0.0);
    // Each page once: one or few objects again and again would stay in the cache.
    for page in pages.iter().step_by(8) {
        if let Some(len) = codec.compress_filtered(filter, page, workspace) {
            let f = || codec.decompress_filtered(filter, workspace, len, black_box(&mut into));
            let (is_right, ns) = measure::cpu_ns(f);
            assert!(is_right && into == *page, "{codec:?} {filter:?}: a page comes back wrong");
            (decompress_ns, decompressed) = (decompress_ns + ns, decompressed + 1.0);
        }
    }
    let n = pages.len() as f64;
    Sizes { bytes, compress_ns: compress_ns / n, decompress_ns: decompress_ns / f64::max(decompressed, 1.0) }
}

fn mean(bytes: impl Iterator<Item = usize>) -> f64 {
    let (sum, n) = bytes.fold((0, 0), |(sum, n), bytes| (sum + bytes, n + 1));
    sum as f64 / f64::from(n.max(1))
}

/// Bytes of a page as the store chooses filters, and the time by that of LZ4 alone.
fn chosen(lz4: &Sizes, pages: &[Page], workspace: &mut Workspace) -> (f64, f64) {
    let (mut choice, mut sum) = (Choice::default(), 0);
    let ((), ns) = measure::cpu_ns(|| {
        for page in pages {
            sum += Codec::Lz4.compress_best(page, &mut choice, workspace).map_or(PAGE_SIZE, |packed| packed.len);
        }
    });
    let pages = pages.len() as f64;
    (sum as f64 / pages, ns / pages / lz4.compress_ns)
}

fn run(scale: &Scale) -> Result<Outcome, String> {
    let most = scale.pick(2_000, 8_000);
    let mut workspace = Workspace::new().map_err(|e| format!("no buffers: {e:?}"))?;
    let columns = ["load", "pages", "LZ4", "raw %", "shuffled", "best", "raw %", "chosen", "zstd -1", "best"];
    let mut bytes = Table::new("bytes of a page (4096: not worth it)", &columns);
    let columns = ["load", "LZ4", "shuffled", "chosen / LZ4", "zstd -1", "shuffled", "decompress: LZ4", "shuffled", "zstd -1"];
    let mut times = Table::new("ns of CPU for a page: compress, decompress", &columns);
    let mut parts = Vec::new();
    let loads = race::chosen(&scale.race.only, Swap::Zram);
    race::missing(&loads).map_or(Ok(()), Err)?;
    scale.progress.more(loads.len());
    for load in loads {
        let name = load.name;
        scale.progress.doing(name);
        let directory = tempfile::tempdir_in(lowtide_config::place::auto_dir()).map_err(|e| format!("{name}: {e}"))?;
        let site = Site { directory: directory.path().to_owned(), quick: scale.quick };
        let pages = race::dump(load, &site, most).map_err(|e| format!("{name}: {e}"))?;
        scale.progress.done();
        let pages: Vec<Page> = pages.into_iter().filter(|page| repeated_word(page).is_none()).collect();
        let lz4 = Filter::ALL.map(|filter| sizes(Codec::Lz4, filter, &pages, &mut workspace));
        let cold = Filter::ALL.map(|filter| sizes(COLD, filter, &pages, &mut workspace));
        let best = |of: &[Sizes]| {
            (0..pages.len()).map(|i| of.iter().map(|s| s.bytes[i]).min().unwrap_or(PAGE_SIZE)).collect::<Vec<_>>()
        };
        let raw = |bytes: &[usize]| bytes.iter().filter(|b| **b == PAGE_SIZE).count() as f64 * 100.0 / pages.len() as f64;
        let of = |s: &Sizes| mean(s.bytes.iter().copied());
        let (best_lz4, best_cold) = (best(&lz4), mean(best(&cold).into_iter()));
        let (chosen, time) = chosen(&lz4[0], &pages, &mut workspace);
        let cells = [of(&lz4[0]), raw(&lz4[0].bytes), of(&lz4[1]), mean(best_lz4.iter().copied()), raw(&best_lz4)];
        let cells = cells.into_iter().chain([chosen]).chain([of(&cold[0]), best_cold]);
        bytes.row([name.to_owned(), pages.len().to_string()].into_iter().chain(cells.map(|c| format!("{c:.0}"))));
        let cells = [
            lz4[0].compress_ns,
            lz4[1].compress_ns,
            cold[0].compress_ns,
            cold[1].compress_ns,
            lz4[0].decompress_ns,
            lz4[1].decompress_ns,
            cold[0].decompress_ns,
        ];
        let mut cells = cells.map(|c| format!("{c:.0}")).to_vec();
        cells.insert(2, format!("{time:.2}"));
        times.row([name.to_owned()].into_iter().chain(cells));
        parts.push((of(&lz4[0]), chosen, best_cold));
    }
    if parts.is_empty() {
        return Err("no load's memory could be read".into());
    }
    let mut outcome = Outcome::default();
    outcome.tables.extend([bytes, times]);
    // Each load counts as much as any other.
    let share = |of: fn(&(f64, f64, f64)) -> f64| parts.iter().map(|p| of(p) / p.0).sum::<f64>() / parts.len() as f64;
    let mut find = |what: &str, share: f64, target: f64| {
        outcome.findings.push(Finding::new(what, format!("{share:.2}"), share).target(Target::AtMost(target)));
    };
    find("bytes with the filter that the store chooses / LZ4, mean of the loads", share(|p| p.1), 0.75);
    find("bytes by zstd -1 and the best filter / LZ4, mean of the loads", share(|p| p.2), 0.6);
    Ok(outcome)
}
