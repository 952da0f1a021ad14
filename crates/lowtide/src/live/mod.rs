//! A run while it goes on: what `lowtide run` knows of it, and what may be changed: its limit ([`limit`]), its swap areas
//! ([`swapon`],
//! [`swapoff`]), how much is in memory ([`reclaim`]).
//!
//! Whatever takes time is a [`Task`], which is asked at each look at the tree how far it is. None of them waits.

pub mod admission;
pub mod areas;
mod bell;
pub mod evacuation;
pub mod limit;
pub mod processes;
pub mod reclaim;
pub mod swapoff;
pub mod swapon;
mod task;

pub use task::{Answer, Step, Task, in_vain, said};

use crate::plan::Plan;
use crate::supervisor::in_thread::InThread;
use crate::supervisor::shared_memory::Shared;
use crate::supervisor::tree::Tree;
use areas::Areas;
use bell::Bell;
use limit::Limits;
use std::time::Instant;

/// A run that goes on.
pub struct Live<'a> {
    /// What its processes share.
    pub shared: &'a Shared,
    /// What the user calls the program.
    pub program: String,
    /// Its processes.
    pub tree: Tree,
    /// Its swap areas.
    pub areas: Areas,
    /// Its limits.
    pub limits: Limits,
    /// Who of them is told of its own faults.
    pub in_thread: InThread,
    /// All warnings shown.
    pub warnings: Vec<String>,
    /// When the program was started.
    pub started: Instant,
    /// A swap area is being opened: another one must see first which it is.
    pub opening: bool,
    /// A request to move pages out has not been dealt with: there is place for one.
    pub reclaiming: bool,
    /// Times that `lowtide run` woke up.
    pub wakeups: u64,
    bell: Bell,
}

impl<'a> Live<'a> {
    /// A run that starts now. Takes the swap areas of the plan.
    pub fn new(plan: &mut Plan, shared: &'a Shared, in_thread: InThread) -> Live<'a> {
        Live {
            shared,
            program: plan.argv.first().map_or_else(String::new, |name| name.display().to_string()),
            tree: Tree::new(shared.segment()),
            areas: Areas::new(std::mem::take(&mut plan.swap), shared.settings(), shared.segment()),
            limits: Limits::new(shared.settings(), plan.pool_given),
            in_thread,
            warnings: plan.warnings.clone(),
            started: Instant::now(),
            opening: false,
            reclaiming: false,
            wakeups: 0,
            bell: Bell::default(),
        }
    }

    /// Looks at the tree, and lets the limits follow.
    pub fn look(&mut self) {
        self.tree.poll();
        self.limits.follow(self.tree.now().ram);
        self.bell.look(self.shared, self.tree.now().ram);
    }
}
