//! Fails each file operation of a run once in each possible way. The bytes must be right, or the
//! error name the place; no slot may be lost or allocated twice.

use super::*;
use crate::device::Device;
use crate::faults::{Fault, Faults, Op};

fn with_faults<R>(s: &Store, f: impl FnOnce(&std::sync::OnceLock<Faults>) -> R) -> R {
    let area = s.areas.get(1).unwrap();
    let Some(file) = area.device.as_ref().and_then(Device::file) else { panic!() };
    f(&file.faults)
}

#[derive(Default, Debug, PartialEq, Eq)]
struct Seen {
    not_stored: usize,
    io: usize,
    corrupt: usize,
}

fn run(at: u64, fault: Fault, pool_limit: usize) -> (u64, Seen) {
    // In RAM if possible: there are thousands of runs.
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open("/dev/shm", flags, Mode::RUSR | Mode::WUSR).unwrap_or_else(|_| tmpfile());
    let s = store(pool_limit, Some(FileConfig::new(fd, 8 * MIB)));
    with_faults(&s, |faults| faults.set(Faults::new(Op::Device, fault, at)).unwrap());
    let mut seen = Seen::default();
    let mut held: Vec<(Entry, Page)> = Vec::new();
    for round in 0..3u64 {
        // More than a buffer, too.
        for n in [1, 3, 70] {
            pass_rests(&s);
            let pages: Vec<Page> = (0..n).map(|i| noise(round << 20 | n << 10 | i)).collect();
            for (stored, page) in put(&s, &pages).into_iter().zip(&pages) {
                match stored {
                    Ok(Stored::Entry(e)) => held.push((e, *page)),
                    Ok(Stored::Zero) => panic!("not zero"),
                    Err(StoreError::Io { offset, .. }) => {
                        assert!(offset.is_multiple_of(4096) && offset < 8 * MIB);
                        seen.not_stored += 1;
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
        pass_rests(&s);
        let texts: Vec<Page> = (0..10).map(|i| text(round << 20 | i)).collect();
        for (stored, page) in put(&s, &texts).into_iter().zip(&texts) {
            match stored {
                Ok(Stored::Entry(e)) => held.push((e, *page)),
                _ => seen.not_stored += 1,
            }
        }
        pass_rests(&s);
        s.shrink(1, &mut Scratch::new().unwrap());
        assert!(held.iter().enumerate().all(|(i, (e, _))| !held[..i].iter().any(|(other, _)| other == e)), "given out twice");
        let (es, want): (Vec<Entry>, Vec<Page>) = held.iter().copied().unzip();
        let mut into = std::vec![[0; 4096]; es.len()];
        let mut out = std::vec![Err(StoreError::Full); es.len()];
        s.load_run(&es, &mut into, &mut out, &mut Scratch::new().unwrap());
        for i in 0..es.len() {
            match out[i] {
                Ok(_) => assert!(into[i] == want[i], "wrong data"),
                Err(StoreError::Io { offset, .. }) => {
                    assert_eq!(offset, es[i].offset() * 4096);
                    seen.io += 1;
                }
                Err(StoreError::Corrupt { entry, offset }) => {
                    assert_eq!((entry, offset), (es[i], es[i].offset() * 4096));
                    seen.corrupt += 1;
                }
                Err(error) => panic!("{error:?}"),
            }
        }
        let mut i = 0;
        held.retain(|(e, _)| {
            i += 1;
            i % 16 < 8 || (s.free(*e), false).1
        });
    }
    held.iter().for_each(|(e, _)| s.free(*e));
    let stats = s.stats();
    assert_eq!((stats.stored_now, stats.on_device_now, stats.pool_bytes, stats.bad_frees), (0, 0, 0, 0));
    // Slot 0 is never allocated.
    assert_eq!(s.areas.get(1).unwrap().used(), 1 + stats.bad_slots, "slots in use after the last page went");
    (with_faults(&s, |faults| faults.get().unwrap().calls(Op::Device)), seen)
}

fn at_every_operation(fault: Fault, pool_limit: usize, check: impl Fn(Seen)) {
    let (operations, seen) = run(u64::MAX, fault, pool_limit);
    assert!(operations > 20 && seen == Seen::default(), "{operations} {seen:?}");
    for at in 0..operations {
        check(run(at, fault, pool_limit).1);
    }
}

#[test]
fn errors_of_the_device_without_a_pool() {
    for fault in [Fault::Io, Fault::NoSpace] {
        at_every_operation(fault, 0, |seen| {
            // The pager keeps unstored pages; pages of failed runs are read again one by one.
            assert!(seen.io == 0 && seen.corrupt == 0, "{seen:?}");
            assert!(seen.not_stored <= 70, "{seen:?}");
        });
    }
}

#[test]
fn errors_of_the_device_cost_nothing_while_the_pool_has_room() {
    at_every_operation(Fault::Io, MIB as usize, |seen| {
        assert!(seen == Seen::default(), "{seen:?}");
    });
}

#[test]
fn hiccups_are_not_errors() {
    for fault in [Fault::Again, Fault::Interrupted, Fault::Page, Fault::Sector] {
        at_every_operation(fault, 0, |seen| assert_eq!(seen, Seen::default(), "{fault:?}"));
    }
}

#[test]
fn a_device_that_vanishes_is_an_error_for_each_page() {
    let operations = run(u64::MAX, Fault::Gone, 0).0;
    for at in 0..operations {
        let (_, seen) = run(at, Fault::Gone, 0);
        assert!(seen.not_stored + seen.io > 0 && seen.corrupt == 0, "{seen:?}");
    }
}

#[test]
fn silent_damage_is_never_taken_for_data() {
    let operations = run(u64::MAX, Fault::Flip, 0).0;
    let mut found = [0; 3];
    for at in 0..operations {
        for (i, fault) in [Fault::Flip, Fault::Lost, Fault::Swapped].into_iter().enumerate() {
            found[i] += run(at, fault, 0).1.corrupt;
        }
    }
    // Pages damaged on the way back were read again.
    assert!(found.iter().all(|n| *n > 4), "{found:?}");
}
