//! Identifies the swap area that a user wants to add or remove.

use crate::swap::area::{Swap, Where, is_same};
use lowtide_config::place::auto_dir;
use lowtide_config::server::Server;
use lowtide_config::spec::{FILES, Spec, User, split_options};
use std::path::PathBuf;

/// Makes the SPEC's path absolute, for a process in another directory.
pub fn absolute(text: &str) -> String {
    let (kind, path) = match text.split_once(':') {
        Some((kind @ ("dir" | "file"), path)) => (Some(kind), path),
        Some(("rediss", _)) => return with_absolute_files(text),
        _ if text == "auto" || text == "ram" || text.contains(':') => return text.to_owned(),
        _ => (None, text),
    };
    let (path, options) = split_options(path);
    let Ok(full) = std::path::absolute(path) else { return text.to_owned() };
    let Some(full) = full.to_str() else { return text.to_owned() };
    let (kind, colon) = kind.map_or(("", ""), |kind| (kind, ":"));
    let comma = if options.is_empty() { "" } else { "," };
    format!("{kind}{colon}{full}{comma}{options}")
}

/// Makes the paths of a server's files absolute.
fn with_absolute_files(text: &str) -> String {
    let part = |part: &str| match part.split_once('=') {
        Some((name, path)) if FILES.contains(&name) && !path.is_empty() => {
            let full = std::path::absolute(path).ok().and_then(|full| Some(full.to_str()?.to_owned()));
            format!("{name}={}", full.as_deref().unwrap_or(path))
        }
        _ => part.to_owned(),
    };
    text.split(',').map(part).collect::<Vec<_>>().join(",")
}

pub enum Which {
    /// In this directory.
    Dir(PathBuf),
    /// With this file.
    File(PathBuf),
    /// A directory or a file.
    Path(PathBuf),
    Remote(Server),
}

impl Which {
    /// Reads a SPEC or a path. Options must be right, and are not used. The error says what is
    /// wrong.
    pub fn parse(text: &str) -> Result<Which, String> {
        if text.starts_with('/') {
            return Ok(Which::Path(PathBuf::from(text)));
        }
        match Spec::parse(text, User::Run { ram_usable: u64::MAX }) {
            Ok(Spec::Auto) => Ok(Which::Dir(auto_dir())),
            Ok(Spec::Ram) => Err("compressed RAM is always there: name dir:DIR or file:PATH".to_owned()),
            Ok(Spec::Dir { dir, .. }) => Ok(Which::Dir(dir)),
            Ok(Spec::File { path, .. }) => Ok(Which::File(path)),
            Ok(Spec::Remote { server, .. }) => Ok(Which::Remote(server)),
            Err(why) => Err(why),
        }
    }

    pub fn is(&self, swap: &Swap) -> bool {
        match (self, &swap.place) {
            (Which::Dir(path) | Which::Path(path), Where::Dir(dir)) => path == dir || is_same(path, dir),
            (Which::File(path) | Which::Path(path), Where::File(file)) => *path == file.path || file.is(path),
            (Which::Remote(server), Where::Remote(relay)) => relay.server.is_named_as(server),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swap::area;

    #[test]
    fn relative_paths_are_made_absolute() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        for (text, expected) in [
            ("dir:x,size=1G", format!("dir:{here}/x,size=1G")),
            ("file:x/y,prio=3,discard", format!("file:{here}/x/y,prio=3,discard")),
            ("x", format!("{here}/x")),
            ("dir:/x", "dir:/x".to_owned()),
            ("auto", "auto".to_owned()),
            ("ram", "ram".to_owned()),
            ("dir:", "dir:".to_owned()),
            ("redis://h:1", "redis://h:1".to_owned()),
            ("rediss://h:1,i:2,ca=x,size=1G,key=/y", format!("rediss://h:1,i:2,ca={here}/x,size=1G,key=/y")),
        ] {
            assert_eq!(absolute(text), expected, "{text}");
        }
    }

    #[test]
    fn an_area_is_known_by_its_spec_and_by_its_path() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let (swap, _) = area::resolve(&[format!("dir:{}", dir.path().display())], 0).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        for (text, expected) in [
            (format!("dir:{}", dir.path().display()), true),
            (format!("dir:{},size=1G,prio=3", dir.path().display()), true),
            (format!("dir:{}", link.display()), true),
            (dir.path().display().to_string(), true),
            (format!("file:{}", dir.path().display()), false),
            ("dir:/".to_owned(), false),
            ("dir:/nonexistent".to_owned(), false),
        ] {
            assert_eq!(Which::parse(&text).unwrap().is(&swap[0]), expected, "{text}");
        }
        assert!(Which::parse("ram").is_err_and(|why| why.contains("always there")));
        assert!(Which::parse("disk").is_err_and(|why| why.contains("unknown kind")));
    }
}
