//! exec: the program that is started next belongs to the run too, even when its caller has changed LD_PRELOAD, cleared the
//! environment, or become another user.
//!
//! The loader finds the agent by a path into `lowtide run`'s descriptors, which only the same user and root may follow. A
//! process that may not gets a descriptor of the agent's file from `lowtide run`, leaves it open over the exec and names that
//! one; the constructor closes it again (`one_shot_fd.rs`). Where that isn't possible either, the environment is handed on
//! without lowtide's variables: the loader of each program would complain otherwise.
//!
//! Runs in forked and vforked children, on small stacks: it allocates nothing, and changes nothing but the new environment.

use core::ffi::{CStr, c_char, c_int};

use linux_raw_sys::general as sys;
use lowtide_pager::segment::transient::FIRST;
use lowtide_pager::sys::Line;
use lowtide_pager::sys::broker::{Connection, DO_NOT_ENTER, ENTER, LIBRARY};
use lowtide_pager::sys::call_filter::DONE;
use rustix::fd::{FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;

use crate::environment::variables;
use crate::errno::result;
use crate::mark::Mark;
use crate::one_shot_fd::PRELOAD;
use crate::thread::{self, syscall3, syscall6};
use crate::{agent, atfork, broker, executable, one_shot_fd, say, settings_variable};

/// `lowtide run` traces the calling thread until it executes a program. When dropped: it has not. (Where a child of vfork shares
/// its descriptors with its parent, the connection stays open there until `lowtide run` closes it.)
struct Asked(Connection);

impl Asked {
    /// None: it can't.
    fn enter() -> Option<Asked> {
        let connection = broker::connect().ok()?;
        // Whatever the answer was, or if there was none: nothing is traced unless it came.
        connection.ask_with(ENTER, thread::id().into()).ok()?;
        Some(Asked(connection))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = self.0.ask(DO_NOT_ENTER, None);
    }
}

/// Most variables of an environment that can be mended; a larger one is passed as it is.
const MAX_VARIABLES: usize = 1000;
const MAX_PRELOAD: usize = 1024;
const EINVAL: isize = 22;

/// A call of the program's, but for the environment.
#[derive(Clone, Copy)]
struct Call {
    /// Of execveat: the directory and the flags.
    at: Option<(c_int, c_int)>,
    path: *const c_char,
    argv: *const *const c_char,
}

impl Call {
    fn with(self, envp: *const *const c_char) -> c_int {
        let (path, argv, envp) = (self.path as usize, self.argv as usize, envp as usize);
        // What has no agent yet is followed, if anything is.
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
        // To Linux no environment is an empty one.
        let empty = [core::ptr::null()];
        let envp = if envp.is_null() { empty.as_ptr() } else { envp };
        if !agent::present() {
            let mark = Mark::new();
            let _leaving = atfork::leaves(&mark);
            return self.with(envp);
        }
        let can_follow = can_follow();
        let (directory, flags) = self.at.unwrap_or((sys::AT_FDCWD, 0));
        // Only what finds the files of the run by itself can be entered: `lowtide run`, which holds it, answers nobody meanwhile.
        let is_entered = can_follow && executable::is_static(directory, self.path, flags) && !under_valgrind(envp);
        let _asked = is_entered.then(Asked::enter);
        let mark = Mark::new();
        let _leaving = atfork::leaves(&mark);
        if can_follow && is_right(envp) { self.with(envp) } else { mended(self, envp, can_follow) }
    }

    /// Whether there is a file to execute.
    fn finds_file(self) -> bool {
        // SAFETY: the kernel checks the caller's pointer, as it does for exec.
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

/// Whether the program is one of valgrind's: these are static, and have to have all of the address space to themselves.
fn under_valgrind(envp: *const *const c_char) -> bool {
    // SAFETY: it is an environment, as execve demands.
    unsafe { variables(envp) }.any(|variable| variable.to_bytes().starts_with(b"VALGRIND_LAUNCHER="))
}

/// Whether an environment names what belongs to the run as it should: nearly always. On a stack of its own size: programs
/// execute others on the small stacks of signal handlers.
fn is_right(envp: *const *const c_char) -> bool {
    let (mut preload, mut has_settings) = (false, false);
    // SAFETY: it is an environment, as execve demands.
    for variable in unsafe { variables(envp) }.map(CStr::to_bytes) {
        if let Some(value) = variable.strip_prefix(PRELOAD) {
            preload = split(value).0 == Some(ours());
        }
        has_settings |= settings_variable::is_it(variable);
    }
    preload && has_settings
}

/// Executes a program with an environment that had to be mended. Takes some 10 KiB of stack.
#[inline(never)]
fn mended(call: Call, envp: *const *const c_char, can_follow: bool) -> c_int {
    let mut environment = [core::ptr::null::<c_char>(); MAX_VARIABLES + 3];
    let mut preload = [0u8; MAX_PRELOAD];
    let mut descriptor = None;
    let mended = {
        if can_follow {
            mend(envp, Some(ours()), &mut environment, &mut preload)
        } else if !call.finds_file() {
            // There will be no program. (A shell that looks for one in many directories comes here for each.)
            false
        } else {
            descriptor = open_library();
            let entry = descriptor.as_ref().map(|(_, entry)| &entry.bytes()[..entry.bytes().len() - 1]);
            mend(envp, entry, &mut environment, &mut preload)
        }
    };
    let envp = if mended { environment.as_ptr() } else { envp };
    // The environment is NULL-terminated and lives until the call ends.
    let r = call.with(envp);
    // By a bare system call: errno stays.
    drop(descriptor);
    r
}

/// The entry of LD_PRELOAD by which those find the agent who may follow it.
fn ours() -> &'static [u8] {
    CStr::from_bytes_until_nul(&agent::settings().preload).map_or(b"", CStr::to_bytes)
}

/// Whether what is executed finds the agent by its path.
pub fn can_follow() -> bool {
    keeps_its_rights() && leads_to_agent(ours())
}

/// Whether the program will have the rights that this process has now. Capabilities of a user who is not root are gone then,
/// but for ambient ones, and until then they open every path.
fn keeps_its_rights() -> bool {
    rustix::process::geteuid().is_root() || rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.is_empty())
}

/// Whether a path leads to the agent's file, as the loader will follow it: with the rights of the caller. (That of `lowtide
/// run`'s descriptor may lead elsewhere once that has ended.)
fn leads_to_agent(path: &[u8]) -> bool {
    let mut line = Line::new();
    let Ok(path) = CStr::from_bytes_with_nul(line.push(path).push(b"\0").bytes()) else { return false };
    let agent = agent::settings().agent;
    rustix::fs::stat(path).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (agent.device, agent.inode))
}

/// A descriptor of the agent's file that stays open over an exec, and the entry of LD_PRELOAD for it. None, with a warning: it
/// can't be had, or the loader would not find it.
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

/// The same file with a number of at least `first`, not closed on exec.
fn stay_open(file: &OwnedFd, first: usize) -> Result<OwnedFd, Errno> {
    // SAFETY: makes a descriptor and touches no memory.
    let r = unsafe { syscall3(sys::__NR_fcntl, rustix::fd::AsRawFd::as_raw_fd(file) as usize, sys::F_DUPFD as usize, first) };
    // SAFETY: the kernel has just made it for us.
    if r < 0 { Err(Errno::from_raw_os_error(-r as i32)) } else { Ok(unsafe { OwnedFd::from_raw_fd(r as RawFd) }) }
}

/// A value of LD_PRELOAD without the entry that is lowtide's, and that entry, if it begins with one.
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

/// Writes the environment as it should be: LD_PRELOAD begins with `entry`, and the variable of the settings is there; or
/// neither. False: it is as it should be, or too large.
fn mend(
    envp: *const *const c_char,
    entry: Option<&[u8]>,
    out: &mut [*const c_char; MAX_VARIABLES + 3],
    preload: &mut [u8; MAX_PRELOAD],
) -> bool {
    let mut others: &[u8] = &[];
    let (mut is_right, mut has_settings) = (entry.is_none(), false);
    let mut n = 0;
    // SAFETY: it is an environment, as execve demands.
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
