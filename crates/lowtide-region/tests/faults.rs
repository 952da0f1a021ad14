//! Each operation on the swap file, and each mapping, fails in turn, in a process of its own. Whatever fails: all bytes are
//! what they were, or a call says what is wrong, or the thread that needs a lost page gets SIGBUS and one line says why. Never
//! wrong data, and no hang.
//!
//! `LOWTIDE_FAULTS_ALL` lets every operation fail, else a sample of them does.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use lowtide_core::faults::{Fault, Faults, Op, install};
use lowtide_region::{Error, Region, Swap};

const MARK: &str = "LOWTIDE_TEST_FAULT";
/// Of the operations of a run, every so many fail where not all do.
const SAMPLE: u64 = 13;
/// The status of a child to which a call said what is wrong.
const REFUSED: i32 = 42;
const MIB: usize = 1 << 20;
const DIR: &str = env!("CARGO_TARGET_TMPDIR");

const OPS: [(&str, Op); 2] = [("device", Op::Device), ("map", Op::Map)];
const KINDS: [(&str, Fault); 10] = [
    ("io", Fault::Io),
    ("no-space", Fault::NoSpace),
    ("gone", Fault::Gone),
    ("again", Fault::Again),
    ("interrupted", Fault::Interrupted),
    ("page", Fault::Page),
    ("sector", Fault::Sector),
    ("flip", Fault::Flip),
    ("lost", Fault::Lost),
    ("no-memory", Fault::NoMemory),
];

/// Noise, so that pages go to the file.
fn word(i: usize) -> u64 {
    let z = (i as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 29)
}

fn words(region: &mut Region) -> &mut [u64] {
    let (bytes, len) = (region.as_mut_slice().as_mut_ptr(), region.len() / 8);
    // SAFETY: page-aligned memory that is borrowed; any bytes are words.
    unsafe { std::slice::from_raw_parts_mut(bytes.cast(), len) }
}

/// What a program does with a region.
fn scene() -> Result<(), Error> {
    let swap = Swap::Dir { dir: DIR.into(), size: Some(64 << 20) };
    let mut region = Region::builder(28 * MIB).ram(16 << 20).swap(swap).build()?;
    words(&mut region).iter_mut().enumerate().for_each(|(i, w)| *w = word(i));
    let check = |region: &mut Region, from: usize| {
        for (i, w) in words(region).iter().enumerate().skip(from / 8) {
            assert_eq!(*w, word(i), "WRONG DATA at word {i}");
        }
    };
    check(&mut region, 0);
    region.evict(..8 * MIB)?;
    drop(region.resident(MIB..2 * MIB)?);
    region.prefetch(4 * MIB..6 * MIB)?;
    region.drop_range(..MIB)?;
    assert!(region.as_slice()[..MIB].iter().all(|byte| *byte == 0), "WRONG DATA where it was dropped");
    check(&mut region, MIB);
    Ok(())
}

/// The child: fails as it is told, and says how many operations there were.
fn child(told: &str) -> ! {
    let mut told = told.split(' ');
    let mut next = || told.next().unwrap();
    let named = |name: &str| OPS.iter().find(|op| op.0 == name).unwrap().1;
    let (op, kind) = (named(next()), next().to_owned());
    let kind = KINDS.iter().find(|(name, _)| *name == kind).unwrap().1;
    let faults: &'static Faults = Box::leak(Box::new(Faults::new(op, kind, next().parse().unwrap())));
    install(faults);
    let done = scene();
    println!("operations {}", faults.calls(op));
    match done {
        Ok(()) => std::process::exit(0),
        Err(why) => {
            println!("refused: {why}");
            std::process::exit(REFUSED)
        }
    }
}

/// Runs a child; how many operations there were, if it came to its end, or what is wrong with how it ended.
fn one(test: &str, op: &str, kind: &str, at: u64) -> Result<u64, String> {
    let told = format!("{op} {kind} {at}");
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(MARK, &told)
        .output()
        .unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let wrong = |what: &str| Err(format!("{MARK}='{told}': {what}: {}\n{text}", output.status));
    if text.contains("WRONG DATA") {
        return wrong("wrong data");
    }
    // The harness has begun the line.
    let operations = text.lines().find_map(|line| line.split_once("operations ")?.1.parse().ok());
    match (output.status.code(), output.status.signal()) {
        (Some(0), _) => operations.map_or_else(|| wrong("no count"), Ok),
        (Some(REFUSED), _) if text.contains("refused: ") => Ok(operations.unwrap_or(0)),
        (_, Some(libc::SIGBUS)) if text.contains("could not be read back") => Ok(0),
        _ => wrong("neither well, nor refused, nor lost with a line"),
    }
}

fn each(test: &str, op: &str, kinds: &[&str]) {
    if let Ok(told) = std::env::var(MARK) {
        child(&told);
    }
    let every = if std::env::var_os("LOWTIDE_FAULTS_ALL").is_some() { 1 } else { SAMPLE };
    let mut wrong = Vec::new();
    for kind in kinds {
        // Nothing fails: how many there are.
        let operations = one(test, op, kind, u64::MAX - 1).unwrap();
        assert!(operations > 10, "{operations} operations of {op}");
        wrong.extend((0..operations).step_by(every as usize).filter_map(|at| one(test, op, kind, at).err()));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn errors_of_the_device() {
    each("errors_of_the_device", "device", &["io", "no-space", "gone"]);
}

#[test]
fn hiccups_of_the_device() {
    each("hiccups_of_the_device", "device", &["again", "interrupted", "page", "sector"]);
}

#[test]
fn damage_on_the_device() {
    each("damage_on_the_device", "device", &["flip", "lost"]);
}

#[test]
fn no_memory_for_a_mapping() {
    each("no_memory_for_a_mapping", "map", &["no-memory"]);
}
