//! Who has how much RAM: the budget of the run, each process's share of memory that is shared, and the pool's part.

pub(crate) mod budget;
mod expected;
mod measuring;
pub mod pool_share;
mod share;
mod stuck;

pub use budget::{RamBudget, is_worth_adopting};
pub use expected::Expected;
pub use measuring::Measuring;
pub use share::{Look, Now, Others, Share, rest_after_look};
pub use stuck::Stuck;
