//! The pager in the test's own process: a real userfaultfd, regions of the test's own memory, handlers and a reclaimer as threads
//! of it. `house` sets that up, `random` does everything at once against a shadow, the others are single promises.

mod busy;
mod events;
mod executable;
mod forked;
mod freed;
mod full;
mod holes;
mod house;
mod large;
mod one_cpu;
mod order;
mod random;
mod references;
mod release;
mod removal;
mod sentinels;
mod signals;
#[path = "../../../../tests/skipped.rs"]
mod skipped;
mod steps;
mod swapoff;
mod together;
mod zero_page;
