//! Two copies of each page, on a cluster without replicas.

use crate::live::{MIB, Run, Scene, area, ends_well, number, turn, verifier};
use crate::servers::{Cluster, PRIMARIES, Server};
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// A run whose pages are in the cluster, twice, and do not change: it waits for [`Scene::wake`], and then looks at all of them.
/// What it writes out then, and can't be there twice, goes elsewhere.
fn sleeper(scene: &Scene, cluster: &Cluster) -> Run {
    let (spec, stats, dir) = (cluster.spec(), scene.path("stats.json"), scene.swap_dir("dir"));
    let options = format!("--quiet --ram 40M --pool 4M --stats {} --swap {spec},copies=2,prio=5 --swap {dir}", stats.display());
    let mut run = scene.sleeper(&options, 96, "n");
    run.wait_until("pages are out", |run| number(&area(scene, run, &spec), "used") > 32 * MIB);
    run.wait_until("nothing more is written", |run| {
        let used = |run: &Run| number(&area(scene, run, &spec), "used");
        let before = used(run);
        thread::sleep(Duration::from_millis(500));
        used(run) == before
    });
    let area = area(scene, &run, &spec);
    let (pages, keys) = (number(&area, "used") / 4096, cluster.keys());
    let sum: u64 = keys.iter().sum();
    assert!(sum >= 2 * pages && sum < 2 * pages + 1000, "{keys:?}: each of {pages} is there twice");
    assert!(keys.iter().all(|n| n * 10 > sum), "{keys:?}: on all nodes");
    run
}

/// All pages come back as they were; what the statistics say of the area.
#[track_caller]
fn all_is_right(scene: &Scene, run: Run) -> Value {
    scene.wake();
    let (out, err) = run.finish();
    assert!(out.starts_with("OK"), "{out}{err}");
    let stats = std::fs::read_to_string(scene.path("stats.json")).expect("written");
    let stats: Value = serde_json::from_str(&stats).expect("JSON");
    stats["areas"][0]["remote"].clone()
}

#[test]
fn the_loss_of_any_one_node_loses_nothing() {
    let Some(_turn) = turn() else { return };
    for lost in 0..PRIMARIES {
        let (scene, mut cluster) = (Scene::new(), Cluster::without_replicas(PRIMARIES));
        let run = sleeper(&scene, &cluster);
        cluster.nodes[lost].kill();
        let remote = all_is_right(&scene, run);
        // A third of the first copies were there, and none was missing where a node answered.
        assert!(number(&remote, "second_copies_read") * 4096 > 8 * MIB, "{remote}");
        assert_eq!((number(&remote, "copies_missing"), number(&remote, "failovers")), (0, 0), "{remote}");
    }
}

#[test]
fn copies_that_are_lost_or_wrong_are_replaced_by_the_others() {
    let Some(_turn) = turn() else { return };
    let (scene, cluster) = (Scene::new(), Cluster::without_replicas(PRIMARIES));
    let run = sleeper(&scene, &cluster);
    let pages = |node: &Server| node.ask("--scan --pattern lowtide:{????????????????:*").lines().map(str::to_owned).collect();
    let keys: Vec<String> = pages(&cluster.nodes[0]);
    let is_first = |key: &&String| key.split('}').next().is_some_and(|tag| tag.matches(':').count() == 3);
    let firsts: Vec<&String> = keys.iter().filter(is_first).collect();
    assert!(firsts.len() > 500 && firsts.len() < keys.len(), "{} of {}", firsts.len(), keys.len());
    for key in &firsts[..200] {
        assert_eq!(cluster.nodes[0].ask(&format!("SET {key} garbage")), "OK");
    }
    for key in &firsts[200..500] {
        assert_eq!(cluster.nodes[0].ask(&format!("DEL {key}")), "1");
    }
    let remote = all_is_right(&scene, run);
    assert!(number(&remote, "copies_missing") >= 500, "{remote}");
    assert_eq!(cluster.keys(), [0; PRIMARIES]);
}

/// A replica takes its primary's place that had not got all writes.
#[test]
fn what_a_failover_forgets_another_node_has() {
    let Some(_turn) = turn() else { return };
    let (scene, mut cluster) = (Scene::new(), Cluster::start(""));
    let (spec, dir) = (cluster.spec(), scene.swap_dir("dir"));
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec},copies=2,prio=5 --swap {dir}"), "64 n");
    cluster.nodes[PRIMARIES].signal(Signal::STOP);
    let writes = |run: &Run| number(&area(&scene, run, &spec), "write_bytes");
    let before = writes(&run);
    run.wait_until("much is written anew", |run| writes(run) > before + 48 * MIB);
    cluster.nodes[0].kill();
    cluster.nodes[PRIMARIES].signal(Signal::CONT);
    run.wait_until("it has taken the place", |_| cluster.nodes[PRIMARIES].ask("ROLE").contains("master"));
    run.wait_until("second copies are read", |run| number(&area(&scene, run, &spec)["remote"], "copies_missing") > 100);
    scene.wake();
    let (out, err) = run.finish();
    assert_eq!(out, "OK\n", "{err}");
    assert_eq!(cluster.keys(), [0; PRIMARIES]);
}

#[test]
fn copies_are_freed_with_their_pages_and_those_together_are_counted() {
    let Some(_turn) = turn() else { return };
    let (scene, cluster) = (Scene::new(), Cluster::without_replicas(PRIMARIES));
    let spec = cluster.spec();
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec},copies=2"), "64 n");
    let remote = |run: &Run, key: &str| number(&area(&scene, run, &spec)["remote"], key);
    run.wait_until("pages come back", |run| remote(run, "pages_read") > 5000);
    assert_eq!((remote(&run, "copies_together"), remote(&run, "second_copies_read")), (0, 0));
    for slot in cluster.slots_of_pages(0) {
        cluster.begin_to_move(slot, 0, 1, 100);
        cluster.end_to_move(slot, 0, 1);
    }
    run.wait_until("some are written anew", |run| remote(run, "copies_together") > 100);
    ends_well(&scene, run);
    assert_eq!(cluster.keys().iter().sum::<u64>(), 0);
}

#[test]
fn two_copies_need_two_nodes() {
    let Some(_turn) = turn() else { return };
    let (scene, server, one) = (Scene::new(), Server::start(""), Cluster::without_replicas(1));
    let run = |spec: &str| format!("run --ram 64M --swap {spec},copies=2 -- touch started");
    scene.refused(&run(&server.spec()), 2, &["copies=2", "it is no cluster"]);
    scene.refused(&run(&one.spec()), 2, &["copies=2", "a cluster with one primary"]);
    assert!(!scene.path("started").exists());
    let three = Cluster::without_replicas(PRIMARIES);
    three.nodes[0].ask("CONFIG SET cluster-require-full-coverage yes");
    let run = scene.start(&format!("--ram 64M --swap {},copies=2", three.spec()), Path::new("true"), "");
    let (_, err) = run.finish();
    assert!(err.contains("cluster-require-full-coverage no"), "{err}");
}
