//! The location of control sockets: `PID.sock` in a directory that only their user can enter.
//!
//! All operations go through a descriptor of the directory whose owner and mode were checked. A
//! socket gets its name only after listen(2); so one that refuses connections is a dead run's, and
//! may be removed.

use crate::supervisor::peer;
use lowtide_config::reason;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::path::{Path, PathBuf};

const SUFFIX: &str = ".sock";
/// Suffix before listen(2).
const NEW: &str = ".new";
const BACKLOG: i32 = 1024;
/// Attempts to make the directory again when an ending run removes it.
const ATTEMPTS: usize = 16;

pub struct Place {
    dir: OwnedFd,
    path: PathBuf,
    owner: u32,
}

/// A listening socket, under its name until it is dropped.
pub struct Bound {
    place: Place,
    pid: u32,
    pub listener: OwnedFd,
}

pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The session's directory, if this user has one.
fn session_dir() -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    let stat = rustix::fs::stat(&dir).ok()?;
    let is_ours = stat.st_uid == user() && FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    (dir.is_absolute() && is_ours).then_some(dir)
}

/// A user's candidate directories, the best first.
fn dirs_of(user: u32, session: Option<PathBuf>) -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = session.map(|dir| dir.join("lowtide")).into_iter().collect();
    if user == 0 {
        dirs.push(PathBuf::from("/run/lowtide"));
    }
    dirs.push(PathBuf::from(format!("/tmp/lowtide-{user}")));
    dirs
}

/// All places of runs that this user can control: its own, or everybody's for root.
pub fn all() -> Vec<Place> {
    let me = user();
    let mut dirs: Vec<(PathBuf, u32)> = dirs_of(me, session_dir()).into_iter().map(|dir| (dir, me)).collect();
    // A session of this user that this process does not belong to.
    dirs.push((PathBuf::from(format!("/run/user/{me}/lowtide")), me));
    if me == 0 {
        let numbered = |parent: &str, prefix: &str| -> Vec<(PathBuf, u32)> {
            let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
            let owner = |name: &str| name.strip_prefix(prefix)?.parse::<u32>().ok();
            entries.filter_map(|entry| Some((entry.path(), owner(entry.file_name().to_str()?)?))).collect()
        };
        dirs.extend(numbered("/run/user", "").into_iter().map(|(dir, owner)| (dir.join("lowtide"), owner)));
        dirs.extend(numbered("/tmp", "lowtide-"));
    }
    let mut seen: Vec<(u64, u64)> = Vec::new();
    let mut places = Vec::new();
    for (dir, owner) in dirs {
        let Ok((place, stat)) = Place::open(&dir, owner) else { continue };
        if !seen.contains(&(stat.st_dev, stat.st_ino)) {
            seen.push((stat.st_dev, stat.st_ino));
            places.push(place);
        }
    }
    places
}

/// Listens on a new socket for this process. The error says why it can't.
pub fn listen() -> Result<Bound, String> {
    let mut why = String::new();
    for path in dirs_of(user(), session_dir()) {
        for _ in 0..ATTEMPTS {
            match rustix::fs::mkdir(&path, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => {
                    why = format!("{}: {}", path.display(), reason(error));
                    break;
                }
            }
            let place = match Place::open(&path, user()) {
                Ok((place, stat)) => place.only_for_us(&stat)?,
                // An ending run has just removed it.
                Err(why) if path.symlink_metadata().is_err() => {
                    drop(why);
                    continue;
                }
                Err(why) => return Err(why),
            };
            place.sweep();
            match place.bind(std::process::id()) {
                Err(Errno::NOENT) => {}
                Ok(bound) => return Ok(bound),
                Err(error) => return Err(format!("{}: {}", path.display(), reason(error))),
            }
        }
    }
    Err(why)
}

impl Place {
    /// Opens a directory, which must be the owner's and no link. The error says what is wrong.
    fn open(path: &Path, owner: u32) -> Result<(Place, Stat), String> {
        let shown = path.display();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::LOOP | Errno::NOTDIR) => return Err(format!("{shown} is not a directory: remove it")),
            Err(error) => return Err(format!("{shown}: {}", reason(error))),
        };
        let stat = rustix::fs::fstat(&dir).map_err(|error| format!("{shown}: {}", reason(error)))?;
        if stat.st_uid != owner {
            let whose = stat.st_uid;
            return Err(format!("{shown} is user {whose}'s, not user {owner}'s: remove it, or set XDG_RUNTIME_DIR"));
        }
        Ok((Place { dir, path: path.to_owned(), owner }, stat))
    }

    fn only_for_us(self, stat: &Stat) -> Result<Place, String> {
        if stat.st_mode & 0o777 != 0o700 {
            let changed = rustix::fs::fchmod(&self.dir, Mode::RWXU);
            changed.map_err(|error| format!("{}: its mode can't be made 0700: {}", self.path.display(), reason(error)))?;
        }
        Ok(self)
    }

    /// An address in it that neither the length nor a later change of its path affects.
    fn inside(&self, name: &str) -> Result<SocketAddrUnix, Errno> {
        SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", self.dir.as_raw_fd()))
    }

    fn bind(self, pid: u32) -> Result<Bound, Errno> {
        let (new, name) = (format!("{pid}{NEW}"), format!("{pid}{SUFFIX}"));
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let _ = rustix::fs::unlinkat(&self.dir, new.as_str(), AtFlags::empty());
        // Mode 0600 from its creation on.
        let before = rustix::process::umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
        let bound = self.inside(&new).and_then(|address| rustix::net::bind(&listener, &address));
        rustix::process::umask(before);
        bound?;
        rustix::net::listen(&listener, BACKLOG)?;
        // This process has the pid, so whatever has the name is stale.
        rustix::fs::renameat(&self.dir, new.as_str(), &self.dir, name.as_str())?;
        Ok(Bound { place: self, pid, listener })
    }

    fn names(&self) -> Vec<String> {
        let Ok(entries) = Dir::read_from(&self.dir) else { return Vec::new() };
        entries.flatten().filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned)).collect()
    }

    pub fn pids(&self) -> Vec<u32> {
        self.names().iter().filter_map(|name| name.strip_suffix(SUFFIX)?.parse().ok()).collect()
    }

    /// Connects without waiting. Removes a dead run's socket and returns `NOENT`, as without one.
    pub fn connect(&self, pid: u32) -> Result<OwnedFd, Errno> {
        let name = format!("{pid}{SUFFIX}");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &self.inside(&name)?) {
            Ok(()) => {}
            Err(Errno::CONNREFUSED) => {
                self.remove(&name);
                return Err(Errno::NOENT);
            }
            Err(error) => return Err(error),
        }
        // In a directory that was once writable for others, the listener may be another user's.
        if peer::user(&socket).is_some_and(|user| user == self.owner || user == 0) { Ok(socket) } else { Err(Errno::ACCESS) }
    }

    pub fn sweep(&self) {
        for name in self.names() {
            if let Some(pid) = name.strip_suffix(SUFFIX).and_then(|pid| pid.parse().ok()) {
                let _ = self.connect(pid);
            } else if let Some(pid) = name.strip_suffix(NEW).and_then(|pid| pid.parse().ok()).filter(|pid| *pid > 0)
                && rustix::process::Pid::from_raw(pid)
                    .is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(Errno::SRCH))
            {
                self.remove(&name);
            }
        }
    }

    /// Removes the socket, and the directory if it was the last one.
    fn remove(&self, name: &str) {
        let is_socket = rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
        if is_socket && rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()).is_ok() {
            // Fails while others are there.
            let _ = rustix::fs::unlinkat(CWD, &self.path, AtFlags::REMOVEDIR);
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.place.remove(&format!("{}{SUFFIX}", self.pid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn place(dir: &Path) -> Place {
        Place::open(dir, user()).unwrap().0
    }

    #[test]
    fn a_socket_is_private_and_goes_with_its_owner_and_the_directory_with_the_last() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("x".repeat(120));
        std::fs::create_dir(&dir).unwrap();
        let bound = [1, 2].map(|pid| place(&dir).bind(pid).unwrap());
        let socket = dir.join("1.sock");
        assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let mut pids = place(&dir).pids();
        pids.sort_unstable();
        assert_eq!(pids, [1, 2]);
        assert!(place(&dir).connect(1).is_ok(), "whatever the length of its path");
        assert_eq!(place(&dir).connect(3).err(), Some(Errno::NOENT));
        let [first, second] = bound;
        drop(first);
        assert!(!socket.exists() && dir.exists());
        drop(second);
        assert!(!dir.exists());
    }

    #[test]
    fn what_dead_runs_left_is_swept_and_nothing_else() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("lowtide");
        std::fs::create_dir(&dir).unwrap();
        let alive = place(&dir).bind(1).unwrap();
        for name in ["2.sock", "2147483646.new"] {
            drop(std::os::unix::net::UnixListener::bind(dir.join(name)).unwrap());
        }
        for name in ["3.sock", "notes"] {
            std::fs::write(dir.join(name), "").unwrap();
        }
        place(&dir).sweep();
        let mut names = place(&dir).names();
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        assert_eq!(names, ["1.sock", "3.sock", "notes"]);
        drop(alive);
        assert!(dir.exists());
    }

    #[test]
    fn links_and_strangers_are_refused() {
        let base = tempfile::tempdir().unwrap();
        let (dir, link) = (base.path().join("dir"), base.path().join("link"));
        std::fs::create_dir(&dir).unwrap();
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        assert!(Place::open(&link, user()).err().unwrap().contains("not a directory"));
        assert!(Place::open(&dir, user() + 1).err().unwrap().contains("not user"));
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        let (place, stat) = Place::open(&dir, user()).unwrap();
        place.only_for_us(&stat).unwrap();
        assert_eq!(dir.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }
}
