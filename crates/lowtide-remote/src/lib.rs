//! Stores pages of a run, or of regions, on a Valkey or Redis server or cluster, for `lowtide run`
//! and for the library; the programs of a run contain none of this.
//!
//! [`stream`] carries a connection's bytes, plain or by TLS ([`tls`]); [`resp`] speaks the
//! protocol; [`server`] connects to one server and judges it; [`map`] knows the nodes' slots;
//! [`remote`] is the threads' shared state; [`client`] sends commands to the right nodes; [`pages`]
//! writes, reads and removes; [`keys`] names pages, [`copies`] places second copies, and [`harm`]
//! reports damaged ones; [`lease`] finds and removes the keys of killed runs; [`counts`] counts.
//! [`relay`] serves processes.
//!
//! Pages arrive here sealed: opening a page, elsewhere, detects a lost or older value.

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
