//! Where sockets are, and who may use them.

use crate::live::{Client, LOWTIDE, MIB, Scene, assert_refused, compiled, is_root, turn};
use crate::{STAT, ends_well, listed, number, small};
use rustix::process::{Pid, Signal};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// The socket is there as long as the run, whatever ends it; what is left of a killed one goes with the next command.
#[test]
fn sockets_come_and_go() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let mode = |path: &Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
    let mut run = small(&scene);
    assert_eq!((mode(&run.socket), mode(&scene.path("runtime/lowtide"))), (0o600, 0o700));
    run.kill();
    assert!(run.socket.exists());
    assert!(!listed(&scene).contains(&run.pid));
    assert!(!scene.path("runtime/lowtide").exists());
    // Or with the next run.
    let mut run = scene.sleeper("--ram 64M", 1, "t").listens();
    run.kill();
    scene.done("run --ram 64M --quiet -- true");
    assert!(!scene.path("runtime/lowtide").exists());
    // A signal to the program.
    let run = scene.start("--ram 64M --quiet", Path::new("sleep"), "100").listens();
    let mut client = run.connect();
    assert_eq!(client.ask(STAT)["ok"], true);
    let process = run.processes(&scene)[0];
    rustix::process::kill_process(Pid::from_raw(process as i32).expect("a pid"), Signal::TERM).expect("sent");
    assert!(client.line().is_none(), "closed at the end of the run");
    let until = Instant::now() + Duration::from_secs(5);
    while scene.path("runtime/lowtide").exists() {
        assert!(Instant::now() < until, "the socket stays");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Where others could lie in wait there is no socket; the run goes on.
#[test]
fn no_socket_where_others_can_be() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    std::os::unix::fs::symlink(scene.path("elsewhere"), scene.path("runtime/lowtide")).expect("linked");
    let told = |scene: &Scene| {
        let output = scene.ask("run --ram 64M --quiet -- echo it ran");
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"it ran\n"[..]));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let line = told(&scene);
    assert!(
        line.matches('\n').count() == 1 && line.contains("warning: no control socket") && line.contains("not a dir"),
        "{line}"
    );
    if is_root() {
        let scene = Scene::new();
        let dir = scene.path("runtime/lowtide");
        std::fs::create_dir(&dir).expect("made");
        std::os::unix::fs::chown(&dir, Some(1234), Some(1234)).expect("given away");
        let line = told(&scene);
        assert!(line.matches('\n').count() == 1 && line.contains("user 1234's"), "{line}");
    }
}

/// A connection of another user's.
fn connect_as(user: u32, socket: &Path) -> std::io::Result<UnixStream> {
    let socket = socket.to_owned();
    let connect = move || {
        // SAFETY: the system call itself changes this thread only, which then ends.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
        assert_eq!(changed, 0, "{}", std::io::Error::last_os_error());
        UnixStream::connect(socket)
    };
    thread::spawn(connect).join().expect("it does not panic")
}

#[test]
fn another_user_can_not_reach_it_and_is_sent_away_if_he_could() {
    let Some(_turn) = turn() else { return };
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let run = small(&scene);
    let open = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("mode");
    open(scene.dir.path(), 0o755);
    open(&scene.path("runtime"), 0o755);
    let denied = connect_as(1234, &run.socket).expect_err("by the mode of the directory");
    assert_eq!(denied.kind(), std::io::ErrorKind::PermissionDenied);
    open(run.socket.parent().expect("a directory"), 0o755);
    let denied = connect_as(1234, &run.socket).expect_err("by the mode of the socket");
    assert_eq!(denied.kind(), std::io::ErrorKind::PermissionDenied);
    open(&run.socket, 0o666);
    let mut client = Client::new(connect_as(1234, &run.socket).expect("all modes allow it"));
    client.refused(2, &["user 0", "user 1234"]);
    assert!(client.is_closed());
    // And by the commands.
    let copy = scene.path("lowtide");
    compiled::copy(LOWTIDE.as_ref(), &copy);
    let as_user = |words: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=1234", "--regid=1234", "--clear-groups"]).arg(&copy).args(words.split_whitespace());
        command.env("XDG_RUNTIME_DIR", scene.path("runtime")).output().expect("setpriv starts")
    };
    let words = [&format!("process {} is not under", run.pid)[..], "runs of this user"];
    assert_refused(&as_user(&format!("stat {}", run.pid)), "stat", 2, &words);
    assert!(!String::from_utf8_lossy(&as_user("ps").stdout).contains(&run.pid.to_string()));
    open(run.socket.parent().expect("a directory"), 0o700);
    ends_well(&scene, run);
}

/// The run acts as its user, so what root asks of it is done with that user's rights.
#[test]
fn root_controls_the_run_of_another_user() {
    let Some(_turn) = turn() else { return };
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    std::fs::set_permissions(scene.dir.path(), std::fs::Permissions::from_mode(0o777)).expect("mode");
    let copy = scene.path("lowtide");
    compiled::copy(LOWTIDE.as_ref(), &copy);
    // VFS_CAP_REVISION_2, not in effect: CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH are permitted.
    let words: [u32; 5] = [0x0200_0000, 1 << 19 | 1 << 2, 0, 0, 0];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    rustix::fs::setxattr(&copy, c"security.capability", &bytes, rustix::fs::XattrFlags::empty()).expect("capability");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=1234", "--regid=1234", "--clear-groups"]).arg(&copy);
    command.args(["run", "--ram", "64M", "--quiet", "--", "sleep", "100"]).env_remove("XDG_RUNTIME_DIR").current_dir("/");
    let mut run = scene.started(command);
    run.socket = format!("/tmp/lowtide-1234/{}.sock", run.pid).into();
    let run = run.listens();
    let pid = run.pid;
    assert!(scene.done("ps").contains(&pid.to_string()));
    assert!(scene.done(&format!("limit {pid} 48M")).starts_with("limit 48 MiB"));
    assert_eq!(number(&scene.stat(pid), "ram_limit"), 48 * MIB);
    let secret = scene.swap_dir("secret");
    std::fs::set_permissions(scene.path("secret"), std::fs::Permissions::from_mode(0o700)).expect("mode");
    scene.refused(&format!("swapon {pid} {secret}"), 2, &["permission denied"]);
    let socket = run.socket.clone();
    drop(run);
    scene.done("ps");
    assert!(!socket.exists(), "swept by root");
}
