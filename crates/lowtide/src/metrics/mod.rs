//! The statistics of a run as OpenMetrics text: its content (`text.rs`), its address
//! (`address.rs`), the HTTP server (`server.rs`), and the server's requests to the supervisor
//! (`requests.rs`).

mod address;
mod requests;
mod server;
mod text;

pub use address::Listening;
pub use requests::Requests;
pub use server::start;
pub use text::text;
