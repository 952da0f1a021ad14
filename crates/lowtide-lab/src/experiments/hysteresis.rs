//! A load at the pool's limit: changes of the pool between full and not full, with and without
//! hysteresis.

use lowtide_core::codec::Codec;
use lowtide_core::store::{Page, Scratch, Store, StoreConfig, StoreError, Stored};
use lowtide_core::vm::PAGE_SIZE;

use crate::experiment::{Experiment, Outcome, Scale};
use crate::measure::{self, Sample};
use crate::report::{Finding, Table, Target};

pub const EXPERIMENT: Experiment = Experiment {
    name: "hysteresis",
    question: "how often does a pool at its limit change between full and not full, and what does it refuse?",
    run,
};

/// Percent of the limit below which a full pool accepts again.
const ACCEPT: [u32; 2] = [90, 100];
/// Compressed bytes of the live pages in percent of the pool's limit: more than fits.
const DEMAND: usize = 110;
/// Mean compressed size of [`page`].
const OBJECT: usize = 2100;

#[derive(Default)]
struct Counted {
    changes: f64,
    refused: f64,
    changes_per_second: Sample,
    ns: Sample,
}

fn run(scale: &Scale) -> Result<Outcome, String> {
    let limit = scale.pick(8usize, 32) << 20;
    let stores = scale.pick(20_000, 200_000);
    let mut counted: [Counted; 2] = Default::default();
    measure::in_turn(&ACCEPT, scale.pick(3, 7), |i, accept| {
        let sums = at_the_limit(limit, *accept, stores)?;
        let c = &mut counted[i];
        // The load is the same in each round, so are the counts.
        c.changes = sums.changes as f64 * 1000.0 / stores as f64;
        c.refused = sums.refused as f64 / stores as f64;
        c.changes_per_second.add(sums.changes as f64 * 1e9 / sums.ns);
        c.ns.add(sums.ns / stores as f64);
        Ok::<(), String>(())
    })?;
    let mut outcome = Outcome::default();
    let columns = ["accepts again below", "changes per 1000 stores", "changes per second", "refused %", "ns for a store"];
    let mut table =
        Table::new(format!("live pages that compress to {DEMAND} % of the limit; one is replaced at a time"), &columns);
    for (accept, c) in ACCEPT.into_iter().zip(&counted) {
        table.row([
            format!("{accept} % of the limit"),
            format!("{:.3}", c.changes),
            format!("{:.0}", c.changes_per_second.median()),
            format!("{:.2}", c.refused * 100.0),
            format!("{:.0}", c.ns.median()),
        ]);
    }
    outcome.tables.push(table);
    let [with, without] = &counted;
    let ours = format!("{:.3} against {:.3} per 1000 stores", with.changes, without.changes);
    outcome.findings.push(
        Finding::new("changes between full and not full, 90 % / 100 %", ours, with.changes / without.changes)
            .target(Target::AtMost(0.1)),
    );
    let ours = format!("{:.2} % against {:.2} %", with.refused * 100.0, without.refused * 100.0);
    outcome.findings.push(Finding::new("stores refused, 90 % / 100 %", ours, with.refused / without.refused));
    Ok(outcome)
}

struct Sums {
    changes: usize,
    refused: usize,
    ns: f64,
}

/// Replaces random live pages by new ones. Refused pages are live as well: they would be on the
/// device, without room in the pool.
fn at_the_limit(limit: usize, accept_percent: u32, stores: usize) -> Result<Sums, String> {
    let cfg = StoreConfig { pool_limit: limit, accept_percent, codec: Codec::Lz4 };
    let store = Store::new(cfg).map_err(|e| format!("no store: {e:?}"))?;
    let mut scratch = Scratch::new().map_err(|e| format!("no buffers: {e:?}"))?;
    let mut random = fastrand::Rng::with_seed(9);
    let some: Vec<Page> = (0..256).map(|_| page(&mut random)).collect();
    let mut put = |random: &mut fastrand::Rng| {
        let mut out = [Err(StoreError::Full)];
        store.store_run(&[&some[random.usize(..some.len())]], &[], &mut out, &mut scratch);
        match out[0] {
            Ok(Stored::Entry(e)) => Ok(Some(e)),
            Err(StoreError::Full) => Ok(None),
            other => Err(format!("a page can't be stored: {other:?}")),
        }
    };
    let mut live = Vec::new();
    for _ in 0..limit * DEMAND / 100 / OBJECT {
        live.push(put(&mut random)?);
    }
    let mut was_full = false;
    let (counted, ns) = measure::cpu_ns(|| {
        let (mut changes, mut refused) = (0, 0);
        for _ in 0..stores {
            let at = random.usize(..live.len());
            if let Some(e) = live[at].take() {
                store.free(e);
            }
            live[at] = put(&mut random)?;
            let full = live[at].is_none();
            changes += usize::from(full != was_full);
            refused += usize::from(full);
            was_full = full;
        }
        Ok::<_, String>((changes, refused))
    });
    let (changes, refused) = counted?;
    Ok(Sums { changes, refused, ns })
}

/// LZ4 compresses it to between 900 and 3300 bytes.
fn page(random: &mut fastrand::Rng) -> Page {
    let mut page = [0x5a; PAGE_SIZE];
    let noise = random.usize(PAGE_SIZE / 5..PAGE_SIZE / 5 * 4);
    random.fill(&mut page[..noise]);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_hysteresis_the_pool_changes_rarely_and_still_takes_most_pages() {
        let [with, without] = ACCEPT.map(|accept| at_the_limit(1 << 20, accept, 3000).unwrap());
        assert!(with.changes > 0 && with.changes * 5 < without.changes, "{} {}", with.changes, without.changes);
        assert!(with.refused > 0 && with.refused < 1500, "{}", with.refused);
    }
}
