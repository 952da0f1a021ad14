//! Without the privilege that a run takes.

use crate::{LOWTIDE, assert_refused, is_root, lowtide, with};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

#[test]
fn no_privilege() {
    if !is_root() {
        return;
    }
    // A copy where nobody can reach it.
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("mode");
    let copy = dir.path().join("lowtide");
    std::fs::copy(LOWTIDE, &copy).expect("copied");
    let as_nobody = |args: &[&str]| {
        let mut command = Command::new(&copy);
        command.args(args).env_remove("LOWTIDE_RAM").env_remove("LOWTIDE_SEGMENT").current_dir("/").uid(65534).gid(65534);
        // Another test may fork while the copy is open for writing, and its child has it open until it executes something.
        let busy = |result: &std::io::Result<Output>| {
            result.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ExecutableFileBusy)
        };
        let attempts = std::iter::repeat_with(|| command.output());
        attempts.take(1000).find(|result| !busy(result)).expect("not busy for ever").expect("lowtide starts")
    };
    let output = as_nobody(&["run", "--ram", "64M", "--", "true"]);
    assert_refused(&output, 125, &["privilege", "sudo -E setpriv", "--reuid=65534", "ambient", copy.to_str().expect("UTF-8")]);
    let output = as_nobody(&["doctor"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("NO") && text.contains("sudo -E setpriv"), "{text}");
}

#[test]
fn doctor_and_run_agree() {
    let output = lowtide().arg("doctor").output().expect("lowtide starts");
    let text = String::from_utf8_lossy(&output.stdout);
    for word in ["userfaultfd", "PAGEMAP_SCAN", "swap file", "RAM", "huge pages"] {
        assert!(text.contains(word), "{text}");
    }
    let run = with("run --ram 64M --quiet -- true", Path::new(""));
    assert_eq!(run.status.success(), output.status.success(), "{text}");
}
