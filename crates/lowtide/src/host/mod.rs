//! This machine and lowtide's rights on it: [`machine`] has memory, cgroups and kernel version,
//! [`probe`] tries what a run needs, [`confinement`] explains refusals, [`privilege`] holds
//! lowtide's capabilities, [`swap_race`] lists kernels with bugs beside their own swap;
//! and [`doctor`] reports it all.

pub mod confinement;
pub mod doctor;
pub mod machine;
pub mod privilege;
pub mod probe;
pub mod swap_race;
