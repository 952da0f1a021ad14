//! A file that is written at the end (`--stats`, `--report`): checked before the program starts,
//! complete or untouched after it ends.

use crate::error::Failure;
use lowtide_config::reason;
use rustix::fs::{Access, AtFlags, CWD};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub enum OutputFile {
    /// A new file beside it, renamed over it at the end.
    Replace(PathBuf),
    /// A file in an unwritable directory: truncated and written at the end.
    Rewrite(File),
    /// A pipe, terminal or device, or whatever `/dev/stdout` is: appended to.
    Append(File),
}

impl OutputFile {
    /// Checks that `path`, the argument of `option`, can be written; leaves nothing behind.
    pub fn open(option: &str, path: &Path) -> Result<OutputFile, Failure> {
        Self::prepare(path).map_err(|error| {
            let why = reason(error);
            Failure::usage(format!("{option} {}: can't be written ({why}): name a file that can", path.display()))
        })
    }

    fn prepare(path: &Path) -> io::Result<OutputFile> {
        // A link stays: its target is replaced. But other processes hold the file behind
        // /dev/stdout open.
        match path.metadata() {
            Ok(meta) if !meta.is_file() || ["/dev", "/proc"].iter().any(|dir| path.starts_with(dir)) => {
                return Ok(OutputFile::Append(OpenOptions::new().append(true).open(path)?));
            }
            Ok(_) => {
                let path = path.canonicalize()?;
                rustix::fs::accessat(CWD, &path, Access::WRITE_OK, AtFlags::EACCESS)?;
                if Self::try_temporary(&path).is_err() {
                    return Ok(OutputFile::Rewrite(OpenOptions::new().write(true).open(&path)?));
                }
                return Ok(OutputFile::Replace(path));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {}
            Err(error) => return Err(error),
        }
        let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_owned();
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let path = dir.canonicalize()?.join(name);
        Self::try_temporary(&path)?;
        Ok(OutputFile::Replace(path))
    }

    fn try_temporary(path: &Path) -> io::Result<()> {
        let (temporary, _) = Self::make_temporary(path)?;
        std::fs::remove_file(temporary)
    }

    fn make_temporary(path: &Path) -> io::Result<(PathBuf, File)> {
        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
        name.push(format!(".{}", std::process::id()));
        let temporary = path.with_file_name(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        Ok((temporary, file))
    }

    pub fn write(self, text: &str) -> io::Result<()> {
        match self {
            OutputFile::Append(mut file) => file.write_all(text.as_bytes()),
            OutputFile::Rewrite(mut file) => {
                file.set_len(0)?;
                file.write_all(text.as_bytes())
            }
            OutputFile::Replace(path) => {
                let (temporary, mut file) = Self::make_temporary(&path)?;
                let written = (|| {
                    if let Ok(old) = path.metadata() {
                        file.set_permissions(old.permissions())?;
                    }
                    file.write_all(text.as_bytes())?;
                    std::fs::rename(&temporary, &path)
                })();
                if written.is_err() {
                    let _ = std::fs::remove_file(&temporary);
                }
                written
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.json");
        for text in ["{}\n", "[1]\n"] {
            let file = OutputFile::open("--stats", &path).unwrap();
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), usize::from(path.exists()));
            file.write(text).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("s.json", &link).unwrap();
        OutputFile::open("--stats", &link).unwrap().write("x").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "x");
    }

    #[test]
    fn unwritable() {
        for path in ["/nonexistent/x", "/", "", "/proc/version/x"] {
            assert_eq!(OutputFile::open("--stats", Path::new(path)).err().map(|f| f.code), Some(2), "{path}");
        }
    }

    #[test]
    fn devices_are_appended_to() {
        let file = OutputFile::open("--stats", Path::new("/dev/null")).unwrap();
        assert!(matches!(file, OutputFile::Append(_)));
        file.write("{}").unwrap();
    }
}
