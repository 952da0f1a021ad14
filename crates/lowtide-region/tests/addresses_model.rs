//! The table of addresses in all interleavings of a few steps (loom): who looks finds what is there, and no list is freed that
//! somebody looks at.

/// As the library's `sync.rs`, of loom's parts.
mod sync {
    use loom::cell::UnsafeCell;
    pub use loom::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
    pub use loom::thread::yield_now;

    /// A use that does not happen before the end fails the model.
    pub struct Life(UnsafeCell<()>);

    impl Life {
        pub fn new() -> Life {
            Life(UnsafeCell::new(()))
        }

        pub fn goes_on(&self) {
            self.0.with(|_| ());
        }

        pub fn ends(&self) {
            self.0.with_mut(|_| ());
        }
    }

    macro_rules! constant {
        ($(#[$doc:meta])* fn $($rest:tt)*) => { $(#[$doc])* pub fn $($rest)* };
    }
    pub(crate) use constant;
}

#[allow(dead_code)] // a child's forgetting
#[path = "../src/addresses.rs"]
mod addresses;

use addresses::Addresses;
use loom::sync::Arc;
use loom::thread;

#[test]
fn who_looks_finds_what_stays_while_others_come_and_go() {
    loom::model(|| {
        let table = Arc::new(Addresses::new());
        // SAFETY: this thread alone changes the list.
        unsafe { table.insert(10, 20, 'a') };
        let reader = {
            let table = table.clone();
            thread::spawn(move || {
                assert_eq!(table.find(15), Some('a'));
                assert!(matches!(table.find(35), None | Some('b')));
            })
        };
        // SAFETY: as above.
        unsafe { table.insert(30, 40, 'b') };
        assert_eq!(table.find(39), Some('b'));
        // SAFETY: as above.
        unsafe { table.remove(30) };
        assert_eq!(table.find(39), None);
        reader.join().unwrap();
    });
}
