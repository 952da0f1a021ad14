//! This machine and what lowtide may do on it: [`machine`] has its memory, cgroups and kernel version, [`probe`] tries what a
//! run needs, [`confinement`] says why something is not allowed, [`privilege`] holds lowtide's own capabilities, [`swap_race`]
//! knows which kernels go wrong beside their own swap, [`accessed_bits`] which can tell what was accessed, [`exact_moves`] where moves
//! can be made for threads, [`watch_copies`] whether writes to what forks share wait for room (these three have a [`switch`] in the
//! environment), and [`doctor`] shows all of it to a user.

pub mod accessed_bits;
pub mod confinement;
pub mod doctor;
pub mod exact_moves;
pub mod machine;
pub mod privilege;
pub mod probe;
pub mod swap_race;
pub mod switch;
pub mod watch_copies;
