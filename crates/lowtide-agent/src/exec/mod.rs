//! exec: the next program belongs to the run too, even if its caller has changed LD_PRELOAD,
//! cleared the environment or become another user.
//!
//! The loader finds the agent by a path into `lowtide run`'s descriptors, which only root and the
//! same user may follow. Other processes get a descriptor of the agent's file from `lowtide run`
//! and keep it open over the exec; the constructor closes it (`one_shot_fd.rs`). If that fails, the
//! environment loses lowtide's variables, about which loaders would complain.
//!
//! Runs in forked and vforked children, on small stacks: no allocation, and no change but the new
//! environment.

pub mod environment;
pub mod executable;
pub mod follow;
pub mod one_shot_fd;
pub mod settings_variable;

use core::ffi::{CStr, c_char, c_int};

use linux_raw_sys::general as sys;
use lowtide_sys::Line;
use lowtide_wire::broker::{Connection, DO_NOT_ENTER, ENTER, LIBRARY};
use lowtide_wire::call_filter::DONE;
use lowtide_wire::segment::transient::FIRST;
use rustix::fd::{FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;

use crate::exec::environment::variables;
use crate::exec::one_shot_fd::PRELOAD;
use crate::fork;
use crate::hooks::errno::result;
use crate::hooks::mark::Mark;
use crate::process::thread::{self, syscall3, syscall6};
use crate::process::{agent, broker, say};

/// `lowtide run` traces the calling thread until it executes a program; dropped if it did not.
struct Asked(Connection);

impl Asked {
    fn enter() -> Option<Asked> {
        let connection = broker::connect().ok()?;
        // Made for any answer, or none: tracing begins only if the answer came.
        connection.ask_with(ENTER, thread::id().into()).ok()?;
        Some(Asked(connection))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = self.0.ask(DO_NOT_ENTER, None);
    }
}

const MAX_VARIABLES: usize = 1000;
const MAX_PRELOAD: usize = 1024;
const EINVAL: isize = 22;

#[derive(Clone, Copy)]
struct Call {
    at: Option<(c_int, c_int)>,
    path: *const c_char,
    argv: *const *const c_char,
}

impl Call {
    fn with(self, envp: *const *const c_char) -> c_int {
        let (path, argv, envp) = (self.path as usize, self.argv as usize, envp as usize);
        // Without an agent the call must remain visible to `lowtide run`.
        let done = if agent::present() { DONE as usize } else { 0 };
        // SAFETY: the caller's own call.
        result(unsafe {
            match self.at {
                None => syscall6(sys::__NR_execve, path, argv, envp, 0, 0, done),
                Some((directory, flags)) => {
                    syscall6(sys::__NR_execveat, directory as usize, path, argv, envp, flags as usize, done)
                }
            }
        }) as c_int
    }

    fn execute(self, envp: *const *const c_char) -> c_int {
        // Linux takes NULL as an empty environment.
        let empty = [core::ptr::null()];
        let envp = if envp.is_null() { empty.as_ptr() } else { envp };
        if !agent::present() {
            let mark = Mark::new();
            let _leaving = fork::leaves(&mark);
            return self.with(envp);
        }
        let can_follow = can_follow();
        let (directory, flags) = self.at.unwrap_or((sys::AT_FDCWD, 0));
        // Only if the program finds the run's files itself: `lowtide run` answers no request while
        // it holds it.
        let is_entered = can_follow && executable::is_static(directory, self.path, flags) && !under_valgrind(envp);
        let _asked = is_entered.then(Asked::enter);
        let mark = Mark::new();
        let _leaving = fork::leaves(&mark);
        if can_follow && is_right(envp) { self.with(envp) } else { mended(self, envp, can_follow) }
    }

    fn finds_file(self) -> bool {
        // SAFETY: the kernel checks the caller's pointer, as in exec.
        self.at.is_some()
            || unsafe {
                syscall3(sys::__NR_access, self.path as usize, 0 /* F_OK */, 0) == 0
            }
    }
}

pub extern "C" fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
    Call { at: None, path, argv }.execute(envp)
}

pub extern "C" fn execveat(
    directory: c_int,
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    flags: c_int,
) -> c_int {
    Call { at: Some((directory, flags)), path, argv }.execute(envp)
}

pub extern "C" fn fexecve(file: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
    if file < 0 || argv.is_null() || envp.is_null() {
        return result(-EINVAL) as c_int;
    }
    execveat(file, c"".as_ptr(), argv, envp, sys::AT_EMPTY_PATH as c_int)
}

/// Valgrind's programs are static and need the whole address space.
fn under_valgrind(envp: *const *const c_char) -> bool {
    // SAFETY: an environment, as execve demands.
    unsafe { variables(envp) }.any(|variable| variable.to_bytes().starts_with(b"VALGRIND_LAUNCHER="))
}

/// Apart from `mended`, because programs exec on small signal stacks.
fn is_right(envp: *const *const c_char) -> bool {
    let (mut preload, mut has_settings) = (false, false);
    // SAFETY: an environment, as execve demands.
    for variable in unsafe { variables(envp) }.map(CStr::to_bytes) {
        if let Some(value) = variable.strip_prefix(PRELOAD) {
            preload = split(value).0 == Some(ours());
        }
        has_settings |= settings_variable::is_it(variable);
    }
    preload && has_settings
}

/// Takes some 10 KiB of stack.
#[inline(never)]
fn mended(call: Call, envp: *const *const c_char, can_follow: bool) -> c_int {
    let mut environment = [core::ptr::null::<c_char>(); MAX_VARIABLES + 3];
    let mut preload = [0u8; MAX_PRELOAD];
    let mut descriptor = None;
    let mended = {
        if can_follow {
            mend(envp, Some(ours()), &mut environment, &mut preload)
        } else if !call.finds_file() {
            // A shell that searches its path comes here for each directory.
            false
        } else {
            descriptor = open_library();
            let entry = descriptor.as_ref().map(|(_, entry)| &entry.bytes()[..entry.bytes().len() - 1]);
            mend(envp, entry, &mut environment, &mut preload)
        }
    };
    let envp = if mended { environment.as_ptr() } else { envp };
    let r = call.with(envp);
    // A bare system call keeps errno.
    drop(descriptor);
    r
}

fn ours() -> &'static [u8] {
    CStr::from_bytes_until_nul(&agent::settings().preload).map_or(b"", CStr::to_bytes)
}

/// Whether the next program finds the agent by its path.
pub fn can_follow() -> bool {
    keeps_its_rights() && leads_to_agent(ours())
}

/// Other users than root lose capabilities in exec, except ambient ones; until then they open every
/// path.
fn keeps_its_rights() -> bool {
    rustix::process::geteuid().is_root() || rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.is_empty())
}

/// For the caller, as later for the loader. After `lowtide run`'s end the path may lead elsewhere.
fn leads_to_agent(path: &[u8]) -> bool {
    let mut line = Line::new();
    let Ok(path) = CStr::from_bytes_with_nul(line.push(path).push(b"\0").bytes()) else { return false };
    let agent = agent::settings().agent;
    rustix::fs::stat(path).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (agent.device, agent.inode))
}

/// A descriptor that survives exec, and its LD_PRELOAD entry. None, with a warning: unavailable, or
/// the loader would not find it.
fn open_library() -> Option<(OwnedFd, Line)> {
    let opened = (|| {
        let file = broker::connect()?.ask_file(LIBRARY)?;
        let high = stay_open(&file, FIRST as usize).or_else(|_| stay_open(&file, 0))?;
        let entry = one_shot_fd::entry(rustix::fd::AsRawFd::as_raw_fd(&high));
        if leads_to_agent(&entry.bytes()[..entry.bytes().len() - 1]) { Ok((high, entry)) } else { Err(Errno::NOENT) }
    })();
    if let Err(error) = &opened {
        let mut line = Line::new();
        line.push(
            b"programs that a process starts after it changed its user, its root directory or its namespaces are not limited: ",
        )
        .push(b"lowtide can't be reached from there, error ")
        .number(error.raw_os_error() as u64);
        say::warn(line.bytes());
    }
    opened.ok()
}

fn stay_open(file: &OwnedFd, first: usize) -> Result<OwnedFd, Errno> {
    // SAFETY: makes a descriptor and touches no memory.
    let r = unsafe { syscall3(sys::__NR_fcntl, rustix::fd::AsRawFd::as_raw_fd(file) as usize, sys::F_DUPFD as usize, first) };
    // SAFETY: the kernel has just made it.
    if r < 0 { Err(Errno::from_raw_os_error(-r as i32)) } else { Ok(unsafe { OwnedFd::from_raw_fd(r as RawFd) }) }
}

/// Splits off lowtide's entry, if it comes first.
fn split(value: &[u8]) -> (Option<&[u8]>, &[u8]) {
    if let Some((_, rest)) = one_shot_fd::split(value) {
        return (Some(&value[..value.len() - rest.len()]), rest);
    }
    match value.strip_prefix(ours()) {
        Some([]) => (Some(value), &[]),
        Some(rest @ [b':' | b' ', ..]) => (Some(ours()), &rest[1..]),
        _ => (None, value),
    }
}

/// Puts `entry` first in LD_PRELOAD and adds the settings variable, or drops both. False: it was
/// right, or is too large.
fn mend(
    envp: *const *const c_char,
    entry: Option<&[u8]>,
    out: &mut [*const c_char; MAX_VARIABLES + 3],
    preload: &mut [u8; MAX_PRELOAD],
) -> bool {
    let mut others: &[u8] = &[];
    let (mut is_right, mut has_settings) = (entry.is_none(), false);
    let mut n = 0;
    // SAFETY: an environment, as execve demands.
    for variable in unsafe { variables(envp) } {
        if n == MAX_VARIABLES {
            return false;
        }
        let is_settings = settings_variable::is_it(variable.to_bytes());
        has_settings |= is_settings;
        if let Some(value) = variable.to_bytes().strip_prefix(PRELOAD) {
            let (mine, rest) = split(value);
            is_right = mine == entry;
            others = rest;
        } else if !is_settings || entry.is_some() {
            out[n] = variable.as_ptr();
            n += 1;
        }
    }
    if is_right && has_settings == entry.is_some() {
        return false;
    }
    let entry_or_none = entry.unwrap_or(&[]);
    if !entry_or_none.is_empty() || !others.is_empty() {
        let between: &[u8] = if entry_or_none.is_empty() || others.is_empty() { b"" } else { b":" };
        let mut len = 0;
        for part in [PRELOAD, entry_or_none, between, others] {
            let Some(room) = preload.get_mut(len..len + part.len()) else { return false };
            room.copy_from_slice(part);
            len += part.len();
        }
        if len == preload.len() {
            return false; // no room for the NUL
        }
        out[n] = preload.as_ptr().cast();
        n += 1;
    }
    if entry.is_some() && !has_settings {
        out[n] = settings_variable::kept();
        n += 1;
    }
    out[n] = core::ptr::null();
    true
}
