//! Pages of a run on a Valkey or Redis server, for `lowtide run`, which has the connections: nothing of this is in the programs
//! that it runs.
//!
//! [`resp`] speaks the protocol; [`server`] connects, and says whether a server will do; [`pages`] writes, reads and removes;
//! [`keys`] says under which names; [`lease`] is how the keys of a run that was killed are known and removed.
//!
//! What is written is sealed before it comes here: a server that loses a page, or keeps an older one, is found out where the page
//! is opened, and not here.

pub mod keys;
pub mod lease;
pub mod pages;
pub mod resp;
pub mod server;
