//! T6, continued: pages that repeat one nonzero word. lowtide compresses them like others and keeps
//! no state for them, as the kernel did until 2024. What does that cost, beside zeros, and what
//! does a check for both cost all other pages?
//!
//! Published (the discussion of zero pages in zswap, 2024): LZ4 compresses a same-filled page to 32
//! bytes.

use std::hint::black_box;

use lowtide_core::codec::{Codec, Workspace};
use lowtide_core::fill::repeated_word;
use lowtide_core::store::Page;
use lowtide_core::vm::PAGE_SIZE;

use crate::experiment::{Experiment, Outcome, Scale};
use crate::kept::{Kept, RUN};
use crate::measure::{self, Sample};
use crate::programs::PROGRAMS;
use crate::report::{Finding, Table, Target};

pub const EXPERIMENT: Experiment = Experiment {
    name: "same-filled",
    question: "what are same-filled pages that are not zero to LZ4 and zstd, and what does looking for them cost others?",
    run,
};

const CODECS: [(&str, Codec); 2] = [("LZ4", Codec::Lz4), ("zstd", Codec::Zstd(3))];
/// Percent of the pages that are same-filled.
const SHARES: [f64; 4] = [0.0, 1.5, 10.0, 50.0];
const WORDS: [(&str, u64); 2] = [("zero", 0), ("same-filled", 0x6b6b_6b6b_6b6b_6b6b)];
/// The check's largest share of a store.
const MOST: f64 = 0.01;

fn run(scale: &Scale) -> Result<Outcome, String> {
    let mut outcome = Outcome::default();
    sizes(&mut outcome)?;
    mixtures(scale, &mut outcome)?;
    check(scale, &mut outcome)?;
    Ok(outcome)
}

fn filled(word: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    page.chunks_exact_mut(8).for_each(|bytes| bytes.copy_from_slice(&word.to_ne_bytes()));
    page
}

/// A page that compresses to about a half.
fn neither(random: &mut fastrand::Rng) -> Page {
    let mut page = [0; PAGE_SIZE];
    page.chunks_exact_mut(16).for_each(|part| random.fill(&mut part[..8]));
    page
}

/// Each codec's size of repeated words: one byte, and eight different ones.
fn sizes(outcome: &mut Outcome) -> Result<(), String> {
    let mut table = Table::new("bytes of a compressed page", &["page repeats", "LZ4", "zstd"]);
    let mut workspace = Workspace::new().map_err(|e| format!("no buffers: {e:?}"))?;
    let mut most = [0usize; CODECS.len()];
    for (what, word) in [("zero", 0), ("one byte", 0xffff_ffff_ffff_ffff), ("eight bytes", 0x0102_0304_0506_0708u64)] {
        let mut row = vec![what.to_owned()];
        for ((_, codec), most) in CODECS.into_iter().zip(&mut most) {
            let bytes = codec.compress(&filled(word), &mut workspace).unwrap_or(PAGE_SIZE);
            *most = bytes.max(*most);
            row.push(bytes.to_string());
        }
        table.row(row);
    }
    outcome.tables.push(table);
    for ((name, _), most) in CODECS.into_iter().zip(most) {
        outcome.findings.push(
            Finding::new(format!("bytes of a same-filled page through {name}"), format!("{most} at most"), most as f64)
                .published("32 bytes, compressor not said")
                .reproduced_if(Target::AtMost(33.0)),
        );
    }
    Ok(())
}

/// This many percent of the pages repeat `word`, in random order; the others repeat nothing.
fn pages(n: usize, percent: f64, word: u64) -> Vec<Page> {
    let mut random = fastrand::Rng::with_seed(6);
    let filled_ones = (n as f64 * percent / 100.0).round() as usize;
    let mut pages: Vec<Page> = (0..n).map(|i| if i < filled_ones { filled(word) } else { neither(&mut random) }).collect();
    random.shuffle(&mut pages);
    pages
}

/// Nanoseconds for a page and bytes in the pool, by codec, word and share.
fn mixtures(scale: &Scale, outcome: &mut Outcome) -> Result<(), String> {
    let (n, rounds) = (scale.pick(2048, 8192), scale.pick(5, 15));
    let mut into = [0; PAGE_SIZE];
    for (codec_name, codec) in CODECS {
        let title = format!("{codec_name}: pages of which so many are filled with one word, the others to a half");
        let mut table =
            Table::new(title, &["filled with", "%", "store ns/page", "+-", "load ns/page", "+-", "pool bytes/page"]);
        let cells: Vec<(usize, f64)> = (0..WORDS.len()).flat_map(|w| SHARES.map(|share| (w, share))).collect();
        let loads: Vec<Vec<Page>> = cells.iter().map(|(w, share)| pages(n, *share, WORDS[*w].1)).collect();
        let mut stores = Vec::new();
        for pages in &loads {
            let mut kept = Kept::new(codec)?;
            // Once unmeasured: takes the kernel's page faults.
            kept.store(&pages.iter().collect::<Vec<_>>())?;
            kept.free();
            stores.push(kept);
        }
        let mut samples: Vec<[Sample; 2]> = cells.iter().map(|_| Default::default()).collect();
        let mut bytes = vec![0.0; cells.len()];
        measure::in_turn(&cells, rounds, |i, _| {
            let refs: Vec<&Page> = loads[i].iter().collect();
            let (stored, store) = measure::cpu_ns(|| stores[i].store(&refs));
            stored?;
            let (loaded, load) = measure::cpu_ns(|| stores[i].load(&mut into));
            loaded?;
            bytes[i] = stores[i].store.stats().pool_stored_bytes as f64 / n as f64;
            samples[i][0].add(store / n as f64);
            samples[i][1].add(load / n as f64);
            stores[i].free();
            Ok::<(), String>(())
        })?;
        for (i, (w, share)) in cells.iter().enumerate() {
            let [store, load] = &samples[i];
            table.row([
                WORDS[*w].0.to_owned(),
                format!("{share}"),
                format!("{:.0}", store.median()),
                format!("{:.0} %", store.spread() * 100.0),
                format!("{:.0}", load.median()),
                format!("{:.0} %", load.spread() * 100.0),
                format!("{:.1}", bytes[i]),
            ]);
        }
        outcome.tables.push(table);
        for share in &SHARES[1..] {
            let at = |w: usize| cells.iter().position(|cell| *cell == (w, *share)).unwrap_or(0);
            for (op, doing) in ["storing", "loading"].into_iter().enumerate() {
                let (by_state, by_codec) = (&samples[at(0)][op], &samples[at(1)][op]);
                outcome.findings.push(compared(codec_name, codec, *share, doing, by_codec, by_state));
            }
        }
    }
    Ok(())
}

/// Compressed same-filled pages against as many with only a state. Published are both: the gain of
/// a state of their own (2017), and the cost of dropping it for nonzero ones (2024).
fn compared(name: &str, codec: Codec, share: f64, doing: &str, by_codec: &Sample, by_state: &Sample) -> Finding {
    let told = format!("{:.0} ns -> {:.0} ns a page", by_codec.median(), by_state.median());
    let faster = by_state.over(by_codec);
    let what = format!("{name}: {doing}, {share} % of the pages filled: compressed -> a state");
    let finding = Finding::new(what, told, faster.median()).spread(faster.spread());
    const FAST: &str = "a filled page is the fastest of all to compress";
    match (codec, share, doing) {
        (Codec::Lz4, 1.5, "storing") => {
            finding.published("1.5 % zero: system time -0.7 %").reproduced_if(Target::AtMost(0.993))
        }
        (Codec::Lz4, 10.0, "storing") => finding.published("-19 % to -32 %").reproduced_if(Target::AtMost(0.81)),
        (Codec::Lz4, 10.0, "loading") => finding.published("-49 % to -85 %").reproduced_if(Target::AtMost(0.51)),
        // Without the state the nonzero ones are compressed again.
        (Codec::Zstd(_), 1.5, "storing") => {
            let removed = by_codec.over(by_state);
            let told = format!("{:.0} ns -> {:.0} ns a page", by_state.median(), by_codec.median());
            let what = format!("{name}: storing, {share} % filled: a state -> compressed");
            let finding = Finding::new(what, told, removed.median()).spread(removed.spread());
            finding.published("removed: +1 % and +2 % net").reproduced_if(Target::AtMost(1.02))
        }
        _ => finding,
    }
    .because(FAST)
}

/// Sets of up to `most` pages that are neither zero nor same-filled, with their names; those of
/// programs first.
fn neithers(most: usize) -> Result<Vec<(String, Vec<Page>)>, String> {
    let mut sets: Vec<(String, Vec<Page>)> = Vec::new();
    let mut all = Vec::new();
    for (name, read) in PROGRAMS {
        match read(most) {
            Ok(pages) => all.extend(pages.into_iter().filter(|page| repeated_word(page).is_none())),
            Err(why) => eprintln!("lowtide-lab: same-filled: {name} is left out: {why}"),
        }
    }
    if all.is_empty() {
        return Err("no program's memory could be read".into());
    }
    fastrand::Rng::with_seed(6).shuffle(&mut all);
    all.truncate(most);
    sets.push(("of programs".to_owned(), all));
    let mut random = fastrand::Rng::with_seed(7);
    sets.push(("to a half".to_owned(), (0..most).map(|_| neither(&mut random)).collect()));
    let nearly = |at: fn(&mut fastrand::Rng) -> usize| {
        let mut random = fastrand::Rng::with_seed(8);
        let one = |_| {
            let mut page = filled(0);
            page[at(&mut random)] = 1;
            page
        };
        (0..most).map(one).collect::<Vec<Page>>()
    };
    sets.push(("zero but for one byte anywhere".to_owned(), nearly(|random| random.usize(..PAGE_SIZE))));
    Ok(sets)
}

/// The check's cost for other pages: of programs, and made ones that look same-filled for long.
fn check(scale: &Scale, outcome: &mut Outcome) -> Result<(), String> {
    let (most, rounds) = (scale.pick(1000, 4000), scale.pick(7, 21));
    let sets = neithers(most)?;
    let columns = ["pages that are neither", "check ns/page", "+-", "store ns/page (LZ4)", "+-", "check / store"];
    let mut table = Table::new("what the check costs, on the pages of a run that the store has just been through", &columns);
    let mut samples: Vec<[Sample; 2]> = sets.iter().map(|_| Default::default()).collect();
    let mut kept = Kept::new(Codec::Lz4)?;
    measure::in_turn(&sets, rounds, |i, (_, pages)| {
        let refs: Vec<&Page> = pages.iter().collect();
        // The store reads a page from memory anyway, and only once: so the check is measured on
        // cached pages.
        let (mut store, mut check) = (0.0, 0.0);
        for run in refs.chunks(RUN / 4) {
            let (stored, spent) = measure::cpu_ns(|| kept.store(run));
            stored?;
            store += spent;
            let looks = || {
                for page in run {
                    black_box(repeated_word(black_box(page)));
                }
            };
            check += measure::cpu_ns(looks).1;
            kept.free();
        }
        // Both include the two readings of the clock.
        samples[i][0].add(check / pages.len() as f64);
        samples[i][1].add(store / pages.len() as f64);
        Ok::<(), String>(())
    })?;
    for (i, (name, _)) in sets.iter().enumerate() {
        let [check, store] = &samples[i];
        let share = check.over(store);
        table.row([
            name.clone(),
            format!("{:.1}", check.median()),
            format!("{:.0} %", check.spread() * 100.0),
            format!("{:.0}", store.median()),
            format!("{:.0} %", store.spread() * 100.0),
            format!("{:.2} %", share.median() * 100.0),
        ]);
        let ours = format!("{:.1} of {:.0} ns", check.median(), store.median());
        let finding = Finding::new(format!("check over store, pages {name}"), ours, share.median()).spread(share.spread());
        outcome.findings.push(if i == 0 { finding.target(Target::AtMost(MOST)) } else { finding });
    }
    outcome.tables.push(table);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_filled_pages_come_back_and_take_little_and_zeros_nothing() {
        for (name, codec) in CODECS {
            for (what, word) in WORDS {
                let mut kept = Kept::new(codec).unwrap();
                let page = filled(word);
                kept.store(&vec![&page; 64]).unwrap();
                let mut into = [0x5a; PAGE_SIZE];
                kept.load(&mut into).unwrap();
                assert!(into == page, "{name} {what}");
                let each = kept.store.stats().pool_stored_bytes / 64;
                assert!(if word == 0 { each == 0 } else { (1..=40).contains(&each) }, "{name} {what}: {each}");
                kept.free();
            }
        }
    }

    #[test]
    fn a_mixture_has_its_share() {
        let made = pages(1000, 1.5, WORDS[1].1);
        assert_eq!(made.iter().filter(|page| repeated_word(page) == Some(WORDS[1].1)).count(), 15);
        assert!(pages(1000, 0.0, 7).iter().all(|page| repeated_word(page).is_none()));
    }
}
