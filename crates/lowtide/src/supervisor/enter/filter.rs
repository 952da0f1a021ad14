//! Installs the filter (`lowtide-wire`'s `call_filter`) in a held program.

use super::Following;
use super::tracee::{Tracee, Untraced};
use linux_raw_sys::general as sys;
use lowtide_wire::call_filter::{self, ANOTHERS, ARGUMENTS, IS_IT_THERE, IS_THERE, TOO_MANY};
use rustix::fd::{OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Installs the filter, unless an ancestor has one or the kernel refuses; then nothing changes.
///
/// # Errors
/// It died; or it has the filter without a listener, so that it can't execute anything.
pub fn install(tracee: &mut Tracee, following: &mut Following) -> Result<(), Untraced> {
    // Installs nothing that this process could not follow.
    let Ok(pidfd) = pidfd_open(tracee.pid(), PidfdFlags::empty()) else { return Ok(()) };
    // Reserves a descriptor for the listener.
    let Ok(reserve) = pidfd.try_clone() else { return Ok(()) };
    let take = |number| pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty());
    // No descriptor has this number, so a process without the right to take any fails here, before
    // the install.
    if take(RawFd::MAX).err() != Some(Errno::BADF) {
        return Ok(());
    }
    if !following.has_room() {
        if !is_there(tracee)? {
            following.say(TOO_MANY);
        }
        return Ok(());
    }
    let program = tracee.scratch(|at| program(at, following.tells_changes))?;
    let [mode, flags] = ARGUMENTS;
    let number = match tracee.syscall("seccomp", sys::__NR_seccomp, [mode, flags, program, 0, 0, 0]) {
        Ok(number) => number,
        Err(Untraced::Failed(_, Errno::BUSY)) => {
            if !is_there(tracee)? {
                following.say(ANOTHERS);
            }
            return Ok(());
        }
        // Needs CAP_SYS_ADMIN or `no_new_privs`.
        Err(Untraced::Failed(..)) => return Ok(()),
        Err(Untraced::Died) => return Err(Untraced::Died),
    };
    drop(reserve);
    let taken: Result<OwnedFd, Errno> = take(number as RawFd);
    tracee.syscall("close", sys::__NR_close, [number, 0, 0, 0, 0, 0])?;
    taken.and_then(|listener| following.add(listener)).map_err(|errno| Untraced::Failed("what it executes is not seen", errno))
}

fn is_there(tracee: &mut Tracee) -> Result<bool, Untraced> {
    // Executes nothing: the path is NULL.
    match tracee.syscall("execve", sys::__NR_execve, [0, 0, 0, 0, 0, IS_IT_THERE]) {
        Err(Untraced::Failed(_, errno)) => Ok(errno.raw_os_error() as u32 == IS_THERE),
        other => other.map(|_| false),
    }
}

/// The argument of seccomp(2), for the address where it will lie: the kernel's `struct sock_fprog`
/// with the filter behind it.
fn program(at: u64, tells_changes: bool) -> Vec<u8> {
    const HEAD: u64 = 16;
    let filter = call_filter::filter(tells_changes);
    let mut bytes = [(filter.len() as u64).to_le_bytes(), (at + HEAD).to_le_bytes()].concat();
    bytes.extend(filter.iter().flat_map(|instruction| instruction.bytes()));
    bytes
}
