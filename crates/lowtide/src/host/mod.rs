//! This machine and lowtide's rights on it: [`machine`] has memory, cgroups and kernel version,
//! [`probe`] tries what a run needs, [`confinement`] explains refusals, [`privilege`] holds
//! lowtide's capabilities, [`swap_race`] lists kernels with bugs beside their own swap;
//! [`exact_moves`] has a [`switch`] in the environment; and [`doctor`] reports it all.

pub mod confinement;
pub mod doctor;
pub mod exact_moves;
pub mod machine;
pub mod privilege;
pub mod probe;
pub mod swap_race;
pub mod switch;
