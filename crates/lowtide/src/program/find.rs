//! Finds the program as a shell would, and refuses in advance a program that can't get the agent.

use crate::error::Failure;
use crate::program::elf::{self, Dynamic, Kind};
use lowtide_config::reason;
use rustix::fs::{Access, AtFlags, CWD};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Most nested interpreters, as in the kernel.
const MAX_SCRIPTS: usize = 5;
/// Bytes of the `#!` line that the kernel reads.
const SHEBANG_BYTES: u64 = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Its loader preloads it.
    Loader,
    /// A static program: `lowtide run` maps the agent at the exec.
    Exec,
}

#[derive(Debug)]
pub struct Program {
    pub path: PathBuf,
    pub entry: Entry,
}

/// Finds `name` and checks that lowtide can manage it.
pub fn find(name: &OsStr) -> Result<Program, Failure> {
    let path = locate(name)?;
    let entry = check(&path)?;
    Ok(Program { path, entry })
}

/// `name` itself if it holds a slash, else the first executable in PATH.
fn locate(name: &OsStr) -> Result<PathBuf, Failure> {
    let shown = name.display();
    if name.is_empty() {
        return Err(Failure::not_found("the name of the program is empty"));
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match executable(&path) {
            Ok(()) => Ok(path),
            Err(why) if why.code == 127 => Err(Failure::not_found(format!("{shown}: no such program; check the path"))),
            Err(why) => Err(why),
        };
    }
    let search = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let mut refused = None;
    for dir in std::env::split_paths(&search) {
        let path = if dir.as_os_str().is_empty() { Path::new(".").join(name) } else { dir.join(name) };
        match executable(&path) {
            Ok(()) => return Ok(path),
            Err(why) if why.code == 127 => {}
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    Err(refused
        .unwrap_or_else(|| Failure::not_found(format!("{shown}: no such program in PATH; check the name or give its path"))))
}

fn executable(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let meta = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => Failure::not_found(format!("{shown}: not found")),
        _ => Failure::not_executable(format!("{shown}: {}; check the permissions of its directories", reason(error))),
    })?;
    if meta.is_dir() {
        return Err(Failure::not_executable(format!("{shown} is a directory; name a program")));
    }
    if !meta.is_file() {
        return Err(Failure::not_executable(format!("{shown} is not a regular file; name a program")));
    }
    rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS)
        .map_err(|_| Failure::not_executable(format!("{shown} is not executable; `chmod +x {shown}` makes it so")))
}

/// Follows `#!` lines to the real program and judges that.
fn check(path: &Path) -> Result<Entry, Failure> {
    let mut path = path.to_path_buf();
    // The script that led here, for the message.
    let mut script: Option<PathBuf> = None;
    for _ in 0..=MAX_SCRIPTS {
        let shown = match &script {
            None => path.display().to_string(),
            Some(script) => format!("{} (the interpreter of {})", path.display(), script.display()),
        };
        if script.is_some() {
            executable(&path).map_err(|why| match why.code {
                127 => Failure::not_found(format!("{shown}: no such program; check the script's first line")),
                _ => why,
            })?;
        }
        let file = File::open(&path).map_err(|error| {
            let line = format!("{shown} can't be read ({}); lowtide must look at it first: `chmod +r` it", reason(error));
            Failure::not_executable(line)
        })?;
        let kind = elf::inspect(&file)
            .map_err(|error| Failure::not_executable(format!("{shown} can't be read ({}); check the disk", reason(error))))?;
        match kind {
            Kind::Other => {}
            kind => return judge(&shown, &path, &file, kind),
        }
        match interpreter(&file) {
            Some(next) => {
                let origin = script.take().unwrap_or(path);
                path = match next {
                    Interpreter::Path(next) => next,
                    Interpreter::InPath(name) => locate(&name).map_err(|why| Failure {
                        line: format!("{} (`env` looks for it, for {})", why.line, origin.display()),
                        ..why
                    })?,
                };
                script = Some(origin);
            }
            // exec refuses a file without a `#!` line, and a shell then reads it.
            None => {
                let origin = script.take().unwrap_or(path);
                path = PathBuf::from("/bin/sh");
                script = Some(origin);
            }
        }
    }
    Err(Failure::not_executable(format!("{}: too many scripts are each other's interpreter", path.display())))
}

fn judge(shown: &str, path: &Path, file: &File, kind: Kind) -> Result<Entry, Failure> {
    let mut entry = Entry::Loader;
    let refuse = |why: String| Err(Failure::not_executable(format!("{shown} {why}")));
    match kind {
        Kind::Other => {}
        Kind::Broken(why) => return refuse(format!("can't be run: {why}")),
        Kind::Foreign(what) => {
            let own = std::env::consts::ARCH;
            return refuse(format!(
                "is a {what} program; lowtide here manages 64-bit {own} programs only: run it without lowtide"
            ));
        }
        Kind::NoProgram => {
            return refuse("is a loader or a library, which can't be limited: run the program itself".to_owned());
        }
        Kind::Static => entry = Entry::Exec,
        Kind::Dynamic(dynamic) => {
            if let Some(sanitizer) = sanitizer(&dynamic) {
                return refuse(format!(
                    "is built with {}, whose runtime must have the memory to itself: use a build without {}",
                    sanitizer.name, sanitizer.option
                ));
            }
            let loader = OsString::from_vec(dynamic.loader);
            if !Path::new(&loader).exists() {
                let line = format!("{shown} needs the loader {}, which isn't here: install its C library", loader.display());
                return Err(Failure::not_found(line));
            }
        }
    }
    let meta: Metadata = file
        .metadata()
        .map_err(|error| Failure::not_executable(format!("{shown} can't be examined ({}); check the disk", reason(error))))?;
    let copy = "the loader ignores preloaded libraries there; run a copy without it (`cp` drops it)";
    if meta.mode() & 0o4000 != 0 {
        return refuse(format!("is setuid: {copy}"));
    }
    // Without the group's execute bit it means something else.
    if meta.permissions().mode() & 0o2010 == 0o2010 {
        return refuse(format!("is setgid: {copy}"));
    }
    if rustix::fs::getxattr(path, c"security.capability", &mut [0u8; 64][..]).is_ok_and(|n| n > 0) {
        return refuse(format!("has file capabilities: {copy}"));
    }
    Ok(entry)
}

/// A sanitizer whose runtime lays out terabytes of address space, maps and unmaps past the C
/// library, and replaces functions that lowtide's own threads call.
struct Sanitizer {
    name: &'static str,
    option: &'static str,
    /// A function that programs built with it call.
    entry: &'static str,
    /// gcc's runtime, in case only a library of the program is built with it.
    library: &'static str,
}

const SANITIZERS: [Sanitizer; 4] = [
    Sanitizer { name: "AddressSanitizer", option: "-fsanitize=address", entry: "__asan_init", library: "libasan.so." },
    Sanitizer { name: "ThreadSanitizer", option: "-fsanitize=thread", entry: "__tsan_init", library: "libtsan.so." },
    Sanitizer { name: "MemorySanitizer", option: "-fsanitize=memory", entry: "__msan_init", library: "libmsan.so." },
    Sanitizer { name: "HWAddressSanitizer", option: "-fsanitize=hwaddress", entry: "__hwasan_init", library: "libhwasan.so." },
];

fn sanitizer(program: &Dynamic) -> Option<&'static Sanitizer> {
    SANITIZERS.iter().find(|it| {
        program.names_end_with(it.entry) || program.names.split(|&b| b == 0).any(|name| name.starts_with(it.library.as_bytes()))
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Interpreter {
    Path(PathBuf),
    /// `#!/usr/bin/env NAME`: `env` will look for it in PATH.
    InPath(OsString),
}

fn interpreter(mut file: &File) -> Option<Interpreter> {
    let mut head = Vec::new();
    file.by_ref().take(SHEBANG_BYTES).read_to_end(&mut head).ok()?;
    shebang(&head)
}

fn shebang(head: &[u8]) -> Option<Interpreter> {
    let line = head.strip_prefix(b"#!")?.split(|&b| b == b'\n' || b == 0).next()?;
    let mut words = line.split(|&b| b == b' ' || b == b'\t').filter(|word| !word.is_empty());
    let path = PathBuf::from(OsStr::from_bytes(words.next()?));
    if path.file_name() != Some(OsStr::new("env")) {
        return Some(Interpreter::Path(path));
    }
    // Without -S the rest of the line is one word for env; with it, options and assignments may
    // come before the name.
    for word in words {
        let word = word.strip_prefix(b"-S").or_else(|| word.strip_prefix(b"--split-string=")).unwrap_or(word);
        if word.is_empty() || word == b"--split-string" || word == b"-i" || word == b"-" || word == b"--ignore-environment" {
            continue;
        }
        if word.starts_with(b"-") {
            // Another option of env, perhaps with an argument: judge env alone, and let it find the
            // program.
            break;
        }
        if word.contains(&b'=') {
            continue;
        }
        return Some(Interpreter::InPath(OsStr::from_bytes(word).to_owned()));
    }
    Some(Interpreter::Path(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shebang_lines() {
        let path = |p: &str| Some(Interpreter::Path(p.into()));
        let name = |n: &str| Some(Interpreter::InPath(n.into()));
        assert_eq!(shebang(b"#!/bin/sh\nx"), path("/bin/sh"));
        assert_eq!(shebang(b"#! \t/bin/sh -e\n"), path("/bin/sh"));
        assert_eq!(shebang(b"#!/usr/bin/env python3\n"), name("python3"));
        assert_eq!(shebang(b"#!/usr/bin/env -S python3 -u\n"), name("python3"));
        assert_eq!(shebang(b"#!/usr/bin/env -S A=1 -i python3 -u\n"), name("python3"));
        assert_eq!(shebang(b"#!/usr/bin/env -u X python3\n"), path("/usr/bin/env"));
        assert_eq!(shebang(b"#!/bin/sh\r\n"), path("/bin/sh\r"));
        assert_eq!(shebang(b"echo hello\n"), None);
        assert_eq!(shebang(b"#!\n"), None);
        assert_eq!(shebang(b""), None);
    }

    #[test]
    fn usual_programs() {
        assert!(find(OsStr::new("sh")).is_ok());
        assert!(find(OsStr::new("/bin/sh")).is_ok());
        assert_eq!(find(OsStr::new("")).unwrap_err().code, 127);
        assert_eq!(find(OsStr::new("/")).unwrap_err().code, 126);
        assert_eq!(find(OsStr::new("/dev/null")).unwrap_err().code, 126);
    }
}
