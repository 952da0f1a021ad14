//! The memory of a load that runs without a limit, while it is large.

use std::time::Duration;

use lowtide_config::proc;
use lowtide_core::store::Page;

use super::loads::Load;
use super::run::run;
use super::site::Site;
use crate::programs::anonymous;

const PATIENCE: Duration = Duration::from_secs(300);
/// A program with less is not read.
const LEAST: u64 = 64 << 20;

/// Up to `most` pages, spread over the load's largest process, as they are when it has grown by a
/// quarter for the last time.
///
/// # Errors
/// A line: it failed, or stayed small.
pub fn dump(load: &Load, site: &Site, most: usize) -> Result<Vec<Page>, String> {
    let task = (load.task)(site)?;
    let (mut next, mut found) = (LEAST, Err(format!("stayed below {} MiB", LEAST >> 20)));
    let watch = |session: u32| {
        let sized = proc::of_session(session).into_iter().map(|process| (proc::anonymous(process.pid), process.pid));
        if let Some((bytes, pid)) = sized.max().filter(|(bytes, _)| *bytes > next) {
            next = bytes / 4 * 5;
            // What changes meanwhile may be torn; a process that has ended leaves the former pages.
            found = anonymous(pid, most).or_else(|error| found.clone().map_err(|_| error));
        }
    };
    run(&task, &[], PATIENCE, watch)?.done()?;
    found
}
