//! With real threads. (`tests/addresses_model.rs` checks all interleavings of a few steps.)

use std::sync::atomic::{AtomicBool, Ordering};

use crate::addresses::Addresses;

#[test]
fn finds_what_is_there_while_others_come_and_go() {
    let (addresses, over) = (Addresses::new(), AtomicBool::new(false));
    // SAFETY: this thread alone changes the list.
    unsafe { addresses.insert(1000, 2000, 1u32) };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert_eq!((addresses.find(1000), addresses.find(1999)), (Some(1), Some(1)));
                    assert_eq!((addresses.find(999), addresses.find(2000)), (None, None));
                    let other = addresses.find(5000);
                    assert!(other.is_none_or(|of| (10..310).contains(&of)), "{other:?}");
                }
            });
        }
        for i in 0..if cfg!(miri) { 10 } else { 300 } {
            // SAFETY: as above.
            unsafe {
                addresses.insert(4096, 8192, 10 + i);
                assert_eq!(addresses.find(8191), Some(10 + i));
                addresses.remove(4096);
            }
            assert_eq!(addresses.find(4096), None);
        }
        over.store(true, Ordering::Relaxed);
    });
}
