//! lowtide's privilege: what it may do, and what it keeps to itself.
//!
//! An ordinary user may run lowtide with two capabilities, of its file or ambient ones: CAP_SYS_PTRACE (the kernel reports
//! forks to nobody without it) and CAP_DAC_READ_SEARCH (`/dev/userfaultfd` is root's), and with two more for faults in the
//! faulting thread ([`TRACING`]). They are kept out of effect but for the
//! calls that need them ([`with`]), and the program does not get them. Root keeps all that it has, and so does its program.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, configure_capability_in_ambient_set, set_capabilities};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// What lowtide needs: to see forks, and to open what is root's for reading.
pub const NEEDED: CapabilitySet = CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_READ_SEARCH);

/// What it takes to load the BPF programs by which threads serve their own faults.
pub const TRACING: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::PERFMON);

/// What is put into effect for that, as far as this process has it. CAP_SYS_ADMIN stands for both, and Debian's kernels want it of
/// who attaches a program by a probe (perf_event_paranoid is 3).
pub const LOADING: CapabilitySet = TRACING.union(CapabilitySet::SYS_ADMIN);

/// What is put into effect to work with programs that are loaded: no more than that takes.
pub fn for_loaded() -> CapabilitySet {
    if has(TRACING) { TRACING } else { LOADING }
}

/// All that is kept from programs.
const KEPT: CapabilitySet = NEEDED.union(TRACING);

/// Whether what lowtide may do comes from being root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether this process has capabilities that its program will not have. Then nobody of the run can follow paths into its
/// descriptors.
pub fn is_above_program() -> bool {
    !is_root() && capabilities(None).is_ok_and(|sets| sets.permitted.intersects(KEPT))
}

/// Takes capabilities of an ordinary user out of effect, and off what a program inherits. To be called first of all.
pub fn keep() {
    if is_root() {
        return;
    }
    let Ok(mut sets) = capabilities(None) else { return };
    for one in KEPT.iter() {
        // Fails only where there is nothing to lower.
        let _ = configure_capability_in_ambient_set(one, false);
    }
    sets.inheritable.remove(KEPT);
    sets.effective.remove(KEPT.union(LOADING));
    let _ = set_capabilities(None, sets);
}

/// Whether this process may bring these capabilities into effect: all of them.
pub fn has(wanted: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.permitted.contains(wanted))
}

/// Calls `f` with these capabilities in effect, as far as this process has them, and no others.
pub fn with<R>(wanted: CapabilitySet, f: impl FnOnce() -> R) -> R {
    let Ok(old) = capabilities(None) else { return f() };
    let now = CapabilitySets { effective: old.permitted & wanted, ..old };
    if set_capabilities(None, now).is_err() {
        return f();
    }
    let result = f();
    // Lowering and raising within what is permitted never fails.
    let _ = set_capabilities(None, old);
    result
}

/// Variables of the environment that the C library took away because lowtide has privileges, such as LD_PRELOAD and
/// LD_LIBRARY_PATH: they are the program's, which has none.
pub fn hidden_variables() -> Vec<(OsString, OsString)> {
    // SAFETY: asks for a number.
    if is_root() || unsafe { libc::getauxval(libc::AT_SECURE) } == 0 {
        return Vec::new();
    }
    // What was given stays in memory, and the file of a process with privileges is root's.
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
