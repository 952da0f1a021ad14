//! A server that stands alone.

use crate::live::{self, MIB, Run, Scene, area, number, program, turn, turn_alone, verifier};
use crate::servers::{Server, free_port};
use crate::{ends_right, ends_well, goes_on, is_stopped};
use rustix::process::{Pid, Signal};
use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::Duration;

#[test]
fn pages_go_to_a_server_and_come_back_and_nothing_is_left_there() {
    let Some(_turn) = turn_alone() else { return };
    let (scene, server) = (Scene::new(), Server::start(""));
    let spec = server.spec();
    let report = scene.path("report.html");
    let options = format!("--ram 48M --pool 4M --swap {spec} --report {}", report.display());
    let mut run = verifier(&scene, &options, "128 n");
    run.wait_until("pages are out", |run| number(&area(&scene, run, &spec), "used") > 64 * MIB);
    run.wait_until("pages come back", |run| number(&area(&scene, run, &spec), "read_bytes") > 64 * MIB);
    let stat = scene.stat(run.pid);
    // What is allowed where existing mappings grow (bench/README.md).
    assert!(number(&stat, "ram_peak") <= 48 * MIB * 105 / 100 + 16 * MIB, "{stat}");
    assert!(server.keys() > 16_000, "a page is a key");
    let client = server.ask("CLIENT LIST");
    assert!(client.lines().count() >= 2, "{client}");
    statistics_are_shown(&scene, &run, &spec);
    ends_well(&scene, run);
    let report = std::fs::read_to_string(report).expect("written");
    assert!(report.contains("<th>on servers</th>") && report.matches(&spec).count() >= 3, "{report}");
    assert_eq!(server.keys(), 0);
}

/// What passed on the wire is in all that shows statistics, and no less than the pages of which it consists.
#[track_caller]
fn statistics_are_shown(scene: &Scene, run: &Run, spec: &str) {
    let area = area(scene, run, spec);
    let remote = &area["remote"];
    let [written, read] = ["pages_written", "pages_read"].map(|key| number(remote, key));
    let [sent, received] = ["sent_bytes", "received_bytes"].map(|key| number(remote, key));
    let [p50, p99, max] = ["p50", "p99", "max"].map(|key| remote["read_latency_us"][key].as_f64().expect("a number"));
    assert!(written * 4096 >= 64 * MIB && read * 4096 >= 64 * MIB, "{area}");
    // The verifier's pages are noise, which does not become smaller.
    assert!(sent > written * 4096 && received > read * 4096 && sent < 2 * written * 4096, "{area}");
    assert!(p50 > 5.0 && p50 <= p99 && p99 <= max, "{area}");
    assert_eq!((number(remote, "reconnects"), number(remote, "failovers")), (0, 0), "{area}");
    let table = scene.done(&format!("stat {}", run.pid));
    assert!(table.contains("ON SERVERS") && table.lines().filter(|line| line.contains(spec)).count() == 2, "{table}");
    let metrics = scene.done(&format!("metrics {}", run.pid));
    let labels = format!("{{area=\"{spec}\",number=\"0\"}} ");
    let metric = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("lowtide_remote_{name}{labels}")));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse::<f64>().expect("a number")
    };
    assert!(metric("pages_written_total") >= written as f64 && metric("received_bytes_total") >= received as f64);
    assert!(metric("read_seconds_count") > 0.0 && metric("read_seconds_sum") > 0.0);
}

#[test]
fn an_area_on_a_server_is_turned_on_and_off_while_the_program_goes_on() {
    let Some(_turn) = turn() else { return };
    let (scene, server) = (Scene::new(), Server::start(""));
    let (spec, dir) = (server.spec(), scene.swap_dir("dir"));
    let mut run = verifier(&scene, &format!("--ram 48M --pool 4M --swap {dir}"), "96 n");
    let pid = run.pid;
    scene.done(&format!("swapon {pid} {spec},size=256M,prio=5"));
    scene.done(&format!("swapoff {pid} {dir}"));
    run.wait_until("pages are out", |run| number(&area(&scene, run, &spec), "used") > 32 * MIB);
    scene.refused(&format!("swapon {pid} {spec}"), 2, &[&spec, "given twice"]);
    scene.done(&format!("swapon {pid} {dir}"));
    let out = scene.done(&format!("swapoff {pid} {spec}"));
    assert!(out.contains("the area is off"), "{out}");
    assert!(number(&area(&scene, &run, &dir), "used") > 32 * MIB);
    run.wait_until("nothing is left there", |_| server.keys() == 0);
    ends_well(&scene, run);
}

#[test]
fn forked_children_read_what_their_parents_wrote_even_when_these_are_gone() {
    let Some(_turn) = turn() else { return };
    let (scene, server) = (Scene::new(), Server::start(""));
    let spec = server.spec();
    for (name, arguments) in [("forks", "orphan 80"), ("forks", "nested 64")] {
        let run = scene.start(&format!("--quiet --ram 48M --pool 4M --swap {spec}"), &program(name), arguments);
        let (_, err) = run.finish();
        assert_eq!(err, "", "{name} {arguments}");
        assert!(server.ask("INFO commandstats").contains("cmdstat_get:"), "{name} {arguments}: pages came from the server");
        assert_eq!(server.keys(), 0, "{name} {arguments}");
    }
}

#[test]
fn servers_that_will_not_do_are_refused_before_the_program_starts() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let run = |spec: &str| format!("run --ram 64M --swap {spec} -- touch started");
    let free = free_port();
    scene.refused(&run(&format!("redis://127.0.0.1:{free}")), 2, &["no server listens there"]);
    scene.refused(&run("redis://no-such-host.invalid:6379"), 2, &["the host is not known"]);
    scene.refused(&run("redis://127.0.0.1:0"), 2, &["port"]);

    let evicting = Server::start("--maxmemory 64mb --maxmemory-policy allkeys-lru");
    scene.refused(&run(&evicting.spec()), 2, &[&evicting.spec(), "allkeys-lru", "maxmemory-policy noeviction"]);
    evicting.ask("CONFIG SET maxmemory-policy noeviction");
    scene.refused(&run(&format!("{},size=1G", evicting.spec())), 2, &["more than its maxmemory (64 MiB)"]);
    let twice = format!("{0} --swap {0}", evicting.spec());
    scene.refused(&run(&twice), 2, &["given twice"]);

    let closed = Server::start("--requirepass secret");
    scene.refused(&run(&closed.spec()), 2, &["LOWTIDE_REDIS_PASSWORD"]);
    let with = |password: &str| {
        let mut command = scene.lowtide();
        let words = format!("run --quiet --ram 64M --swap {} -- env", closed.spec());
        command.env("LOWTIDE_REDIS_PASSWORD", password).args(words.split(' ')).output().expect("lowtide starts")
    };
    let wrong = with("wrong");
    live::assert_refused(&wrong, "a wrong password", 2, &["does not let us in"]);
    assert!(!String::from_utf8_lossy(&wrong.stderr).contains("wrong:"), "{wrong:?}");
    let right = with("secret");
    let out = String::from_utf8_lossy(&right.stdout);
    assert!(right.status.success() && !out.contains("secret"), "the program does not learn the password: {out}");

    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = other.local_addr().expect("a port").port();
    thread::spawn(move || {
        use std::io::Write;
        while let Ok((mut stream, _)) = other.accept() {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    scene.refused(&run(&format!("redis://127.0.0.1:{port}")), 2, &["does not speak the protocol"]);
    assert!(!scene.path("started").exists());
}

#[test]
fn doctor_says_whether_a_server_will_do() {
    let Some(_turn) = turn() else { return };
    let (scene, server) = (Scene::new(), Server::start("--maxmemory 64mb --maxmemory-policy allkeys-lru"));
    let asked = || {
        let output = scene.ask(&format!("doctor {}", server.spec()));
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, out) = asked();
    assert!(code == Some(1) && out.contains("NO   server") && out.contains("noeviction"), "{out}");
    server.ask("CONFIG SET maxmemory-policy noeviction");
    let (code, out) = asked();
    assert!(code == Some(0) && out.contains("maxmemory 64 MiB") && out.contains("ok   a page"), "{out}");
    assert_eq!(server.keys(), 0);
    scene.refused("doctor h:1", 2, &["redis://HOST:PORT"]);
}

#[test]
fn a_server_whose_memory_is_full_is_a_full_area() {
    let Some(_turn) = turn() else { return };
    let (scene, server) = (Scene::new(), Server::start("--maxmemory 24mb"));
    let (spec, dir) = (server.spec(), scene.swap_dir("dir"));
    let options = format!("--ram 48M --pool 4M --swap {spec},size=24M,prio=5 --swap {dir}");
    let mut run = scene.start(&format!("--quiet {options}"), &program("verifies"), "96 n");
    run.wait_until("the memory is filled", |_| scene.path("ready").exists());
    run.wait_until("the next area is used", |run| number(&area(&scene, run, &dir), "used") > 16 * MIB);
    let remote = area(&scene, &run, &spec);
    assert!(number(&remote, "used") > 8 * MIB && number(&remote, "used") <= 24 * MIB, "{remote}");
    scene.wake();
    let (out, err) = run.finish();
    assert_eq!(out, "OK\n");
    assert!(err.is_empty() || err.contains("its memory is full (maxmemory)"), "{err}");
    assert_eq!(server.keys(), 0);
}

/// While the run goes on, and over the same connections.
#[test]
fn a_server_that_is_told_to_throw_pages_away_gets_no_more() {
    let Some(_turn) = turn() else { return };
    let (scene, server) = (Scene::new(), Server::start("--maxmemory 512mb"));
    let (spec, dir) = (server.spec(), scene.swap_dir("dir"));
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec},prio=5 --swap {dir}"), "64 n");
    server.ask("CONFIG SET maxmemory-policy allkeys-lru");
    run.wait_until("pages go elsewhere", |run| number(&area(&scene, run, &dir), "used") > 8 * MIB);
    server.ask("CONFIG RESETSTAT");
    goes_on(&scene, &mut run, &spec);
    let stats = server.ask("INFO commandstats");
    assert!(stats.contains("cmdstat_get:") && !stats.contains("cmdstat_set:"), "{stats}");
    ends_right(&scene, run);
}

#[test]
fn a_server_that_hangs_for_a_moment_is_waited_for() {
    let Some(_turn) = turn() else { return };
    let (scene, server) = (Scene::new(), Server::start(""));
    let spec = server.spec();
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec}"), "64 n");
    server.signal(Signal::STOP);
    thread::sleep(Duration::from_secs(3));
    server.signal(Signal::CONT);
    goes_on(&scene, &mut run, &spec);
    ends_right(&scene, run);
    assert_eq!(server.keys(), 0);
}

/// As when its password or its rights are changed.
#[test]
fn a_server_that_refuses_for_a_moment_is_waited_for() {
    let Some(_turn) = turn() else { return };
    let (scene, server) = (Scene::new(), Server::start(""));
    let spec = server.spec();
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec}"), "64 n");
    assert_eq!(server.ask("ACL SETUSER default -get").trim(), "OK");
    thread::sleep(Duration::from_secs(2));
    assert_eq!(server.ask("ACL SETUSER default +get").trim(), "OK");
    assert!(server.ask("INFO errorstats").contains("NOPERM"), "a page was asked for meanwhile");
    goes_on(&scene, &mut run, &spec);
    ends_well(&scene, run);
}

/// Pages wait for `lowtide run`, which has the connections.
#[test]
fn a_run_whose_lowtide_is_stopped_goes_on_when_it_is_continued() {
    let Some(_turn) = turn() else { return };
    let (scene, server) = (Scene::new(), Server::start(""));
    let spec = server.spec();
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec}"), "64 n");
    let lowtide = Pid::from_raw(run.pid as i32).expect("a pid");
    rustix::process::kill_process(lowtide, Signal::STOP).expect("sent");
    thread::sleep(Duration::from_secs(1));
    rustix::process::kill_process(lowtide, Signal::CONT).expect("sent");
    goes_on(&scene, &mut run, &spec);
    ends_well(&scene, run);
}

#[test]
fn a_server_that_is_gone_ends_the_run() {
    let Some(_turn) = turn() else { return };
    let (scene, mut server) = (Scene::new(), Server::start(""));
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {},timeout=2s", server.spec()), "64 n");
    server.kill();
    is_stopped(&mut run, &["the server did not answer in time", &server.spec()]);
}

#[test]
fn a_server_that_comes_back_without_its_data_is_found_out() {
    let Some(_turn) = turn() else { return };
    let (scene, mut server) = (Scene::new(), Server::start(""));
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {}", server.spec()), "64 n");
    server.start_again();
    is_stopped(&mut run, &["the server has lost it", &server.spec()]);
}

#[test]
fn a_server_that_comes_back_with_its_data_goes_on() {
    let Some(_turn) = turn() else { return };
    let (scene, mut server) = (Scene::new(), Server::start("--appendonly yes --appendfsync always"));
    let spec = server.spec();
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec}"), "64 n");
    server.start_again();
    goes_on(&scene, &mut run, &spec);
    ends_right(&scene, run);
}

/// Changes a page on the server as a Lua script says, once pages are out; the run must find it.
#[track_caller]
fn is_found(script: &str, words: &[&str]) {
    let (scene, server) = (Scene::new(), Server::start(""));
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {}", server.spec()), "64 n");
    let mut command = Command::new("redis-cli");
    let changed = command.args(["-p", &server.port.to_string(), "EVAL", script, "0"]).output().expect("redis-cli");
    let changed = String::from_utf8_lossy(&changed.stdout).trim().to_owned();
    assert!(changed.parse::<u64>().is_ok_and(|n| n > 1000), "{changed}");
    is_stopped(&mut run, words);
}

#[test]
fn a_page_that_was_changed_there_is_found_out() {
    let Some(_turn) = turn() else { return };
    let script = "local n = 0 for _, key in ipairs(redis.call('KEYS', 'lowtide:*:1:*')) do \
                  local last = redis.call('STRLEN', key) - 1 \
                  redis.call('SETBIT', key, last * 8, 1 - redis.call('GETBIT', key, last * 8)) n = n + 1 end return n";
    is_found(script, &["something else than was written there"]);
}

#[test]
fn the_page_of_another_slot_is_found_out() {
    let Some(_turn) = turn() else { return };
    let script = "local n, one = 0, nil for _, key in ipairs(redis.call('KEYS', 'lowtide:*:1:*')) do \
                  one = one or redis.call('GET', key) redis.call('SET', key, one) n = n + 1 end return n";
    is_found(script, &["something else than was written there"]);
}

/// What a failover does that loses acknowledged writes: the server has what it had a while ago.
#[test]
fn an_older_page_is_found_out() {
    let Some(_turn) = turn() else { return };
    let (scene, mut server) = (Scene::new(), Server::start(""));
    let spec = server.spec();
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec}"), "64 n");
    assert!(server.ask("SAVE").contains("OK"));
    let writes = |run: &Run| number(&area(&scene, run, &spec), "write_bytes");
    let before = writes(&run);
    run.wait_until("most is written anew", |run| writes(run) > before + 64 * MIB);
    server.start_again();
    is_stopped(&mut run, &["could not be read back"]);
}

#[test]
fn what_a_killed_run_has_left_is_removed_when_its_lease_is_over() {
    let Some(_turn) = turn() else { return };
    let (scene, server) = (Scene::new(), Server::start(""));
    let spec = server.spec();
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec}"), "64 n");
    run.kill();
    assert!(server.keys() > 1000);
    assert_eq!(scene.done(&format!("remote clean {spec}")), "0 keys of 0 runs that are gone were removed\n");
    let name = server.ask("SMEMBERS lowtide:{runs}");
    let lease = format!("lowtide:{{runs}}:{name}");
    let seconds: i64 = server.ask(&format!("TTL {lease}")).parse().expect("a number");
    assert!((1..=600).contains(&seconds), "{seconds}");
    assert_eq!(server.ask(&format!("DEL {lease}")), "1");
    server.ask("SET lowtide:other 1");
    let out = scene.done(&format!("remote clean {spec}"));
    assert!(out.ends_with("keys of 1 runs that are gone were removed\n"), "{out}");
    assert_eq!((server.keys(), server.ask("GET lowtide:other").as_str()), (1, "1"), "what is not a run's stays");
    scene.refused("remote clean h:1", 2, &["redis://HOST:PORT"]);
}
