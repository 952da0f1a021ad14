//! A program in the kernel: looked at by the verifier, attached, and detached when it is dropped.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;

use crate::assembler::Assembler;
use crate::call::{self, ProgramKind};
use crate::error::Error;
use crate::notifier::Hook;

/// Where the kernel says by which number probes are known.
const PROBES: &str = "/sys/bus/event_source/devices/kprobe/type";
/// How often, and how long in between, what is refused for the moment is tried.
const TRIES: u32 = 5;
const BETWEEN_TRIES: Duration = Duration::from_millis(10);
/// Bytes of what the verifier says.
const LOG: usize = 1 << 20;

/// A function of the kernel's.
#[derive(Debug, Clone, Copy)]
pub struct Function {
    /// Its name.
    pub name: &'static CStr,
    /// The number of its type.
    pub id: u32,
}

/// An attached program.
#[derive(Debug)]
pub struct Attached {
    // What was attached goes first.
    _link: OwnedFd,
    _program: OwnedFd,
}

impl Attached {
    /// Loads `program`, which is called `name`, and attaches it to the entry of `function`.
    ///
    /// # Errors
    /// [`Error::NotAllowed`], [`Error::Refused`], [`Error::Call`], [`Error::Missing`].
    pub fn new(program: Assembler, name: &'static str, function: Function, hook: Hook) -> Result<Attached, Error> {
        let kind = match hook {
            Hook::Entry => ProgramKind::Function(function.id),
            Hook::Probe => ProgramKind::Probe,
        };
        let instructions = program.finish()?;
        let program = patiently(|| call::load_program(kind, name, &instructions, &mut [])).map_err(|errno| {
            let mut log = vec![0; LOG];
            // Once more, for what it says; it takes longer so.
            let _ = call::load_program(kind, name, &instructions, &mut log);
            match last_word(&log) {
                Some(word) => Error::Refused(name, errno, word),
                None => Error::of_privileged("loading a BPF program", errno),
            }
        })?;
        let probes = if hook == Hook::Probe { probes()? } else { 0 };
        let link = patiently(|| match hook {
            Hook::Entry => call::attach_to_function(program.as_fd()),
            Hook::Probe => call::attach_by_probe(program.as_fd(), probes, function.name),
        });
        match link {
            Ok(link) => Ok(Attached { _link: link, _program: program }),
            Err(Errno::NOENT) => Err(Error::Missing(format!("function {}", function.name.to_string_lossy()))),
            Err(errno) => Err(Error::of_privileged("attaching a BPF program", errno)),
        }
    }
}

/// Tries again what the kernel refuses for the moment: the verifier stops at a signal (EAGAIN), and a function may be busy while
/// somebody else's program is taken off it.
fn patiently<T>(call: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 1..TRIES {
        match call() {
            Err(Errno::AGAIN | Errno::BUSY | Errno::INTR) => std::thread::sleep(BETWEEN_TRIES),
            done => return done,
        }
    }
    call()
}

/// By which number the kernel knows probes.
fn probes() -> Result<u32, Error> {
    let text = std::fs::read_to_string(PROBES).unwrap_or_default();
    text.trim().parse().map_err(|_| Error::Missing("kprobes".to_owned()))
}

/// What the verifier objects to: the last line before its statistics.
fn last_word(log: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(log.split(|byte| *byte == 0).next()?);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("processed "));
    lines.next_back().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::last_word;

    #[test]
    fn the_verifiers_last_word_is_one_line() {
        let log = b"0: (79) r7 = *(u64 *)(r1 +0)\nR1 type=scalar expected=fp\n\nprocessed 1 insns (limit 1000000)\n\0\0\0";
        assert_eq!(last_word(log).as_deref(), Some("R1 type=scalar expected=fp"));
        assert_eq!(last_word(&[0; 8]), None);
    }
}
