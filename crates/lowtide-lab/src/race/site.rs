//! Where a load runs.

use std::path::PathBuf;

#[derive(Debug)]
pub struct Site {
    /// Empty at first; its files go there.
    pub directory: PathBuf,
    pub quick: bool,
}

impl Site {
    /// One value for quick runs, one for full ones.
    pub fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}
