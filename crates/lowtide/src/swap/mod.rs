//! `--swap`: where pages go that don't stay in RAM. [`area`] opens what was asked for (how that is written:
//! [`lowtide_config::spec`]); [`place`] is a directory for unnamed files, [`file`] a named file or a block device; [`name`]
//! tells which area of a run somebody means, and [`slots`] how an area's slots are found.

pub mod area;
pub mod file;
pub mod name;
pub mod place;
pub mod slots;
