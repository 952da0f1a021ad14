//! Regions as their users see them. A test that needs a process of its own starts this program again (`child.rs`).

mod bad_input;
mod child;
mod content;
mod forks;
mod groups;
mod limit;
mod lost;
mod plain_user;
mod random;
mod ranges;
mod signals;
#[path = "../../../../tests/skipped.rs"]
mod skipped;
mod system_calls;
