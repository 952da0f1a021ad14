//! `lowtide` from outside: what it refuses, and that a program keeps the world it would have without it.

use lowtide_config::proc::Stat;
use lowtide_pager::segment::{Proc, Segment, Settings};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Pid, Signal};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const LOWTIDE: &str = env!("CARGO_BIN_EXE_lowtide");

fn lowtide() -> Command {
    let mut command = Command::new(LOWTIDE);
    for name in ["LOWTIDE_RAM", "LOWTIDE_DIR", "LOWTIDE_SEGMENT", "LOWTIDE_SLOTS", "LOWTIDE_FOLIOS", "LD_PRELOAD"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// Runs it with these arguments; `{}` in the text stands for `file`.
fn with(line: &str, file: &Path) -> Output {
    let args = line.split_whitespace().map(|word| word.replace("{}", file.to_str().expect("UTF-8")));
    lowtide().args(args).output().expect("lowtide starts")
}

/// Exactly one line on standard error, nothing on standard output, this exit code, and all the words in the line.
#[track_caller]
fn assert_refused(output: &Output, code: i32, words: &[&str]) {
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{line}");
    assert!(line.starts_with("lowtide: ") && line.ends_with('\n') && line.matches('\n').count() == 1, "not one line: {line:?}");
    for word in words {
        assert!(line.contains(word), "`{word}` is not in: {line}");
    }
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[track_caller]
fn refused(line: &str, code: i32, words: &[&str]) {
    assert_refused(&with(line, Path::new("")), code, words);
}

/// Whether this user may run programs under lowtide at all; doctor says why not.
fn works() -> bool {
    let good = lowtide().arg("doctor").output().expect("lowtide starts").status.success();
    if !good {
        eprintln!("skipped: `lowtide doctor` says that run doesn't work here");
    }
    good
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A copy of `true` that can be spoilt.
struct Spoilt {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl Spoilt {
    fn new(spoil: impl FnOnce(&mut Vec<u8>)) -> Spoilt {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("program");
        let mut bytes = std::fs::read("/bin/true").expect("true");
        spoil(&mut bytes);
        std::fs::write(&path, bytes).expect("written");
        let spoilt = Spoilt { dir, path };
        spoilt.mode(0o755);
        spoilt
    }

    fn script(text: &str) -> Spoilt {
        Spoilt::new(|bytes| *bytes = text.as_bytes().to_vec())
    }

    fn mode(&self, mode: u32) {
        std::fs::set_permissions(&self.path, std::fs::Permissions::from_mode(mode)).expect("mode");
    }

    #[track_caller]
    fn refused(&self, code: i32, words: &[&str]) {
        let mut all = vec![self.path.to_str().expect("UTF-8")];
        all.extend(words);
        assert_refused(&with("run --ram 64M -- {}", &self.path), code, &all);
    }
}

fn find(bytes: &[u8], what: &[u8]) -> usize {
    bytes.windows(what.len()).position(|window| window == what).expect("found in the file")
}

#[test]
fn help_and_version() {
    for (line, words) in [
        ("--help", &["Usage:", "Examples:", "doctor"][..]),
        (
            "run --help",
            &["--ram", "--swap", "--pool", "--codec", "--when-full", "--stats", "--quiet", "--verbose", "Examples:"],
        ),
        ("--version", &["lowtide 0."]),
        ("man", &[".TH", "doctor"]),
        ("man run", &[".TH", "ram"]),
        ("man swapoff", &[".TH", "cancels"]),
        ("completions bash", &["complete -F", "swapoff", "--when-full"]),
        ("completions zsh", &["#compdef lowtide", "swapoff", "--when-full"]),
        ("completions fish", &["complete -c lowtide", "swapoff", "when-full"]),
        ("stat --help", &["--json", "--watch"]),
        ("man run", &["report", "metrics"]),
    ] {
        let output = with(line, Path::new(""));
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{line}");
        assert!(words.iter().all(|word| text.contains(word)), "{line}: {text}");
        assert!(output.stderr.is_empty());
    }
}

#[test]
fn each_command_has_a_manual_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = with("man --all {}", dir.path());
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
    let help = with("--help", Path::new(""));
    let help = String::from_utf8_lossy(&help.stdout);
    let list = help.split("Commands:").nth(1).and_then(|rest| rest.split("Options:").next()).expect("a list");
    // A command's name is set in two spaces, what is said of it further in.
    let names = list.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty()));
    let pages: Vec<_> = names.map(|name| dir.path().join(format!("lowtide-{name}.1"))).collect();
    assert!(pages.len() >= 8, "{list}");
    for page in pages.iter().chain([&dir.path().join("lowtide.1")]) {
        let text = std::fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        assert!(text.contains(".SH SYNOPSIS"), "{}", page.display());
    }
}

#[test]
fn bad_usage() {
    refused("man dance", 2, &["dance", "lowtide --help"]);
    refused("man --all /nowhere", 2, &["/nowhere", "exists"]);
    refused("completions", 2, &["SHELL"]);
    refused("completions ksh", 2, &["ksh"]);
    refused("", 2, &["command", "lowtide run --ram"]);
    refused("dance", 2, &["dance", "lowtide run --ram"]);
    refused("top", 2, &["terminal", "lowtide stat"]);
    refused("top 12 13", 2, &["13", "--help"]);
    refused("top x", 2, &["invalid value", "x"]);
    refused("limit", 2, &["PID", "SIZE"]);
    refused("swapon x dir:/tmp", 2, &["invalid value", "x"]);
    refused("run --ram 64M", 2, &["no program", "lowtide run --ram"]);
    refused("run --ram 64M --", 2, &["no program", "lowtide run --ram"]);
    refused("run true --ram 64M", 2, &["--ram SIZE before the program"]);
    refused("run -- true", 2, &["--ram SIZE", "LOWTIDE_RAM"]);
    refused("run --ram", 2, &["--ram", "value"]);
    refused("run --ram 64M --frob -- true", 2, &["--frob", "--help"]);
    refused("run --ram 64M --frob true", 2, &["--frob", "--help"]);
    refused("run --ram 64M --ram 65M -- true", 2, &["--ram", "twice"]);
    refused("run --ram 64M --quiet --verbose -- true", 2, &["--quiet", "--verbose"]);
    refused("run --ram 64M --report /nonexistent/x.html -- true", 2, &["--report", "can't be written"]);
    refused("run --ram 64M --metrics 192.0.2.1:1 -- true", 2, &["--metrics", "--metrics-anywhere"]);
}

#[test]
fn bad_sizes() {
    for size in ["much", "12X", "", "1e9", "-5", "-5M", "5%%", "1.2.3G", "nan"] {
        let output = lowtide().args(["run", "--ram", size, "--", "true"]).output().expect("lowtide starts");
        assert_refused(&output, 2, &["--ram"]);
    }
    refused("run --ram 0 -- true", 2, &["--ram 0", "too small", "16 MiB"]);
    refused("run --ram 1M -- true", 2, &["--ram 1M", "too small", "16 MiB"]);
    refused("run --ram 16777215 -- true", 2, &["too small"]);
    refused("run --ram 0% -- true", 2, &["too small"]);
    refused("run --ram 99999999999G -- true", 2, &["99999999999G", "larger"]);
    refused("run --ram 99999999999999999999999999 -- true", 2, &["--ram"]);
    refused("run --ram 64M --pool 65M -- true", 2, &["--pool 65 MiB", "--ram 64 MiB", "smaller"]);
    refused("run --ram 64M --pool lots -- true", 2, &["--pool", "lots"]);
    refused("run --ram 64M --pool 0 --swap ram -- true", 2, &["--pool 0", "--swap dir:DIR"]);
    let output = lowtide().args(["run", "--", "true"]).env("LOWTIDE_RAM", "3M").output().expect("lowtide starts");
    assert_refused(&output, 2, &["3M", "too small"]);
    let output = lowtide().args(["run", "--", "true"]).env("LOWTIDE_RAM", "").output().expect("lowtide starts");
    assert_refused(&output, 2, &["no limit", "LOWTIDE_RAM"]);
}

#[test]
fn bad_codecs_and_policies() {
    refused("run --ram 64M --codec lzo -- true", 2, &["lzo", "zstd"]);
    refused("run --ram 64M --codec zstd:99 -- true", 2, &["zstd:99", "22"]);
    refused("run --ram 64M --codec zstd: -- true", 2, &["zstd:", "22"]);
    refused("run --ram 64M --codec lz4:3 -- true", 2, &["lz4", "no levels"]);
    refused("run --ram 64M --when-full panic -- true", 2, &["panic", "exceed or stop"]);
}

#[test]
fn bad_slot_settings() {
    let run =
        |name, value| lowtide().args(["run", "--ram", "64M", "--", "true"]).env(name, value).output().expect("lowtide starts");
    let all = ["LOWTIDE_SLOTS=next-fit", "scan-all", "scan-one", "bucketed", "exact", "area-lock"];
    assert_refused(&run("LOWTIDE_SLOTS", "next-fit"), 2, &all);
    for order in ["10", "-1", "64K"] {
        assert_refused(&run("LOWTIDE_FOLIOS", order), 2, &["LOWTIDE_FOLIOS", order, "0 (4 KiB)", "9 (2 MiB)"]);
    }
    if !cfg!(feature = "baselines") {
        assert_refused(&run("LOWTIDE_SLOTS", "area-lock"), 2, &["not in this binary", "--features baselines"]);
    }
}

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
    refused("run --ram 64M --swap redis://localhost:6379 -- true", 2, &["redis", "unknown kind", "dir:DIR", "file:PATH"]);
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
        eprintln!("skipped: mounting is not allowed here");
        return;
    }
    assert!(lines[1].contains("full/swap: its file system is full") && lines[2] == "2", "{output}");
    assert!(lines[3].contains("ro/swap: its file system is read-only") && lines[4] == "2", "{output}");
    assert!(lines[5].contains("warning: ") && lines[5].contains("ram/swap: it is in RAM (tmpfs)"), "{output}");
}

#[test]
fn programs_that_are_not_there() {
    refused("run --ram 64M -- no-such-program-here", 127, &["no-such-program-here", "PATH"]);
    refused("run --ram 64M -- /no/such/program", 127, &["/no/such/program", "path"]);
    refused("run --ram 64M -- /", 126, &["/", "directory"]);
    refused("run --ram 64M -- /dev/null", 126, &["/dev/null", "regular file"]);
    let file = Spoilt::new(|_| ());
    file.mode(0o644);
    file.refused(126, &["not executable", "chmod +x"]);
    // As a shell: a file in PATH that can't be executed is better than nothing to name.
    let output = lowtide().args(["run", "--ram", "64M", "--", "program"]).env("PATH", file.dir.path()).output();
    assert_refused(&output.expect("lowtide starts"), 126, &["not executable"]);
    let output = lowtide().args(["run", "--ram", "64M", "--", ""]).output().expect("lowtide starts");
    assert_refused(&output, 127, &["empty"]);
}

#[test]
fn programs_that_cannot_be_managed() {
    // Without its PT_INTERP header it is a static program.
    let interp = |bytes: &[u8]| {
        let (at, count) = (u64::from_ne_bytes(bytes[32..40].try_into().unwrap()) as usize, usize::from(bytes[56]));
        (0..count).map(|i| at + i * 56).find(|&at| bytes[at] == 3).expect("PT_INTERP")
    };
    Spoilt::new(|bytes| {
        let at = interp(bytes);
        bytes[at] = 0;
    })
    .refused(126, &["statically linked", "dynamically linked build"]);
    Spoilt::new(|bytes| {
        let at = interp(bytes);
        let at = u64::from_ne_bytes(bytes[at + 8..at + 16].try_into().unwrap()) as usize;
        bytes[at..at + 25].copy_from_slice(b"/lib/ld-musl-x86_64.so.1\0");
    })
    .refused(126, &["musl", "glibc"]);
    Spoilt::new(|bytes| {
        let at = find(bytes, b"/ld-linux");
        bytes[at + 1] = b'L';
    })
    .refused(127, &["loader", "Ld-linux", "install"]);
    Spoilt::new(|bytes| bytes[18] = 243).refused(126, &["RISC-V", "without lowtide"]);
    Spoilt::new(|bytes| {
        bytes[4] = 1;
        bytes[18] = 3;
    })
    .refused(126, &["32-bit", "i386", "64-bit"]);
    Spoilt::new(|bytes| bytes.truncate(100)).refused(126, &["cut off"]);
    Spoilt::new(|bytes| bytes[16] = 1).refused(126, &["not a program"]);
}

/// Compiles the smallest program with these options of gcc. None, and a word about it: there is no compiler, or it can't do
/// that.
fn compiled(dir: &Path, options: &[&str]) -> Option<PathBuf> {
    let (source, program) = (dir.join("program.c"), dir.join("program"));
    std::fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"it ran\"); return 0; }\n").expect("written");
    let done = Command::new("gcc").args(options).arg("-o").args([&program, &source]).output();
    if done.as_ref().is_ok_and(|output| output.status.success()) {
        return Some(program);
    }
    eprintln!("skipped: gcc {options:?}: {done:?}");
    assert!(std::env::var_os("CI").is_none(), "can't be skipped here");
    None
}

#[test]
fn programs_with_sanitizers() {
    let dir = tempfile::tempdir().expect("directory");
    for (option, name) in [("-fsanitize=address", "AddressSanitizer"), ("-fsanitize=thread", "ThreadSanitizer")] {
        let Some(program) = compiled(dir.path(), &[option]) else { return };
        let output = with("run --ram 64M -- {}", &program);
        assert_refused(&output, 126, &[name, option, "use a build without"]);
        if works() {
            // As a child it runs as it would without lowtide, and one line says that no limit holds for it.
            let output = with("run --ram 64M --quiet -- timeout 20 {}", &program);
            assert_eq!(String::from_utf8_lossy(&output.stdout), "it ran\n", "{output:?}");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("not limited") && said.contains(name) && said.matches('\n').count() == 1, "{said}");
            assert_eq!(output.status.code(), Some(0));
        }
    }
    // These only check: they leave the memory as it is.
    for option in ["-fsanitize=undefined", "-fno-sanitize=all"] {
        let Some(program) = compiled(dir.path(), &[option]) else { return };
        if works() {
            let output = with("run --ram 64M -- {}", &program);
            assert_eq!(String::from_utf8_lossy(&output.stdout), "it ran\n", "{output:?}");
        }
    }
}

#[test]
fn privileged_programs() {
    let program = Spoilt::new(|_| ());
    program.mode(0o4755);
    program.refused(126, &["setuid", "copy"]);
    program.mode(0o2755);
    program.refused(126, &["setgid", "copy"]);
    program.mode(0o755);
    if is_root() {
        // VFS_CAP_REVISION_2, cap_net_bind_service permitted.
        let mut caps = [0u8; 20];
        caps[3] = 2;
        caps[5] = 4;
        rustix::fs::setxattr(&program.path, c"security.capability", &caps, rustix::fs::XattrFlags::empty())
            .expect("capability");
        program.refused(126, &["file capabilities", "copy"]);
    } else {
        std::fs::set_permissions(&program.path, std::fs::Permissions::from_mode(0o111)).expect("mode");
        program.refused(126, &["can't be read", "chmod +r"]);
    }
}

#[test]
fn scripts_are_judged_by_their_interpreter() {
    let target = Spoilt::new(|bytes| bytes[18] = 243);
    let shown = target.path.display();
    Spoilt::script(&format!("#!{shown}\n")).refused(126, &["RISC-V", &shown.to_string()]);
    Spoilt::script(&format!("#! {shown} -x\n")).refused(126, &["RISC-V"]);
    Spoilt::script("#!/no/such/interpreter\n").refused(127, &["/no/such/interpreter", "first line"]);
    Spoilt::script("#!/usr/bin/env no-such-program-here\n").refused(127, &["no-such-program-here", "env"]);
    Spoilt::script("#!/usr/bin/env -S no-such-program-here -u\n").refused(127, &["no-such-program-here"]);
    // A script by a script by a foreign program.
    let middle = Spoilt::script(&format!("#!{shown}\n"));
    Spoilt::script(&format!("#!{}\n", middle.path.display())).refused(126, &["RISC-V"]);
    let own = Spoilt::script("");
    std::fs::write(&own.path, format!("#!{}\n", own.path.display())).expect("written");
    own.refused(126, &["too many scripts"]);
    if works() {
        for text in ["#!/bin/sh\nexit 5\n", "#!/usr/bin/env sh\nexit 5\n", "exit 5\n"] {
            let script = Spoilt::script(text);
            assert_eq!(with("run --ram 64M -- {}", &script.path).status.code(), Some(5), "{text}");
        }
    }
}

#[test]
fn an_unwritable_stats_file_is_found_before_the_program_starts() {
    let dir = tempfile::tempdir().expect("a directory");
    let mark = dir.path().join("started");
    for stats in ["/no/such/dir/stats.json", "/", "/proc/stats.json"] {
        let output = with(&format!("run --ram 64M --stats {stats} -- touch {{}}"), &mark);
        assert_refused(&output, 2, &["--stats", stats, "can't be written"]);
        assert!(!mark.exists());
    }
}

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

#[test]
fn exit_status_is_the_programs() {
    if !works() {
        return;
    }
    for (script, code) in [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("kill -SEGV $$", 139)] {
        let output = lowtide().args(["run", "--ram", "64M", "--", "sh", "-c", script]).output().expect("lowtide starts");
        assert_eq!(output.status.code(), Some(code), "{script}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.lines().all(|line| line.starts_with("lowtide: ")), "{text}");
        assert!(text.lines().last().is_some_and(|line| line.contains("ram")), "{text}");
    }
    // Through the environment, and more than there is: a warning.
    let output = lowtide().args(["run", "--", "true"]).env("LOWTIDE_RAM", "4P").output().expect("lowtide starts");
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("warning: --ram 4P is more than the RAM there is"));
}

#[test]
fn no_dashes_are_needed_before_the_program() {
    if !works() {
        return;
    }
    for (line, said) in [
        ("run --ram 64M --quiet echo --quiet --ram 1 -- -n", "--quiet --ram 1 -- -n\n"),
        ("run --ram 64M --quiet -- echo --quiet -- -n", "--quiet -- -n\n"),
        ("run --quiet --ram 64M env printf %s,%s --stats /no/such", "--stats,/no/such"),
    ] {
        let output = with(line, Path::new(""));
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stdout).as_ref()), (Some(0), said), "{line}");
    }
    // What the program says of itself, not what lowtide does.
    let help = with("run --ram 64M --quiet env --help", Path::new(""));
    let native = Command::new("env").arg("--help").output().expect("env starts");
    assert!(help.status.success() && help.stdout == native.stdout, "{}", String::from_utf8_lossy(&help.stdout));
}

#[test]
fn input_output_and_environment_are_the_programs() {
    if !works() {
        return;
    }
    let mut child = lowtide();
    child.args(["run", "--ram", "64M", "--quiet", "--", "sh", "-c", "cat; echo $LD_PRELOAD; ls /proc/self/fd | wc -l"]);
    child.env("LD_PRELOAD", "libm.so.6").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = child.spawn().expect("lowtide starts");
    child.stdin.take().expect("piped").write_all(b"hello\n").expect("written");
    let pid = child.id();
    let output = child.wait_with_output().expect("ended");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "hello");
    assert!(lines[1].starts_with(&format!("/proc/{pid}/fd/")) && lines[1].ends_with(":libm.so.6"), "{text}");
    // The test itself may have been started with some open (cargo's jobserver).
    let native = Command::new("sh").args(["-c", "ls /proc/self/fd | wc -l"]).output().expect("sh starts");
    assert_eq!(lines[2], String::from_utf8_lossy(&native.stdout).trim(), "descriptors leak into the program");
}

#[test]
fn signal_settings_are_inherited() {
    if !works() {
        return;
    }
    let show = "grep -E '^Sig(Blk|Ign)' /proc/self/status";
    for before in ["", "trap '' PIPE;", "trap '' INT QUIT HUP CHLD;"] {
        let of = |runner: &str| {
            let script = format!("{before} exec {runner} {show}");
            let output = Command::new("sh").args(["-c", &script]).output().expect("sh starts");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let native = of("");
        assert!(native.contains("SigIgn"), "{native}");
        assert_eq!(of(&format!("{LOWTIDE} run --ram 64M --")), native, "{before}");
    }
}

/// A program under lowtide that has told us a line.
struct Running {
    child: Child,
    line: String,
    dir: tempfile::TempDir,
}

impl Running {
    /// `script` must print one line when it is ready.
    fn new(script: &str) -> Running {
        let dir = tempfile::tempdir().expect("a directory");
        // What was started in the background ignores SIGINT, and a shell can't trap what it was told to ignore.
        let mut command = Command::new("env");
        command.env_remove("LOWTIDE_SEGMENT").args(["--default-signal=INT", LOWTIDE]);
        command.args(["run", "--ram", "64M", "--stats"]).arg(dir.path().join("stats.json"));
        command.args([OsStr::new("--"), OsStr::new("sh"), OsStr::new("-c"), OsStr::new(script)]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("lowtide starts");
        let mut line = String::new();
        BufReader::with_capacity(1, child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a line");
        Running { child, line: line.trim().to_owned(), dir }
    }

    /// What the program says next.
    fn next_line(&mut self) -> String {
        let mut line = String::new();
        let stdout = self.child.stdout.as_mut().expect("piped");
        BufReader::with_capacity(1, stdout).read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(pid_of(&self.child), signal).expect("signal");
    }

    fn output(mut self) -> (Option<i32>, String, String, serde_json::Value) {
        drop(self.child.stdin.take());
        let (mut out, mut err) = (String::new(), String::new());
        self.child.stdout.take().expect("piped").read_to_string(&mut out).expect("read");
        self.child.stderr.take().expect("piped").read_to_string(&mut err).expect("read");
        let code = self.child.wait().expect("ended").code();
        let files = std::fs::read_dir(self.dir.path()).expect("read").count();
        assert_eq!(files, 1, "something is left beside the statistics");
        let stats = std::fs::read(self.dir.path().join("stats.json")).expect("statistics");
        (code, out, err, serde_json::from_slice(&stats).expect("JSON"))
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32).expect("a pid")
}

#[test]
fn signals_are_passed_on() {
    if !works() {
        return;
    }
    let mut run = Running::new(
        "trap 'echo usr1' USR1; trap 'echo int' INT; trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done",
    );
    run.signal(Signal::USR1);
    assert_eq!(run.next_line(), "usr1");
    run.signal(Signal::INT);
    assert_eq!(run.next_line(), "int");
    run.signal(Signal::TERM);
    let (code, _, _, stats) = run.output();
    assert_eq!(code, Some(9));
    assert_eq!(stats["program"], "sh");

    let run = Running::new("echo ready; exec sleep 100");
    run.signal(Signal::TERM);
    assert_eq!(run.output().0, Some(143));
}

#[test]
fn the_program_ends_with_lowtide() {
    if !works() {
        return;
    }
    let mut run = Running::new("echo $$; exec sleep 100");
    let program = PathBuf::from("/proc").join(&run.line);
    assert!(program.exists());
    run.signal(Signal::KILL);
    assert_eq!(run.child.wait().expect("ended").signal(), Some(9));
    let started = Instant::now();
    let is_gone = || match std::fs::read_to_string(program.join("stat")) {
        Ok(stat) => stat.contains(") Z "),
        Err(_) => true,
    };
    while !is_gone() {
        assert!(started.elapsed() < Duration::from_secs(5), "the program goes on without lowtide");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn nested_runs_are_refused() {
    if works() {
        let run = Running::new(&format!("{LOWTIDE} run --ram 64M -- true 2>&1; echo $?"));
        assert!(run.line.starts_with("lowtide: this is already inside"), "{}", run.line);
        assert!(run.output().1.ends_with("2\n"));
    }
}

/// Maps a file shared; None: that is not allowed.
fn map(file: &std::fs::File, size: usize, prot: ProtFlags) -> Option<*mut u8> {
    // SAFETY: a new mapping of a file that can't shrink; it stays until the test ends.
    unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, prot, MapFlags::SHARED, file, 0) }.ok().map(<*mut _>::cast)
}

/// Maps the settings and the segment of a run, as an agent would. `origin`: what LOWTIDE_SEGMENT says.
fn shared(origin: &str) -> (&'static Settings, &'static Segment) {
    let path = origin.split('@').next().expect("a path");
    let file = std::fs::File::open(path).expect("the settings open");
    let at = map(&file, Settings::SIZE, ProtFlags::READ).expect("mapped").cast::<Settings>();
    // SAFETY: as large as Settings, and written by lowtide.
    let settings = unsafe { &*at };
    let path = std::ffi::CStr::from_bytes_until_nul(&settings.segment).expect("a path").to_str().expect("UTF-8");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("the segment opens");
    let at = map(&file, Segment::SIZE, ProtFlags::READ | ProtFlags::WRITE).expect("mapped").cast::<Segment>();
    // SAFETY: as above.
    (settings, unsafe { &*at })
}

/// A static program that waits for a signal: no agent can be preloaded into it.
fn idle() -> Spoilt {
    // ELF header; one program header: all of it at 0x400000, readable and executable; `1: mov $34 (pause), %eax; syscall; jmp
    // 1b`.
    let header = [0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 62, 0, 1, 0, 0, 0];
    let code = [0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7];
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let size = 0x78 + code.len() as u64;
    Spoilt::new(|bytes| {
        *bytes = header.to_vec();
        bytes.extend(words(&[0x40_0078, 64, 0, 64 << 32 | 56 << 48, 1]));
        bytes.extend(words(&[5 << 32 | 1, 0, 0x40_0000, 0x40_0000, size, size, 0x1000]));
        bytes.extend(code);
    })
}

/// A run with a process that stands in for one of the tree: registered by the test, without an agent that would write into its
/// slot.
struct StandIn {
    run: Running,
    settings: &'static Settings,
    segment: &'static Segment,
    slot: &'static Proc,
    pid: u32,
    _program: Spoilt,
}

impl StandIn {
    /// `script`: what the program does then.
    fn new(script: &str) -> StandIn {
        let program = idle();
        let run = Running::new(&format!("{} & echo $LOWTIDE_SEGMENT $!; {script}", program.path.display()));
        let (path, pid) = run.line.split_once(' ').expect("two words");
        let ((settings, segment), pid) = (shared(path), pid.parse::<u32>().expect("a pid"));
        // Until it is executed it is a shell with an agent, which says what it has by itself.
        let is_executed = || std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program.path);
        while !is_executed() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let slot = segment.claim(pid).expect("a slot");
        StandIn { run, settings, segment, slot, pid, _program: program }
    }

    fn kill(&self) {
        rustix::process::kill_process(Pid::from_raw(self.pid as i32).expect("a pid"), Signal::KILL).expect("killed");
    }

    /// Whether it is gone, or about to be buried by its parent.
    fn is_gone(pid: u32) -> bool {
        Stat::of(pid).is_none_or(|stat| stat.is_zombie())
    }
}

#[test]
fn statistics_and_warnings() {
    if !works() {
        return;
    }
    let stand_in = StandIn::new("read x; exit 7");
    let (settings, segment, slot, pid) = (stand_in.settings, stand_in.segment, stand_in.slot, stand_in.pid);
    assert_eq!(settings.supervisor, stand_in.run.child.id());
    assert_eq!(settings.ram_limit.load(Ordering::Relaxed), 64 << 20);
    assert_eq!(settings.pool_limit.load(Ordering::Relaxed), 54 << 20);
    slot.counters.evictions_pages.store(1000, Ordering::Relaxed);
    slot.counters.faults_total.store(500, Ordering::Relaxed);
    slot.counters.zero_pages.store(12, Ordering::Relaxed);
    slot.counters.pages_in.store(300, Ordering::Relaxed);
    slot.counters.latency_max_ns.store(77_000, Ordering::Relaxed);
    slot.latency[40].store(500, Ordering::Relaxed);
    slot.now_stored.store(400, Ordering::Relaxed);
    slot.pool_stored_bytes.store(400 * 1024, Ordering::Relaxed);
    slot.own_bytes.store(1 << 20, Ordering::Relaxed);
    slot.ram_bytes.store(50 << 20, Ordering::Relaxed);
    slot.adopted_bytes.store(1 << 30, Ordering::Relaxed);
    segment.warn(pid, b"one\nthing is odd");
    segment.warn(pid, b"one\nthing is odd");
    std::thread::sleep(Duration::from_millis(300));
    // It dies and is buried; its counts stay.
    stand_in.kill();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(slot.pid.load(Ordering::Relaxed), 0, "the dead are buried");

    let (code, _, err, stats) = stand_in.run.output();
    assert_eq!(code, Some(7));
    for key in [
        "schema",
        "program",
        "pids",
        "elapsed_seconds",
        "ram_limit",
        "ram_now",
        "ram_peak",
        "resident_bytes",
        "own_bytes",
        "staged_bytes",
        "pool_bytes",
        "pool_stored_bytes",
        "pool_limit",
        "compression_ratio",
        "pages",
        "faults",
        "evictions",
        "work",
        "pool",
        "writeback",
        "fault_latency_us",
        "stall_seconds",
        "areas",
        "warnings",
    ] {
        assert!(stats.get(key).is_some(), "{key} is missing");
    }
    assert_eq!(stats["schema"], 1);
    assert!(stats["pids"].as_array().expect("a list").contains(&pid.into()), "{stats}");
    assert_eq!(stats["ram_limit"], 64 << 20);
    assert!(stats["ram_peak"].as_u64() > Some(50 << 20), "{stats}");
    assert!(stats["ram_now"].as_u64() > Some(50 << 20), "{stats}");
    assert!(stats["own_bytes"].as_u64() > Some(1 << 20), "the supervisor counts: {stats}");
    assert!(stats["evictions"]["pages"].as_u64() >= Some(1000), "{stats}");
    assert!(stats["faults"]["total"].as_u64() >= Some(500), "{stats}");
    assert!(stats["fault_latency_us"]["max"].as_f64() >= Some(77.0), "{stats}");
    assert!(stats["fault_latency_us"]["p50"].as_f64() > Some(1.0), "{stats}");
    assert!((stats["compression_ratio"].as_f64().expect("a number") - 4.0).abs() < 0.5, "{stats}");
    assert_eq!(stats["warnings"].as_array().expect("a list").len(), 1, "{stats}");
    assert_eq!(stats["areas"].as_array().expect("a list").len(), 1, "{stats}");
    assert_eq!(err.matches("one?thing is odd").count(), 1, "{err}");
    assert!(err.contains("lowtide: ram peak") && err.contains(" of 64 MiB, 1000 pages out (12 zero), 300 in, 4.00:1"), "{err}");
}

#[test]
fn a_fatal_message_stops_the_tree() {
    if !works() {
        return;
    }
    let StandIn { mut run, segment, pid, .. } = StandIn::new("read x");
    // It is not of the run, whatever stands in the memory that all processes of the run can write.
    let mut stranger = Command::new("sleep").arg("100").spawn().expect("sleep starts");
    segment.claim(stranger.id()).expect("a slot");
    assert!(segment.fatal.put(pid, b"the swap file can't be read: I/O error"));
    let started = Instant::now();
    assert_eq!(run.child.wait().expect("ended").code(), Some(125));
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(StandIn::is_gone(pid), "registered processes are stopped");
    assert!(stranger.try_wait().expect("asked").is_none(), "a process that is not of the run was stopped");
    stranger.kill().and_then(|()| stranger.wait()).expect("ended");
    let mut err = vec![0; 4096];
    let n = run.child.stderr.take().expect("piped").read(&mut err).expect("read");
    let err = String::from_utf8_lossy(&err[..n]);
    assert!(err.contains("lowtide: sh was stopped: the swap file can't be read: I/O error\n"), "{err}");
    let stats = std::fs::read(run.dir.path().join("stats.json")).expect("statistics are written all the same");
    let stats: serde_json::Value = serde_json::from_slice(&stats).expect("JSON");
    let pids = stats["pids"].as_array().expect("a list");
    assert!(pids.contains(&pid.into()) && !pids.contains(&stranger.id().into()), "{stats}");
}

/// Every memfd that a process holds, and how long it is.
fn memfds(pid: u32) -> Vec<(PathBuf, usize)> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").flatten().map(|file| file.path());
    let is_memfd = |path: &PathBuf| std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:"));
    files.filter(is_memfd).map(|path| (path.clone(), std::fs::metadata(&path).expect("a file").len() as usize)).collect()
}

/// A process of the run that gave its privileges up could write into all memory that the run shares. Nothing that a process
/// with more privileges loads, opens or obeys may stand there. This one even has all privileges.
#[test]
fn shared_memory_says_nothing_that_a_process_loads_or_opens() {
    if !works() {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let swap = dir.path().to_str().expect("UTF-8");
    let mut command = lowtide();
    command.args(["run", "--ram", "64M", "--quiet", "--swap", &format!("dir:{swap}"), "--", "sh", "-c"]);
    command.arg("echo $LD_PRELOAD; read x; exec env -i env").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("lowtide starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut preload = String::new();
    out.read_line(&mut preload).expect("a line");
    let files = memfds(child.id());
    assert!(files.len() >= 2, "{files:?}");
    let mut replaced = Vec::new();
    for text in [preload.trim(), swap] {
        // Of the same length, so that all around it stays as it is.
        let evil = "/evil".repeat(text.len() / 5 + 1);
        for (path, size) in &files {
            let Ok(file) = std::fs::OpenOptions::new().read(true).write(true).open(path) else { continue };
            let bytes = std::fs::read(path).expect("read");
            let places: Vec<usize> =
                (0..bytes.len().saturating_sub(text.len())).filter(|&at| bytes[at..].starts_with(text.as_bytes())).collect();
            let mapped = map(&file, *size, ProtFlags::READ | ProtFlags::WRITE);
            for at in places {
                let evil = &evil.as_bytes()[..text.len()];
                if let Some(mapped) = mapped {
                    // SAFETY: within the mapping, which nothing in this process refers to.
                    unsafe { mapped.add(at).copy_from(evil.as_ptr(), evil.len()) };
                }
                if mapped.is_some() || file.write_at(evil, at as u64).is_ok() {
                    replaced.push(text.to_owned());
                }
            }
        }
    }
    child.stdin.take().expect("piped").write_all(b"\n").expect("written");
    let mut environment = String::new();
    out.read_to_string(&mut environment).expect("read");
    assert!(child.wait().expect("ended").success());
    assert!(replaced.is_empty(), "these could be replaced by others: {replaced:?}");
    assert!(environment.lines().any(|line| line.strip_prefix("LD_PRELOAD=") == Some(preload.trim())), "{environment}");
}

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
