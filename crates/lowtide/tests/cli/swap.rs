//! Swap places that are refused.

use crate::{LOWTIDE, assert_refused, lowtide, refused, with};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn bad_swap() {
    refused("run --ram 64M --swap disk -- true", 2, &["--swap disk", "auto, ram, dir:DIR", "file:PATH"]);
    refused("run --ram 64M --swap dir: -- true", 2, &["dir:DIR"]);
    refused("run --ram 64M --swap dir:/nonexistent -- true", 2, &["/nonexistent", "no such file"]);
    refused("run --ram 64M --swap dir:/bin/true -- true", 2, &["/bin/true", "not a directory"]);
    refused("run --ram 64M --swap dir:/var/tmp,size=0 -- true", 2, &["size=", "2M"]);
    refused("run --ram 64M --swap dir:/var/tmp,size=x -- true", 2, &["`x`", "512M"]);
    refused("run --ram 64M --swap dir:/var/tmp,prio=high -- true", 2, &["prio=", "number"]);
    refused("run --ram 64M --swap dir:/var/tmp,color=red -- true", 2, &["color=red", "size=, prio= and rotational"]);
    refused("run --ram 64M --swap dir:/proc -- true", 2, &["/proc"]);
    refused("run --ram 64M --swap dir:/var/tmp,discard -- true", 2, &["discard", "size=, prio= and rotational"]);
    refused("run --ram 64M --swap ram,rotational -- true", 2, &["--swap ram,rotational", "no device", "no options"]);
    refused("run --ram 64M --swap auto,rotational -- true", 2, &["--swap auto,rotational", "dir:DIR"]);
    refused("run --ram 64M --swap dir:/var/tmp,rotational=yes -- true", 2, &["rotational=", "1", "0"]);
    if rustix::fs::statfs("/dev/shm").is_ok_and(|fs| fs.f_type as u64 == 0x0102_1994) {
        refused(
            "run --ram 64M --swap dir:/dev/shm,rotational -- true",
            2,
            &["dir:/dev/shm", "tmpfs", "leave `rotational` out"],
        );
    }
    refused("run --ram 64M --swap file: -- true", 2, &["path is missing", "file:PATH"]);
    refused("run --ram 64M --swap file:/dev/null -- true", 2, &["file:/dev/null", "neither", "block device"]);
    refused("run --ram 64M --swap file:/var/tmp -- true", 2, &["directory", "dir:/var/tmp"]);
    refused("run --ram 64M --swap file:/no/such -- true", 2, &["file:/no/such", "fallocate -l 8G /no/such", "chmod 600"]);
    refused("run --ram 64M --swap file:/no/such,size=1 -- true", 2, &["size=", "2M"]);
    refused("run --ram 64M --swap nbd:localhost -- true", 2, &["nbd", "unknown kind", "dir:DIR", "file:PATH", "redis://"]);
    refused("run --ram 64M --swap redis:localhost -- true", 2, &["redis://HOST:PORT"]);
    refused("run --ram 64M --swap redis://127.0.0.1:1 -- true", 2, &["redis://127.0.0.1:1", "no server listens there"]);
    refused("run --ram 64M --swap redis://me:secret@localhost -- true", 2, &["LOWTIDE_REDIS_PASSWORD"]);
    refused("run --ram 64M --swap rediss://127.0.0.1:1 -- true", 2, &["rediss://127.0.0.1:1", "no server listens there"]);
    refused("run --ram 64M --swap rediss://127.0.0.1:1,ca=/no/such -- true", 2, &["ca=/no/such", "no such file"]);
    refused("run --ram 64M --swap redis://127.0.0.1:1,ca=/no/such -- true", 2, &["unknown option `ca=/no/such`"]);
    refused("run --ram 64M --swap rediss://me:secret@localhost -- true", 2, &["LOWTIDE_REDIS_PASSWORD"]);
    refused("run --ram 64M --swap redis://127.0.0.1:1,127.0.0.1:2 -- true", 2, &["127.0.0.1:1: no server listens there"]);
    refused("run --ram 64M --swap redis://127.0.0.1:1,127.0.0.1:1 -- true", 2, &["127.0.0.1:1 is given twice"]);
    refused("run --ram 64M --swap auto --swap dir:/var/tmp -- true", 2, &["--swap dir:/var/tmp", "given twice"]);
    refused(&format!("run --ram 64M{} -- true", " --swap dir:/x".repeat(9)), 2, &["9 areas", "8 are the most"]);
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let comma = dir.path().join("a,b");
    std::fs::create_dir(&comma).expect("a directory");
    assert!(with("run --ram 64M --swap dir:{},size=8M -- true", &comma).status.success(), "commas are no reason");
    let output = lowtide().args(["run", "--ram", "64M", "--", "true"]).env("LOWTIDE_DIR", "/nonexistent").output();
    assert_refused(&output.expect("lowtide starts"), 2, &["LOWTIDE_DIR=/nonexistent", "no such file"]);
}

#[test]
fn bad_swap_files() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = dir.path().join("swap");
    let file = std::fs::File::create(&path).expect("made");
    let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("mode");
    let run = |options: &str| with(&format!("run --ram 64M --swap file:{{}}{options} -- true"), &path);
    let shown = path.to_str().expect("UTF-8");
    mode(0o644);
    assert_refused(&run(",size=8M"), 2, &[shown, "0644", "0600", "chmod 600"]);
    mode(0o600);
    assert_refused(&run(""), 2, &[shown, "too small", "2 MiB", "size="]);
    file.set_len(2 << 20).expect("longer");
    let lock = rustix::fs::FlockOperation::LockExclusive;
    rustix::fs::flock(&file, lock).expect("locked");
    assert_refused(&run(""), 2, &[shown, "another run"]);
    // Not only closed: a process that another test is starting just now may have it open for a moment.
    rustix::fs::flock(&file, rustix::fs::FlockOperation::Unlock).expect("unlocked");
    drop(file);
    let twice = with("run --ram 64M --swap file:{},prio=1 --swap file:{},prio=2 -- true", &path);
    assert_refused(&twice, 2, &[shown, "this run uses it already", "twice"]);
    std::fs::write(&path, vec![b'x'; 2 << 20]).expect("written");
    assert_refused(&run(""), 2, &[shown, "other data", "truncate -s 0"]);
    assert!(std::fs::read(&path).expect("read").iter().all(|&b| b == b'x'), "it was not touched");
}

#[test]
fn a_refused_run_leaves_swap_files_as_they_are() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = dir.path().join("swap");
    // A swap file of the kernel's, with something in it.
    let mut content = vec![b'x'; 2 << 20];
    content[..4096].fill(0);
    content[4086..4096].copy_from_slice(b"SWAPSPACE2");
    std::fs::write(&path, &content).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("mode");
    for (options, program, code) in
        [("", "/nonexistent", 127), ("--stats /nonexistent/stats", "true", 2), ("", "/dev/null", 126)]
    {
        let output = with(&format!("run --ram 64M --swap file:{{}},discard {options} -- {program}"), &path);
        assert_refused(&output, code, &["/"]);
        assert!(std::fs::read(&path).expect("read") == content, "{program}");
    }
    assert!(with("run --ram 64M --swap file:{},discard -- true", &path).status.success());
    let marked = std::fs::read(&path).expect("read");
    assert!(marked.starts_with(b"lowtide swap file") && marked != content);
}

#[test]
fn swap_files_on_file_systems_that_will_not_do() {
    // In a mount namespace of its own, with tiny file systems; where that is not allowed, not tested.
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let script = "set -e
        cd $1; mkdir full ro ram; mount -t tmpfs -o size=4m none full; mount -t tmpfs -o size=8m none ro; mount -t tmpfs none ram
        for d in full ro ram; do truncate -s 4M $d/swap; chmod 600 $d/swap; done
        head -c 4000000 /dev/zero > full/rest; mount -o remount,ro ro; shift; echo mounted; set +e
        for d in full ro ram; do \"$1\" run --ram 64M --swap file:$PWD/$d/swap -- true 2>&1; echo $?; done";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(dir.path()).arg(LOWTIDE);
    let output = command.output().map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = output.lines().collect();
    if lines.first() != Some(&"mounted") {
        crate::skipped::skipped("mounting is not allowed here");
        return;
    }
    assert!(lines[1].contains("full/swap: its file system is full") && lines[2] == "2", "{output}");
    assert!(lines[3].contains("ro/swap: its file system is read-only") && lines[4] == "2", "{output}");
    assert!(lines[5].contains("warning: ") && lines[5].contains("ram/swap: it is in RAM (tmpfs)"), "{output}");
}
