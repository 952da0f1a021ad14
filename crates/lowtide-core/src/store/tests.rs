//! The store's promises; see also `fork_tests.rs` and `model_tests.rs`.

use super::*;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use std::vec::Vec;

#[path = "area_tests.rs"]
mod area_tests;
#[path = "dead_children_tests.rs"]
mod dead_children_tests;
#[path = "fault_tests.rs"]
mod fault_tests;
#[path = "fork_tests.rs"]
mod fork_tests;
#[path = "model_tests.rs"]
mod model_tests;

const MIB: u64 = 1 << 20;

pub(super) fn tmpfile() -> OwnedFd {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR).unwrap()
}

pub(super) fn file(size: u64) -> Option<FileConfig> {
    Some(FileConfig::new(tmpfile(), size))
}

pub(super) fn store(pool_limit: usize, file: impl IntoIterator<Item = FileConfig>) -> Store {
    let store = Store::new(StoreConfig { pool_limit, accept_percent: 90, codec: Codec::Lz4 }).unwrap();
    file.into_iter().for_each(|file| store.add_file(file).unwrap());
    store
}

/// A page that compresses to about a third.
pub(super) fn text(seed: u64) -> Page {
    let mut page = noise(seed);
    page[1200..].fill(b'x');
    page
}

/// zstd compresses it to about a third, LZ4 to three quarters: no long matches, few distinct bytes.
pub(super) fn digits(seed: u64) -> Page {
    let mut page = noise(seed).map(|b| b"0123456789abcdef"[b as usize % 16]);
    page[2900..].fill(b'x');
    page
}

/// An incompressible page.
pub(super) fn noise(seed: u64) -> Page {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut page = [0; 4096];
    for word in page.chunks_exact_mut(8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        word.copy_from_slice(&x.to_ne_bytes());
    }
    page
}

pub(super) fn put(store: &Store, pages: &[Page]) -> Vec<Result<Stored, StoreError>> {
    put_with(store, pages, &mut Scratch::new().unwrap())
}

pub(super) fn put_with(store: &Store, pages: &[Page], scratch: &mut Scratch) -> Vec<Result<Stored, StoreError>> {
    let refs: Vec<&Page> = pages.iter().collect();
    let mut out = std::vec![Err(StoreError::BadEntry); pages.len()];
    store.store_run(&refs, &[], &mut out, scratch);
    out
}

pub(super) fn put_one(store: &Store, page: Page) -> Result<Entry, StoreError> {
    match put(store, &[page])[0] {
        Ok(Stored::Entry(e)) => Ok(e),
        Ok(Stored::Zero) => panic!("a zero page"),
        Err(error) => Err(error),
    }
}

pub(super) fn get(store: &Store, e: Entry) -> Result<(Loaded, Page), StoreError> {
    let mut page = [0xee; 4096];
    store.load(e, &mut page, &mut Scratch::new().unwrap()).map(|loaded| (loaded, page))
}

pub(super) fn entries(stored: &[Result<Stored, StoreError>]) -> Vec<Entry> {
    let entry = |r: &Result<Stored, StoreError>| match r {
        Ok(Stored::Entry(e)) => *e,
        other => panic!("{other:?}"),
    };
    stored.iter().map(entry).collect()
}

pub(super) fn pass_rests(s: &Store) {
    s.areas.iter().for_each(|area| area.pass_rest());
}

#[test]
fn zero_pages_take_nothing_even_where_nothing_fits() {
    let s = store(0, None);
    assert_eq!(put(&s, &[[0; 4096], text(1), [0; 4096]]), [Ok(Stored::Zero), Err(StoreError::Full), Ok(Stored::Zero)]);
    let stats = s.stats();
    assert_eq!((stats.zero_seen, stats.refused, stats.stored_now, stats.pool_bytes), (2, 1, 0, 0));
}

#[test]
fn zero_and_clean_pages_write_nobodys_pages_where_the_pool_is_full() {
    let s = store(200 * 4096, file(64 * MIB));
    let clean: Vec<Page> = (0..64).map(noise).collect();
    let copies = entries(&put(&s, &clean));
    assert!(copies.iter().zip(&clean).all(|(e, page)| get(&s, *e).unwrap() == (Loaded::Device, *page)));
    assert!(copies.iter().all(|e| s.keep_cached(*e)));
    let mut seed = 0;
    while s.pool.accepts() {
        put_one(&s, text(seed)).unwrap();
        seed += 1;
    }
    let before = s.stats();
    assert!(s.wants_shrinking() > 0, "{before:?}");
    assert!(put(&s, &[[0; 4096]; 600]).iter().all(|stored| *stored == Ok(Stored::Zero)));
    let pages: Vec<&Page> = clean.iter().collect();
    let known: Vec<Option<Entry>> = copies.iter().copied().map(Some).collect();
    let mut out = std::vec![Err(StoreError::Full); pages.len()];
    s.store_run(&pages, &known, &mut out, &mut Scratch::new().unwrap());
    assert_eq!(entries(&out), copies);
    let after = s.stats();
    assert_eq!((after.written_back, after.device_write_ios), (before.written_back, before.device_write_ios));
    put_one(&s, text(seed)).unwrap();
    assert!(s.stats().written_back > before.written_back);
}

#[test]
fn a_mixed_run_keeps_its_order_and_its_neighbours() {
    let s = store(MIB as usize, file(64 * MIB));
    let mut pages: Vec<Page> = (0..300).map(text).collect();
    pages[7] = [0; 4096];
    pages[20..40].iter_mut().enumerate().for_each(|(i, p)| *p = noise(i as u64));
    pages[50] = [0xab; 4096];
    let stored = put(&s, &pages);
    assert_eq!(stored[7], Ok(Stored::Zero));
    for (i, r) in stored.iter().enumerate().filter(|(i, _)| *i != 7) {
        let Ok(Stored::Entry(e)) = *r else { panic!("{i}: {r:?}") };
        let from = if (20..40).contains(&i) { Loaded::Device } else { Loaded::Pool };
        let (loaded, page) = get(&s, e).unwrap();
        assert!(loaded == from && page == pages[i], "page {i}");
    }
    let (in_pool, on_device): (Vec<_>, Vec<_>) =
        entries(&stored[8..]).into_iter().enumerate().partition(|(i, _)| !(12..32).contains(i));
    for part in [in_pool, on_device] {
        let neighbours = part.windows(2).all(|w| w[1].1.raw() == w[0].1.raw() + 1);
        assert!(neighbours, "what goes to one place gets neighbouring slots, whatever is between");
    }
    let stats = s.stats();
    assert_eq!((stats.device_write_ios, stats.device_write_bytes), (1, 20 * 4096), "one write for the 20");
    assert_eq!((stats.same_filled, stats.incompressible, stats.on_device_now, stats.stored_now), (1, 20, 20, 299));
}

#[test]
fn few_pages_for_the_device_wait_for_more_and_are_written_together() {
    let s = store(16 * MIB as usize, file(8 * MIB));
    let mut scratch = Scratch::new().unwrap();
    let mut es = Vec::new();
    for i in 0..43 {
        assert_eq!(s.stats().device_write_ios, 0);
        es.extend(entries(&put_with(&s, &[noise(3 * i), noise(3 * i + 1), noise(3 * i + 2)], &mut scratch)));
        if i == 20 {
            assert_eq!(get(&s, es[0]), Ok((Loaded::Pool, noise(0))), "meanwhile it is found in RAM");
            s.free(es.remove(0));
        }
    }
    let stats = s.stats();
    assert_eq!((stats.device_write_ios, stats.written_back, stats.on_device_now), (1, 128, 128), "{stats:?}");
    for (e, i) in es.iter().zip(1..) {
        assert!(get(&s, *e) == Ok((Loaded::Device, noise(i))), "page {i}");
    }
    put_with(&s, &[noise(1000)], &mut scratch);
    put_with(&s, &(2000..2100).map(noise).collect::<Vec<_>>(), &mut scratch);
    let stats = s.stats();
    assert_eq!((stats.device_write_ios, stats.on_device_now), (3, 229), "{stats:?}");
}

#[test]
fn neighbours_on_the_device_are_read_at_once() {
    let s = store(0, file(8 * MIB));
    let pages: Vec<Page> = (0..64).map(text).collect();
    let mut es = entries(&put(&s, &pages));
    assert_eq!(s.stats().device_write_ios, 1);
    es.swap(40, 41);
    s.free(es[50]);
    let mut into = std::vec![[0; 4096]; 64];
    let mut out = std::vec![Err(StoreError::Full); 64];
    s.load_run(&es, &mut into, &mut out, &mut Scratch::new().unwrap());
    for i in (0..64).filter(|i| *i != 50) {
        let want = [i, 41, 40][if i == 40 { 1 } else { 2 * (i == 41) as usize }];
        assert!(out[i] == Ok(Loaded::Device) && into[i] == pages[want], "page {i}");
    }
    assert_eq!(out[50], Err(StoreError::BadEntry));
    assert_eq!(s.stats().device_read_ios, 5, "0..40, 41, 40, 42..50, 51..64");
}

#[test]
fn without_a_device_incompressible_pages_are_kept_raw() {
    let s = store(20 * 4096, None);
    let es: Vec<_> = (0..20).map(|i| put_one(&s, noise(i)).unwrap()).collect();
    assert_eq!(s.stats().pool_bytes, 20 * 4096);
    assert_eq!(put_one(&s, noise(99)), Err(StoreError::Full));
    assert_eq!(s.stats().stored_now, 20);
    for (i, e) in es.iter().enumerate() {
        assert_eq!(get(&s, *e).unwrap(), (Loaded::Pool, noise(i as u64)));
        s.free(*e);
    }
    let stats = s.stats();
    assert_eq!((stats.stored_now, stats.pool_bytes, stats.pool_stored_bytes), (0, 0, 0));
}

#[test]
fn a_full_pool_sends_pages_to_the_device_until_it_has_room_again() {
    let s = store(10 * 4096, file(8 * MIB));
    let mut es = Vec::new();
    while s.stats().on_device_now == 0 {
        es.push(put_one(&s, text(es.len() as u64)).unwrap());
    }
    assert!(s.stats().pool_bytes <= 10 * 4096 && es.len() > 10);
    let first_on_device = es.len() - 1;
    assert_eq!(get(&s, es[first_on_device]).unwrap().0, Loaded::Device);
    s.limit_pool(0);
    assert_eq!(get(&s, put_one(&s, text(7)).unwrap()).unwrap().0, Loaded::Device, "the limit may change at any time");
    s.limit_pool(1 << 20);
    assert_eq!(get(&s, put_one(&s, text(7)).unwrap()).unwrap().0, Loaded::Pool);
    for (i, e) in es.iter().enumerate() {
        assert_eq!(get(&s, *e).unwrap().1, text(i as u64));
    }
}

#[test]
fn freed_entries_are_errors() {
    let s = store(1 << 20, file(2 * MIB));
    let e = put_one(&s, text(1)).unwrap();
    s.free(e);
    s.free(e);
    assert_eq!(get(&s, e), Err(StoreError::BadEntry));
    for raw in [1, 0xff_ffff, 7 << 40 | 3, 1 << 40 | 0xff_ffff_ffff, (1 << 48) - 1] {
        let never = Entry::from_raw(raw).unwrap();
        assert_eq!(get(&s, never), Err(StoreError::BadEntry), "{raw:x}");
        s.free(never);
    }
    assert_eq!((s.stats().bad_frees, s.stats().stored_now), (6, 0));
}

/// The same file with flags of its own.
fn reopened(fd: &OwnedFd) -> std::fs::File {
    let path = std::format!("/proc/self/fd/{}", fd.as_raw_fd());
    std::fs::File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn one_flipped_bit_on_the_file_is_seen() {
    use std::os::unix::fs::FileExt;
    let cfg = file(4 * MIB).unwrap();
    let disk = reopened(&cfg.fd);
    let s = store(0, Some(cfg));
    let es = entries(&put(&s, &(0..9).map(text).collect::<Vec<_>>()));
    let (bad, at) = (es[4], es[4].offset() * 4096 + 1000);
    let mut byte = [0];
    disk.read_exact_at(&mut byte, at).unwrap();
    disk.write_all_at(&[byte[0] ^ 0x20], at).unwrap();
    let corrupt = Err(StoreError::Corrupt { entry: bad, offset: bad.offset() * 4096 });
    assert_eq!(get(&s, bad).map(|l| l.0), corrupt);
    let mut into = std::vec![[0; 4096]; 9];
    let mut out = std::vec![Err(StoreError::Full); 9];
    s.load_run(&es, &mut into, &mut out, &mut Scratch::new().unwrap());
    for (i, r) in out.into_iter().enumerate() {
        assert_eq!(r, if i == 4 { corrupt } else { Ok(Loaded::Device) });
    }
    let mut a = [0; 4096];
    disk.read_exact_at(&mut a, es[0].offset() * 4096).unwrap();
    disk.write_all_at(&a, es[1].offset() * 4096).unwrap();
    assert!(matches!(get(&s, es[1]), Err(StoreError::Corrupt { .. })));
    assert_eq!(s.stats().corrupt, 3);
}

#[test]
fn nothing_that_can_be_read_is_on_the_file() {
    use std::io::Read;
    let cfg = file(4 * MIB).unwrap();
    let mut disk = reopened(&cfg.fd);
    let s = store(0, Some(cfg));
    let mut page = text(1);
    page[2000..2020].copy_from_slice(b"the marked page here");
    let es = entries(&put(&s, &[page, text(2), page]));
    let mut bytes = Vec::new();
    disk.read_to_end(&mut bytes).unwrap();
    assert!(bytes.len() >= 4 * 4096, "three pages and slot 0");
    assert!(!bytes.windows(8).any(|w| w == b"the mark" || w == b"xxxxxxxx"));
    let sealed = |e: Entry| &bytes[e.offset() as usize * 4096..][..4096];
    assert!(sealed(es[0]).iter().any(|b| *b != 0) && sealed(es[0]) != sealed(es[2]), "not even that two pages are the same");
    assert_eq!(get(&s, es[2]), Ok((Loaded::Device, page)));
}

#[test]
fn the_quota_of_the_run_limits_the_file() {
    static USED: AtomicU64 = AtomicU64::new(0);
    let cfg =
        FileConfig { quota: Some(Quota { used: &USED, mine: None, limit: 3 * MIB }), ..FileConfig::new(tmpfile(), 64 * MIB) };
    let s = store(4 * 4096, Some(cfg));
    s.limit_pool(0);
    let pages: Vec<Page> = (0..600).map(text).collect();
    let stored = put(&s, &pages);
    // One cluster fits, and its first slot is never allocated.
    assert!(stored[..511].iter().all(Result::is_ok) && stored[511..].iter().all(|r| *r == Err(StoreError::Full)));
    assert_eq!((USED.load(Ordering::Relaxed), s.stats().file_bytes, s.stats().refused), (2 * MIB, 2 * MIB, 89));
    s.limit_pool(16 * 4096);
    let e = put_one(&s, text(5)).unwrap();
    assert_eq!((get(&s, e), e.area()), (Ok((Loaded::Pool, text(5))), RAM_AREA), "the pool needs no slot of the file");
    let e = put_one(&s, noise(5)).unwrap();
    assert_eq!(get(&s, e), Ok((Loaded::Pool, noise(5))), "raw, because the file is full");
    for r in &stored[..100] {
        let Ok(Stored::Entry(e)) = r else { panic!() };
        s.free(*e);
    }
    assert_eq!(get(&s, put_one(&s, noise(6)).unwrap()), Ok((Loaded::Device, noise(6))));
}

#[test]
fn a_device_that_fails_costs_no_page() {
    // EBADF stands for any error of a device.
    let path = std::env::temp_dir();
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let s = store(8 * 4096, Some(FileConfig::new(fd, 8 * MIB)));
    let e = put_one(&s, noise(1)).unwrap();
    assert_eq!(get(&s, e), Ok((Loaded::Pool, noise(1))), "it went into the pool instead");
    s.limit_pool(0);
    assert_eq!(put_one(&s, noise(2)), Err(StoreError::Full), "the area rests");
    pass_rests(&s);
    assert!(matches!(put_one(&s, noise(2)), Err(StoreError::Io { errno: Errno::BADF, .. })));
    let stats = s.stats();
    assert_eq!((stats.device_errors, stats.bad_slots, stats.stored_now, stats.refused), (2, 2, 1, 2));
    s.free(e);
    assert_eq!((s.stats().stored_now, s.stats().pool_bytes), (0, 0));
}

#[test]
fn a_full_disk_costs_neither_pages_nor_slots() {
    let fd = rustix::fs::open("/dev/full", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let s = store(8 * 4096, Some(FileConfig::new(fd, 8 * MIB)));
    let e = put_one(&s, noise(1)).unwrap();
    assert_eq!(get(&s, e), Ok((Loaded::Pool, noise(1))));
    s.limit_pool(0);
    pass_rests(&s);
    let full = put(&s, &[noise(2), noise(3), noise(4)]);
    assert!(full.iter().all(|r| matches!(r, Err(StoreError::Io { errno: Errno::NOSPC, .. }))));
    let stats = s.stats();
    assert_eq!((stats.bad_slots, stats.device_write_ios, stats.stored_now), (0, 2, 1), "three pages are one folio");
    assert!(put(&s, &(0..100).map(noise).collect::<Vec<_>>()).iter().all(|r| *r == Err(StoreError::Full)));
    assert_eq!(s.stats().device_write_ios, 2, "and none while the area rests");
    assert_eq!(s.areas.get(1).unwrap().used(), 1, "all but slot 0 are free again");
}

#[test]
fn metadata_per_page() {
    crate::percpu::stay_on_cpu_1();
    // 8 bytes a page for the pager's page map. Tables are as large as the slots ever used.
    let n = 62_000;
    for (what, make, limit) in [("pool", text as fn(u64) -> Page, usize::MAX / 2), ("device", noise, 0)] {
        let s = store(0, file(256 * MIB));
        s.limit_pool(limit.min(200 << 20));
        let mut scratch = Scratch::new().unwrap();
        for chunk in (0..n).collect::<Vec<u64>>().chunks(128) {
            let pages: Vec<Page> = chunk.iter().map(|i| make(*i)).collect();
            assert!(put_with(&s, &pages, &mut scratch).iter().all(Result::is_ok));
        }
        let tables = s.table_bytes();
        let bytes = 8.0 + tables as f64 / n as f64;
        let stats = s.stats();
        let share = stats.pool_stored_bytes as f64 / stats.pool_bytes.max(1) as f64;
        std::println!("{what}: {bytes:.2} bytes of tables per page; stored / pool bytes {share:.3}");
        assert!(bytes <= 24.0);
        assert!(limit == 0 || share >= 0.97);
    }
}
