//! Searches find entered clusters, while other threads remove some and tidy.

use loom::sync::atomic::Ordering::SeqCst;
use loom::thread;
use std::sync::Arc;
use std::vec::Vec;

use super::explore;
use crate::percpu::Zone;
use crate::slot::index::{Index, Level};

/// In the second word: searches start at the first and read the second's summary.
const MINE: usize = 64;
const OTHER: usize = 65;
const LEVEL: Level = Level::of_copies(0);

fn all(index: &Index) -> Vec<usize> {
    index.around(LEVEL, Zone::ALL, 0).collect()
}

#[test]
fn what_is_entered_is_found_whatever_searches_tidy_up() {
    explore(|| {
        let index = Arc::new(Index::new(128, 0).unwrap());
        index.add(LEVEL, OTHER);
        let taker = {
            let index = index.clone();
            thread::spawn(move || index.remove(LEVEL, OTHER))
        };
        let searcher = {
            let index = index.clone();
            thread::spawn(move || all(&index).len())
        };
        index.add(LEVEL, MINE);
        assert!(all(&index).contains(&MINE), "what this thread has entered is lost");
        taker.join().unwrap();
        searcher.join().unwrap();
        assert_eq!(all(&index), [MINE]);
    });
}

/// Bug: no second look at the word.
fn tidy_blindly(index: &Index) {
    let (words, above) = index.level(LEVEL);
    if words[1].load(SeqCst) == 0 {
        above[0].fetch_and(!2, SeqCst);
    }
}

#[test]
#[should_panic(expected = "is lost")]
fn tidying_up_without_another_look_is_found() {
    explore(|| {
        let index = Arc::new(Index::new(128, 0).unwrap());
        index.add(LEVEL, OTHER);
        index.remove(LEVEL, OTHER);
        let searcher = {
            let index = index.clone();
            thread::spawn(move || tidy_blindly(&index))
        };
        index.add(LEVEL, MINE);
        searcher.join().unwrap();
        assert!(all(&index).contains(&MINE), "what this thread has entered is lost");
    });
}
