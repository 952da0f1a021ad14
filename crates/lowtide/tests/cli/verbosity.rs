//! What lowtide itself says.

use crate::{with, works};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

#[test]
fn quiet_and_verbose() {
    if !works() {
        return;
    }
    let quiet = with("run --ram 64M --quiet -- true", Path::new(""));
    assert!(!String::from_utf8_lossy(&quiet.stderr).contains("ram "), "{}", String::from_utf8_lossy(&quiet.stderr));
    let verbose = with("run --ram 64M --swap ram --codec zstd:5 --pool 20M --verbose -- true", Path::new(""));
    let text = String::from_utf8_lossy(&verbose.stderr);
    assert!(text.contains("ram 64 MiB, pool up to 20 MiB (zstd:5), swap: compressed RAM only"), "{text}");
    // For each area: where, how much, when, and how it is read and written.
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = dir.path().join("swap");
    std::fs::File::create(&path).and_then(|file| file.set_len(4 << 20)).expect("made");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("mode");
    let verbose = with("run --ram 64M --swap file:{} --swap dir:/var/tmp,size=8M,prio=3 --verbose -- true", &path);
    let text = String::from_utf8_lossy(&verbose.stderr);
    let file = format!("lowtide: swap file:{}: up to 4 MiB, priority -2, ", path.display());
    for begin in [file.as_str(), "lowtide: swap dir:/var/tmp: up to 8 MiB, priority 3, "] {
        let how = text.lines().find_map(|line| line.strip_prefix(begin)).unwrap_or_else(|| panic!("{begin} is not in {text}"));
        assert!(how.contains("O_DIRECT") && (how.contains("io_uring") || how.contains("pread")), "{how}");
    }
}
