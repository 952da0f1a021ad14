//! Explains from `/proc/self` why this process lacks privilege: which capability is missing and
//! how, and what else is in the way.

use crate::host::privilege;
use lowtide_config::proc::Status;
use rustix::thread::{CapabilitySet, capabilities};

/// `/proc/self/uid_map` of the initial user namespace.
const WHOLE: [&str; 3] = ["0", "0", "4294967295"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confinement {
    /// Perhaps of its user namespace only.
    pub is_root: bool,
    /// Capabilities that it can make effective.
    pub permitted: CapabilitySet,
    /// Capabilities that it, or what it executes, can ever have.
    pub bounding: CapabilitySet,
    pub is_filtered: bool,
    /// no_new_privs: neither sudo nor file capabilities have an effect.
    pub no_new_privileges: bool,
    pub in_user_namespace: bool,
}

impl Confinement {
    pub fn new() -> Confinement {
        let status = Status::of("self").unwrap_or_default();
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let permitted = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.permitted);
        Self::parse(&status, &map, permitted, privilege::is_root())
    }

    fn parse(status: &Status, uid_map: &str, permitted: CapabilitySet, is_root: bool) -> Confinement {
        Confinement {
            is_root,
            permitted,
            bounding: CapabilitySet::from_bits_retain(status.bits("CapBnd").unwrap_or(0)),
            is_filtered: !matches!(status.value("Seccomp"), None | Some("" | "0")),
            no_new_privileges: status.value("NoNewPrivs") == Some("1"),
            in_user_namespace: !uid_map.is_empty() && !uid_map.split_whitespace().eq(WHOLE),
        }
    }

    /// Why the kernel would not report forks to lowtide, and the remedy; None: it would.
    pub fn why_no_forks(&self, run_with_privilege: &str) -> Option<String> {
        let missing = !self.permitted.contains(CapabilitySet::SYS_PTRACE);
        let text = if self.in_user_namespace {
            "this is a user namespace (a rootless container?), in which no capability lets the kernel report forks: \
             start lowtide outside of it, or the container as root with `--cap-add SYS_PTRACE --device /dev/userfaultfd`"
                .to_owned()
        } else if !missing {
            return None;
        } else if self.is_root && !self.bounding.contains(CapabilitySet::SYS_PTRACE) {
            "root has no CAP_SYS_PTRACE here (it is not in the bounding set): \
             start the container with `--cap-add SYS_PTRACE --device /dev/userfaultfd`"
                .to_owned()
        } else if self.is_root {
            "CAP_SYS_PTRACE was taken from root here: start lowtide with it".to_owned()
        } else if !self.bounding.contains(CapabilitySet::SYS_PTRACE) {
            "CAP_SYS_PTRACE is missing and not in the bounding set, so sudo can't give it: \
             start the container with `--cap-add SYS_PTRACE --device /dev/userfaultfd`"
                .to_owned()
        } else if self.no_new_privileges {
            "CAP_SYS_PTRACE is missing, and sudo has no effect here (no_new_privs): \
             start lowtide outside of what sets that, or with the capability already in effect"
                .to_owned()
        } else {
            format!("CAP_SYS_PTRACE is missing: give it to lowtide (the program does not get it): {run_with_privilege}")
        };
        Some(text)
    }

    /// Why the kernel would refuse the program a userfaultfd that reports forks, and the remedy.
    pub fn why_no_userfaultfd(&self, run_with_privilege: &str) -> String {
        if self.is_filtered {
            "the system call is forbidden by a filter (seccomp) and /dev/userfaultfd is not there or can't be opened: \
             start the container with `--device /dev/userfaultfd`, or with a seccomp profile that allows userfaultfd"
                .to_owned()
        } else if self.is_root {
            "/dev/userfaultfd is not there or can't be opened: start the container with `--device /dev/userfaultfd`".to_owned()
        } else {
            format!("/dev/userfaultfd can't be opened (CAP_DAC_READ_SEARCH is missing): {run_with_privilege}")
        }
    }

    pub fn describe(&self) -> String {
        let has = |what: CapabilitySet, name: &str| {
            let how = match (self.permitted.contains(what), self.bounding.contains(what)) {
                (true, _) => "yes",
                (false, true) => "no",
                (false, false) => "no, nor in the bounding set",
            };
            format!("{name}: {how}")
        };
        let mut parts =
            vec![has(CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE"), has(CapabilitySet::DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH")];
        for (is, text) in [
            (self.is_filtered, "system calls are filtered (seccomp)"),
            (self.no_new_privileges, "no_new_privs is set"),
            (self.in_user_namespace, "in a user namespace"),
        ] {
            parts.extend(is.then(|| text.to_owned()));
        }
        parts.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tx\nCapBnd:\t000001ffffffffff\nNoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n";
    const MAP: &str = "         0          0 4294967295\n";

    fn status(text: &str) -> Status {
        Status::from(text.as_bytes().to_vec())
    }

    #[test]
    fn status_is_read() {
        let free = Confinement::parse(&status(STATUS), MAP, privilege::NEEDED, true);
        assert!(!free.is_filtered && !free.no_new_privileges && !free.in_user_namespace);
        assert!(free.bounding.contains(privilege::NEEDED));
        let confined = STATUS.replace("Seccomp:\t0", "Seccomp:\t2").replace("Privs:\t0", "Privs:\t1").replace("1ff", "000");
        let confined =
            Confinement::parse(&status(&confined.replace("ffffffff", "00000000")), "0 1000 1\n", privilege::NEEDED, true);
        assert!(confined.is_filtered && confined.no_new_privileges && confined.in_user_namespace);
        assert!(confined.bounding.is_empty());
    }

    #[test]
    fn what_is_missing_is_named() {
        let none = CapabilitySet::empty();
        let free = Confinement::parse(&status(STATUS), MAP, privilege::NEEDED, true);
        assert_eq!(free.why_no_forks("sudo x"), None);
        let user = Confinement { permitted: none, is_root: false, ..free };
        for (confinement, words) in [
            (user, ["CAP_SYS_PTRACE is missing", "sudo x"]),
            (Confinement { no_new_privileges: true, ..user }, ["no_new_privs", "outside"]),
            (Confinement { bounding: none, ..user }, ["bounding set", "--cap-add SYS_PTRACE"]),
            (Confinement { bounding: none, is_root: true, ..user }, ["root has no CAP_SYS_PTRACE", "--cap-add SYS_PTRACE"]),
            (Confinement { is_root: true, ..user }, ["taken from root", "start lowtide with it"]),
            (Confinement { in_user_namespace: true, ..free }, ["user namespace", "outside"]),
        ] {
            let text = confinement.why_no_forks("sudo x").expect("no forks");
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
            assert!(!text.contains("run as root") && !text.contains("  "), "{text}");
        }
        assert!(Confinement { is_filtered: true, ..free }.why_no_userfaultfd("sudo x").contains("seccomp profile"));
        assert!(free.why_no_userfaultfd("sudo x").contains("--device /dev/userfaultfd"));
        assert!(user.why_no_userfaultfd("sudo x").contains("CAP_DAC_READ_SEARCH"));
    }
}
