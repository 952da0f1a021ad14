//! Whose turn it is, of the tests of all programs that run side by side: a lock file in `target/tmp`. A module of the tests.
#![allow(dead_code)] // each program uses a part

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs::File;
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};

/// Tests of one program that run beside others at a time: what they wait for is bounded, though generously.
const BESIDE: usize = 2;

static RUNNING: Mutex<usize> = Mutex::new(0);
static ONE_ENDED: Condvar = Condvar::new();

thread_local! {
    /// Of the test of this thread.
    static HELD: RefCell<Held> = const { RefCell::new(Held { file: None, is_beside: false, is_to_be_alone: false }) };
}

struct Held {
    file: Option<File>,
    is_beside: bool,
    is_to_be_alone: bool,
}

/// The turn of this thread's test, until it is dropped.
pub(crate) struct Turn(());

/// Waits until no other test has a turn: for what asserts how much memory is taken at most, or what threads do at which rate.
pub(crate) fn alone() -> Turn {
    hold(FlockOperation::LockExclusive);
    Turn(())
}

/// Waits until no test is alone, and few others of this program have a turn.
pub(crate) fn beside() -> Turn {
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    *ONE_ENDED.wait_while(running, |running| *running >= BESIDE).unwrap_or_else(PoisonError::into_inner) += 1;
    HELD.with_borrow_mut(|held| held.is_beside = true);
    hold(FlockOperation::LockShared);
    Turn(())
}

/// Beside others until [`be_alone`].
pub(crate) fn alone_later() -> Turn {
    let turn = beside();
    HELD.with_borrow_mut(|held| held.is_to_be_alone = true);
    turn
}

/// What follows is what this test must be alone for, if it must.
pub(crate) fn be_alone() {
    if HELD.with_borrow_mut(|held| std::mem::take(&mut held.is_to_be_alone)) {
        release();
        hold(FlockOperation::LockExclusive);
    }
}

fn hold(how: FlockOperation) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("turn");
    let file = File::options().create(true).append(true).open(path).expect("a file under target/");
    while let Err(error) = flock(&file, how) {
        assert!(error == Errno::INTR, "the lock file: {error}");
    }
    HELD.with_borrow_mut(|held| held.file = Some(file));
}

fn release() {
    let is_beside = HELD.with_borrow_mut(|held| {
        // Before another of this program may have it.
        held.file = None;
        std::mem::take(&mut held.is_beside)
    });
    if is_beside {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ONE_ENDED.notify_one();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| held.is_to_be_alone = false);
        release();
    }
}
