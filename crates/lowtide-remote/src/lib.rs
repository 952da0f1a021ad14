//! Pages of a run, or of regions, on a Valkey or Redis server, or a cluster of them, for `lowtide run` and for the library: nothing
//! of this is in the programs that `lowtide run` runs.
//!
//! [`stream`] is the bytes of a connection, plain or by TLS, and [`tls`] which servers are believed; [`resp`] speaks the protocol;
//! [`server`] connects to one server, and says whether it will do; [`map`] is which node of a cluster has what; [`remote`] is what
//! all threads share; [`client`] sends commands to the nodes that have their keys; [`pages`] writes, reads and removes; [`keys`]
//! says under which names, and [`copies`] where a second copy of each is; [`harm`] is what became of copies; [`lease`] is how the
//! keys of a run that was killed are known and removed; [`counts`] is what of all this was done. [`relay`] serves processes.
//!
//! What is written is sealed before it comes here: a server that loses a page, or keeps an older one, is found out where the page
//! is opened, and not here.

pub mod client;
pub mod copies;
pub mod counts;
pub mod harm;
pub mod keys;
pub mod lease;
pub mod map;
pub mod pages;
pub mod pause;
pub mod relay;
pub mod remote;
pub mod resp;
pub mod server;
pub mod stream;
pub mod tls;
