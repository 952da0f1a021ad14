//! The address at which a run serves metrics: checked before the program starts.

use crate::error::Failure;
use lowtide_config::reason;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A listening socket. Drop removes the one of a path.
pub enum Listening {
    /// TCP; whether the kernel chose the port.
    Tcp(TcpListener, bool),
    /// A path, and the identity of the file made there.
    Unix(UnixListener, PathBuf, Option<(u64, u64)>),
}

impl Listening {
    /// Listens at `HOST:PORT` or `unix:PATH`. `anywhere`: permits addresses that other machines can
    /// reach.
    pub fn new(text: &str, anywhere: bool) -> Result<Listening, Failure> {
        if let Some(path) = text.strip_prefix("unix:") {
            let refuse = |why: &str| Failure::usage(format!("--metrics {text}: {why}"));
            let path = std::path::absolute(path).map_err(|_| refuse("no path is given: write unix:/run/user/1000/x.sock"))?;
            let listener = bind(&path).map_err(|error| match error.kind() {
                io::ErrorKind::AddrInUse => refuse("something is there already: remove it or name another path"),
                _ => refuse(&format!("can't listen there ({}): name another path", reason(error))),
            })?;
            let made = identity(&path);
            return Ok(Listening::Unix(listener, path, made));
        }
        let address = parse(text)?;
        if !address.ip().is_loopback() && !anywhere {
            return Err(Failure::usage(format!(
                "--metrics {text}: other machines could read there what this run does: use 127.0.0.1:{}, \
                 or add --metrics-anywhere",
                address.port()
            )));
        }
        let listener = TcpListener::bind(address).map_err(|error| {
            let free = if error.kind() == io::ErrorKind::AddrInUse { "choose another port" } else { "choose another address" };
            Failure::usage(format!("--metrics {text}: can't listen there ({}): {free}", reason(error)))
        })?;
        Ok(Listening::Tcp(listener, address.port() == 0))
    }

    pub fn has_chosen_port(&self) -> bool {
        matches!(self, Listening::Tcp(_, true))
    }

    pub fn shown(&self) -> String {
        match self {
            Listening::Tcp(listener, _) => {
                listener.local_addr().map_or_else(|_| "?".to_owned(), |at| format!("http://{at}/metrics"))
            }
            Listening::Unix(_, path, _) => format!("unix:{}", path.display()),
        }
    }
}

/// Drop leaves alone a path that another run has taken over.
impl Drop for Listening {
    fn drop(&mut self) {
        if let Listening::Unix(_, path, made) = self
            && made.is_some()
            && identity(path) == *made
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The file at a path, without following links: another run may have replaced it.
fn identity(path: &Path) -> Option<(u64, u64)> {
    path.symlink_metadata().ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Replaces a socket that a killed run left. Only its user may connect.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let is_left_over = path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket())
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if is_left_over {
        std::fs::remove_file(path)?;
    }
    // The umask is safe to change: no other thread exists yet.
    let old = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(old);
    listener
}

/// Numeric addresses, and this machine's name: no lookups.
fn parse(text: &str) -> Result<SocketAddr, Failure> {
    let numbers = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    numbers.as_deref().unwrap_or(text).parse().map_err(|_| {
        Failure::usage(format!("--metrics {text}: no address: write 127.0.0.1:PORT, [::1]:PORT, localhost:PORT or unix:PATH"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str, word: &str) {
        let failure = Listening::new(text, false).err().unwrap_or_else(|| panic!("{text} is no address"));
        assert_eq!(failure.code, 2);
        assert!(failure.line.contains(word) && !failure.line.contains('\n'), "{text}: {}", failure.line);
    }

    #[test]
    fn addresses() {
        for text in ["", "7", "127.0.0.1", "example.org:80", "127.0.0.1:99999", "localhost:x", "http://127.0.0.1:1"] {
            refused(text, "no address");
        }
        for text in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
            refused(text, "--metrics-anywhere");
        }
        assert!(Listening::new("0.0.0.0:0", true).is_ok());
        let there = Listening::new("127.0.0.1:0", false).unwrap();
        let Listening::Tcp(listener, _) = &there else { panic!() };
        refused(&listener.local_addr().unwrap().to_string(), "another port");
    }

    #[test]
    fn paths() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let name = format!("unix:{}", path.display());
        let first = Listening::new(&name, false).unwrap();
        refused(&name, "already");
        drop(first);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "left by who was killed");
        drop(Listening::new(&name, false).unwrap());
        std::fs::write(&path, "x").unwrap();
        refused(&name, "already");
        assert_eq!(std::fs::read(&path).unwrap(), b"x", "a file of somebody's");
        refused("unix:/nonexistent/s", "another path");
        refused("unix:", "path");
    }
}
