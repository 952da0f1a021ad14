//! A server: how it is reached, and whether it will do.

use std::io::{self, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lowtide_config::reason;
use lowtide_config::server::Server;

use crate::resp::{self, Connection, Reply};

/// The first version that has all that is asked of it (`CLIENT ID`, `UNLINK`).
const LEAST_VERSION: u32 = 5;
/// How long an attempt to connect may take.
const CONNECTING: Duration = Duration::from_secs(5);

/// Without these a late command could overwrite what was written after it.
const NO_FENCES: &str = "it does not let us tell connections apart and end them: allow CLIENT ID and CLIENT KILL (ACL)";

/// Names the password of a server.
pub const PASSWORD: &str = "LOWTIDE_REDIS_PASSWORD";
/// Names a file that holds it.
pub const PASSWORD_FILE: &str = "LOWTIDE_REDIS_PASSWORD_FILE";

/// A server that pages go to, and what is known of it. Shared by all that have connections to it.
#[derive(Debug)]
pub struct Remote {
    /// As the user has written it.
    pub server: Server,
    /// How long a read goes on trying.
    pub timeout: Duration,
    password: Option<String>,
    /// Connections that were given up while commands were under way there.
    fences: Mutex<Vec<Fence>>,
    /// The run is over: what is read or written no longer matters.
    over: AtomicBool,
}

/// A connection that was given up: the server may still carry out what it has been sent there, and that could come after what
/// others send later.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fence {
    /// The server process, by its name for itself.
    process: String,
    /// The connection, by its.
    client: i64,
    /// When it was given up.
    since: Instant,
}

/// Why a server can't be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// It is not to be reached now.
    Away(String),
    /// It does not let us in, or won't do.
    Refused(String),
}

impl Problem {
    /// What is wrong, in words.
    pub fn text(&self) -> &str {
        match self {
            Problem::Away(text) | Problem::Refused(text) => text,
        }
    }
}

/// What a server says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// `redis` or `valkey`, and its version.
    pub name: String,
    /// The first number of it. (What Valkey says for programs that look for Redis.)
    pub major: u32,
    /// Another one for each process of a server.
    pub process: String,
    /// Most bytes that it may use; 0: no limit.
    pub maxmemory: u64,
    /// What it does at that limit.
    pub policy: String,
    /// Bytes that it uses now.
    pub used: u64,
    /// Bytes of RAM of its machine; 0: it does not say.
    pub machine: u64,
    /// It is part of a cluster.
    pub cluster: bool,
    /// It copies another server.
    pub replica: bool,
}

impl Facts {
    /// Reads what `INFO` says.
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
        if self.cluster {
            return Some("it is part of a cluster, and that is not there yet: name a server that stands alone".to_owned());
        }
        if self.replica {
            return Some("it is a replica, which takes no writes: name its primary".to_owned());
        }
        if self.maxmemory > 0 && self.policy != "noeviction" {
            return Some(format!(
                "it would throw pages away when its memory is full (maxmemory-policy {}): `redis-cli config set \
                 maxmemory-policy noeviction`",
                self.policy
            ));
        }
        None
    }

    /// Bytes that are free there: below `maxmemory`, or half of what its machine has and it does not use.
    pub fn free(&self) -> u64 {
        match self.maxmemory {
            0 => self.machine.saturating_sub(self.used) / 2,
            most => most.saturating_sub(self.used),
        }
    }
}

/// A connection that was let in.
#[derive(Debug)]
pub struct Link {
    /// The connection.
    pub connection: Connection,
    /// What the server said of itself when it was made.
    pub facts: Facts,
    /// Its number there.
    client: i64,
    /// When it was made.
    made: Instant,
}

impl Remote {
    /// A server to be used; nothing is done yet.
    pub fn new(server: Server, password: Option<String>, timeout: Duration) -> Remote {
        Remote { server, timeout, password, fences: Mutex::default(), over: AtomicBool::new(false) }
    }

    /// Nothing is to be read or written any more: who tries gives up soon.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Whether [`Remote::end`] was called.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Connects, and asks the server what it is. Whether it will do is for the caller to ask ([`Facts::refusal`]).
    ///
    /// # Errors
    /// Why it can't be reached, or does not let us in.
    pub fn connect(&self, deadline: Instant) -> Result<Link, Problem> {
        let stream = self.stream(deadline)?;
        let connection = Connection::new(stream).and_then(|mut connection| connection.until(deadline).map(|()| connection));
        let mut connection = connection.map_err(|error| Problem::Away(why(&error)))?;
        if self.password.is_some() || self.server.user.is_some() {
            self.log_in(&mut connection)?;
        }
        if self.server.db != 0 {
            let db = self.server.db.to_string();
            if let Reply::Error(text) = asked(&mut connection, &[b"SELECT", db.as_bytes()])? {
                return Err(Problem::Refused(format!("it has no database {db} ({text})")));
            }
        }
        let facts = match asked(&mut connection, &[b"INFO"])? {
            Reply::Bytes(text) => Facts::parse(&String::from_utf8_lossy(&text)),
            Reply::Error(text) if text.starts_with("NOAUTH") => {
                return Err(Problem::Refused(format!("it wants a password: set {PASSWORD}")));
            }
            Reply::Error(text) if text.starts_with("LOADING") => return Err(Problem::Away("it reads its file".to_owned())),
            other => return Err(Problem::Refused(format!("it does not say what it is ({})", shown(&other)))),
        };
        let Reply::Number(client) = asked(&mut connection, &[b"CLIENT", b"ID"])? else {
            return Err(Problem::Refused(NO_FENCES.to_owned()));
        };
        // Of a connection that there can't be: whether we may end any.
        let may_end = asked(&mut connection, &[b"CLIENT", b"KILL", b"ID", i64::MAX.to_string().as_bytes()])?;
        if matches!(&may_end, Reply::Error(text) if text.starts_with("NOPERM") || text.contains("unknown")) {
            return Err(Problem::Refused(NO_FENCES.to_owned()));
        }
        Ok(Link { connection, facts, client, made: Instant::now() })
    }

    fn stream(&self, deadline: Instant) -> Result<TcpStream, Problem> {
        let Server { host, port, .. } = &self.server;
        let addresses = (host.as_str(), *port).to_socket_addrs();
        let addresses = addresses.map_err(|error| Problem::Away(format!("the host is not known ({})", reason(error))))?;
        let mut last = "the host has no address".to_owned();
        for address in addresses {
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

    fn log_in(&self, connection: &mut Connection) -> Result<(), Problem> {
        let password = self.password.as_deref().unwrap_or_default().as_bytes();
        let reply = match &self.server.user {
            Some(user) => asked(connection, &[b"AUTH", user.as_bytes(), password])?,
            None => asked(connection, &[b"AUTH", password])?,
        };
        match reply {
            Reply::Simple(_) => Ok(()),
            Reply::Error(text) if text.starts_with("LOADING") => Err(Problem::Away("it reads its file".to_owned())),
            // It has none: whatever we say is right.
            Reply::Error(text) if text.contains("without any password") => Ok(()),
            // Not in its words: these may have the password in them.
            Reply::Error(text) => {
                let why = text.split(' ').next().filter(|word| word.chars().all(|c| c.is_ascii_uppercase()));
                Err(Problem::Refused(format!("it does not let us in ({}): see {PASSWORD}", why.unwrap_or("ERR"))))
            }
            _ => Err(Problem::Refused("it does not speak the protocol of Redis".to_owned())),
        }
    }

    /// Gives up a connection while commands are under way there.
    pub fn give_up(&self, link: &Link) {
        if let Ok(mut fences) = self.fences.lock() {
            fences.push(Fence { process: link.facts.process.clone(), client: link.client, since: Instant::now() });
        }
    }

    /// Before anything is changed by this connection: connections that were given up are ended on the server, which then
    /// carries out nothing more of what was sent there. (A server that has been started anew since has forgotten them.)
    ///
    /// # Errors
    /// Those of the connection.
    pub fn fence(&self, link: &mut Link) -> io::Result<()> {
        let fences = self.fences.lock().map(|fences| fences.clone()).unwrap_or_default();
        for fence in fences {
            if fence.process != link.facts.process {
                // Of a server that was there before: it is gone, and what was sent to it. But if this connection is the older
                // one, it is itself to a server that is gone.
                if link.made < fence.since {
                    continue;
                }
            } else {
                let client = fence.client.to_string();
                let mut out = Vec::new();
                resp::command(&mut out, &[b"CLIENT", b"KILL", b"ID", client.as_bytes()]);
                link.connection.send(&out)?;
                // That there is no such connection any more is as good.
                if matches!(link.connection.reply()?, Reply::Error(text) if text.starts_with("NOPERM")) {
                    return Err(ErrorKind::PermissionDenied.into());
                }
            }
            if let Ok(mut fences) = self.fences.lock() {
                fences.retain(|other| *other != fence);
            }
        }
        Ok(())
    }
}

/// Asks one thing.
///
/// # Errors
/// It does not answer.
pub fn asked(connection: &mut Connection, words: &[&[u8]]) -> Result<Reply, Problem> {
    let mut out = Vec::new();
    resp::command(&mut out, words);
    connection.send(&out).and_then(|()| connection.reply()).map_err(|error| match error.kind() {
        ErrorKind::InvalidData => Problem::Refused("it does not speak the protocol of Redis".to_owned()),
        _ => Problem::Away(why(&error)),
    })
}

fn shown(reply: &Reply) -> String {
    match reply {
        Reply::Error(text) | Reply::Simple(text) => text.clone(),
        _ => "an odd reply".to_owned(),
    }
}

/// An error of a connection in words.
fn why(error: &io::Error) -> String {
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
            ("cluster_enabled:0", "cluster_enabled:1", "cluster"),
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
