//! The compressed pool: the objects' share of its memory, and the cost of storing and loading one
//! without the codec.

use std::hint::black_box;

use lowtide_core::codec::{Codec, Workspace};
use lowtide_core::pool::{Handle, Pool, Relocated};
use lowtide_core::store::{Page, Scratch, Store, StoreConfig, StoreError, Stored};
use lowtide_core::vm::PAGE_SIZE;

use crate::experiment::{Experiment, Outcome, Scale};
use crate::measure::{self, Sample};
use crate::programs::{CODE, PROGRAMS};
use crate::report::{Finding, Table, Target};

pub const EXPERIMENT: Experiment = Experiment {
    name: "pool",
    question: "how dense is the compressed pool, before and after compaction, and what does it cost?",
    run,
};

type Objects = Vec<Vec<u8>>;

fn run(scale: &Scale) -> Result<Outcome, String> {
    let pages = scale.pick(3_000, 12_000);
    let mut kinds: Vec<(&str, Objects)> = Vec::new();
    let mut outcome = Outcome::default();
    let mut mixed = Objects::new();
    for (name, read) in PROGRAMS.into_iter().chain([CODE]) {
        match read(pages).and_then(|pages| compress(&pages)) {
            Ok(objects) if !objects.is_empty() => {
                mixed.extend(objects.iter().cloned());
                kinds.push((name, objects));
            }
            Ok(_) => eprintln!("lowtide-lab: pool: {name} is left out: no pages"),
            Err(why) => eprintln!("lowtide-lab: pool: {name} is left out: {why}"),
        }
    }
    if kinds.is_empty() {
        return Err("no program's memory could be read".into());
    }
    fastrand::Rng::with_seed(7).shuffle(&mut mixed);
    kinds.push(("all, mixed", mixed));
    let columns =
        ["memory", "objects", "page/object", "filled", "50 % freed", "compacted", "90 % freed", "compacted", "size classes"];
    let mut table = Table::new("density: bytes of objects / bytes of pool", &columns);
    let (mut filled, mut compacted) = (f64::INFINITY, f64::INFINITY);
    for (name, objects) in &kinds {
        let half = densities(objects, 50)?;
        let tenth = densities(objects, 90)?;
        filled = filled.min(half[0]);
        compacted = compacted.min(half[2]).min(tenth[2]);
        let bytes: usize = objects.iter().map(Vec::len).sum();
        let ratio = (objects.len() * PAGE_SIZE) as f64 / bytes as f64;
        let figures = [half[0], half[1], half[2], tenth[1], tenth[2], in_size_classes(objects)];
        let cells = [(*name).to_owned(), objects.len().to_string(), format!("{ratio:.2}")];
        table.row(cells.into_iter().chain(figures.map(|f| format!("{f:.3}"))));
    }
    outcome.tables.push(table);
    let few = scale.pick("a quick run has few pages, and the spans that are open weigh more", "");
    outcome.findings.push(
        Finding::new("density when filled, worst memory", format!("{filled:.3}"), filled)
            .target(Target::AtLeast(0.95))
            .known_miss(few),
    );
    let finding = Finding::new("density after frees and compaction, worst", format!("{compacted:.3}"), compacted);
    outcome.findings.push(finding.target(Target::AtLeast(0.85)).known_miss(few));
    outcome.findings.push(metadata(scale)?);
    if let Some((_, objects)) = kinds.last() {
        against_malloc(scale, objects, &mut outcome)?;
    }
    Ok(outcome)
}

/// Bytes beside the objects for a swapped page, in a full area: the pager's page map, the area's
/// and the pool's tables.
fn metadata(scale: &Scale) -> Result<Finding, String> {
    const PAGE_MAP: usize = 8;
    // Tables grow with the slots ever used, from a constant size: with fewer pages, each has a
    // larger part.
    let n: u64 = scale.pick(60_000, 240_000);
    let store = Store::new(StoreConfig { pool_limit: 1 << 30, accept_percent: 90, codec: Codec::Lz4 })
        .map_err(|e| format!("a store can't be made: {e:?}"))?;
    let mut scratch = Scratch::new().map_err(|e| format!("{e:?}"))?;
    for i in 0..n {
        let mut stored = [Err(StoreError::Full)];
        store.store_run(&[&text(i)], &[None], &mut stored, &mut scratch);
        if !matches!(stored, [Ok(Stored::Entry(_))]) {
            return Err(format!("a page was not stored: {stored:?}"));
        }
    }
    let bytes = PAGE_MAP as f64 + store.table_bytes() as f64 / n as f64;
    let finding =
        Finding::new("metadata for each swapped page", format!("{bytes:.2} bytes"), bytes).target(Target::AtMost(24.0));
    Ok(finding.known_miss(scale.pick("a quick run has few pages, and shares among them what is there from the start", "")))
}

/// Words and numbers, different for each `i`: compresses about three to one.
fn text(i: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    let mut rng = fastrand::Rng::with_seed(i);
    for field in page.chunks_mut(16) {
        field.copy_from_slice(format!("name={:<11}", rng.u32(..100_000)).as_bytes());
    }
    page
}

fn compress(pages: &[[u8; PAGE_SIZE]]) -> Result<Objects, String> {
    let mut workspace = Workspace::new().map_err(|e| format!("{e:?}"))?;
    let object = |page: &[u8; PAGE_SIZE]| match Codec::Lz4.compress(page, &mut workspace) {
        Some(len) => workspace.bytes[..len].to_vec(),
        None => page.to_vec(),
    };
    // Zero pages never come to the pool.
    Ok(pages.iter().filter(|page| page.iter().any(|b| *b != 0)).map(object).collect())
}

fn new_pool() -> Result<Pool, String> {
    Pool::new(1 << 30, 0, 90).map_err(|e| format!("a pool can't be made: {e}"))
}

fn fill(pool: &Pool, objects: &Objects) -> Result<Vec<Handle>, String> {
    objects.iter().map(|o| pool.insert(o).ok_or_else(|| "the pool is full".to_owned())).collect()
}

/// Object bytes by pool bytes: filled; after random frees of this many percent; and after
/// compaction.
fn densities(objects: &Objects, percent: usize) -> Result<[f64; 3], String> {
    let pool = new_pool()?;
    let mut handles = fill(&pool, objects)?;
    let density = || pool.stored_bytes() as f64 / pool.bytes() as f64;
    let filled = density();
    fastrand::Rng::with_seed(3).shuffle(&mut handles);
    for handle in handles.drain(..objects.len() * percent / 100) {
        pool.remove(handle).map_err(|_| "an object is gone")?;
    }
    let freed = density();
    let mut moved = true;
    while moved {
        moved = false;
        pool.isolate();
        for handle in &mut handles {
            let old = *handle;
            let swap = &mut |new| {
                *handle = new;
                true
            };
            moved |= pool.relocate(old, swap) == Relocated::Yes;
        }
        pool.let_go();
    }
    pool.validate().map_err(|broken| broken.0.to_owned())?;
    Ok([filled, freed, density()])
}

/// The density of size classes of 32 bytes with spans of up to 8 frames, each class with a partly
/// filled span: the pool's earlier design.
fn in_size_classes(objects: &Objects) -> f64 {
    const CLASS: usize = 32;
    let mut counts = vec![0usize; PAGE_SIZE / CLASS + 1];
    for object in objects {
        counts[object.len().div_ceil(CLASS)] += 1;
    }
    let held: usize = (1..counts.len())
        .map(|class| {
            let size = class * CLASS;
            let rest = |frames: &usize| (frames * PAGE_SIZE % size * 1000) / frames;
            let frames = (1..=8).filter(|frames| frames * PAGE_SIZE >= size).min_by_key(rest).unwrap_or(1);
            counts[class].div_ceil(frames * PAGE_SIZE / size) * frames * PAGE_SIZE
        })
        .sum();
    objects.iter().map(Vec::len).sum::<usize>() as f64 / held as f64
}

/// Stores, loads and frees all objects, in the pool and with an allocation for each.
fn against_malloc(scale: &Scale, objects: &Objects, outcome: &mut Outcome) -> Result<(), String> {
    let mut times: [[Sample; 3]; 2] = Default::default();
    let mut into = [0u8; PAGE_SIZE];
    let n = objects.len() as f64;
    measure::in_turn(&["pool", "mimalloc"], scale.pick(5, 15), |which, _| {
        let ns = if which == 0 {
            let pool = new_pool()?;
            let (handles, store) = measure::cpu_ns(|| fill(&pool, objects));
            let handles = handles?;
            let ((), load) = measure::cpu_ns(|| {
                for handle in &handles {
                    let _ = black_box(pool.read(*handle, &mut into));
                }
            });
            let ((), free) = measure::cpu_ns(|| {
                for handle in &handles {
                    let _ = black_box(pool.remove(*handle));
                }
            });
            [store, load, free]
        } else {
            malloc_each(objects, &mut into)
        };
        for (sample, ns) in times[which].iter_mut().zip(ns) {
            sample.add(ns / n);
        }
        Ok::<(), String>(())
    })?;
    let mut table = Table::new(
        "ns for an object, without the codec (fresh memory: the kernel's page faults are in it)",
        &["", "store", "load", "free"],
    );
    for (name, times) in ["pool", "malloc each (mimalloc)"].into_iter().zip(&times) {
        table.row([name.to_owned()].into_iter().chain(times.iter().map(|t| format!("{:.0}", t.median()))));
    }
    outcome.tables.push(table);
    let bytes: usize = objects.iter().map(Vec::len).sum();
    let pool = new_pool()?;
    fill(&pool, objects)?;
    let malloc: usize = objects.iter().map(|o| usable(o)).sum();
    let ratio = malloc as f64 / pool.bytes() as f64;
    let ours = format!("{:.3} against {:.3}", bytes as f64 / pool.bytes() as f64, bytes as f64 / malloc as f64);
    outcome.findings.push(Finding::new("density, pool against malloc-ing each", ours, ratio).target(Target::AtLeast(1.0)));
    Ok(())
}

/// Nanoseconds of allocating and copying, copying back, and freeing.
fn malloc_each(objects: &Objects, into: &mut [u8; PAGE_SIZE]) -> [f64; 3] {
    let allocate = |object: &Vec<u8>| {
        // SAFETY: the block is as long as the object copied to it, unless the allocation failed.
        unsafe {
            let block = libmimalloc_sys::mi_malloc(object.len()).cast::<u8>();
            assert!(!block.is_null(), "no memory");
            block.copy_from_nonoverlapping(object.as_ptr(), object.len());
            block
        }
    };
    let (blocks, store) = measure::cpu_ns(|| objects.iter().map(allocate).collect::<Vec<_>>());
    let ((), load) = measure::cpu_ns(|| {
        for (block, object) in blocks.iter().zip(objects) {
            // SAFETY: a block of that length; `into` is at least as long.
            unsafe { block.copy_to_nonoverlapping(into.as_mut_ptr(), object.len()) };
            black_box(&into);
        }
    });
    let ((), free) = measure::cpu_ns(|| {
        for block in blocks {
            // SAFETY: allocated above, and not used any more.
            unsafe { libmimalloc_sys::mi_free(block.cast()) };
        }
    });
    [store, load, free]
}

/// Bytes of an object's block: without the allocator's tables and partly used pages, so in its
/// favour.
fn usable(object: &[u8]) -> usize {
    // SAFETY: a pure function of a length.
    unsafe { libmimalloc_sys::mi_good_size(object.len()) }
}
