//! A loaded and attached program; dropping it detaches it.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;

use crate::assembler::Assembler;
use crate::call::{self, ProgramKind};
use crate::error::Error;
use crate::notifier::Hook;

/// The kernel's number for probes.
const PROBES: &str = "/sys/bus/event_source/devices/kprobe/type";
/// Retries of temporary refusals.
const TRIES: u32 = 5;
const BETWEEN_TRIES: Duration = Duration::from_millis(10);
const LOG: usize = 1 << 20;

#[derive(Debug, Clone, Copy)]
pub struct Function {
    pub name: &'static CStr,
    pub id: u32,
}

#[derive(Debug)]
pub struct Attached {
    _link: OwnedFd,
    _program: OwnedFd,
}

impl Attached {
    /// Attaches `program`, named `name`, to the entry of `function`.
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
            // Again with the slower output.
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

/// The verifier stops at a signal (EAGAIN), and a function is busy while another program is
/// detached.
fn patiently<T>(call: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 1..TRIES {
        match call() {
            Err(Errno::AGAIN | Errno::BUSY | Errno::INTR) => std::thread::sleep(BETWEEN_TRIES),
            done => return done,
        }
    }
    call()
}

fn probes() -> Result<u32, Error> {
    let text = std::fs::read_to_string(PROBES).unwrap_or_default();
    text.trim().parse().map_err(|_| Error::Missing("kprobes".to_owned()))
}

/// The verifier's objection: the last line before its statistics.
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
