//! What a process has just executed, and whether that loads the agent by itself.

use super::Agent;
use super::tracee::{Tracee, Untraced};
use crate::program::elf;
use lowtide_config::proc::{self, Auxv};
use lowtide_wire::segment::ENV_SEGMENT;
use rustix::io::Errno;
use rustix::process::Pid;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

const AT_PAGESZ: u64 = 6;
const AT_BASE: u64 = 7;
const AT_SECURE: u64 = 23;
const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// Valgrind's programs are static and need the whole address space.
const VALGRIND: &[u8] = b"VALGRIND_LAUNCHER=";
/// Most bytes at a stack's beginning: a quarter of the 24 MiB that the kernel allows.
const MOST_AT_BEGINNING: usize = 6 << 20;

/// A process at its exec, before its first instruction.
pub struct Executed {
    pub is_static: bool,
    environment: Vec<u8>,
}

impl Executed {
    /// None: leave it alone. It has other rights, another architecture, or is gone.
    pub fn of(pid: Pid) -> Option<Executed> {
        let path = |name| format!("/proc/{}/{name}", pid.as_raw_nonzero());
        let auxv = Auxv::of(pid.as_raw_pid() as u32).ok()?;
        // 32-bit programs have shorter words.
        if auxv.value(AT_PAGESZ) != Some(4096) || auxv.value(AT_SECURE) != Some(0) {
            return None;
        }
        // AT_BASE is the loader's address. A loader that runs as the program preloads libraries,
        // too.
        let has_loader = auxv.value(AT_BASE) != Some(0);
        let is_static = !has_loader && elf::inspect(&File::open(path("exe")).ok()?).ok()? == elf::Kind::Static;
        let executed = Executed { is_static, environment: proc::read(path("environ")).ok()? };
        (!is_static || !executed.variables().any(|variable| variable.starts_with(VALGRIND))).then_some(executed)
    }

    fn variables(&self) -> impl Iterator<Item = &[u8]> {
        self.environment.split(|byte| *byte == 0)
    }

    /// Whether its environment correctly names the run's files.
    pub fn is_right(&self, agent: &Agent<'_>) -> bool {
        let preloads = |variable: &[u8]| variable.strip_prefix(PRELOAD).is_some_and(|value| behind(value, agent).is_some());
        self.variables().any(preloads) && self.variables().any(is_settings)
    }
}

pub fn leads_to(pid: Pid, agent: &Agent<'_>) -> bool {
    let path = format!("/proc/{}/root{}", pid.as_raw_nonzero(), agent.path);
    let wanted = agent.run.settings().agent;
    std::fs::metadata(path).is_ok_and(|file| (file.dev(), file.ino()) == (wanted.device, wanted.inode))
}

pub const NOT_FOUND: Untraced = Untraced::Failed("the agent's file is not found from there", Errno::NOENT);

/// Whether a process that has executed nothing since its fork has no hooks: it is static, or of
/// musl.
pub fn has_no_hooks(pid: u32) -> bool {
    let path = |name| format!("/proc/{pid}/{name}");
    let is_static = || elf::inspect(&File::open(path("exe")).ok()?).ok().map(|kind| kind == elf::Kind::Static);
    let maps = || std::fs::read_to_string(path("maps")).unwrap_or_default();
    is_static() == Some(true) || maps().contains("/ld-musl-")
}

fn is_settings(variable: &[u8]) -> bool {
    variable.strip_prefix(ENV_SEGMENT.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
}

/// The rest of an LD_PRELOAD value that begins with the agent.
fn behind<'a>(value: &'a [u8], agent: &Agent<'_>) -> Option<&'a [u8]> {
    match value.strip_prefix(agent.path.as_bytes())? {
        [] => Some(&[]),
        [b':' | b' ', rest @ ..] => Some(rest),
        _ => None,
    }
}

/// Puts the run's variables into a new program's environment, as the hooks of exec do.
///
/// # Errors
/// Its stack can't be read or written, or does not follow the ABI.
pub fn mend(tracee: &mut Tracee, agent: &Agent<'_>) -> Result<(), Untraced> {
    let old = tracee.beginning(MOST_AT_BEGINNING)?;
    let strange = || Untraced::Failed("its stack", Errno::INVAL);
    let end_of = |from: usize, step: usize| (from..old.len()).step_by(step).find(|at| old[*at] == 0).ok_or_else(strange);
    // The stack holds: argument count, arguments, NULL; environment, NULL; auxv pairs up to key 0.
    let arguments = 2 + *old.first().ok_or_else(strange)? as usize;
    let environment_end = end_of(arguments, 1)?;
    let auxv_end = end_of(environment_end + 1, 2)? + 2;
    let (mut kept, mut preload) = (Vec::new(), Vec::new());
    for variable in &old[arguments..environment_end] {
        let text = tracee.text(*variable)?;
        if let Some(value) = text.strip_prefix(PRELOAD) {
            preload = behind(value, agent).unwrap_or(value).to_vec();
        } else if !is_settings(&text) {
            kept.push(*variable);
        }
    }
    let between: &[u8] = if preload.is_empty() { b"" } else { b":" };
    let preload = [PRELOAD, agent.path.as_bytes(), between, &preload, b"\0"].concat();
    let settings = [ENV_SEGMENT.as_bytes(), b"=", agent.run.origin.as_bytes(), b"\0"].concat();
    // Both texts where the list ended, and the list below them.
    let end = tracee.stack() + 8 * auxv_end as u64;
    let texts = [end - preload.len() as u64, end - (preload.len() + settings.len()) as u64];
    let list = [&old[..arguments], &kept, &texts, &[0], &old[environment_end + 1..auxv_end]].concat();
    let stack = (texts[1] - 8 * list.len() as u64) & !15;
    let list: Vec<u8> = list.into_iter().flat_map(u64::to_le_bytes).collect();
    tracee.write(stack, &list)?;
    tracee.write(texts[1], &[settings, preload].concat())?;
    tracee.begin_at(stack);
    Ok(())
}
