//! `redis://[USER@]HOST[:PORT][/DB]`: a Valkey or Redis server as it is written.

use std::fmt;

/// The port that servers listen on unless they are told otherwise.
const PORT: u16 = 6379;

/// A server as written. Its password is never part of that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// None: the server's default user.
    pub user: Option<String>,
    /// A name, or an address without brackets.
    pub host: String,
    /// TCP.
    pub port: u16,
    /// The number of the database.
    pub db: u32,
}

impl Server {
    /// Reads what follows `redis://`, without options.
    ///
    /// # Errors
    /// What is wrong, without the text itself, which may hold a password.
    pub fn parse(text: &str) -> Result<Server, String> {
        let (user, rest) = match text.rsplit_once('@') {
            Some((user, _)) if user.contains(':') => {
                return Err("a password does not belong on a command line: set LOWTIDE_REDIS_PASSWORD".to_owned());
            }
            Some(("", _)) => return Err("the user before @ is missing: leave @ out, too".to_owned()),
            Some((user, rest)) => (Some(user.to_owned()), rest),
            None => (None, text),
        };
        let (place, db) = match rest.split_once('/') {
            None | Some((_, "")) => (rest.trim_end_matches('/'), 0),
            Some((place, db)) => (place, db.parse().map_err(|_| "what follows / must be the number of a database".to_owned())?),
        };
        let (host, port) = match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':').ok_or("use [ADDRESS]:PORT")?)),
            None => match place.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err("an IPv6 address stands in brackets: redis://[::1]:6379".to_owned());
                }
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
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
        Ok(Server { user, host: host.to_owned(), port, db })
    }
}

/// As it is written, with the port.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("redis://")?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }?;
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
        ] {
            let server = Server::parse(text).unwrap();
            assert_eq!(server.to_string(), shown, "{text}");
            assert_eq!(Server::parse(shown.strip_prefix("redis://").unwrap()), Ok(server), "{text}");
        }
        for text in ["", ":1", "@h", "h:", "h:0", "h:65536", "h:x", "h:1/x", "::1", "[::1]7", "h h:1", "/1"] {
            assert!(Server::parse(text).is_err(), "{text}");
        }
        let why = Server::parse("me:secret@h:1").unwrap_err();
        assert!(why.contains("LOWTIDE_REDIS_PASSWORD") && !why.contains("secret"), "{why}");
    }
}
