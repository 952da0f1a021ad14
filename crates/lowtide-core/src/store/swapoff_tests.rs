use super::super::tests::{entries, get, noise, put, store, text, tmpfile};
use super::*;
use crate::device::DeviceName;
use crate::store::FileConfig;
use crate::vm::PAGE_SIZE;
use std::vec::Vec;

const MIB: u64 = 1 << 20;

fn area(number: u8, clusters: u64) -> FileConfig {
    let name = DeviceName { kind: "dir:", path: b"/test", number };
    FileConfig { name, ..FileConfig::new(tmpfile(), clusters * 2 * MIB) }
}

/// Moves `entries` elsewhere, as a pager does; returns the errors.
fn move_all(s: &Store, entries: &mut [Entry]) -> Vec<StoreError> {
    let mut scratch = Scratch::new().unwrap();
    let mut pages = std::vec![[0; PAGE_SIZE]; 64];
    let mut errors = Vec::new();
    for entries in entries.chunks_mut(64) {
        let mut out = [Err(StoreError::BadEntry); 64];
        s.move_out(entries, &mut pages, &mut out, &mut scratch);
        for (e, result) in entries.iter_mut().zip(out) {
            match result {
                Ok(Stored::Entry(new)) => {
                    assert_ne!(new.area(), e.area());
                    s.free(*e);
                    *e = new;
                }
                Ok(Stored::Zero) => panic!("a page of zeros was stored"),
                Err(error) => errors.push(error),
            }
        }
    }
    errors
}

#[test]
fn pages_of_a_closed_area_go_to_the_pool_and_to_others_and_then_it_is_gone() {
    let s = store(256 << 10, [area(0, 8), area(1, 8)]);
    s.close_area(1);
    let mut pages: Vec<Page> = (0..1200).map(|i| if i % 3 == 0 { noise(i) } else { text(i) }).collect();
    let mut es = entries(&put(&s, &pages));
    assert!(es.iter().all(|e| s.device_of(*e).number == 0), "nothing is put into an area that is closed");
    // Some are gathered in the pool; the first must not be one.
    let on_device = es.iter().position(|e| s.is_on_device(*e)).unwrap();
    es.swap(0, on_device);
    pages.swap(0, on_device);
    assert!(s.keep_cached(es[0]) && s.pages_left(0) == 1199);
    assert!(s.reopen_area(1));
    s.close_area(0);
    s.close_area(0);
    assert!(!s.remove_area(0) && !s.keep_cached(es[3]), "no clean copies either");
    assert_eq!(move_all(&s, &mut es[1..]), []);
    assert!(s.remove_area(0) && s.remove_area(0));
    assert_eq!((s.pages_left(0), s.pages_left(1), s.stats().cached_now), (0, 1199, 0));
    assert_eq!(get(&s, es[0]).map(|_| ()), Err(StoreError::BadEntry));
    for (e, page) in es.iter().zip(&pages).skip(1) {
        assert!(get(&s, *e).unwrap().1 == *page);
    }
    assert!(s.area_stats()[0].reads > 0 && s.stats().device_write_bytes > 400 << 12);
    s.add_file(area(0, 4)).unwrap();
    assert!(s.has_device() && s.reopen_area(0));
}

#[test]
fn without_room_pages_stay_and_have_been_read() {
    let s = store(0, [area(0, 4)]);
    let pages: Vec<Page> = (0..300).map(noise).collect();
    let mut es = entries(&put(&s, &pages));
    s.close_area(0);
    assert!(!s.has_device());
    let mut out = [Err(StoreError::BadEntry); 64];
    let mut into = std::vec![[0; PAGE_SIZE]; 64];
    s.move_out(&es[..64], &mut into, &mut out, &mut Scratch::new().unwrap());
    assert_eq!(out, [Err(StoreError::Full); 64]);
    assert!(into == pages[..64]);
    assert_eq!(move_all(&s, &mut es), std::vec![StoreError::Full; 300]);
    assert!(!s.remove_area(0) && s.reopen_area(0) && s.has_device());
    assert!(es.iter().zip(&pages).all(|(e, page)| get(&s, *e).unwrap().1 == *page));
    s.free(es[0]);
    assert_eq!(put(&s, &[noise(9)]).len(), 1);
}

#[test]
fn a_slot_of_an_area_that_is_gone_is_never_given_out() {
    // An old bug of the kernel: a CPU that remembers its cluster allocates there after swapoff and
    // swapon.
    let s = store(0, [area(0, 2), area(1, 8)]);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (s, stop) = (&s, &stop);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || {
                let mut i = thread * 1_000_000;
                while !stop.load(Ordering::Relaxed) {
                    let pages: Vec<Page> = (i..i + 20).map(noise).collect();
                    let es = entries(&put(s, &pages));
                    i += 20;
                    for (e, page) in es.iter().zip(&pages) {
                        // Turned off without moving its pages: the only allowed error is that the
                        // page is gone.
                        match get(s, *e) {
                            Ok((_, loaded)) => assert!(loaded == *page, "another page's slot"),
                            Err(error) => assert_eq!(error, StoreError::BadEntry),
                        }
                    }
                    es.iter().for_each(|e| s.free(*e));
                }
            });
        }
        for _ in 0..300 {
            s.close_area(0);
            while !s.remove_area(0) {
                std::thread::yield_now();
            }
            s.add_file(area(0, 2)).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!((s.stats().bad_frees, s.stats().stored_now), (0, 0));
    let left: u64 = [0, 1].iter().map(|number| s.pages_left(*number)).sum();
    assert_eq!(left, 0);
    assert!(s.stats().file_bytes <= 20 * MIB);
}
