//! The control socket of a run, from outside: what it is asked, who may ask, and what becomes of those who don't know how to.
//!
//! What the processes of a run do about it, moving pages, is in `swapoff.rs`.

mod live;

use live::{Client, LOWTIDE, MIB, Run, Scene, assert_refused, is_root, program, turn};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const STAT: &str = r#"{"lowtide":1,"do":"stat"}"#;

/// A run that waits, with little memory.
fn small(scene: &Scene) -> Run {
    scene.sleeper("--ram 64M --quiet", 8, "t").listens()
}

/// The program was not disturbed: what it says is what it says natively.
#[track_caller]
fn ends_well(scene: &Scene, run: Run) {
    scene.wake();
    let (out, err) = run.finish();
    assert!(err.is_empty(), "{err}");
    let native = Command::new(program("sleeps")).args(["8", "t"]).current_dir(scene.dir.path()).output().expect("it starts");
    assert_eq!(out, String::from_utf8_lossy(&native.stdout));
    assert!(!scene.path("runtime/lowtide").exists(), "nothing is left");
}

/// The pids of the runs that there are; others on this machine may have theirs.
fn listed(scene: &Scene) -> Vec<u32> {
    let ps = scene.done("ps");
    ps.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no {key}: {value}"))
}

#[test]
fn ps_and_stat() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    if listed(&scene).is_empty() {
        assert_eq!(scene.done("ps"), "no runs\n");
        scene.refused("stat", 2, &["no run"]);
    }
    let mut run = small(&scene);
    run.wait_until("it is counted", |run| number(&scene.stat(run.pid), "ram_now") > 8 * MIB);
    let ps = scene.done("ps");
    let line = ps.lines().find(|line| line.trim_start().starts_with(&run.pid.to_string())).unwrap_or_else(|| panic!("{ps}"));
    assert!(ps.lines().next().is_some_and(|line| line.ends_with("PROGRAM")), "{ps}");
    assert!(line.contains("64 MiB") && line.ends_with("sleeps"), "{ps}");

    let stat = scene.stat(run.pid);
    assert_eq!((number(&stat, "schema"), number(&stat, "ram_limit")), (1, 64 * MIB));
    assert!(stat["elapsed_seconds"].as_f64() > Some(0.0), "{stat}");
    assert_eq!(stat["areas"][0]["state"], "active", "{stat}");
    // By the pid of the program, and by none at all.
    let process = run.processes(&scene)[0];
    assert_eq!(number(&scene.stat(process), "pid"), u64::from(run.pid));
    let alone = if listed(&scene) == [run.pid] { "stat".to_owned() } else { format!("stat {}", run.pid) };
    let table = scene.done(&alone);
    assert!(table.contains("64 MiB") && table.contains("dir:/var/tmp") && !table.contains('\x1b'), "{table}");
    // The same keys as the statistics at the end.
    let other = Scene::new();
    let file = other.path("stats.json");
    other.done(&format!("run --ram 64M --quiet --stats {} -- true", file.display()));
    let last: Value = serde_json::from_slice(&std::fs::read(file).expect("written")).expect("JSON");
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&stat), keys(&last));

    let second = scene.start("--ram 32M --quiet", Path::new("sleep"), "100").listens();
    let (first, second_pid) = (run.pid.to_string(), second.pid.to_string());
    scene.refused("stat", 2, &["several", &first, &second_pid, "(sleep)"]);
    let second_pid = second.pid;
    assert!([run.pid, second_pid].iter().all(|pid| listed(&scene).contains(pid)));
    drop(second);
    assert!(!listed(&scene).contains(&second_pid), "what a killed one left is swept");
    let first = run.pid;
    ends_well(&scene, run);
    assert!(!listed(&scene).contains(&first));
}

#[test]
fn stat_shows_how_full_clusters_are_when_it_is_asked() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    // Noise that no pool takes: it is in the files, in clusters that fill one after the other.
    let swap = scene.swap_file("swap", 256 * MIB);
    let run = scene.sleeper(&format!("--ram 24M --pool 1M --swap {swap} --quiet"), 64, "n").listens();
    let stat: Value = serde_json::from_str(&scene.done(&format!("stat {} --json --areas", run.pid))).expect("JSON");
    let (area, clusters) = (&stat["areas"][0], &stat["areas"][0]["clusters"]);
    let by_eighths = clusters["by_eighths"].as_array().expect("a list");
    assert_eq!(by_eighths.len(), 8, "{clusters}");
    let partly: u64 = by_eighths.iter().map(|n| n.as_u64().expect("a number")).sum();
    let (free, full, opened) = (number(clusters, "free"), number(clusters, "full"), number(clusters, "opened"));
    assert_eq!(free + partly + full, opened, "{clusters}");
    assert_eq!(opened + number(clusters, "never_opened"), 256 * MIB / (2 * MIB), "all of the file: {clusters}");
    // What is there needs that many clusters at least, and most of them are full.
    let used = number(area, "used");
    assert!(used > 32 * MIB && opened * 2 * MIB >= used && full * 2 * MIB > used / 2, "{area}");
    assert_eq!(stat["areas_not_counted"], serde_json::json!([]), "{stat}");
    let table = scene.done(&format!("stat {} --areas", run.pid));
    let line = table.lines().skip_while(|line| !line.contains("CLUSTERS OF")).nth(1).unwrap_or_else(|| panic!("{table}"));
    assert!(line.contains("file:") && line.split_whitespace().count() == 13, "{table}");
    // Nobody counts where nobody asks.
    let without = scene.stat(run.pid);
    assert!(without["areas"][0].get("clusters").is_none() && without.get("areas_not_counted").is_none(), "{without}");
    scene.wake();
    run.finish();
}

#[test]
fn watching_goes_on_until_the_run_ends() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let run = small(&scene);
    let watch = |options: &str| {
        let mut command = scene.lowtide();
        command
            .args(["stat", &run.pid.to_string(), "--watch"])
            .args(options.split_whitespace())
            .stdout(std::process::Stdio::piped());
        command.spawn().expect("lowtide starts")
    };
    let (table, json) = (watch(""), watch("--json"));
    thread::sleep(Duration::from_millis(2500));
    ends_well(&scene, run);
    let [table, json] = [table, json].map(|child| child.wait_with_output().expect("waited for"));
    assert!(table.status.success() && json.status.success());
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.matches("lowtide run").count() >= 2 && !table.contains('\x1b'), "{table}");
    let json = String::from_utf8_lossy(&json.stdout).into_owned();
    assert!(json.lines().count() >= 2, "{json}");
    json.lines().for_each(|line| drop(serde_json::from_str::<Value>(line).expect("JSON")));
}

#[test]
fn limits_go_up_and_down() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let run = small(&scene);
    let (pid, limits) = (run.pid, |stat: &Value| (number(stat, "ram_limit"), number(stat, "pool_limit")));
    assert_eq!(limits(&scene.stat(pid)), (64 * MIB, 54 * MIB));
    assert!(scene.done(&format!("limit {pid} 128M")).starts_with("limit 128 MiB, "));
    assert_eq!(limits(&scene.stat(pid)), (128 * MIB, 108 * MIB));
    assert!(scene.done(&format!("limit {pid} 40M --no-wait")).starts_with("limit 40 MiB, "));
    assert_eq!(limits(&scene.stat(pid)), (40 * MIB, 40 * MIB / 32 * 27));
    // Of one connection, the wish to wait included.
    let mut client = run.connect();
    let answer = client.ask(r#"{"lowtide":1,"do":"limit","size":"48M"}"#);
    assert!(answer["ok"] == true && answer["reached"] == true && answer["ram_limit"] == 48 * MIB, "{answer}");
    let more = scene.ask(&format!("limit {pid} 9999T"));
    assert!(more.status.success(), "more than there is limits nothing");
    assert!(String::from_utf8_lossy(&more.stderr).contains("limits nothing"));
    ends_well(&scene, run);

    // What was said about the pool holds, as far as it can.
    let scene = Scene::new();
    let run = scene.sleeper("--ram 64M --pool 48M --quiet", 8, "t").listens();
    scene.done(&format!("limit {} 32M", run.pid));
    assert_eq!(limits(&scene.stat(run.pid)), (32 * MIB, 32 * MIB));
    scene.done(&format!("limit {} 100M", run.pid));
    assert_eq!(limits(&scene.stat(run.pid)), (100 * MIB, 48 * MIB));
    ends_well(&scene, run);
}

#[test]
fn areas_come_and_go() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let run = scene.sleeper("--ram 64M --quiet --swap ram", 8, "t").listens();
    let pid = run.pid;
    let ram_only = number(&scene.stat(pid), "pool_limit");
    let (file, dir) = (scene.swap_file("swap", 16 * MIB), scene.swap_dir("dir"));
    let states = || -> Vec<(String, i64, String)> {
        let stat = scene.stat(pid);
        let text = |area: &Value, key: &str| area[key].as_str().unwrap_or_default().to_owned();
        let area = |area: &Value| (text(area, "spec"), area["prio"].as_i64().unwrap_or_default(), text(area, "state"));
        stat["areas"].as_array().expect("a list").iter().map(area).collect()
    };
    for _ in 0..3 {
        assert_eq!(scene.done(&format!("swapon {pid} {file}")), format!("{file}: up to 16 MiB, priority -2\n"));
        let mut page = [0; 19];
        std::fs::File::open(scene.path("swap")).and_then(|file| file.read_exact_at(&mut page, 0)).expect("read");
        assert_eq!(&page, b"lowtide swap file 1", "it is marked");
        scene.refused(&format!("swapon {pid} {file}"), 2, &["given twice"]);
        scene.refused(&format!("run --ram 64M --swap {file} -- true"), 2, &["another run uses it"]);
        assert_eq!(number(&scene.stat(pid), "pool_limit"), ram_only, "the same with another place");
        assert!(scene.done(&format!("swapoff {pid} {file}")).contains("the area is off"));
        scene.refused(&format!("swapoff {pid} {file}"), 2, &["no such area", "only compressed RAM"]);
        scene.done(&format!("run --ram 64M --quiet --swap {file} -- true"));
        assert_eq!(number(&scene.stat(pid), "pool_limit"), ram_only);
    }
    // Relative, from where the client stands; and by path alone.
    scene.done(&format!("swapon {pid} dir:dir,size=8M,prio=7"));
    scene.done(&format!("swapon {pid} file:swap"));
    let on = |spec: &str, prio: i64| (spec.to_owned(), prio, "active".to_owned());
    assert_eq!(states()[..2], [on(&dir, 7), on(&file, -2)]);
    scene.refused(&format!("swapon {pid} {dir}/."), 2, &["given twice"]);
    scene.done(&format!("swapoff {pid} dir"));
    assert_eq!(states()[0], on(&file, -2));
    assert!(states().contains(&(dir, 7, "off".to_owned())), "{:?}", states());
    // As many as there may be: one is on.
    for i in 0..7 {
        let spec = scene.swap_dir(&format!("more{i}"));
        assert!(scene.done(&format!("swapon {pid} {spec}")).ends_with(&format!("priority {}\n", -3 - i)));
    }
    let last = scene.swap_dir("last");
    scene.refused(&format!("swapon {pid} {last}"), 2, &["8 areas", "the most"]);
    ends_well(&scene, run);
}

#[test]
fn bad_input() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let dir = scene.swap_dir("dir");
    let run = scene.sleeper(&format!("--ram 64M --quiet --swap {dir}"), 8, "t").listens();
    let pid = run.pid;
    let runs = format!("{pid} (sleeps)");
    for what in ["stat", "limit {} 64M", "reclaim {} 1M", "swapon {} dir:/tmp", "swapoff {} dir:/tmp"] {
        let of = |pid: u32| if what == "stat" { format!("stat {pid}") } else { what.replace("{}", &pid.to_string()) };
        scene.refused(&of(4_194_305), 2, &["no process 4194305"]);
        scene.refused(&of(0), 2, &["no process 0"]);
        let me = std::process::id();
        scene.refused(&of(me), 2, &[&format!("process {me} is not under `lowtide run`"), &runs]);
        scene.refused(&of(pid).replace(&pid.to_string(), "x"), 2, &["invalid value", "x"]);
    }
    for (what, words) in [
        ("limit {}", &["SIZE", "is missing", "limit --help"][..]),
        ("limit {} 12X", &["12X", "not a size"]),
        ("limit {} -5M", &["-5M", "not a size"]),
        ("limit {} 1M", &["1M", "too small", "16 MiB"]),
        ("limit {} 0", &["too small"]),
        ("reclaim {} much", &["much", "not a size"]),
        ("reclaim {} 0", &["nothing"]),
        ("swapon {} disk:/x", &["unknown kind"]),
        ("swapon {} ram", &["always there"]),
        ("swapon {} dir:", &["directory is missing"]),
        ("swapon {} dir:/nonexistent", &["dir:/nonexistent", "no such file"]),
        ("swapon {} dir:/proc", &["dir:/proc"]),
        ("swapon {} file:/nonexistent", &["fallocate"]),
        ("swapon {} file:/dev/null", &["neither"]),
        ("swapon {} redis://localhost:1", &["unknown kind", "dir:DIR"]),
        ("swapon {} dir:dir", &["given twice"]),
        ("swapon {} dir:dir,size=1", &["at least 2M"]),
        ("swapoff {} dir:/nonexistent", &["no such area", &dir]),
        ("swapoff {} /nonexistent", &["no such area", &dir]),
        ("swapoff {} file:dir", &["no such area", &dir]),
        ("swapoff {} ram", &["always there"]),
        ("swapoff {} auto", &["no such area", &dir]),
        ("swapoff {} disk:x", &["unknown kind"]),
        ("top {}", &["not a terminal", "lowtide stat"]),
    ] {
        scene.refused(&what.replace("{}", &pid.to_string()), 2, words);
    }
    // Another file with other data is left alone.
    let other = scene.swap_file("precious", 4 * MIB);
    std::fs::write(scene.path("precious"), "precious".repeat(1 << 19)).expect("written");
    scene.refused(&format!("swapon {pid} {other}"), 2, &["other data"]);
    ends_well(&scene, run);
}

/// The last area holds pages for which there is no room: the shortfall is said, nothing is moved.
#[test]
fn the_last_area_is_not_taken_away_while_it_is_needed() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let dir = scene.swap_dir("dir");
    // Noise, which can't be compressed.
    let run = scene.sleeper(&format!("--ram 40M --pool 4M --quiet --swap {dir}"), 96, "n").listens();
    let used = || number(&scene.stat(run.pid)["areas"][0], "used");
    let before = used();
    assert!(before > 40 * MIB, "{before}");
    let pid = run.pid;
    let words = ["MiB of pages are there", "elsewhere", "are missing", &format!("lowtide swapon {pid}"), "lowtide limit"];
    scene.refused(&format!("swapoff {pid} {dir}"), 2, &words);
    let stat = scene.stat(pid);
    assert!(stat["areas"][0]["state"] != "emptying" && used() > 40 * MIB, "{stat}");
    // Nor for a small one.
    let small = scene.swap_dir("small");
    scene.done(&format!("swapon {pid} {small},size=4M"));
    scene.refused(&format!("swapoff {pid} {dir}"), 2, &["are missing"]);
    scene.wake();
    let (out, _) = run.finish();
    assert!(out.starts_with("OK"), "{out}");
}

#[test]
fn who_does_not_know_how_to_ask_is_told() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let run = small(&scene);
    let garbage: [&[u8]; 5] = [b"hello\n", b"\n", b"\x00\xff\xfe\n", b"{\"lowtide\":1,\"do\":\n", b"GET / HTTP/1.1\r\n\r\n"];
    for bytes in garbage {
        let mut client = run.connect();
        client.send(bytes);
        client.refused(2, &["not a line of JSON"]);
        assert!(client.is_closed());
    }
    // Of what is JSON, one can be wrong and the next right.
    let mut client = run.connect();
    for (line, words) in [
        ("7", &["no \"lowtide\""][..]),
        (r#"{"lowtide":2,"do":"stat"}"#, &["version"]),
        (r#"{"lowtide":1,"do":"dance"}"#, &["swapoff"]),
        (r#"{"lowtide":1,"do":"limit"}"#, &["size"]),
        (r#"{"lowtide":1,"do":"cancel"}"#, &["nothing to cancel"]),
    ] {
        client.send(format!("{line}\n"));
        client.refused(2, words);
    }
    assert_eq!(client.ask(STAT)["ok"], true);
    // Several requests at once are answered in their order.
    client.send(format!("{STAT}\n{{\"lowtide\":1,\"do\":\"ps\"}}\n7\n"));
    assert_eq!((client.answer()["schema"].clone(), client.answer()["schema"].clone()), (1.into(), Value::Null));
    client.refused(2, &["lowtide"]);

    // Who has nothing more to say still gets an answer, if that takes time.
    let mut client = run.connect();
    client.send("{\"lowtide\":1,\"do\":\"swapoff\",\"spec\":\"auto\"}\n");
    client.stream.shutdown(std::net::Shutdown::Write).expect("shut down");
    assert_eq!(client.answer()["ok"], true);
    assert!(client.is_closed());

    let mut client = run.connect();
    client.send(&STAT[..12]);
    client.stream.shutdown(std::net::Shutdown::Write).expect("shut down");
    client.refused(2, &["cut off"]);
    assert!(client.is_closed());

    for huge in [vec![b'x'; 4 << 20], [vec![b'['; 70_000], b"\n".to_vec()].concat()] {
        let mut client = run.connect();
        // Closed before all of it is sent, perhaps.
        client.send(&huge);
        client.refused(2, &["longer than 65536 bytes"]);
    }
    // Just what is allowed.
    let padded = format!("{STAT:<65535}\n");
    assert_eq!(run.connect().ask(padded.trim_end_matches('\n'))["ok"], true);
    ends_well(&scene, run);
}

#[test]
fn who_never_reads_is_dropped() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let run = small(&scene);
    let mut client = run.connect();
    client.stream.set_nonblocking(true).expect("set");
    let (line, started) = (format!("{STAT}\n"), Instant::now());
    let mut sent = 0;
    // Until it is closed.
    loop {
        match client.stream.write(line.as_bytes()) {
            Ok(n) => sent += n,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(20)),
            Err(_) => break,
        }
        assert!(started.elapsed() < Duration::from_secs(30), "it is not dropped after {sent} bytes");
    }
    // Others were served all the time.
    assert_eq!(run.connect().ask(STAT)["ok"], true);
    let bytes = lowtide_config::proc::anonymous(run.pid);
    assert!((1..8 << 20).contains(&bytes), "lowtide holds {bytes} bytes");
    ends_well(&scene, run);
}

#[test]
fn a_hundred_clients_at_once_and_too_many() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let run = small(&scene);
    thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| {
                let mut client = run.connect();
                for _ in 0..3 {
                    assert_eq!(client.ask(STAT)["ok"], true);
                }
            });
        }
    });
    let mut idle: Vec<Client> = (0..256).map(|_| run.connect()).collect();
    // The last of them is served, so all are there.
    assert_eq!(idle.last_mut().expect("256").ask(STAT)["ok"], true);
    let mut one_more = run.connect();
    one_more.refused(1, &["256 clients"]);
    assert!(one_more.is_closed());
    scene.refused(&format!("stat {}", run.pid), 1, &["256 clients"]);
    drop(idle);
    let until = Instant::now() + Duration::from_secs(5);
    while !scene.ask(&format!("stat {}", run.pid)).status.success() {
        assert!(Instant::now() < until, "there is room again");
    }
    ends_well(&scene, run);
}

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
    std::fs::copy(LOWTIDE, &copy).expect("copied");
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
    std::fs::copy(LOWTIDE, &copy).expect("copied");
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
