//! The process of `lowtide run` beside the program. Before the program starts: the memory that all processes of the run share
//! ([`shared_memory`]), the program's surroundings ([`launch`], [`signals`]). While it runs: [`event_loop`] sleeps until
//! something happens, [`tree`] knows the processes and [`ancestry`] which of them belong to the run, [`broker`] answers those
//! that can't help themselves ([`peer`] says who asks), [`in_thread`] has the kernel tell threads of their own faults,
//! [`enter`] brings the agent into programs that can't preload it, [`cpu_clock`] knows which of them have run and [`cpu_alarm`]
//! says when one does, [`hold`] holds those that grow too fast, [`own_threads`] misses lowtide's threads in them, [`kept`] finds
//! who outlives them and shares their memory, [`overrun`] knows whether the limit held, [`terminal_stop`] stops with the program,
//! and [`series`] keeps what the run had over time.

pub mod ancestry;
pub mod broker;
pub mod cpu_alarm;
mod cpu_clock;
mod enter;
pub mod event_loop;
mod hold;
pub mod in_thread;
mod kept;
pub mod launch;
mod overrun;
mod own_threads;
pub mod peer;
pub mod series;
pub mod shared_memory;
pub mod signals;
mod terminal_stop;
pub mod tree;
