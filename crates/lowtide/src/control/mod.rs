//! Control of a live run: each `lowtide run` has a socket, on which clients exchange lines of JSON
//! with it.
//!
//! [`place`] is the sockets' location, [`protocol`] the messages; [`server`] and [`connection`] are
//! the side of `lowtide run`, which never waits for a client; [`dispatch`] maps requests to
//! [`crate::live`]. The other side is [`crate::client`].

mod connection;
mod dispatch;
pub mod place;
pub mod protocol;
mod server;

pub use server::Control;
