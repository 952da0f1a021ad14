//! What the processes of a run do when it is changed while they go on: pages move, and every byte stays right.

mod live;

use live::{MIB, Run, Scene, program, turn};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no {key}: {value}"))
}

/// A run of the program that checks its memory all the time.
fn verifier(scene: &Scene, options: &str, arguments: &str) -> Run {
    let mut run = scene.start(&format!("--quiet {options}"), &program("verifies"), arguments);
    run.wait_until("the memory is filled", |_| scene.path("ready").exists());
    run
}

/// Every byte was right, and nobody complained.
#[track_caller]
fn ends_well(scene: &Scene, run: Run) {
    scene.wake();
    let (out, err) = run.finish();
    assert_eq!((out.as_str(), err.as_str()), ("OK\n", ""));
}

/// A number of an area, by its SPEC.
#[track_caller]
fn area(scene: &Scene, run: &Run, spec: &str) -> Value {
    let stat = scene.stat(run.pid);
    let areas = stat["areas"].as_array().expect("a list");
    areas.iter().find(|area| area["spec"] == spec).unwrap_or_else(|| panic!("no {spec}: {stat}")).clone()
}

#[test]
fn an_area_is_emptied_into_another_one() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let (first, second) = (scene.swap_dir("first"), scene.swap_file("second", 256 * MIB));
    let mut run = verifier(&scene, &format!("--ram 48M --pool 4M --swap {first}"), "96 n");
    run.wait_until("pages are out", |run| number(&area(&scene, run, &first), "used") > 32 * MIB);
    let pid = run.pid;
    for (from, to) in [(&first, &second), (&second, &first), (&first, &second)] {
        scene.done(&format!("swapon {pid} {to}"));
        let out = scene.done(&format!("swapoff {pid} {from}"));
        assert!(out.contains("the area is off"), "{out}");
        let (gone, now) = (area(&scene, &run, from), area(&scene, &run, to));
        assert!(gone["state"] == "off" && number(&gone, "used") == 0, "{gone}");
        assert!(number(&now, "used") > 24 * MIB && number(&now, "writes") > 0, "{now}");
    }
    // It is nobody's now.
    let other = Scene::new();
    other.done(&format!("run --ram 64M --quiet --swap {first} -- true"));
    ends_well(&scene, run);
}

#[test]
fn pages_come_in_where_the_limit_allows() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let dir = scene.swap_dir("dir");
    let run = verifier(&scene, &format!("--ram 48M --pool 4M --swap {dir}"), "96 n");
    let pid = run.pid;
    scene.refused(&format!("swapoff {pid} {dir}"), 2, &["are missing"]);
    scene.done(&format!("limit {pid} 192M"));
    let now = number(&scene.stat(pid), "ram_now");
    assert!(now < 100 * MIB, "nothing is brought in by force: {now}");
    scene.done(&format!("swapoff {pid} {dir}"));
    let stat = scene.stat(pid);
    assert!(number(&stat, "ram_now") > 90 * MIB && number(&stat["pages"], "on_device") == 0, "{stat}");
    ends_well(&scene, run);
}

#[test]
fn a_lower_limit_holds_soon() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let run = verifier(&scene, "--ram 256M", "128 t");
    for limit in [96u64, 200, 64, 48] {
        let out = scene.done(&format!("limit {} {limit}M", run.pid));
        assert!(!out.contains("the rest"), "{out}");
        thread::sleep(Duration::from_millis(300));
        let now = number(&scene.stat(run.pid), "ram_now");
        assert!(now <= limit * MIB + limit * MIB / 50 + 4 * MIB, "{limit} MiB: {now}");
    }
    ends_well(&scene, run);
}

#[test]
fn a_limit_below_what_is_fixed_is_refused() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    // Adopted, so that somebody can say it.
    let run = verifier(&scene, "--ram 80M", "64 t 40");
    scene.refused(&format!("limit {} 32M", run.pid), 2, &["limit 32M", "MiB can't be moved out", "lower than that"]);
    assert_eq!(number(&scene.stat(run.pid), "ram_limit"), 80 * MIB);
    scene.done(&format!("limit {} 72M", run.pid));
    ends_well(&scene, run);
}

#[test]
fn reclaim_moves_out_what_is_asked() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    // Nothing is adopted yet.
    let mut run = scene.sleeper("--ram 256M --quiet", 96, "t");
    run.wait_until("it is counted", |run| number(&scene.stat(run.pid), "ram_now") > 96 * MIB);
    let before = number(&scene.stat(run.pid), "ram_now");
    let out = scene.done(&format!("reclaim {} 48M", run.pid));
    assert!(out.contains("moved out"), "{out}");
    let now = number(&scene.stat(run.pid), "ram_now");
    assert!(now < before - 20 * MIB, "{before} -> {now}: {out}");
    scene.done(&format!("reclaim {} 16M", run.pid));
    assert!(number(&scene.stat(run.pid), "ram_now") < now);
    scene.wake();
    assert!(run.finish().0.starts_with("OK"));
}

fn begin_swapoff(scene: &Scene, run: &Run, spec: &str) -> Child {
    let mut command = scene.lowtide();
    command.args(["swapoff", &run.pid.to_string(), spec]).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("lowtide starts")
}

fn signal(pid: u32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid as i32).expect("a pid"), signal).expect("sent");
}

/// A stopped program can't help: it is named, and ^C leaves the area in use.
#[test]
fn who_is_waited_for_is_named_and_it_can_be_cancelled() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let (first, second) = (scene.swap_dir("first"), scene.swap_dir("second"));
    let run = verifier(&scene, &format!("--ram 48M --pool 4M --swap {first} --swap {second}"), "96 n");
    let process = run.processes(&scene)[0];
    signal(process, Signal::STOP);
    let mut client = run.connect();
    client.send(format!("{{\"lowtide\":1,\"do\":\"swapoff\",\"spec\":\"{first}\"}}\n"));
    loop {
        let progress = client.line().expect("progress")["progress"].clone();
        assert!(number(&progress, "total_bytes") >= number(&progress, "left_bytes"), "{progress}");
        if progress["waiting_for"][0] == process {
            break;
        }
    }
    assert_eq!(area(&scene, &run, &first)["state"], "emptying");
    scene.refused(&format!("swapoff {} {first}", run.pid), 2, &["already"]);
    // Who goes away cancels.
    drop(client);
    thread::sleep(Duration::from_millis(200));
    assert_ne!(area(&scene, &run, &first)["state"], "emptying");
    // So does ^C.
    let swapoff = begin_swapoff(&scene, &run, &first);
    thread::sleep(Duration::from_millis(500));
    signal(swapoff.id(), Signal::INT);
    let output = swapoff.wait_with_output().expect("waited for");
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{line}");
    assert!(line.contains("cancelled") && line.contains("the area stays in use"), "{line}");
    signal(process, Signal::CONT);
    assert_eq!(area(&scene, &run, &first)["state"], "active");
    scene.done(&format!("swapoff {} {first}", run.pid));
    ends_well(&scene, run);
}

#[test]
fn everything_changes_again_and_again_and_every_byte_stays_right() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let (dir, file) = (scene.swap_dir("dir"), scene.swap_file("file", 256 * MIB));
    let run = verifier(&scene, &format!("--ram 64M --pool 8M --swap {dir}"), "96 tn");
    let pid = run.pid;
    for round in 0..12u64 {
        let (on, off) = if round % 2 == 0 { (&file, &dir) } else { (&dir, &file) };
        scene.done(&format!("swapon {pid} {on}"));
        if round % 3 == 0 {
            let swapoff = begin_swapoff(&scene, &run, off);
            thread::sleep(Duration::from_millis(5 + 10 * round));
            signal(swapoff.id(), Signal::INT);
            let output = swapoff.wait_with_output().expect("waited for");
            // It may have been done before.
            let code = output.status.code();
            assert!(matches!(code, Some(0 | 130)), "{code:?}: {}", String::from_utf8_lossy(&output.stderr));
            if code == Some(0) {
                continue;
            }
        }
        scene.done(&format!("limit {pid} {}M", 32 + 16 * (round % 5)));
        scene.done(&format!("reclaim {pid} 4M"));
        scene.done(&format!("swapoff {pid} {off}"));
    }
    let stat = scene.stat(pid);
    let on = stat["areas"].as_array().expect("a list").iter().filter(|area| area["state"] != "off").count();
    assert_eq!(on, 1, "{stat}");
    ends_well(&scene, run);
}
