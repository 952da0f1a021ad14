//! `--swap`: where pages go that don't stay in RAM. [`area`] opens the requested areas
//! ([`lowtide_config::spec`] parses them); [`place`] is a directory for unnamed files, [`file`] a
//! named file or a block device; [`name`] identifies an area of a run, and [`slots`] selects the
//! slot allocator.

pub mod area;
pub mod file;
pub mod name;
pub mod place;
pub mod slots;
