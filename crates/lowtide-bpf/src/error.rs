//! Errors in one line.

use std::fmt;
use std::io;

use rustix::io::Errno;

/// What the kernel or machine lacks.
#[derive(Debug)]
pub enum Error {
    /// The kernel's types can't be read.
    NoTypes(io::Error),
    /// The kernel's types have an unknown form.
    Malformed(&'static str),
    /// A type, member or function that this kernel lacks.
    Missing(String),
    /// Forbidden by the kernel, and the requirement.
    NotAllowed(Errno, String),
    /// The verifier refused a program: its last line.
    Refused(&'static str, Errno, String),
    /// A failed call.
    Call(&'static str, Errno),
    /// Programs see this process under other ids than it does.
    Namespace,
    /// A mistake in a program of this crate.
    Assembly(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoTypes(e) => write!(f, "no BTF, the kernel's types: {}: {e}", crate::btf::PATH),
            Error::Malformed(what) => write!(f, "BTF, the kernel's types, can't be read: {what}"),
            Error::Missing(what) => write!(f, "this kernel has no {what}"),
            Error::NotAllowed(errno, why) => write!(f, "BPF programs can't be loaded ({errno}): {why}"),
            Error::Refused(program, errno, log) => write!(f, "the kernel refuses the program {program} ({errno}): {log}"),
            Error::Call(what, errno) => write!(f, "{what}: {errno}"),
            Error::Namespace => {
                write!(f, "in a PID namespace (a container), where processes have other numbers than BPF programs see")
            }
            Error::Assembly(what) => write!(f, "a program was put together wrongly: {what}"),
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    pub(crate) fn of_privileged(what: &'static str, errno: Errno) -> Error {
        match errno {
            Errno::PERM | Errno::ACCESS => {
                let read = |path| std::fs::read_to_string(path).unwrap_or_default();
                Error::NotAllowed(errno, reason(&read("/proc/self/status"), &read("/sys/kernel/security/lockdown")))
            }
            Errno::NOSYS => Error::Missing("bpf(2)".to_owned()),
            errno => Error::Call(what, errno),
        }
    }
}

/// By bit number.
const CAPABILITIES: [(u32, &str); 2] = [(39, "CAP_BPF"), (38, "CAP_PERFMON")];
/// Implies both.
const CAP_SYS_ADMIN: u32 = 21;

/// The reason for EPERM, from a process's `status` and `lockdown`.
fn reason(status: &str, lockdown: &str) -> String {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0);
    let has = |bit: u32| set >> bit & 1 != 0;
    let lacking: Vec<&str> =
        CAPABILITIES.iter().filter(|(bit, _)| !has(*bit) && !has(CAP_SYS_ADMIN)).map(|(_, name)| *name).collect();
    if !lacking.is_empty() {
        return format!("it takes CAP_BPF and CAP_PERFMON, or root; this process is without {}", lacking.join(" and "));
    }
    if lockdown.contains("[confidentiality]") {
        return "the kernel is locked down (lockdown=confidentiality)".to_owned();
    }
    "although this process has the capabilities: a container's system call filter or a security module forbids it".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_named() {
        let status = |set: u64| format!("Name:\tx\nCapPrm:\t0\nCapEff:\t{set:016x}\n");
        assert!(reason(&status(0), "").ends_with("without CAP_BPF and CAP_PERFMON"));
        assert!(reason(&status(1 << 39), "").ends_with("without CAP_PERFMON"));
        for enough in [1 << 21, 1 << 38 | 1 << 39] {
            assert!(reason(&status(enough), "none integrity [confidentiality]").contains("locked down"));
            assert!(reason(&status(enough), "[none] integrity confidentiality").contains("system call filter"));
        }
    }

    #[test]
    fn each_is_one_line() {
        for error in [
            Error::NoTypes(io::ErrorKind::NotFound.into()),
            Error::Missing("function handle_userfault".to_owned()),
            Error::of_privileged("bpf", Errno::PERM),
            Error::of_privileged("bpf", Errno::NOSYS),
            Error::Namespace,
        ] {
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
        }
    }
}
