//! What can be changed of a run, and what is refused.

use crate::live::{MIB, Scene, turn};
use crate::{ends_well, number, small};
use serde_json::Value;
use std::os::unix::fs::FileExt;

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
        ("swapon {} nbd:localhost", &["unknown kind", "dir:DIR"]),
        ("swapon {} redis://127.0.0.1:1", &["no server listens there"]),
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
