//! Swap places as text: `auto`, `ram`, `dir:DIR`, `file:PATH`, `redis://HOST:PORT`,
//! `rediss://HOST:PORT`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::place::LEAST;
use crate::server::{Server, Tls};
use crate::size;

/// A swap place as written.
#[derive(Debug, PartialEq, Eq)]
pub enum Spec {
    /// An unnamed file in the best place.
    Auto,
    /// Compressed RAM only.
    Ram,
    /// Unnamed files in a directory.
    #[allow(missing_docs)] // as they are written
    Dir { dir: PathBuf, size: Option<u64>, prio: Option<i16>, rotational: Option<bool> },
    /// A file, or a block device.
    #[allow(missing_docs)]
    File { path: PathBuf, size: Option<u64>, prio: Option<i16>, discard: bool, rotational: Option<bool> },
    /// A server or a cluster, perhaps with two copies of each page.
    #[allow(missing_docs)]
    Remote { server: Server, size: Option<u64>, prio: Option<i16>, timeout: Option<Duration>, copies: u8 },
}

/// Seconds of `timeout=`.
const TIMEOUTS: std::ops::RangeInclusive<u64> = 1..=300;

/// The user of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// A run. A size may be a share of its usable RAM.
    Run {
        /// Bytes.
        ram_usable: u64,
    },
    /// A region: no named files, one swap file or server only, and sizes in bytes.
    Region,
}

impl User {
    fn kinds(self) -> &'static str {
        match self {
            User::Run { .. } => {
                "use auto, ram, dir:DIR[,size=8G][,prio=N][,rotational], \
                 file:PATH[,size=8G][,prio=N][,rotational][,discard], \
                 redis://HOST:PORT[,HOST:PORT...][,size=8G][,prio=N][,timeout=30s][,copies=2] or, with TLS, \
                 rediss://HOST:PORT[,...][,ca=FILE][,cert=FILE,key=FILE]"
            }
            User::Region => "use auto, ram, dir:DIR[,size=8G] or redis://HOST:PORT (rediss:// with TLS)",
        }
    }

    fn options(self, kind: &str) -> &'static str {
        match (self, kind) {
            (User::Region, "redis") => "redis:// takes size=, timeout= and copies= here, each once",
            (User::Region, "rediss") => "rediss:// takes size=, timeout=, copies=, ca=, cert= and key= here, each once",
            (User::Region, _) => "a region takes size= only, once",
            (_, "redis") => "redis:// takes size=, prio=, timeout= and copies=, each once",
            (_, "rediss") => "rediss:// takes size=, prio=, timeout=, copies=, ca=, cert= and key=, each once",
            (_, "dir") => "dir: takes size=, prio= and rotational, each once",
            _ => "file: takes size=, prio=, rotational and discard, each once",
        }
    }

    fn size(self, text: &str) -> Result<u64, String> {
        match self {
            User::Run { ram_usable } => size::parse(text, ram_usable),
            User::Region => size::parse_bytes(text),
        }
    }
}

impl Spec {
    /// Reads a SPEC.
    ///
    /// # Errors
    /// What is wrong, without the text itself.
    pub fn parse(text: &str, user: User) -> Result<Spec, String> {
        let (kind, rest) = match text.split_once(':') {
            None if text == "auto" => return Ok(Spec::Auto),
            None if text == "ram" => return Ok(Spec::Ram),
            Some(("dir", rest)) => ("dir", rest),
            Some(("file", rest)) if user != User::Region => ("file", rest),
            Some((kind @ ("redis" | "rediss"), rest)) => return Spec::parse_remote(kind, rest, user),
            _ if text.starts_with("ram,") => return Err("compressed RAM is no device: ram takes no options".to_owned()),
            _ if text.starts_with("auto,") => return Err(format!("auto takes no options: {}", user.kinds())),
            _ => return Err(format!("unknown kind: {}", user.kinds())),
        };
        let (path, options) = split_options(rest);
        if path.is_empty() {
            return Err(match kind {
                "dir" => "a directory is missing: dir:DIR".to_owned(),
                _ => "a path is missing: file:PATH".to_owned(),
            });
        }
        let Options { size, prio, discard, rotational, .. } = Options::read(options, kind, user)?;
        let path = PathBuf::from(path);
        Ok(match kind {
            "dir" => Spec::Dir { dir: path, size, prio, rotational },
            _ => Spec::File { path, size, prio, discard, rotational },
        })
    }

    fn parse_remote(kind: &str, text: &str, user: User) -> Result<Spec, String> {
        let text = text.strip_prefix("//").ok_or_else(|| format!("a server is written {kind}://HOST:PORT"))?;
        // Further servers have ports, which distinguishes them from options.
        let is_server = |part: &str| part.contains(':') && !part.contains('=');
        let rest = text.split(',').skip(1).take_while(|part| is_server(part)).map(|part| part.len() + 1).sum::<usize>();
        let first = text.find(',').unwrap_or(text.len());
        let (server, options) = text.split_at(first + rest);
        let mut server = Server::parse(server)?;
        let Options { size, prio, timeout, copies, ca, cert, key, .. } = Options::read(options, kind, user)?;
        if kind == "rediss" {
            let own = match (cert, key) {
                (Some(cert), Some(key)) => Some((cert, key)),
                (None, None) => None,
                _ => return Err("cert= and key= belong together: a certificate of yours, and its private key".to_owned()),
            };
            server.tls = Some(Tls { ca, own });
        }
        Ok(Spec::Remote { server, size, prio, timeout, copies: copies.unwrap_or(1) })
    }

    /// The priority, if given.
    pub fn prio(&self) -> Option<i16> {
        match self {
            Spec::Auto | Spec::Ram => None,
            Spec::Dir { prio, .. } | Spec::File { prio, .. } | Spec::Remote { prio, .. } => *prio,
        }
    }
}

/// Without options.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spec::Auto => f.write_str("auto"),
            Spec::Ram => f.write_str("ram"),
            Spec::Dir { dir, .. } => write!(f, "dir:{}", dir.display()),
            Spec::File { path, .. } => write!(f, "file:{}", path.display()),
            Spec::Remote { server, .. } => write!(f, "{server}"),
        }
    }
}

#[derive(Default)]
struct Options {
    size: Option<u64>,
    prio: Option<i16>,
    discard: bool,
    rotational: Option<bool>,
    timeout: Option<Duration>,
    copies: Option<u8>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

/// Options of servers that name files.
pub const FILES: [&str; 3] = ["ca", "cert", "key"];

impl Options {
    /// The field of a server's option that names a file.
    fn file(&mut self, name: &str) -> Option<&mut Option<PathBuf>> {
        match name {
            "ca" => Some(&mut self.ca),
            "cert" => Some(&mut self.cert),
            "key" => Some(&mut self.key),
            _ => None,
        }
    }

    fn read(text: &str, kind: &str, user: User) -> Result<Options, String> {
        let (mut options, is_server) = (Options::default(), kind.starts_with("redis"));
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let unknown = || format!("unknown option `{part}`: {}", user.options(kind));
            match part.split_once('=') {
                Some(("size", value)) if options.size.is_none() => {
                    let bytes = user.size(value)?;
                    if bytes < LEAST {
                        return Err("size= must be at least 2M".to_owned());
                    }
                    options.size = Some(bytes);
                }
                _ if user == User::Region && (!is_server || part.starts_with("prio=")) => return Err(unknown()),
                Some(("prio", value)) if options.prio.is_none() => {
                    let number = value.parse().ok().filter(|number| *number >= -1);
                    options.prio = Some(number.ok_or("prio= must be a number from -1 to 32767")?);
                }
                Some(("timeout", value)) if is_server && options.timeout.is_none() => {
                    let seconds = value.strip_suffix('s').unwrap_or(value).parse().ok().filter(|s| TIMEOUTS.contains(s));
                    let seconds = seconds.ok_or("timeout= must be a number of seconds from 1 to 300, like 30s")?;
                    options.timeout = Some(Duration::from_secs(seconds));
                }
                Some(("copies", value)) if is_server && options.copies.is_none() => {
                    let number = ["1", "2"].iter().zip(1..).find(|(text, _)| **text == value).map(|(_, number)| number);
                    options.copies = Some(number.ok_or("copies= must be 1 or 2")?);
                }
                Some((name, path)) if kind == "rediss" && options.file(name).is_some_and(|file| file.is_none()) => {
                    if path.is_empty() {
                        return Err(format!("{name}= must name a file"));
                    }
                    options.file(name).into_iter().for_each(|file| *file = Some(path.into()));
                }
                _ if is_server && !part.starts_with("size=") && !part.starts_with("prio=") => return Err(unknown()),
                None if part == "discard" && kind == "file" && !options.discard => options.discard = true,
                None if part == "rotational" && options.rotational.is_none() => options.rotational = Some(true),
                Some(("rotational", value)) if options.rotational.is_none() => {
                    let number = value.parse::<u8>().ok().filter(|number| *number <= 1);
                    options.rotational = Some(number.ok_or("rotational= must be 1 (the disk turns) or 0")? == 1);
                }
                Some(("size" | "prio", _)) => return Err("size= or prio= is given twice".to_owned()),
                _ => return Err(unknown()),
            }
        }
        Ok(options)
    }
}

/// Splits the path, which may hold commas, from the trailing parts that look like options.
pub fn split_options(text: &str) -> (&str, &str) {
    let is_option = |part: &str| {
        let begins = |name: &&str| part.starts_with(*name);
        part == "discard" || part == "rotational" || ["size=", "prio=", "discard=", "rotational="].iter().any(begins)
    };
    let (mut path, mut options) = (text, "");
    while let Some((before, part)) = path.rsplit_once(',')
        && is_option(part)
    {
        (path, options) = (before, &text[before.len() + 1..]);
    }
    (path, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_run(text: &str) -> Result<Spec, String> {
        Spec::parse(text, User::Run { ram_usable: 0 })
    }

    #[test]
    fn good_specs() {
        assert_eq!(of_run("auto"), Ok(Spec::Auto));
        assert_eq!(of_run("ram"), Ok(Spec::Ram));
        assert_eq!(of_run("dir:/x"), Ok(Spec::Dir { dir: "/x".into(), size: None, prio: None, rotational: None }));
        let both = Spec::Dir { dir: "/x".into(), size: Some(8 << 30), prio: Some(5), rotational: None };
        assert_eq!(of_run("dir:/x,size=8G,prio=5"), Ok(both));
        assert_eq!(
            of_run("file:/x"),
            Ok(Spec::File { path: "/x".into(), size: None, prio: None, discard: false, rotational: None })
        );
        let all =
            Spec::File { path: "/x:y".into(), size: Some(2 << 20), prio: Some(-1), discard: true, rotational: Some(true) };
        assert_eq!(of_run("file:/x:y,discard,prio=-1,rotational,size=2M"), Ok(all));
        let rotational =
            [("", None), (",rotational", Some(true)), (",rotational=1", Some(true)), (",rotational=0", Some(false))];
        for (option, rotational) in rotational {
            let dir = Spec::Dir { dir: "/x".into(), size: None, prio: None, rotational };
            assert_eq!(of_run(&format!("dir:/x{option}")), Ok(dir));
        }
        let dir = |path: &str, prio| Ok(Spec::Dir { dir: path.into(), size: None, prio, rotational: None });
        assert_eq!(of_run("dir:/a,b"), dir("/a,b", None));
        assert_eq!(of_run("dir:/a,size=1G,b,prio=3"), dir("/a,size=1G,b", Some(3)));
        assert_eq!(of_run("dir:/x,discarded,"), dir("/x,discarded,", None));
    }

    #[test]
    fn a_server() {
        let server = |text| Server::parse(text).unwrap();
        let plain = Spec::Remote { server: server("h:7"), size: None, prio: None, timeout: None, copies: 1 };
        assert_eq!((plain.to_string().as_str(), of_run("redis://h:7")), ("redis://h:7", Ok(plain)));
        let (size, timeout) = (Some(8 << 30), Some(Duration::from_secs(5)));
        let all = Spec::Remote { server: server("me@h:7/2"), size, prio: Some(3), timeout, copies: 2 };
        assert_eq!(of_run("redis://me@h:7/2,size=8G,prio=3,timeout=5s,copies=2"), Ok(all));
        let cluster = Spec::Remote { server: server("a:1,[::1]:2"), size: Some(1 << 30), prio: None, timeout: None, copies: 1 };
        assert_eq!(of_run("redis://a:1,[::1]:2,size=1G"), Ok(cluster));
    }

    #[test]
    fn a_server_with_tls() {
        let parse = |text: &str| match of_run(text) {
            Ok(Spec::Remote { server, size, .. }) => (server.to_string(), server.tls.unwrap(), size),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(parse("rediss://h:7"), ("rediss://h:7".to_owned(), Tls::default(), None));
        let own = Some(("/o".into(), "/k".into()));
        let tls = Tls { ca: Some("/a:b".into()), own };
        let all = parse("rediss://h:7,i:8/2,key=/k,size=1G,ca=/a:b,cert=/o");
        assert_eq!(all, ("rediss://h:7,i:8/2".to_owned(), tls, Some(1 << 30)));
        assert!(of_run("rediss:h").unwrap_err().contains("rediss://HOST:PORT"));
        assert!(of_run("redis://h:1,ca=/x").unwrap_err().contains("redis:// takes"), "without TLS");
        assert!(of_run("rediss://h:1,cert=/x").unwrap_err().contains("belong together"));
    }

    #[test]
    fn bad_specs() {
        for text in [
            "",
            "disk",
            "dir:",
            "dir:,size=1G",
            "dir:/x,size=",
            "dir:/x,size=0",
            "dir:/x,prio=x",
            "dir:/x,prio=-2",
            "dir:/x,discard",
            "dir:/x,discard=no",
            "dir:/x,size=1G,size=2G",
            "file:",
            "file:,discard",
            "file:/x,discard,discard",
            "file:/x,discard=yes",
            "file:/x,prio=32768",
            "redis:",
            "redis:h:1",
            "redis://",
            "redis://:1",
            "redis://h:1,discard",
            "redis://h:1,rotational",
            "redis://h:1,copies=0",
            "redis://h:1,copies=3",
            "redis://h:1,copies=+2",
            "redis://h:1,copies=2,copies=2",
            "redis://h:1,timeout=0",
            "redis://h:1,timeout=5m",
            "redis://h:1,size=1M",
            "redis://h:1,size=1G,size=1G",
            "redis://a:1,b",
            "redis://a:1,size=1G,b:2",
            "redis://a:1/2,b:2",
            "rediss://",
            "rediss://h:1,ca=",
            "rediss://h:1,ca=/x,ca=/y",
            "rediss://h:1,key=/x",
            "rediss://h:1,discard",
            "ram:",
            "ram,size=1G",
            "ram,rotational",
            "auto,rotational",
            "dir:/x,rotational=2",
            "dir:/x,rotational=",
            "file:/x,rotational,rotational=0",
            "DIR:/x",
        ] {
            assert!(of_run(text).is_err(), "{text}");
        }
        assert!(of_run("disk").unwrap_err().contains("use auto, ram, dir:DIR"), "what exists is listed");
    }

    #[test]
    fn a_region_takes_less() {
        let of_region = |text: &str| Spec::parse(text, User::Region);
        assert_eq!(of_region("auto"), Ok(Spec::Auto));
        let dir = Spec::Dir { dir: "/x".into(), size: Some(8 << 20), prio: None, rotational: None };
        assert_eq!(of_region("dir:/x,size=8M"), Ok(dir));
        for text in ["dir:/x,prio=1", "dir:/x,rotational", "dir:/x,discard", "dir:/x,size=5%", "dir:/x,size=1M"] {
            assert!(of_region(text).is_err(), "{text}");
        }
        for text in ["disk", "file:/x", "auto,size=8M"] {
            assert!(of_region(text).unwrap_err().contains("use auto, ram, dir:DIR[,size=8G] or redis://"), "{text}");
        }
        let text = "rediss://h:1,size=8M,timeout=5s,copies=2,ca=/x";
        assert_eq!(of_region(text), of_run(text));
        for text in ["redis://h:1,prio=1", "redis://h:1,rotational", "redis://h:1,ca=/x", "redis://h:1,size=5%"] {
            assert!(of_region(text).is_err(), "{text}");
        }
    }
}
