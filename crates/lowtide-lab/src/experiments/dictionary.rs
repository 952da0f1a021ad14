//! Would a dictionary make the pool denser? LZ4 finds matches only within a page; a dictionary of
//! this program's typical pages adds some.
//!
//! Published (zram and zswap with dictionaries, Linux-mm, 2024): LZ4 664 -> 620 of 1750 MB, at no
//! cost per page, as the dictionary's table is made once and attached to.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};

use lowtide_core::codec::{Codec, MAX_COMPRESSED, Workspace};
use lowtide_core::store::Page;
use lowtide_core::vm::PAGE_SIZE;
// For its link attributes.
use lz4_sys as _;

use crate::experiment::{Experiment, Outcome, Scale};
use crate::measure::{self, Sample};
use crate::programs::PROGRAMS;
use crate::report::{Finding, Table, Target};

pub const EXPERIMENT: Experiment = Experiment {
    name: "dictionary",
    question: "how much denser would LZ4 be with a dictionary of the run's first pages, and what would it cost a page?",
    run,
};

// As in lz4.h.
unsafe extern "C" {
    fn LZ4_createStream() -> *mut c_void;
    fn LZ4_freeStream(stream: *mut c_void) -> c_int;
    fn LZ4_resetStream_fast(stream: *mut c_void);
    fn LZ4_loadDict(stream: *mut c_void, dictionary: *const c_char, len: c_int) -> c_int;
    fn LZ4_attach_dictionary(stream: *mut c_void, dictionary: *const c_void);
    fn LZ4_compress_fast_continue(
        stream: *mut c_void,
        from: *const c_char,
        to: *mut c_char,
        len: c_int,
        room: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe_usingDict(
        from: *const c_char,
        to: *mut c_char,
        len: c_int,
        room: c_int,
        dictionary: *const c_char,
        dictionary_len: c_int,
    ) -> c_int;
}

/// Pages that train a dictionary: the first ones that leave.
const FIRST: usize = 256;
const LENGTHS: [usize; 3] = [4 << 10, 16 << 10, 60 << 10];
const PIECE: usize = 64;

fn run(scale: &Scale) -> Result<Outcome, String> {
    let (pages, rounds) = scale.pick((3_000, 3), (12_000, 9));
    let columns = ["memory", "pages", "none", "4 KiB", "16 KiB", "60 KiB", "zeros: 16 KiB"];
    let mut sizes = Table::new("bytes of a page as it is stored (4096: not worth it), by dictionary", &columns);
    let mut times = Table::new("ns of CPU a page, compressing / decompressing, by dictionary", &columns);
    let (mut all, mut cost) = ([0.0; 5], Sample::default());
    for (name, read) in PROGRAMS {
        let pages: Vec<Page> = match read(pages) {
            Ok(pages) => pages.into_iter().filter(|page| page.iter().any(|byte| *byte != 0)).collect(),
            Err(why) => {
                eprintln!("lowtide-lab: dictionary: {name} is left out: {why}");
                continue;
            }
        };
        // The pages that leave first are neighbours in memory; so are these.
        let (first, pages) = pages.split_at(FIRST.min(pages.len() / 4));
        let dictionaries = [Vec::new()].into_iter().chain(LENGTHS.map(|len| trained(first, len))).chain([vec![0; LENGTHS[1]]]);
        let mut all_ways = dictionaries.map(Way::new).collect::<Result<Vec<Way>, String>>()?;
        let mut timed = vec![[Sample::default(), Sample::default()]; all_ways.len()];
        measure::in_turn(&[0, 1, 2, 3, 4], rounds, |i, _| {
            let (compressed, ns) = all_ways[i].compress(pages);
            timed[i][0].add(ns);
            timed[i][1].add(all_ways[i].decompress(pages, &compressed)?);
            all_ways[i].bytes = compressed.iter().map(|page| page.as_ref().map_or(PAGE_SIZE, Vec::len)).sum();
            Ok::<(), String>(())
        })?;
        let row = || [name.to_owned(), pages.len().to_string()].into_iter();
        sizes.row(row().chain(all_ways.iter().map(|way| format!("{:.0}", way.bytes as f64 / pages.len() as f64))));
        times.row(row().chain(timed.iter().map(|[c, d]| format!("{:.0} / {:.0}", c.median(), d.median()))));
        // Each program counts alike.
        all_ways.iter().zip(&mut all).for_each(|(way, all)| *all += way.bytes as f64 / pages.len() as f64);
        cost.add(timed[2][0].plus(&timed[2][1]).over(&timed[0][0].plus(&timed[0][1])).median());
    }
    let mut outcome = Outcome { tables: vec![sizes, times], ..Outcome::default() };
    for (i, len) in LENGTHS.iter().enumerate() {
        let told = format!("{:.0} of {:.0} bytes a page", all[i + 1], all[0]);
        let finding =
            Finding::new(format!("with a dictionary of {} KiB / without, all programs", len >> 10), told, all[i + 1] / all[0]);
        let published = finding.clone().published("LZ4: 664 -> 620 of 1750 MB").reproduced_if(Target::AtMost(620.0 / 664.0));
        let published = published.because("the pages of sort and numpy grow, those of the others shrink by 1 %");
        outcome.findings.push(if i == 1 { published } else { finding });
    }
    let told = "compressing and decompressing a page, 16 KiB, the median of the programs";
    outcome.findings.push(Finding::new("time with / without", told, cost.median()));
    Ok(outcome)
}

/// The pieces whose eight-byte words most other pages share, the best ones last, where LZ4 reaches
/// them first: the COVER trainer's choice (Liao, Petri, Moffat and Wirth, 2016).
fn trained(pages: &[Page], len: usize) -> Vec<u8> {
    let words = |piece: &[u8]| -> Vec<u64> {
        piece.windows(8).step_by(4).map(|w| u64::from_le_bytes(w.try_into().unwrap_or_default())).collect()
    };
    let mut often: HashMap<u64, u32> = HashMap::new();
    for page in pages {
        let mut here = words(page);
        here.sort_unstable();
        here.dedup();
        here.into_iter().for_each(|word| *often.entry(word).or_default() += 1);
    }
    // A word of one page helps no other.
    often.retain(|word, n| *n > 1 && *word != 0);
    let mut pieces: Vec<&[u8]> = pages.iter().flat_map(|page| page.chunks_exact(PIECE)).collect();
    let mut chosen = Vec::new();
    let worth = |often: &HashMap<u64, u32>, piece: &[u8]| -> u64 {
        words(piece).iter().filter_map(|word| often.get(word)).map(|n| u64::from(*n)).sum()
    };
    while chosen.len() * PIECE < len && !pieces.is_empty() && !often.is_empty() {
        // Many at a time: choosing one by one takes minutes.
        pieces.sort_by_cached_key(|piece| std::cmp::Reverse(worth(&often, piece)));
        let at_a_time = (len / PIECE / 16).max(1).min(pieces.len());
        for piece in pieces.drain(..at_a_time) {
            // Worth less if earlier pieces have the same words.
            if worth(&often, piece) > 0 {
                chosen.push(piece);
                words(piece).iter().for_each(|word| _ = often.remove(word));
            }
        }
    }
    chosen.truncate(len / PIECE);
    chosen.into_iter().rev().flatten().copied().collect()
}

/// Compression with this dictionary, or, if that is empty, lowtide's own.
struct Way {
    dictionary: Vec<u8>,
    workspace: Workspace,
    stream: *mut c_void,
    attached: *mut c_void,
    bytes: usize,
}

impl Way {
    fn new(dictionary: Vec<u8>) -> Result<Way, String> {
        let workspace = Workspace::new().map_err(|e| format!("no buffers: {e:?}"))?;
        // SAFETY: two streams of the library's own; the dictionary stays in place as long as they
        // live.
        let (stream, attached) = unsafe {
            let attached = LZ4_createStream();
            LZ4_loadDict(attached, dictionary.as_ptr().cast(), dictionary.len() as c_int);
            (LZ4_createStream(), attached)
        };
        Ok(Way { dictionary, workspace, stream, attached, bytes: 0 })
    }

    /// The compressed pages, and ns of CPU for each.
    fn compress(&mut self, pages: &[Page]) -> (Vec<Option<Vec<u8>>>, f64) {
        let (compressed, ns) = measure::cpu_ns(|| pages.iter().map(|page| self.compress_one(page)).collect());
        (compressed, ns / pages.len() as f64)
    }

    fn compress_one(&mut self, page: &Page) -> Option<Vec<u8>> {
        if self.dictionary.is_empty() {
            let n = Codec::Lz4.compress(page, &mut self.workspace)?;
            return Some(self.workspace.bytes[..n].to_vec());
        }
        let mut to = [0u8; PAGE_SIZE];
        let (from, into) = (page.as_ptr().cast(), to.as_mut_ptr().cast());
        let (len, room) = (PAGE_SIZE as c_int, MAX_COMPRESSED as c_int);
        // SAFETY: streams made above; source and destination have the given lengths.
        let n = unsafe {
            LZ4_resetStream_fast(self.stream);
            LZ4_attach_dictionary(self.stream, self.attached);
            LZ4_compress_fast_continue(self.stream, from, into, len, room, 1)
        };
        usize::try_from(n).ok().filter(|n| *n > 0).map(|n| to[..n].to_vec())
    }

    /// Nanoseconds of CPU for each page.
    fn decompress(&self, pages: &[Page], compressed: &[Option<Vec<u8>>]) -> Result<f64, String> {
        let stored: Vec<(&Page, &Vec<u8>)> =
            pages.iter().zip(compressed).filter_map(|(page, c)| Some((page, c.as_ref()?))).collect();
        let mut to = [0u8; PAGE_SIZE];
        let (wrong, ns) = measure::cpu_ns(|| {
            let wrong = |(page, bytes): &&(&Page, &Vec<u8>)| {
                // SAFETY: source, destination and dictionary have the given lengths; the function
                // is safe with any bytes.
                let n = unsafe {
                    LZ4_decompress_safe_usingDict(
                        bytes.as_ptr().cast(),
                        to.as_mut_ptr().cast(),
                        bytes.len() as c_int,
                        PAGE_SIZE as c_int,
                        self.dictionary.as_ptr().cast(),
                        self.dictionary.len() as c_int,
                    )
                };
                n != PAGE_SIZE as c_int || to != **page
            };
            stored.iter().filter(wrong).count()
        });
        if wrong == 0 { Ok(ns / stored.len().max(1) as f64) } else { Err(format!("{wrong} pages came back wrong")) }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and not used any more.
        unsafe {
            LZ4_freeStream(self.stream);
            LZ4_freeStream(self.attached);
        }
    }
}
