//! The statistics of a run as OpenMetrics text: what it says (`text.rs`), where it is served (`address.rs`), how
//! (`server.rs`), and how the threads that serve it get it from the supervisor (`requests.rs`).

mod address;
mod requests;
mod server;
mod text;

pub use address::Listening;
pub use requests::Requests;
pub use server::start;
pub use text::text;
