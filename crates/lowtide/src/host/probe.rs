//! Tries what the kernel permits this user. `run` refuses with [`Probe::refusal`]; `doctor` shows
//! all.

use crate::host::confinement::Confinement;
use crate::host::privilege;
use linux_raw_sys::general as sys;
use lowtide_config::reason;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::present::Present;
use lowtide_sys::release::{self, Release};
use lowtide_sys::uffd;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags};

/// Userfaultfd features that the pager needs.
pub const FEATURES: u64 = uffd::NEEDED_FEATURES;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// `/dev/userfaultfd`, which lowtide opens for a program that can't.
    Device,
    /// The system call, which the program can make: it is root, or vm.unprivileged_userfaultfd is
    /// 1.
    Syscall,
    /// Neither; the errors of both.
    Closed { device: Errno, syscall: Errno },
}

#[derive(Debug, Clone)]
pub struct Probe {
    pub kernel: Release,
    pub door: Door,
    pub confinement: Confinement,
    pub features: u64,
    pub handshake: Result<(), Errno>,
    pub pagemap_scan: Result<(), Errno>,
    /// Opening a userfaultfd for the library's regions, without privilege.
    pub regions: Result<(), Errno>,
    /// Mapping a memfd as code, for the agent.
    pub memfd_exec: Result<(), Errno>,
}

impl Probe {
    pub fn new() -> Self {
        let door = match open_device() {
            Ok(_) => Door::Device,
            Err(device) => match open_syscall() {
                Ok(_) => Door::Syscall,
                Err(syscall) => Door::Closed { device, syscall },
            },
        };
        Probe {
            kernel: release::running(),
            door,
            confinement: Confinement::new(),
            features: known_features(),
            handshake: open().and_then(|fd| handshake(&fd, FEATURES)).map(drop),
            pagemap_scan: pagemap_scan(),
            regions: uffd::Uffd::open_for_user_mode(uffd::NEEDED_WITHOUT_EVENTS | uffd::FEATURE_SIGBUS).map(drop),
            memfd_exec: memfd_exec(),
        }
    }

    /// Why `run` can't work here and what to do, or None.
    pub fn refusal(&self) -> Option<String> {
        let (major, minor, _) = self.kernel;
        match self.door {
            Door::Closed { syscall: Errno::NOSYS, .. } => {
                return Some("this kernel has no userfaultfd: boot one that is built with CONFIG_USERFAULTFD".to_owned());
            }
            Door::Closed { .. } => {
                let command = grant_command();
                let why = self.confinement.why_no_forks(&command);
                let why = why.unwrap_or_else(|| self.confinement.why_no_userfaultfd(&command));
                return Some(format!("no privilege for userfaultfd: {why}"));
            }
            _ => {}
        }
        if self.features & sys::UFFD_FEATURE_MOVE as u64 == 0 {
            return Some(format!("this kernel ({major}.{minor}) has no UFFDIO_MOVE: boot Linux 6.8 or later"));
        }
        if self.pagemap_scan == Err(Errno::NOTTY) {
            return Some(format!("this kernel ({major}.{minor}) has no PAGEMAP_SCAN: boot Linux 6.7 or later"));
        }
        if FEATURES & !self.features != 0 {
            return Some(format!("this kernel ({major}.{minor}) lacks events of userfaultfd: boot Linux 6.8 or later"));
        }
        match self.handshake {
            Ok(()) => {}
            Err(Errno::PERM) => {
                let why = self.confinement.why_no_forks(&grant_command());
                let why = why.unwrap_or_else(|| "a security policy forbids it: allow it".to_owned());
                return Some(format!("no privilege to see forks through userfaultfd: {why}"));
            }
            Err(error) => return Some(format!("userfaultfd fails ({}): `lowtide doctor` says more", reason(error))),
        }
        if let Err(error) = self.memfd_exec {
            let why = reason(error);
            return Some(format!(
                "code can't be mapped from a memfd ({why}): a security policy (SELinux?) forbids it; allow it"
            ));
        }
        None
    }
}

/// The commands that run lowtide as this user with the needed capabilities: once, and for good.
pub fn grant_command() -> String {
    let exe = std::env::current_exe().map_or_else(|_| "lowtide".to_owned(), |path| path.display().to_string());
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let caps = "+sys_ptrace,+dac_read_search";
    format!(
        "`sudo -E setpriv --reuid={uid} --regid={gid} --init-groups --inh-caps={caps} --ambient-caps={caps} {exe} run ...`, \
         or, for all users, `sudo setcap cap_sys_ptrace,cap_dac_read_search=p {exe}`"
    )
}

fn open() -> Result<OwnedFd, Errno> {
    open_device().or_else(|_| open_syscall())
}

/// With the privilege that lowtide has.
fn open_device() -> Result<OwnedFd, Errno> {
    uffd::create_on(privilege::open_device()?.as_fd())
}

/// With the program's privilege: root's, or none.
fn open_syscall() -> Result<OwnedFd, Errno> {
    // SAFETY: nothing is registered with it, so no memory access changes its meaning.
    unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK) }
}

fn handshake(fd: &OwnedFd, features: u64) -> Result<u64, Errno> {
    privilege::with(privilege::NEEDED, || uffd::handshake(fd.as_fd(), features))
}

fn known_features() -> u64 {
    open().and_then(|fd| handshake(&fd, 0)).unwrap_or(0)
}

fn pagemap_scan() -> Result<(), Errno> {
    let here = (&raw const FEATURES_PAGE) as usize & !(PAGE_SIZE - 1);
    let present = privilege::with(privilege::NEEDED, Present::open)?;
    present.scan(here, here + PAGE_SIZE, 0).map(drop)
}

/// A page to scan.
static FEATURES_PAGE: u64 = FEATURES;

/// Whether a shared library can be loaded from a memfd.
fn memfd_exec() -> Result<(), Errno> {
    let fd = rustix::fs::memfd_create(c"lowtide-probe", MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL)?;
    rustix::fs::ftruncate(&fd, PAGE_SIZE as u64)?;
    // SAFETY: a fresh mapping, which no code touches, unmapped again.
    unsafe {
        let at =
            rustix::mm::mmap(std::ptr::null_mut(), PAGE_SIZE, ProtFlags::READ | ProtFlags::EXEC, MapFlags::PRIVATE, &fd, 0)?;
        rustix::mm::munmap(at, PAGE_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Probe {
        Probe {
            kernel: (6, 18, 0),
            door: Door::Device,
            confinement: Confinement {
                is_root: true,
                permitted: privilege::NEEDED,
                bounding: privilege::NEEDED,
                is_filtered: false,
                no_new_privileges: false,
                in_user_namespace: false,
            },
            features: FEATURES,
            handshake: Ok(()),
            pagemap_scan: Ok(()),
            regions: Ok(()),
            memfd_exec: Ok(()),
        }
    }

    #[test]
    fn refusals_name_the_thing_and_the_remedy() {
        assert_eq!(good().refusal(), None);
        let closed = |syscall| Door::Closed { device: Errno::ACCESS, syscall };
        let filtered = Confinement { is_filtered: true, ..good().confinement };
        let user = Confinement { is_root: false, permitted: rustix::thread::CapabilitySet::empty(), ..good().confinement };
        for (probe, words) in [
            (Probe { door: closed(Errno::PERM), confinement: user, ..good() }, ["privilege for userfaultfd", "sudo"]),
            (Probe { handshake: Err(Errno::PERM), confinement: user, ..good() }, ["see forks", "sudo"]),
            (Probe { door: closed(Errno::PERM), confinement: filtered, ..good() }, ["seccomp", "--device /dev/userfaultfd"]),
            (Probe { door: closed(Errno::NOSYS), ..good() }, ["no userfaultfd", "CONFIG_USERFAULTFD"]),
            (Probe { features: 0, handshake: Err(Errno::INVAL), kernel: (6, 6, 0), ..good() }, ["6.6", "6.8"]),
            (Probe { pagemap_scan: Err(Errno::NOTTY), kernel: (6, 6, 0), ..good() }, ["PAGEMAP_SCAN", "6.7"]),
            (Probe { memfd_exec: Err(Errno::ACCESS), ..good() }, ["memfd", "SELinux"]),
        ] {
            let line = probe.refusal().expect("refused");
            assert!(words.iter().all(|word| line.contains(word)), "{line}");
            assert!(!line.contains('\n'));
        }
    }

    #[test]
    fn this_machine_is_probed() {
        let probe = Probe::new();
        assert!(probe.kernel > (3, 0, 0));
        let _ = probe.refusal();
    }
}
