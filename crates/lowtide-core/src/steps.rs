//! The steps of a fork, at each of which a test kills the process, to see what becomes of the others. In what is shipped they
//! are nothing.

/// Whose step it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fork {
    /// The process that forks.
    Parent,
    /// The one that is forked.
    Child,
}

/// A step has been taken.
#[inline(always)]
pub fn taken(of: Fork) {
    #[cfg(any(test, feature = "faults"))]
    if crate::faults::fails(if of == Fork::Parent { crate::faults::Op::Forking } else { crate::faults::Op::Forked }) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
    #[cfg(not(any(test, feature = "faults")))]
    let _ = of;
}
