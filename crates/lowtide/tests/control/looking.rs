//! What a run says of itself: `ps`, `stat`, `watch`.

use crate::live::{MIB, Scene, turn};
use crate::{ends_well, listed, number, small};
use serde_json::Value;
use std::path::Path;
use std::thread;
use std::time::Duration;

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
