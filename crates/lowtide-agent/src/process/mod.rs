//! The base of the agent: process state, own threads and heap, connection to `lowtide run`.

pub mod agent;
pub mod broker;
pub mod files;
pub mod heap;
pub mod pid_in_run;
pub mod remote;
pub mod resident;
pub mod say;
pub mod skip;
pub mod swap_areas;
pub mod thread;
pub mod thread_end;
