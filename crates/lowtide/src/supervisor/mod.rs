//! The process of `lowtide run` beside the program.
//!
//! Before the program starts: [`shared_memory`] makes the memory that all processes of the run
//! share; [`launch`] and [`signals`] make the program's surroundings.
//!
//! While it runs: [`event_loop`] sleeps until an event. [`tree`] tracks the processes, [`ancestry`]
//! decides membership, [`broker`] answers requests ([`peer`] identifies the sender), [`in_thread`]
//! delivers faults to the faulting threads, [`enter`] brings the agent into programs that can't
//! preload it, [`cpu_clock`] and [`cpu_alarm`] detect activity, [`hold`] stops fast growers,
//! [`own_threads`] misses ended threads of lowtide, [`kept`] finds survivors that share memory,
//! [`overrun`] checks the limit, [`terminal_stop`] stops with the program, and [`series`] samples
//! the run over time.

pub mod ancestry;
pub mod broker;
pub mod cpu_alarm;
mod cpu_clock;
mod enter;
pub mod event_loop;
mod hold;
mod holder;
pub mod in_thread;
mod kept;
pub mod launch;
mod outlast_calls;
mod overrun;
mod own_threads;
pub mod peer;
pub mod series;
pub mod shared_memory;
pub mod signals;
mod terminal_stop;
pub mod tree;
