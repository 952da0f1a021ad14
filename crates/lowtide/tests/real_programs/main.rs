//! Real programs under a limit, each compared with its own native run.
//!
//! `check` says what must hold, `measure` runs a program and samples it from outside, the other modules are the programs: one
//! family each. The tests measure memory, so they run one at a time ([`machine::turn`]), whatever `--test-threads` says.
//!
//! One test: `cargo test --release -p lowtide --test real_programs -- memory::patterns`.
//! `LOWTIDE_TESTS_NATIVE_ONLY=1` runs the native halves alone: a check of the tests themselves.

mod accounting;
mod areas;
mod beyond;
mod cgroup;
mod check;
mod clones;
mod cold;
mod compressing;
mod cpus_and_nodes;
mod crowded;
mod daemons;
mod early_threads;
mod ends;
mod forks;
mod gauges;
mod handlers;
mod held;
mod kernel_truth;
mod left_behind;
mod machine;
mod mapping_calls;
mod measure;
mod memory;
mod memory_locks;
mod no_exec_gain;
mod on_a_terminal;
mod on_disk;
mod programs;
#[path = "../progress/mod.rs"]
mod progress;
#[path = "../top/pty.rs"]
#[allow(dead_code)] // a part is used here
mod pty;
mod python;
mod raw_moves;
mod redis;
mod signal_cases;
mod sleepers;
mod soak;
mod surroundings;
mod survivors;
mod system_calls;
mod threads;
mod tools;
mod trees;
mod users;
mod without_hooks;
mod writeback;
