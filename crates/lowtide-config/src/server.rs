//! Servers as text: `redis://[USER@]HOST[:PORT][,HOST:PORT...][/DB]`, or `rediss://` with TLS: a
//! Valkey or Redis server, or nodes of a cluster.

use std::fmt;
use std::path::PathBuf;

/// The servers' default port.
const PORT: u16 = 6379;
/// Most bytes of the text, which must fit into messages.
const LONGEST: usize = 240;

/// Servers as written, without their password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// None: the servers' default user.
    pub user: Option<String>,
    /// One at least; of a cluster any of its nodes, which know the others.
    pub hosts: Vec<Address>,
    /// The number of the database.
    pub db: u32,
    /// None: no TLS.
    pub tls: Option<Tls>,
}

/// Files of TLS, in PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// Trusted certificate authorities; None: the system's.
    pub ca: Option<PathBuf>,
    /// Client certificate and key.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// A name, or an address without brackets.
    pub host: String,
    /// TCP.
    pub port: u16,
}

impl Server {
    /// Reads the text after `redis://`, without options. (For `rediss://` the caller sets
    /// [`Server::tls`].)
    ///
    /// # Errors
    /// What is wrong, without the text itself, which may hold a password.
    pub fn parse(text: &str) -> Result<Server, String> {
        if text.len() > LONGEST {
            return Err("the text is too long: of a cluster one or two servers are enough, they know the others".to_owned());
        }
        let (user, rest) = match text.rsplit_once('@') {
            Some((user, _)) if user.contains(':') => {
                return Err("a password does not belong on a command line: set LOWTIDE_REDIS_PASSWORD".to_owned());
            }
            Some(("", _)) => return Err("the user before @ is missing: leave @ out, too".to_owned()),
            Some((user, rest)) => (Some(user.to_owned()), rest),
            None => (None, text),
        };
        let (places, db) = match rest.split_once('/') {
            None | Some((_, "")) => (rest.trim_end_matches('/'), 0),
            Some((places, db)) => {
                (places, db.parse().map_err(|_| "what follows / must be the number of a database".to_owned())?)
            }
        };
        let hosts: Vec<Address> = places.split(',').map(Address::parse).collect::<Result<_, _>>()?;
        if let Some(twice) = hosts.iter().enumerate().find_map(|(i, host)| hosts[..i].contains(host).then_some(host)) {
            return Err(format!("{twice} is given twice: leave one out"));
        }
        Ok(Server { user, hosts, db, tls: None })
    }

    /// Whether both have the same name, whatever their options.
    pub fn is_named_as(&self, other: &Server) -> bool {
        self.to_string() == other.to_string()
    }

    /// The text with the options needed to reach the server.
    pub fn with_options(&self) -> String {
        let mut text = self.to_string();
        let mut add = |name: &str, path: &PathBuf| text.push_str(&format!(",{name}={}", path.display()));
        if let Some(Tls { ca, own }) = &self.tls {
            ca.iter().for_each(|path| add("ca", path));
            own.iter().for_each(|(cert, key)| {
                add("cert", cert);
                add("key", key);
            });
        }
        text
    }
}

impl Address {
    /// Reads `HOST`, `HOST:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`.
    fn parse(text: &str) -> Result<Address, String> {
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':').ok_or("use [ADDRESS]:PORT")?)),
            None => match text.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err("an IPv6 address stands in brackets: redis://[::1]:6379".to_owned());
                }
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err("a host is missing: redis://HOST:PORT".to_owned());
        }
        let port = match port {
            None => PORT,
            Some(port) => match port.parse() {
                Ok(0) | Err(_) => return Err("the port must be a number from 1 to 65535".to_owned()),
                Ok(port) => port,
            },
        };
        Ok(Address { host: host.to_owned(), port })
    }
}

/// With the port.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// With the ports.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls.is_some() { "rediss://" } else { "redis://" })?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        for (i, host) in self.hosts.iter().enumerate() {
            write!(f, "{}{host}", if i == 0 { "" } else { "," })?;
        }
        if self.db == 0 { Ok(()) } else { write!(f, "/{}", self.db) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers() {
        for (text, shown) in [
            ("h", "redis://h:6379"),
            ("h:1", "redis://h:1"),
            ("h:1/", "redis://h:1"),
            ("me@h:1/3", "redis://me@h:1/3"),
            ("[::1]", "redis://[::1]:6379"),
            ("[::1]:7/2", "redis://[::1]:7/2"),
            ("10.0.0.1:7000/0", "redis://10.0.0.1:7000"),
            ("me@a:1,b,[::1]:7/0", "redis://me@a:1,b:6379,[::1]:7"),
        ] {
            let server = Server::parse(text).unwrap();
            assert_eq!(server.to_string(), shown, "{text}");
            assert_eq!(Server::parse(shown.strip_prefix("redis://").unwrap()), Ok(server), "{text}");
        }
        let plain = Server::parse("me@h:1").unwrap();
        let (ca, own) = (Some("/c".into()), Some(("/o".into(), "/k".into())));
        let with_tls = Server { tls: Some(Tls { ca, own }), ..plain.clone() };
        assert_eq!((plain.with_options(), plain.to_string()), ("redis://me@h:1".to_owned(), "redis://me@h:1".to_owned()));
        assert_eq!(with_tls.with_options(), "rediss://me@h:1,ca=/c,cert=/o,key=/k");
        assert!(with_tls.is_named_as(&Server { tls: Some(Tls::default()), ..plain.clone() }) && !with_tls.is_named_as(&plain));
        for text in [
            "",
            ":1",
            "@h",
            "h:",
            "h:0",
            "h:65536",
            "h:x",
            "h:1/x",
            "::1",
            "[::1]7",
            "h h:1",
            "/1",
            "a:1,",
            ",a:1",
            "a:1/0,b:1",
            "a:1,a:1",
            "h,h:6379",
        ] {
            assert!(Server::parse(text).is_err(), "{text}");
        }
        assert!(Server::parse(&["h:1"; 80].join(",")).unwrap_err().contains("too long"));
        let why = Server::parse("me:secret@h:1,h:2").unwrap_err();
        assert!(why.contains("LOWTIDE_REDIS_PASSWORD") && !why.contains("secret"), "{why}");
    }
}
