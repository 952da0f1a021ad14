//! lowtide's privilege, which it keeps from the program.
//!
//! An ordinary user may run lowtide with two file or ambient capabilities: CAP_SYS_PTRACE (without
//! it the kernel reports no forks) and CAP_DAC_READ_SEARCH (`/dev/userfaultfd` is root's); two more
//! enable faults in the faulting thread ([`TRACING`]). They are effective only during the calls
//! that need them ([`with`]), and the program does not get them. Root keeps all, and so does its
//! program.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, configure_capability_in_ambient_set, set_capabilities};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// To see forks, and to open root's files for reading.
pub const NEEDED: CapabilitySet = CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_READ_SEARCH);

/// To load the BPF programs for faults in the faulting thread.
pub const TRACING: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::PERFMON);

/// Made effective for loading, as far as this process has them. CAP_SYS_ADMIN stands for both;
/// Debian's kernels require it to attach a program by a probe (perf_event_paranoid is 3).
pub const LOADING: CapabilitySet = TRACING.union(CapabilitySet::SYS_ADMIN);

/// The least capabilities for work with loaded programs.
pub fn for_loaded() -> CapabilitySet {
    if has(TRACING) { TRACING } else { LOADING }
}

/// Never passed to programs.
const KEPT: CapabilitySet = NEEDED.union(TRACING);

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether this process has capabilities that its program lacks. Then no process of the run can
/// follow paths into its descriptors.
pub fn is_above_program() -> bool {
    !is_root() && capabilities(None).is_ok_and(|sets| sets.permitted.intersects(KEPT))
}

/// Makes an ordinary user's capabilities ineffective and not inheritable. Call it first of all.
pub fn keep() {
    if is_root() {
        return;
    }
    let Ok(mut sets) = capabilities(None) else { return };
    for one in KEPT.iter() {
        // Fails only if there is nothing to lower.
        let _ = configure_capability_in_ambient_set(one, false);
    }
    sets.inheritable.remove(KEPT);
    sets.effective.remove(KEPT.union(LOADING));
    let _ = set_capabilities(None, sets);
}

/// Whether this process can make all of these effective.
pub fn has(wanted: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.permitted.contains(wanted))
}

/// Calls `f` with exactly these capabilities effective, as far as this process has them.
pub fn with<R>(wanted: CapabilitySet, f: impl FnOnce() -> R) -> R {
    let Ok(old) = capabilities(None) else { return f() };
    let now = CapabilitySets { effective: old.permitted & wanted, ..old };
    if set_capabilities(None, now).is_err() {
        return f();
    }
    let result = f();
    // Changes within the permitted set never fail.
    let _ = set_capabilities(None, old);
    result
}

/// Environment variables that the C library removed because lowtide has privileges, such as
/// LD_PRELOAD and LD_LIBRARY_PATH: the program, which has none, gets them.
pub fn hidden_variables() -> Vec<(OsString, OsString)> {
    // SAFETY: reads a number.
    if is_root() || unsafe { libc::getauxval(libc::AT_SECURE) } == 0 {
        return Vec::new();
    }
    // The original environment stays in memory; the file is root's, as this process has privileges.
    let text = with(NEEDED, || std::fs::read("/proc/self/environ")).unwrap_or_default();
    let variables = text.split(|byte| *byte == 0).filter_map(|variable| {
        let at = variable.iter().position(|byte| *byte == b'=')?;
        let [name, value] = [&variable[..at], &variable[at + 1..]].map(|part| OsStr::from_bytes(part).to_owned());
        std::env::var_os(&name).is_none().then_some((name, value))
    });
    variables.collect()
}

/// Opens `/dev/userfaultfd`.
///
/// # Errors
/// Those of open.
pub fn open_device() -> Result<rustix::fd::OwnedFd, Errno> {
    use rustix::fs::{CWD, Mode, OFlags};
    let open = || rustix::fs::openat(CWD, "/dev/userfaultfd", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    with(CapabilitySet::DAC_READ_SEARCH, open)
}
