//! Several swap files: order of use, full and failing ones.

use super::*;
use crate::device::{Device, DeviceName};
use crate::faults::{Fault, Faults, Op};

pub(super) fn area(number: u8, priority: i16, clusters: u64) -> FileConfig {
    let name = DeviceName { kind: "dir:", path: b"/test", number };
    FileConfig { name, priority, ..FileConfig::new(tmpfile(), clusters * 2 * MIB) }
}

/// Fails all writes: read-only, or a full disk.
fn broken(number: u8, priority: i16, errno: Errno) -> FileConfig {
    let (path, flags) = match errno {
        Errno::NOSPC => ("/dev/full", OFlags::RDWR),
        _ => ("/dev/zero", OFlags::RDONLY),
    };
    let fd = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
    FileConfig { fd, ..area(number, priority, 4) }
}

fn noises(from: u64, n: u64) -> Vec<Page> {
    (from..from + n).map(noise).collect()
}

fn numbers(s: &Store, es: &[Entry]) -> Vec<u8> {
    es.iter().map(|e| s.device_of(*e).number).collect()
}

fn all_are(s: &Store, es: &[Entry], pages: &[Page]) -> bool {
    es.iter().zip(pages).all(|(e, page)| get(s, *e).map(|loaded| loaded.1) == Ok(*page))
}

#[test]
fn the_highest_priority_first_until_it_is_full() {
    let s = store(0, [area(0, -3, 4), area(1, 5, 1), area(2, -2, 1)]);
    // A folio goes to the first area with a run for it; slot 0 of each is never allocated.
    let pages = noises(0, 15 * 64 + 127);
    let mut es: Vec<Entry> = pages[..15 * 64].chunks(64).flat_map(|folio| entries(&put(&s, folio))).collect();
    es.extend(pages[15 * 64..].iter().map(|page| put_one(&s, *page).unwrap()));
    let expected = [(1, 448), (2, 448), (0, 64), (1, 63), (2, 63), (0, 1)];
    assert_eq!(numbers(&s, &es), expected.map(|(number, n)| std::vec![number; n]).concat());
    let stats = s.area_stats();
    assert_eq!([1, 2, 0].map(|n: usize| stats[n].state), [AreaState::Full, AreaState::Full, AreaState::Active]);
    assert_eq!([1, 2, 0, 3].map(|n: usize| stats[n].used), [511 << 12, 511 << 12, 65 << 12, 0]);
    assert_eq!([1, 2, 0].map(|n: usize| stats[n].writes), [70, 70, 2]);
    assert!(all_are(&s, &es, &pages));
    let stats = s.area_stats();
    assert_eq!([1, 2, 0].map(|n: usize| stats[n].reads), [511, 511, 65]);
    es.iter().for_each(|e| s.free(*e));
    assert!(s.area_stats()[..3].iter().all(|a| a.used == 0 && a.state == AreaState::Active && a.errors == 0));
}

#[test]
fn areas_of_one_priority_are_used_in_turn() {
    let s = store(0, [area(0, 1, 4), area(1, 1, 4), area(2, 0, 4)]);
    let es = entries(&put(&s, &noises(0, 1024)));
    let of = |number| numbers(&s, &es).iter().filter(|n| **n == number).count();
    assert!(of(0) > 300 && of(1) > 300 && of(2) == 0, "{} {} {}", of(0), of(1), of(2));
}

#[test]
fn clean_copies_stay_in_a_full_area_as_long_as_another_has_room() {
    let s = store(0, [area(0, 5, 1), area(1, 0, 4)]);
    let pages = noises(0, 511 + 1100);
    let es: Vec<Entry> = pages[..511].iter().map(|page| put_one(&s, *page).unwrap()).collect();
    assert!(numbers(&s, &es).iter().all(|n| *n == 0) && s.area_stats()[0].state == AreaState::Full);
    assert!(s.keep_cached(es[0]) && s.keep_cached(es[1]));
    s.maintain();
    // Stored unchanged, it needs no write; changed, its slot goes to another page.
    let writes = s.area_stats()[0].writes;
    let mut out = [Err(StoreError::BadEntry)];
    s.store_run(&[&pages[0]], &[Some(es[0])], &mut out, &mut Scratch::new().unwrap());
    assert_eq!((out[0], s.area_stats()[0].writes), (Ok(Stored::Entry(es[0])), writes));
    s.drop_cached(es[1]);
    assert_eq!(put_one(&s, pages[1]), Ok(es[1]));
    let more = entries(&put(&s, &pages[511..]));
    assert!(numbers(&s, &more).iter().all(|n| *n == 1));
    assert!(!s.keep_cached(es[0]) && !s.keep_cached(more[0]));
    assert!(all_are(&s, &es, &pages) && all_are(&s, &more, &pages[511..]));
}

#[test]
fn clean_copies_are_taken_back_when_others_have_used_up_the_quota() {
    crate::percpu::stay_on_cpu_1();
    static USED: AtomicU64 = AtomicU64::new(0);
    let limit = 32 * 2 * MIB;
    let s = store(0, [FileConfig { quota: Some(Quota { used: &USED, mine: None, limit }), ..area(0, 0, 32) }]);
    let es: Vec<Entry> = noises(0, 1023).into_iter().map(|page| put_one(&s, page).unwrap()).collect();
    assert!(es.iter().all(|e| s.keep_cached(*e)) && USED.load(Ordering::Relaxed) == 4 * MIB);
    USED.store(limit, Ordering::Relaxed);
    let more = noises(5000, 500);
    let stored = entries(&put(&s, &more));
    assert!(all_are(&s, &stored, &more) && USED.load(Ordering::Relaxed) == limit);
    assert!(!s.keep_cached(stored[0]), "half of what it can have is used");
    stored.iter().for_each(|e| s.free(*e));
    s.maintain();
    assert!(s.stats().cached_now < 523, "in the background too");
}

#[test]
fn an_area_that_rests_or_has_no_quota_has_no_room_for_what_clean_copies_hold() {
    static USED: AtomicU64 = AtomicU64::new(4 * MIB);
    let poor = FileConfig { quota: Some(Quota { used: &USED, mine: None, limit: 4 * MIB }), ..area(1, 0, 4) };
    for (other, has_room) in [(poor, false), (broken(1, 0, Errno::NOSPC), false), (area(1, 0, 4), true)] {
        let s = store(0, [area(0, 5, 1), other]);
        let es: Vec<Entry> = noises(0, 511).into_iter().map(|page| put_one(&s, page).unwrap()).collect();
        assert!(numbers(&s, &es).iter().all(|n| *n == 0));
        assert_eq!(put_one(&s, noise(600)).is_ok(), has_room);
        assert_eq!(s.keep_cached(es[0]), has_room);
    }
}

#[test]
fn what_one_area_fails_to_write_another_takes() {
    for (errno, bad) in [(Errno::BADF, true), (Errno::NOSPC, false)] {
        let s = store(0, [broken(0, 9, errno), area(1, 5, 4), area(2, 1, 4)]);
        let pages = noises(0, 100);
        let es = entries(&put(&s, &pages));
        assert!(numbers(&s, &es).iter().all(|n| *n == 1) && all_are(&s, &es, &pages));
        let stats = s.area_stats();
        assert_eq!((stats[0].state, stats[0].writes, stats[0].errors), (AreaState::Failing, 1, 1), "one I/O, then it rests");
        assert_eq!((stats[1].state, stats[1].errors, stats[2].writes), (AreaState::Active, 0, 0));
        assert_eq!((s.stats().bad_slots > 0, s.stats().refused), (bad, 0));
        pass_rests(&s);
        let more = noises(1000, 1200);
        let es = entries(&put(&s, &more));
        assert!(all_are(&s, &es, &more) && s.area_stats()[0].errors == 2);
    }
}

#[test]
fn an_area_that_works_again_is_used_again() {
    let s = store(0, [area(0, 9, 4), area(1, 5, 4)]);
    let area = s.areas.get(1).unwrap();
    let Some(device) = area.device.as_ref().and_then(Device::file) else { panic!() };
    device.faults.set(Faults::new(Op::Device, Fault::Io, 0)).unwrap();
    let first = entries(&put(&s, &noises(0, 64)));
    assert!(numbers(&s, &first).iter().all(|n| *n == 1));
    pass_rests(&s);
    let es = entries(&put(&s, &noises(100, 512)));
    assert!(numbers(&s, &es).contains(&0));
    assert_eq!(s.area_stats()[0].state, AreaState::Active);
}

#[test]
fn when_all_fail_the_pool_takes_what_it_can() {
    let s = store(20 * 4096, [broken(0, 9, Errno::NOSPC), broken(1, 5, Errno::BADF)]);
    let stored = put(&s, &noises(0, 64));
    let (kept, refused): (Vec<_>, Vec<_>) = stored.iter().partition(|r| r.is_ok());
    assert_eq!(kept.len(), 20, "raw");
    assert!(refused.iter().all(|r| matches!(r, Err(StoreError::Io { errno: Errno::BADF, .. }))), "what the last one said");
    assert_eq!(s.area_stats()[..2].iter().map(|a| (a.writes, a.errors)).collect::<Vec<_>>(), [(1, 1), (1, 1)]);
    assert!(put(&s, &noises(100, 64)).iter().all(|r| *r == Err(StoreError::Full)));
    assert_eq!(s.stats().device_write_ios, 2, "no I/O while they rest");
}

#[test]
fn the_shrinker_leaves_areas_alone_that_rest() {
    let s = store(16 << 20, [broken(0, 9, Errno::NOSPC), area(1, 5, 8)]);
    let mut scratch = Scratch::new().unwrap();
    let pages: Vec<Page> = (0..3000).map(text).collect();
    let es = entries(&put(&s, &pages));
    assert_eq!((0..2).map(|n| numbers(&s, &es).contains(&n)).collect::<Vec<_>>(), [true, true]);
    s.limit_pool(0);
    assert!(s.wants_shrinking() > 0);
    let shrunk = s.shrink(usize::MAX, &mut scratch);
    let in_second = numbers(&s, &es).iter().filter(|n| **n == 1).count();
    assert!(shrunk.failed && shrunk.pages == in_second && in_second > 0, "{shrunk:?}");
    let writes = s.area_stats()[0].writes;
    assert!(writes <= 32, "one batch of {writes}");
    assert_eq!(s.shrink(usize::MAX, &mut scratch).pages, 0);
    assert_eq!(s.area_stats()[0].writes, writes, "it rests");
    pass_rests(&s);
    assert!(s.shrink(usize::MAX, &mut scratch).failed && s.area_stats()[0].writes > writes);
    assert!(all_are(&s, &es, &pages));
    let alone = store(1 << 20, [broken(0, 0, Errno::NOSPC)]);
    put(&alone, &(0..200).map(text).collect::<Vec<_>>());
    alone.limit_pool(0);
    assert!(alone.wants_shrinking() > 0 && alone.shrink(1, &mut scratch).failed && alone.wants_shrinking() == 0);
    pass_rests(&alone);
    assert!(alone.wants_shrinking() > 0);
}

#[test]
fn what_comes_to_the_pool_while_an_area_rests_can_be_written_afterwards() {
    let s = store(1 << 20, [area(0, 0, 8)]);
    let area = s.areas.get(1).unwrap();
    let Some(device) = area.device.as_ref().and_then(Device::file) else { panic!() };
    device.faults.set(Faults::new(Op::Device, Fault::Io, 0)).unwrap();
    entries(&put(&s, &noises(0, 128))).into_iter().for_each(|e| s.free(e));
    assert!(s.areas.get(1).unwrap().rests());
    let mut es = Vec::new();
    let mut pages = Vec::new();
    for page in (0..2000).map(text) {
        if let Ok(e) = put_one(&s, page) {
            es.push(e);
            pages.push(page);
        }
    }
    let of_ram = es.iter().filter(|e| e.area() == RAM_AREA).count();
    assert!(es.len() > 300 && of_ram == 0, "{of_ram} of {} have no slot of the file", es.len());
    pass_rests(&s);
    let mut scratch = Scratch::new().unwrap();
    while s.shrink(usize::MAX, &mut scratch).pages > 0 {}
    assert_eq!((s.stats().pool_stored_bytes, s.wants_shrinking()), (0, 0), "all of it");
    assert!(all_are(&s, &es, &pages));
}

#[test]
fn after_an_outage_all_clusters_are_written_again() {
    let s = store(1 << 20, [area(0, 0, 8)]);
    let pages: Vec<Page> = (0..500).map(text).collect();
    let es = entries(&put(&s, &pages));
    let area = s.areas.get(1).unwrap();
    assert!(area.ages.broke(es[0].offset() as usize / 512));
    s.limit_pool(0);
    let mut scratch = Scratch::new().unwrap();
    assert_eq!(s.shrink(usize::MAX, &mut scratch).pages, 0, "broken");
    for _ in 0..4 {
        area.failed(Errno::IO);
        pass_rests(&s);
    }
    area.wrote();
    let shrunk = s.shrink(usize::MAX, &mut scratch);
    assert!(shrunk.pages == 500 && all_are(&s, &es, &pages), "{shrunk:?}");
}
