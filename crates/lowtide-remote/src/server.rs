//! One server: connecting to it, and its fitness.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_config::reason;
use lowtide_config::server::Address;

use crate::counts::Counts;
use crate::resp::{self, Connection, Reply};
use crate::stream::{Socket, Stream};
use crate::tls::Trust;

/// The first version with all required commands (`CLIENT ID`, `UNLINK`).
const LEAST_VERSION: u32 = 5;
const CONNECTING: Duration = Duration::from_secs(5);
/// The system's resolver reads files, and may load libraries.
const RESOLVER_STACK: usize = 256 << 10;

/// Without fences a late command could overwrite a later write.
const NO_FENCES: &str = "it does not let us tell connections apart and end them: allow CLIENT ID and CLIENT KILL (ACL)";

/// The variable with a server's password.
pub const PASSWORD: &str = "LOWTIDE_REDIS_PASSWORD";
/// The variable with the path of the password's file.
pub const PASSWORD_FILE: &str = "LOWTIDE_REDIS_PASSWORD_FILE";

/// The environment's password, if any.
///
/// # Errors
/// What is wrong.
pub fn password() -> Result<Option<String>, String> {
    let given = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(password) = given(PASSWORD) {
        return Ok(Some(password));
    }
    let Some(path) = given(PASSWORD_FILE) else { return Ok(None) };
    let about = |why: String| format!("{PASSWORD_FILE}={path}: {why}");
    let text = secret(Path::new(&path)).map_err(about)?;
    Ok(Some(text.trim_end_matches(['\n', '\r']).to_owned()))
}

/// The text of a file that only its user may read.
///
/// # Errors
/// What is wrong, without the path.
pub fn secret(path: &Path) -> Result<String, String> {
    let mut file = File::open(path).map_err(reason)?;
    let mode = file.metadata().map_err(reason)?.mode();
    if mode & 0o077 != 0 {
        return Err(format!("its mode is {:04o}, others can read it: `chmod 600 {}`", mode & 0o7777, path.display()));
    }
    let mut text = String::new();
    file.by_ref().take(MOST_SECRET).read_to_string(&mut text).map_err(reason)?;
    Ok(text)
}

const MOST_SECRET: u64 = 1 << 20;

/// Credentials and settings of connections.
#[derive(Debug)]
pub struct Login {
    /// None: the default user.
    pub user: Option<String>,
    /// None: no password.
    pub password: Option<String>,
    /// The number of the database.
    pub db: u32,
    /// Counts of the traffic.
    pub counts: Arc<Counts>,
    /// Trust in servers; none: no TLS.
    pub trust: Option<Trust>,
}

/// Why a server can't be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// Unreachable now.
    Away(String),
    /// It refuses us, or is unfit.
    Refused(String),
}

impl Problem {
    /// The text.
    pub fn text(&self) -> &str {
        match self {
            Problem::Away(text) | Problem::Refused(text) => text,
        }
    }

    /// The meaning of a connection's error.
    pub fn of_connection(error: &io::Error) -> Problem {
        match error.kind() {
            ErrorKind::InvalidData => Problem::Refused(why(error)),
            _ => Problem::Away(why(error)),
        }
    }

    /// Adds the server's name.
    #[must_use]
    pub fn of(self, server: &impl std::fmt::Display) -> Problem {
        match self {
            Problem::Away(text) => Problem::Away(format!("{server}: {text}")),
            Problem::Refused(text) => Problem::Refused(format!("{server}: {text}")),
        }
    }
}

/// A server's description of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// `redis` or `valkey`, and its version.
    pub name: String,
    /// The major version. (Valkey's is the one that it reports for Redis.)
    pub major: u32,
    /// The run id, unique for each server process.
    pub process: String,
    /// Most bytes that it may use; 0: no limit.
    pub maxmemory: u64,
    /// The eviction policy at that limit.
    pub policy: String,
    /// Bytes used now.
    pub used: u64,
    /// Bytes of its machine's RAM; 0: unknown.
    pub machine: u64,
    /// It is part of a cluster.
    pub cluster: bool,
    /// It is a replica.
    pub replica: bool,
}

impl Facts {
    /// Reads the answer to `INFO`.
    pub fn parse(info: &str) -> Facts {
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_default().trim().to_owned()
        };
        let number = |name: &str| field(name).parse().unwrap_or(0);
        let version = field("redis_version");
        let valkey = field("valkey_version");
        Facts {
            name: if valkey.is_empty() { format!("redis {version}") } else { format!("valkey {valkey}") },
            major: version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0),
            process: field("run_id"),
            maxmemory: number("maxmemory"),
            policy: field("maxmemory_policy"),
            used: number("used_memory"),
            machine: number("total_system_memory"),
            cluster: field("cluster_enabled") == "1",
            replica: field("role") == "slave",
        }
    }

    /// Why pages can't be trusted to it; `None`: they can.
    pub fn refusal(&self) -> Option<String> {
        if self.major < LEAST_VERSION {
            return Some(format!("its version ({}) is too old: {LEAST_VERSION}.0 is the first that will do", self.name));
        }
        if self.replica {
            return Some("it is a replica, which takes no writes: name its primary".to_owned());
        }
        // Without a limit no policy evicts; refreshed facts would show a new limit. (`volatile-`
        // policies spare pages, but not leases.)
        if self.maxmemory > 0 && self.policy != "noeviction" {
            return Some(format!(
                "it would throw pages away when its memory is full (maxmemory-policy {}): `redis-cli config set \
                 maxmemory-policy noeviction`",
                self.policy
            ));
        }
        None
    }

    /// Free bytes: below `maxmemory`, or half of its machine's unused RAM.
    pub fn free(&self) -> u64 {
        match self.maxmemory {
            0 => self.machine.saturating_sub(self.used) / 2,
            most => most.saturating_sub(self.used),
        }
    }
}

/// An authenticated connection.
#[derive(Debug)]
pub struct Link {
    /// The connection.
    pub connection: Connection,
    /// The server's address.
    pub address: Address,
    /// The latest facts.
    pub facts: Facts,
    /// Their time.
    pub asked: Instant,
    /// Their count of changes ([`crate::remote::Known`]); none: to be refreshed.
    pub changes: Option<u64>,
    /// The connection's id at the server.
    pub client: i64,
    /// Its start.
    pub made: Instant,
    /// It has sent changing commands.
    pub has_changes: bool,
}

impl Login {
    /// Connects to a server, and reads its facts. The caller checks its fitness
    /// ([`Facts::refusal`]). `name`: the host name that its certificate must have.
    ///
    /// # Errors
    /// Why it can't be reached, is another server, or refuses us.
    pub fn connect(&self, address: &Address, name: &str, deadline: Instant) -> Result<Link, Problem> {
        let socket = connected(address, deadline)?;
        let stream = Socket::new(socket, self.counts.clone(), deadline).and_then(|socket| match &self.trust {
            None => Ok(Stream::Plain(socket)),
            Some(trust) => Stream::tls(trust, name, socket),
        });
        let mut connection = Connection::new(stream.map_err(|error| Problem::of_connection(&error))?);
        if self.password.is_some() || self.user.is_some() {
            self.log_in(&mut connection)?;
        }
        if self.db != 0 {
            let db = self.db.to_string();
            if let Reply::Error(text) = asked(&mut connection, &[b"SELECT", db.as_bytes()])? {
                return Err(Problem::Refused(format!("it has no database {db} ({text})")));
            }
        }
        let facts = facts(&mut connection)?;
        let Reply::Number(client) = asked(&mut connection, &[b"CLIENT", b"ID"])? else {
            return Err(Problem::Refused(NO_FENCES.to_owned()));
        };
        // An impossible id tests whether CLIENT KILL is permitted.
        let may_end = asked(&mut connection, &[b"CLIENT", b"KILL", b"ID", i64::MAX.to_string().as_bytes()])?;
        if matches!(&may_end, Reply::Error(text) if text.starts_with("NOPERM") || text.contains("unknown")) {
            return Err(Problem::Refused(NO_FENCES.to_owned()));
        }
        let now = Instant::now();
        Ok(Link {
            connection,
            address: address.clone(),
            facts,
            asked: now,
            changes: None,
            client,
            made: now,
            has_changes: false,
        })
    }

    fn log_in(&self, connection: &mut Connection) -> Result<(), Problem> {
        let password = self.password.as_deref().unwrap_or_default().as_bytes();
        let reply = match &self.user {
            Some(user) => asked(connection, &[b"AUTH", user.as_bytes(), password])?,
            None => asked(connection, &[b"AUTH", password])?,
        };
        match reply {
            Reply::Simple(_) => Ok(()),
            Reply::Error(text) if text.starts_with("LOADING") => Err(Problem::Away("it reads its file".to_owned())),
            // Without a password any is right.
            Reply::Error(text) if text.contains("without any password") => Ok(()),
            // The server's own words may contain the password.
            Reply::Error(text) => {
                let why = text.split(' ').next().filter(|word| word.chars().all(|c| c.is_ascii_uppercase()));
                Err(Problem::Refused(format!("it does not let us in ({}): see {PASSWORD}", why.unwrap_or("ERR"))))
            }
            _ => Err(Problem::Refused("it does not speak the protocol of Redis".to_owned())),
        }
    }
}

impl Link {
    /// Refreshes the facts.
    ///
    /// # Errors
    /// No answer.
    pub fn ask_again(&mut self) -> Result<(), Problem> {
        self.facts = facts(&mut self.connection)?;
        self.asked = Instant::now();
        Ok(())
    }
}

fn facts(connection: &mut Connection) -> Result<Facts, Problem> {
    match asked(connection, &[b"INFO"])? {
        Reply::Bytes(text) => Ok(Facts::parse(&String::from_utf8_lossy(&text))),
        Reply::Error(text) if text.starts_with("NOAUTH") => {
            Err(Problem::Refused(format!("it wants a password: set {PASSWORD}")))
        }
        Reply::Error(text) if text.starts_with("LOADING") => Err(Problem::Away("it reads its file".to_owned())),
        other => Err(Problem::Refused(format!("it does not say what it is ({})", shown(&other)))),
    }
}

fn connected(address: &Address, deadline: Instant) -> Result<TcpStream, Problem> {
    let mut last = "the host has no address".to_owned();
    for address in resolved(address, deadline)? {
        let left = deadline.saturating_duration_since(Instant::now()).min(CONNECTING);
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                last = "no server listens there (connection refused)".to_owned();
            }
            Err(error) => last = why(&error),
        }
    }
    Err(Problem::Away(last))
}

/// The system's resolver has no timeout: a thread waits for it.
fn resolved(address: &Address, deadline: Instant) -> Result<Vec<SocketAddr>, Problem> {
    let Address { host, port } = address;
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, *port)]);
    }
    let (tell, told) = mpsc::channel();
    let asked = (host.clone(), *port);
    let thread = thread::Builder::new().name("lowtide-names".to_owned()).stack_size(RESOLVER_STACK).spawn(move || {
        let _ = tell.send(asked.to_socket_addrs().map(Vec::from_iter));
    });
    let thread = thread.map_err(|error| Problem::Away(why(&error)))?;
    let Ok(found) = told.recv_timeout(deadline.saturating_duration_since(Instant::now())) else {
        return Err(Problem::Away("nobody says in time what the host's address is (DNS)".to_owned()));
    };
    let _ = thread.join();
    found.map_err(|error| Problem::Away(format!("the host is not known ({})", reason(error))))
}

/// Sends one command.
///
/// # Errors
/// No answer.
pub fn asked(connection: &mut Connection, words: &[&[u8]]) -> Result<Reply, Problem> {
    let mut out = Vec::new();
    resp::command(&mut out, words);
    connection.send(&out).and_then(|()| connection.reply()).map_err(|error| Problem::of_connection(&error))
}

fn shown(reply: &Reply) -> String {
    match reply {
        Reply::Error(text) | Reply::Simple(text) => text.clone(),
        _ => "an odd reply".to_owned(),
    }
}

fn why(error: &io::Error) -> String {
    if let Some(words) = error.get_ref() {
        return words.to_string();
    }
    match error.kind() {
        ErrorKind::TimedOut => "it does not answer".to_owned(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            "it has ended the connection".to_owned()
        }
        _ => reason(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nredis_version:7.2.4\r\nvalkey_version:8.0.1\r\nrun_id:abc\r\nredis_mode:standalone\r\n\
                        maxmemory:1000\r\nused_memory:400\r\nmaxmemory_policy:noeviction\r\ntotal_system_memory:9000\r\n\
                        role:master\r\nloading:0\r\ncluster_enabled:0\r\n";

    #[test]
    fn which_servers_will_do() {
        let good = Facts::parse(INFO);
        assert_eq!((good.name.as_str(), good.major, good.process.as_str(), good.free()), ("valkey 8.0.1", 7, "abc", 600));
        assert_eq!(good.refusal(), None);
        for (from, to, why) in [
            ("redis_version:7.2.4", "redis_version:4.0.14", "too old"),
            ("role:master", "role:slave", "primary"),
            (":noeviction", ":allkeys-lru", "config set maxmemory-policy noeviction"),
        ] {
            let refusal = Facts::parse(&INFO.replace(from, to)).refusal();
            assert!(refusal.as_ref().is_some_and(|text| text.contains(why)), "{to}: {refusal:?}");
        }
        let unlimited = Facts::parse(&INFO.replace("maxmemory:1000", "maxmemory:0").replace("noeviction", "allkeys-lru"));
        assert_eq!((unlimited.refusal(), unlimited.free()), (None, 4300), "without a limit nothing is thrown away");
        assert!(Facts::parse("").refusal().is_some());
    }
}
