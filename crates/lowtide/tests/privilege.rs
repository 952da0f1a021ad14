//! With how little privilege lowtide does its work, and what it says where that is too little: ordinary users with and without
//! capabilities, system call filters, user namespaces.
//!
//! Run as root, which can be everybody else. With `CI` set, nothing is skipped.

#[path = "../../../tests/skipped.rs"]
mod skipped;
#[path = "../../../tests/turn.rs"]
mod turn;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use turn::Turn;

const LOWTIDE: &str = env!("CARGO_BIN_EXE_lowtide");
/// A user without any privilege.
const USER: [&str; 3] = ["--reuid=1234", "--regid=1234", "--clear-groups"];
/// A program that has 100 MiB and reads into it, with system calls.
const LARGE: &str = "dd if=/dev/zero of=/dev/null bs=100M count=3 2>/dev/null";

/// Alone: they measure memory, and a child that another test forks while an executable is written would keep it busy.
fn turn() -> Option<Turn> {
    can_be_everybody().then(turn::alone)
}

fn can_be_everybody() -> bool {
    let can = rustix::process::geteuid().is_root()
        && Command::new(LOWTIDE).arg("doctor").output().expect("lowtide starts").status.success();
    if !can {
        assert!(std::env::var_os("CI").is_none(), "CI must not skip: this takes root, and a machine where lowtide works");
        skipped::skipped("this takes root, and a machine where lowtide works");
    }
    can
}

/// lowtide in a directory that every user can read and write.
struct Installed {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl Installed {
    fn new() -> Installed {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).expect("mode");
        let path = dir.path().join("lowtide");
        std::fs::copy(LOWTIDE, &path).expect("copied");
        Installed { dir, path }
    }

    /// With these capabilities in the permitted set of its file.
    fn with_capabilities(capabilities: u32) -> Installed {
        let installed = Installed::new();
        // VFS_CAP_REVISION_2, without the bit that brings them into effect; permitted, inheritable, the upper halves.
        let words = [0x0200_0000, capabilities, 0, 0, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let name = c"security.capability";
        rustix::fs::setxattr(&installed.path, name, &bytes, rustix::fs::XattrFlags::empty()).expect("capability");
        installed
    }

    /// lowtide, started by another program.
    fn behind(&self, wrapper: &[&str]) -> Command {
        let mut command = match wrapper {
            [] => Command::new(&self.path),
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).arg(&self.path);
                command
            }
        };
        for name in ["LOWTIDE_RAM", "LOWTIDE_DIR", "LOWTIDE_SEGMENT", "LD_PRELOAD"] {
            command.env_remove(name);
        }
        command.current_dir("/").stdin(Stdio::null());
        command
    }

    /// Runs a shell script under 40 MiB; its standard output. Fails unless something was evicted and nobody complained.
    #[track_caller]
    fn limits(&self, mut command: Command, script: &str) -> String {
        let stats = self.dir.path().join("stats.json");
        command.args(["run", "--ram", "40M", "--stats"]).arg(&stats).args(["--", "sh", "-c", script]);
        // What is allowed to a stream of new mappings; natively it is more than 100 MiB. An ordinary user's reclaimer is an
        // ordinary thread: where something else has the CPUs at the wrong moment it comes too late, so that one run says
        // nothing.
        let is_held = |stats: &serde_json::Value| stats["ram_peak"].as_u64() < Some(78 << 20);
        for runs_left in (0..3).rev() {
            let output = command.output().expect("lowtide starts");
            let complaints = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{complaints}");
            assert!(complaints.lines().all(|line| line.starts_with("lowtide: ram peak")), "{complaints}");
            let stats: serde_json::Value = serde_json::from_slice(&std::fs::read(&stats).expect("statistics")).expect("JSON");
            assert!(stats["evictions"]["pages"].as_u64() > Some(10_000), "{stats}");
            if is_held(&stats) {
                return String::from_utf8_lossy(&output.stdout).into_owned();
            }
            assert!(runs_left > 0, "{stats}");
        }
        unreachable!("the last run returns or fails")
    }
}

/// Refused in one line that says all of this.
#[track_caller]
fn assert_refused(output: &Output, words: &[&str]) {
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{line}");
    assert!(line.starts_with("lowtide: ") && line.matches('\n').count() == 1, "not one line: {line:?}");
    for word in words {
        assert!(line.contains(word), "`{word}` is not in: {line}");
    }
    assert!(!line.contains("run as root"), "{line}");
}

fn refusal(mut command: Command) -> Output {
    command.args(["run", "--ram", "64M", "--", "true"]).output().expect("lowtide starts")
}

/// From now on whoever makes this system call gets this.
fn forbid(call: libc::c_long, answer: u32) -> std::io::Result<()> {
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        // The number of the call is the first word.
        instruction(load as u16, 0, 0, 0),
        instruction((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, 1, call as u32),
        instruction((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, answer),
        instruction((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a program of the length that it says, which the kernel copies.
    match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Where userfaultfd is not allowed.
fn filtered(mut command: Command) -> Command {
    const ERROR: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    // SAFETY: a system call that reads the stack.
    unsafe { command.pre_exec(|| forbid(libc::SYS_userfaultfd, ERROR)) };
    command
}

/// A library that is always there, and in every program anyway.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
const PTRACE: u32 = 1 << 19;
const DAC_READ_SEARCH: u32 = 1 << 2;

fn as_user() -> Vec<&'static str> {
    [&["setpriv"][..], &USER].concat()
}

/// The program gets no capability, nor does what it executes; all of it is limited.
const LOOKS: &str = "grep -h CapPrm /proc/self/status; grep -h CapEff /proc/self/status; ls /proc/self/fd | wc -l; ";
const SEES: &str = "CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n";

#[test]
fn a_user_with_capabilities_of_the_file() {
    let Some(_turn) = turn() else { return };
    let installed = Installed::with_capabilities(PTRACE | DAC_READ_SEARCH);
    let mut command = installed.behind(&as_user());
    // The C library takes these away from a file with capabilities; they are the program's.
    command.env("LD_LIBRARY_PATH", "/nowhere").env("LD_PRELOAD", LOADER);
    let script = format!("{LOOKS} echo $LD_LIBRARY_PATH $LD_PRELOAD; {LARGE}; sh -c '{LARGE}; {LARGE}'");
    let out = installed.limits(command, &script);
    assert!(out.starts_with(SEES), "{out}");
    let native = Command::new("sh").args(["-c", "ls /proc/self/fd | wc -l"]).stdin(Stdio::null()).output().expect("sh starts");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[2], String::from_utf8_lossy(&native.stdout).trim(), "descriptors leak into the program");
    assert!(lines[3].starts_with("/nowhere /proc/") && lines[3].ends_with(LOADER), "{out}");
}

#[test]
fn a_user_with_ambient_capabilities() {
    let Some(_turn) = turn() else { return };
    let installed = Installed::new();
    let mut wrapper = as_user();
    wrapper.extend(["--inh-caps=+sys_ptrace,+dac_read_search", "--ambient-caps=+sys_ptrace,+dac_read_search"]);
    let out = installed.limits(installed.behind(&wrapper), &format!("{LOOKS} {LARGE}; sh -c '{LARGE}; {LARGE}'"));
    assert!(out.starts_with(SEES), "{out}");
}

#[test]
fn a_named_swap_file_of_a_user_with_capabilities() {
    let Some(_turn) = turn() else { return };
    let installed = Installed::with_capabilities(PTRACE | DAC_READ_SEARCH);
    let swap = installed.dir.path().join("swap");
    std::fs::File::create(&swap).and_then(|file| file.set_len(256 << 20)).expect("made");
    std::fs::set_permissions(&swap, std::fs::Permissions::from_mode(0o600)).expect("mode");
    std::os::unix::fs::chown(&swap, Some(1234), Some(1234)).expect("owner");
    let stats = installed.dir.path().join("stats.json");
    let mut command = installed.behind(&as_user());
    command.args(["run", "--ram", "40M", "--pool", "0", "--swap"]).arg(format!("file:{}", swap.display())).arg("--stats");
    // What does not compress to nothing.
    let data = "dd if=/dev/urandom of=/dev/null bs=60M count=2 iflag=fullblock 2>/dev/null";
    let output = command.arg(&stats).args(["--", "sh", "-c", data]).output().expect("lowtide starts");
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !complaints.contains("warning"), "{complaints}");
    let stats: serde_json::Value = serde_json::from_slice(&std::fs::read(stats).expect("statistics")).expect("JSON");
    assert!(stats["areas"][0]["writes"].as_u64() > Some(0), "{stats}");
}

/// `--faults auto` does not ask the kernel for what this process has no right to: a filter may end who asks.
#[test]
fn bpf_is_not_called_without_capabilities() {
    let Some(_turn) = turn() else { return };
    let installed = Installed::with_capabilities(PTRACE | DAC_READ_SEARCH);
    let mut command = installed.behind(&as_user());
    command
        .env_remove("LOWTIDE_PAGE_FAULTS")
        .args(["run", "--quiet", "--ram", "64M", "--faults", "auto", "--", "echo", "done"]);
    // SAFETY: a system call that reads the stack.
    unsafe { command.pre_exec(|| forbid(libc::SYS_bpf, libc::SECCOMP_RET_KILL_PROCESS)) };
    let output = command.output().expect("lowtide starts");
    assert!(output.status.success() && output.stdout == b"done\n" && output.stderr.is_empty(), "{output:?}");
}

/// Nor under a filter, which root may have, too.
#[test]
fn bpf_is_not_called_under_a_filter() {
    let Some(_turn) = turn() else { return };
    let installed = Installed::new();
    let mut command = installed.behind(&[]);
    command.env_remove("LOWTIDE_PAGE_FAULTS").args(["run", "--quiet", "--ram", "64M", "--", "echo", "done"]);
    // SAFETY: a system call that reads the stack.
    unsafe { command.pre_exec(|| forbid(libc::SYS_bpf, libc::SECCOMP_RET_KILL_PROCESS)) };
    let output = command.output().expect("lowtide starts");
    assert!(output.status.success() && output.stdout == b"done\n" && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_user_without_what_it_takes() {
    let Some(_turn) = turn() else { return };
    let installed = Installed::new();
    let path = installed.path.to_str().expect("UTF-8");
    let refused = refusal(installed.behind(&as_user()));
    assert_refused(&refused, &["CAP_SYS_PTRACE is missing", "sudo -E setpriv --reuid=1234", "sudo setcap", path]);
    let no_sudo = [&["setpriv", "--no-new-privs"][..], &USER].concat();
    assert_refused(&refusal(installed.behind(&no_sudo)), &["CAP_SYS_PTRACE is missing", "no_new_privs"]);
    // One of the two is not enough.
    let without_device = Installed::with_capabilities(PTRACE);
    assert_refused(&refusal(without_device.behind(&as_user())), &["/dev/userfaultfd", "CAP_DAC_READ_SEARCH is missing"]);
    let without_forks = Installed::with_capabilities(DAC_READ_SEARCH);
    assert_refused(&refusal(without_forks.behind(&as_user())), &["forks", "CAP_SYS_PTRACE is missing"]);
}

#[test]
fn root_of_a_container() {
    let Some(_turn) = turn() else { return };
    let installed = Installed::new();
    let container = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"];
    let words = ["root has no CAP_SYS_PTRACE", "bounding set", "--cap-add SYS_PTRACE", "--device /dev/userfaultfd"];
    assert_refused(&refusal(installed.behind(&container)), &words);
    let doctor = installed.behind(&container).arg("doctor").output().expect("lowtide starts");
    let text = String::from_utf8_lossy(&doctor.stdout);
    assert_eq!(doctor.status.code(), Some(1));
    assert!(text.contains("CAP_SYS_PTRACE: no, nor in the bounding set") && text.contains("--cap-add"), "{text}");
}

#[test]
fn root_of_a_user_namespace() {
    let Some(_turn) = turn() else { return };
    if !Command::new("unshare").args(["-Ur", "true"]).status().expect("unshare starts").success() {
        assert!(std::env::var_os("CI").is_none(), "CI must not skip: user namespaces can't be made here");
        skipped::skipped("user namespaces can't be made here");
        return;
    }
    let installed = Installed::new();
    let words = ["user namespace", "rootless", "outside"];
    assert_refused(&refusal(installed.behind(&["unshare", "-Ur"])), &words);
}

#[test]
fn under_a_filter() {
    let Some(_turn) = turn() else { return };
    let installed = Installed::new();
    // The system call is forbidden; the device is as good, for root and for whom it starts as another user.
    let others = format!("{LARGE}; exec setpriv {} sh -c '{LARGE}'", USER.join(" "));
    installed.limits(filtered(installed.behind(&[])), &others);
    // Neither is there.
    let hidden = "mount --bind /dev/null /dev/userfaultfd && exec \"$0\" \"$@\"";
    let command = filtered(installed.behind(&["unshare", "-m", "sh", "-c", hidden]));
    let refused = refusal(command);
    assert_refused(&refused, &["seccomp", "--device /dev/userfaultfd", "profile"]);
}

#[test]
fn setuid_is_refused() {
    let Some(_turn) = turn() else { return };
    let installed = Installed::new();
    std::fs::set_permissions(&installed.path, std::fs::Permissions::from_mode(0o4755)).expect("mode");
    assert_refused(&refusal(installed.behind(&as_user())), &["setuid", "chmod ug-s", "setcap"]);
}
