//! A live run: its state in `lowtide run`, and its changes: the limit ([`limit`]), swap areas
//! ([`swapon`], [`swapoff`]), resident memory ([`reclaim`]).
//!
//! Anything slow is a [`Task`], which each look at the tree advances. No task waits.

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

pub use task::{Answer, Step, Task, answer, failure};

use crate::plan::Plan;
use crate::supervisor::in_thread::InThread;
use crate::supervisor::shared_memory::Shared;
use crate::supervisor::tree::Tree;
use areas::Areas;
use bell::Bell;
use limit::Limits;
use std::time::Instant;

pub struct Live<'a> {
    pub shared: &'a Shared,
    pub program: String,
    pub tree: Tree,
    pub areas: Areas,
    pub limits: Limits,
    pub in_thread: InThread,
    pub warnings: Vec<String>,
    pub started: Instant,
    /// A swap area is being opened: the next must wait to see which it is.
    pub opening: bool,
    /// The one slot for a request to move pages out is taken.
    pub reclaiming: bool,
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

    /// Looks at the tree and updates the limits.
    pub fn look(&mut self) {
        self.tree.poll();
        self.limits.follow(self.tree.now().ram);
        self.bell.look(self.shared, self.tree.now().ram);
    }
}
