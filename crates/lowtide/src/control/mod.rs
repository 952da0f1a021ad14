//! Control of a run while it goes on: a socket for each `lowtide run`, on which clients ask and are answered in lines of JSON.
//!
//! [`place`] says where the sockets are, [`protocol`] what is said, [`server`] and [`connection`] are the side of `lowtide
//! run`, which never waits for a client, and [`dispatch`] leads from a request to what is done in [`crate::live`]. The other
//! side is
//! [`crate::client`].

mod connection;
mod dispatch;
pub mod place;
pub mod protocol;
mod server;

pub use server::Control;
