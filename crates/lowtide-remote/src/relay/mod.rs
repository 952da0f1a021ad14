//! Threads that carry processes' pages to a server or cluster and back, for the processes of
//! `lowtide run`, so that the programs contain no network code and no password, or for a group of
//! regions. Pages are sealed with keys of the processes that made them.
//!
//! Processes connect to an abstract socket (`channel.rs`); a few threads (`workers.rs`) serve them.
//! Each device of each process has its own names on the server (`devices.rs`). One thread removes
//! unreadable pages (`keeper.rs`), another renews the run's lease.

mod channel;
mod devices;
mod keeper;
mod signals;
mod workers;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lowtide_config::server::Server;
use lowtide_config::size;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::client::Client;
use crate::counts::Counts;
use crate::keys::RunName;
use crate::lease;
use crate::remote::{Remote, Survey};
use crate::server::password;
use devices::Devices;
use keeper::Keeper;
use workers::Workers;

/// Time for a server to describe itself before a run starts.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Default of `timeout=`.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// Wait for removals when an area is taken off: a thread does the rest.
const SHORT_PATIENCE: Duration = Duration::from_millis(500);
const STACK: usize = 256 << 10;

/// The way to a server.
pub struct Relay {
    /// As the user has written it.
    pub server: Server,
    /// The socket's name.
    pub name: String,
    remote: Arc<Remote>,
    run: RunName,
    listener: Mutex<Option<OwnedFd>>,
    started: Mutex<Option<Started>>,
}

struct Started {
    workers: Workers,
    keeper: Keeper,
}

/// A usable server, and its usable size.
pub struct Opened {
    /// The way there.
    pub relay: Relay,
    /// Bytes of the area.
    pub size: u64,
    /// Warnings.
    pub warnings: Vec<String>,
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Relay({})", self.server)
    }
}

impl Relay {
    /// Checks a server. The error does not name it. `size`: the requested one; `copies`: of each
    /// page, one or two.
    pub fn open(server: &Server, size: Option<u64>, timeout: Option<Duration>, copies: u8) -> Result<Opened, String> {
        let mut remote = Remote::new(server.clone(), password()?, timeout.unwrap_or(TIMEOUT))?;
        let survey = remote.survey(Instant::now() + PATIENCE).map_err(|problem| problem.text().to_owned())?;
        let mut warnings = Vec::new();
        if copies > 1 {
            let odd = remote.keep_two_copies(&survey, Instant::now() + PATIENCE);
            warnings.extend(odd.map_err(|problem| problem.text().to_owned())?);
        }
        let size = fitting(size, &survey, copies, &mut warnings)?;
        let no_number = |errno| format!("no random number is to be had ({errno})");
        let relay = Relay {
            server: server.clone(),
            name: format!("lowtide-pages-{:016x}", random().map_err(no_number)?),
            remote: Arc::new(remote),
            run: RunName::new().map_err(no_number)?,
            listener: Mutex::new(None),
            started: Mutex::new(None),
        };
        Ok(Opened { relay, size, warnings })
    }

    /// The traffic.
    pub fn counts(&self) -> Arc<Counts> {
        self.remote.counts.clone()
    }

    /// New warnings.
    pub fn warnings(&self) -> Vec<String> {
        self.remote.told.take()
    }

    /// Describes the server.
    pub fn how(&self) -> Result<String, String> {
        let survey = self.remote.survey(Instant::now() + PATIENCE).map_err(|problem| problem.text().to_owned())?;
        let limit = match survey.maxmemory() {
            0 => "no maxmemory".to_owned(),
            bytes => format!("maxmemory {}", size::show(bytes)),
        };
        let copies = if self.remote.begun.is_some() { "two copies, " } else { "" };
        Ok(format!("{}, {limit}, {copies}waiting up to {} s", survey.name(), self.remote.timeout.as_secs()))
    }

    /// The last step before a run: registers it at the server, and opens the socket to processes.
    ///
    /// # Errors
    /// What is wrong, without the server.
    pub fn take(&self) -> Result<(), String> {
        let mut client = Client::new(self.remote.clone());
        let renewed = lease::renew(&mut client, self.run, Instant::now() + PATIENCE);
        renewed.map_err(|problem| problem.text().to_owned())?;
        let listener = self.listen().map_err(|error| format!("no socket can be made ({error})"))?;
        *locked(&self.listener) = Some(listener);
        Ok(())
    }

    fn listen(&self) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new_abstract_name(self.name.as_bytes())?)?;
        rustix::net::listen(&listener, 1024)?;
        Ok(listener)
    }

    /// Begins to serve. `lowtide run` calls it after starting the program: the forking process must
    /// have one thread. `is_ours`: whether to serve a connection.
    ///
    /// # Errors
    /// No thread or descriptor is left; the text does not name the server.
    pub fn start(&self, is_ours: fn(&OwnedFd) -> bool) -> Result<(), String> {
        let listener = locked(&self.listener).take();
        let listener = listener.ok_or("it was not taken")?;
        let failed = |error: std::io::Error| format!("it can't be served: {error}");
        let devices = Arc::new(Devices::new(self.run));
        let keeper = Keeper::start(self.remote.clone(), self.run).map_err(failed)?;
        let workers = Workers::start(listener, is_ours, &self.remote, &devices, keeper.sender()).map_err(failed)?;
        *locked(&self.started) = Some(Started { workers, keeper });
        Ok(())
    }

    /// Stops serving, and removes all on the server, for which it waits `patience`. Returns a
    /// warning without the server.
    pub fn finish(&self, patience: Duration) -> Option<String> {
        self.remote.end();
        let done = locked(&self.started).take()?.end(patience);
        let (name, server) = (self.run.text(), self.server.with_options());
        (!done).then(|| format!("it still has pages of this run ({name}): `lowtide remote clean {server}` in ten minutes"))
    }
}

impl Started {
    fn end(self, patience: Duration) -> bool {
        self.workers.stop();
        self.keeper.finish(patience)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.remote.end();
        if let Some(started) = locked(&self.started).take() {
            // An area was taken off: the removal needs no wait.
            let _ = spawn("lowtide-end", move || _ = started.end(SHORT_PATIENCE));
        } else if locked(&self.listener).is_some() {
            // The program did not start: there are no pages.
            let _ = lease::end(&mut Client::new(self.remote.clone()), self.run, Instant::now() + PATIENCE);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The bytes of an area: the requested ones if available, else the free ones.
fn fitting(size: Option<u64>, survey: &Survey, copies: u8, warnings: &mut Vec<String>) -> Result<u64, String> {
    let (free, maxmemory) = (survey.free(copies), survey.maxmemory());
    let Some(size) = size else {
        return match free {
            0 if !survey.says_memory() => Err("it does not say how much memory it has: give size=".to_owned()),
            _ if free < lowtide_config::place::LEAST => Err("its memory is full: raise its maxmemory".to_owned()),
            _ => Ok(free),
        };
    };
    let times = if copies > 1 { " twice" } else { "" };
    if maxmemory > 0 && size > maxmemory / u64::from(copies) {
        return Err(format!(
            "size={}{times} is more than its maxmemory ({}): make it smaller, or raise maxmemory",
            size::show(size),
            size::show(maxmemory)
        ));
    }
    if free > 0 && size > free {
        warnings.push(format!("there is only {} free, less than size={}", size::show(free), size::show(size)));
    }
    Ok(size)
}

/// An unguessable number.
pub(crate) fn random() -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<std::thread::JoinHandle<()>> {
    let _blocked = signals::Blocked::all();
    std::thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(work)
}
