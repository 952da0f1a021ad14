//! Where pages go that leave RAM.

use std::path::PathBuf;
use std::str::FromStr;

use lowtide_config::place::{LEAST, Place, chosen_dir};
use lowtide_config::size;
use lowtide_config::spec::{Spec, User};
use lowtide_core::device::{DeviceName, is_rotational};
use lowtide_core::store::FileConfig;

use crate::error::Error;
use crate::server::ServerThreads;

/// Where pages go that leave memory. Compressed RAM, a part of the RAM limit, always comes first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Swap {
    /// An unnamed file in `$LOWTIDE_DIR`, which must be usable and on a disk, or in `/var/tmp`, up
    /// to half of the free space. Compressed RAM only, if `/var/tmp` is in RAM or takes no such
    /// file.
    #[default]
    Auto,
    /// Compressed RAM only. The rest stays in memory, over the limit.
    Ram,
    /// An unnamed file in this directory.
    Dir {
        /// The directory.
        dir: PathBuf,
        /// The file's limit in bytes. None: half of the free space when it is made.
        size: Option<u64>,
    },
    /// A Valkey or Redis server or cluster, as for `lowtide run`:
    /// `redis://[USER@]HOST[:PORT][,HOST:PORT...][/DB][,size=64G][,timeout=30s][,copies=2]`, or,
    /// with TLS, `rediss://...[,ca=FILE][,cert=FILE,key=FILE]`. The password is in
    /// `LOWTIDE_REDIS_PASSWORD`, or the file `LOWTIDE_REDIS_PASSWORD_FILE`. Needs the feature
    /// `remote`.
    Server(String),
}

/// `auto`, `ram`, `dir:DIR[,size=8G]`, or `redis://HOST:PORT`, as for `lowtide run --swap`.
impl FromStr for Swap {
    type Err = Error;

    fn from_str(text: &str) -> Result<Swap, Error> {
        match Spec::parse(text, User::Region) {
            Ok(Spec::Auto) => Ok(Swap::Auto),
            Ok(Spec::Ram) => Ok(Swap::Ram),
            Ok(Spec::Dir { dir, size, .. }) => Ok(Swap::Dir { dir, size }),
            Ok(Spec::Remote { .. }) => Ok(Swap::Server(text.to_owned())),
            Ok(Spec::File { .. }) => Err(Error::Swap(format!("`{text}`: a region has no files with names"))),
            // The text may hold a password.
            Err(why) if text.starts_with("redis") => Err(Error::Swap(why)),
            Err(why) => Err(Error::Swap(format!("`{text}`: {why}"))),
        }
    }
}

impl Swap {
    /// May take seconds.
    pub(crate) fn serve(&self) -> Result<Option<ServerThreads>, Error> {
        match self {
            Swap::Server(spec) => ServerThreads::start(spec).map(Some),
            Swap::Auto | Swap::Ram | Swap::Dir { .. } => Ok(None),
        }
    }

    pub(crate) fn open(&self) -> Result<Option<FileConfig>, Error> {
        match self {
            Swap::Ram | Swap::Server(_) => Ok(None),
            Swap::Dir { dir, size } => {
                let file = Place::open(dir).and_then(|place| file(place, *size));
                file.map(Some).map_err(|why| Error::Swap(format!("dir:{}: {why}", dir.display())))
            }
            Swap::Auto => match (Place::auto().and_then(|place| file(place, None)), chosen_dir()) {
                (Ok(file), _) => Ok(Some(file)),
                (Err(why), Some(dir)) => Err(Error::Swap(format!("auto: LOWTIDE_DIR={}: {why}", dir.display()))),
                // Optional without the user's choice.
                (Err(_), None) => Ok(None),
            },
        }
    }
}

fn file(place: Place, size: Option<u64>) -> Result<FileConfig, String> {
    let bytes = size.unwrap_or(place.default_size());
    if bytes < LEAST {
        return Err(match size {
            Some(_) => format!("a swap file of {} is too small: at least {} is needed", size::show(bytes), size::show(LEAST)),
            None => "its file system is nearly full: free some space, or name another directory".to_owned(),
        });
    }
    // Leaked, because messages name it.
    let path = Box::leak(place.dir.as_os_str().as_encoded_bytes().to_vec().into_boxed_slice());
    let name = DeviceName { kind: "dir:", path, number: 0 };
    // The file outlives groups: freed space returns to the file system.
    let rotating = is_rotational(&place.file) == Some(true);
    Ok(FileConfig { name, discard: true, rotating, ..FileConfig::new(place.file, bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_understood_or_refused_in_a_line() {
        let dir = |dir: &str, size| Ok(Swap::Dir { dir: dir.into(), size });
        assert_eq!("auto".parse(), Ok(Swap::Auto));
        assert_eq!("ram".parse(), Ok(Swap::Ram));
        assert_eq!("dir:/tmp".parse(), dir("/tmp", None));
        assert_eq!("dir:/tmp,size=8M".parse(), dir("/tmp", Some(8 << 20)));
        assert_eq!("dir:/tmp/a,b".parse(), dir("/tmp/a,b", None));
        assert_eq!("redis://h:1,copies=2".parse(), Ok(Swap::Server("redis://h:1,copies=2".to_owned())));
        let line = "rediss://me:secret@h:1".parse::<Swap>().unwrap_err().to_string();
        assert!(line.contains("LOWTIDE_REDIS_PASSWORD") && !line.contains("secret"), "{line}");
        let bad =
            ["", "disk", "dir:", "dir:,size=8M", "dir:/tmp,prio=1", "dir:/tmp,size=x", "dir:/tmp,size=5%", "dir:/tmp,size=4K"];
        for text in bad {
            let line = text.parse::<Swap>().unwrap_err().to_string();
            assert!(line.contains(text) && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn a_place_that_can_t_be_used_is_refused() {
        let open = |text: &str| text.parse::<Swap>().unwrap().open().map(|file| file.is_some());
        assert_eq!(open("ram"), Ok(false));
        assert!(open("dir:/nonexistent").unwrap_err().to_string().contains("dir:/nonexistent"));
        let small = Swap::Dir { dir: "/var/tmp".into(), size: Some(4096) };
        assert!(small.open().unwrap_err().to_string().contains("too small"));
    }
}
