//! Steps of a fork at which tests kill the process. Release builds compile them to nothing.

/// The process that takes a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fork {
    /// The process that forks.
    Parent,
    /// The forked process.
    Child,
}

/// Marks a step.
#[inline(always)]
pub fn taken(of: Fork) {
    #[cfg(any(test, feature = "faults"))]
    if crate::faults::fails(if of == Fork::Parent { crate::faults::Op::Forking } else { crate::faults::Op::Forked }) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
    #[cfg(not(any(test, feature = "faults")))]
    let _ = of;
}
