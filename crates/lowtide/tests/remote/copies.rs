//! Two copies of each page, on a cluster without replicas.

use crate::cluster::fails_over_with_a_loss;
use crate::live::{MIB, Run, Scene, area, number, program, turn, verifier};
use crate::servers::{Cluster, PRIMARIES, Server};
use crate::{ends_right, ends_well};
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

/// The keys of the first copies that a node has, and those of the second ones.
fn copies_on(node: &Server) -> [Vec<String>; 2] {
    let keys = node.ask("--scan --pattern lowtide:{????????????????:*");
    let is_first = |key: &String| key.split('}').next().is_some_and(|tag| tag.matches(':').count() == 3);
    let (firsts, seconds) = keys.lines().map(str::to_owned).partition(is_first);
    [firsts, seconds]
}

/// All pages come back as they were; what the statistics say of the area, and what else was said.
#[track_caller]
fn ends_with_statistics(scene: &Scene, run: Run) -> (Value, String) {
    let err = ends_right(scene, run);
    let stats = std::fs::read_to_string(scene.path("stats.json")).expect("written");
    let stats: Value = serde_json::from_str(&stats).expect("JSON");
    (stats["areas"][0]["remote"].clone(), err)
}

/// Copies that were lost, and those that were wrong.
fn harmed(remote: &Value) -> (u64, u64) {
    (number(remote, "copies_lost"), number(remote, "copies_wrong"))
}

#[test]
fn the_loss_of_any_one_node_loses_nothing() {
    let Some(_turn) = turn() else { return };
    for lost in 0..PRIMARIES {
        let (scene, mut cluster) = (Scene::new(), Cluster::without_replicas(PRIMARIES));
        let run = sleeper(&scene, &cluster);
        cluster.nodes[lost].kill();
        let (remote, err) = ends_with_statistics(&scene, run);
        // A third of the first copies were there, and none was missing where a node answered.
        assert!(number(&remote, "second_copies_read") * 4096 > 8 * MIB, "{remote}");
        assert_eq!((harmed(&remote), number(&remote, "failovers")), ((0, 0), 0), "{remote}");
        assert!(!err.contains("a copy of a page"), "{err}");
    }
}

#[test]
fn copies_that_are_lost_or_wrong_are_replaced_by_the_others() {
    let Some(_turn) = turn() else { return };
    let (scene, cluster) = (Scene::new(), Cluster::without_replicas(PRIMARIES));
    let run = sleeper(&scene, &cluster);
    let [firsts, seconds] = copies_on(&cluster.nodes[0]);
    assert!(firsts.len() > 500 && seconds.len() > 500, "{} {}", firsts.len(), seconds.len());
    // Of lengths that pages can't have; and most of one that they have: only who has the keys finds these out.
    let odd = ["garbage".to_owned(), "x".repeat(4000), "x".repeat(5000), "''".to_owned()];
    let wrong = odd.iter().cycle().take(20).cloned().chain(std::iter::repeat_n("x".repeat(4096), 280));
    for (key, wrong) in firsts.iter().zip(wrong) {
        assert_eq!(cluster.nodes[0].ask(&format!("SET {key} {wrong}")), "OK");
    }
    for key in &firsts[300..500] {
        assert_eq!(cluster.nodes[0].ask(&format!("DEL {key}")), "1");
    }
    let (remote, err) = ends_with_statistics(&scene, run);
    let (lost, wrong) = harmed(&remote);
    assert!(lost >= 200 && wrong >= 300 && number(&remote, "second_copies_read") >= lost + wrong, "{remote}");
    // Once each, and with the node.
    let node = format!("warning: {}: {} has ", cluster.spec(), cluster.nodes[0].address());
    let lines: Vec<&str> = err.lines().filter(|line| line.contains("a copy of a page")).collect();
    let says = |words: &str| lines.iter().any(|line| line.contains(&node) && line.contains(words));
    assert!(lines.len() == 2 && says("has lost") && says("is not what was written there"), "{err}");
    assert_eq!(cluster.keys(), [0; PRIMARIES]);
}

/// A replica takes its primary's place that had not got all writes.
#[test]
fn what_a_failover_forgets_another_node_has() {
    let Some(_turn) = turn() else { return };
    let (scene, mut cluster) = (Scene::new(), Cluster::start(""));
    let (spec, dir) = (cluster.spec(), scene.swap_dir("dir"));
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec},copies=2,prio=5 --swap {dir}"), "64 n");
    fails_over_with_a_loss(&scene, &mut run, &mut cluster);
    run.wait_until("other copies are read", |run| {
        let (lost, wrong) = harmed(&area(&scene, run, &spec)["remote"]);
        lost + wrong > 100
    });
    ends_right(&scene, run);
    assert_eq!(cluster.keys(), [0; PRIMARIES]);
}

/// The right copy is waited for, although another one is there.
#[test]
fn a_wrong_copy_is_not_taken_for_the_last_one_while_a_node_hangs() {
    let Some(_turn) = turn() else { return };
    let (scene, cluster) = (Scene::new(), Cluster::without_replicas(PRIMARIES));
    let run = sleeper(&scene, &cluster);
    for node in &cluster.nodes[1..] {
        let [_, seconds] = copies_on(node);
        assert!(seconds.len() > 500, "{}", seconds.len());
        for key in &seconds[..300] {
            assert_eq!(node.ask(&format!("SET {key} garbage")), "OK");
        }
    }
    cluster.nodes[0].signal(Signal::STOP);
    scene.wake();
    thread::sleep(Duration::from_secs(6));
    cluster.nodes[0].signal(Signal::CONT);
    let (remote, err) = ends_with_statistics(&scene, run);
    // It was asked for other copies than those that came, and these are the ones that are wrong.
    assert!(number(&remote, "second_copies_read") > 0 && harmed(&remote).1 > 0, "{remote}");
    let wrong = err.lines().filter(|line| line.contains("is not what was written there"));
    let right = format!(": {} has ", cluster.nodes[0].address());
    assert!(wrong.clone().count() > 0 && wrong.clone().all(|line| !line.contains(&right)), "{err}");
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
fn an_area_with_two_copies_is_turned_on_and_off_while_a_node_is_lost() {
    let Some(_turn) = turn() else { return };
    let (scene, mut cluster) = (Scene::new(), Cluster::without_replicas(PRIMARIES));
    let (spec, dir) = (cluster.spec(), scene.swap_dir("dir"));
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {dir}"), "64 n");
    scene.done(&format!("swapon {} {spec},copies=2,prio=5", run.pid));
    run.wait_until("pages are there", |run| number(&area(&scene, run, &spec), "used") > 16 * MIB);
    // While it writes.
    cluster.nodes[2].kill();
    run.wait_until("second copies are read", |run| number(&area(&scene, run, &spec)["remote"], "second_copies_read") > 500);
    let out = scene.done(&format!("swapoff {} {spec}", run.pid));
    assert!(out.contains("the area is off"), "{out}");
    ends_right(&scene, run);
}

/// Their pages are removed from the nodes that are there, however many they are.
#[test]
fn processes_that_end_while_a_node_is_away_leave_nothing_on_the_others() {
    let Some(_turn) = turn() else { return };
    let (scene, mut cluster) = (Scene::new(), Cluster::without_replicas(PRIMARIES));
    let (spec, dir) = (cluster.spec(), scene.swap_dir("dir"));
    let mut command = scene.lowtide();
    let options = format!("run --quiet --ram 40M --pool 4M --swap {spec},copies=2,prio=5 --swap {dir} -- /bin/sh -c");
    let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do \"$0\" 56 n || exit 1; done; \
                  echo > all; while [ ! -e end ]; do sleep 0.1; done";
    command.args(options.split(' ')).arg(script).arg(program("sleeps"));
    scene.wake();
    let mut run = scene.started(command).listens();
    run.wait_until("pages are out", |run| number(&area(&scene, run, &spec), "write_bytes") > 8 * MIB);
    cluster.nodes[1].kill();
    run.wait_until("all have ended", |_| scene.path("all").exists());
    let left = |cluster: &Cluster| cluster.nodes[0].keys() + cluster.nodes[2].keys();
    run.wait_until("their pages are removed", |_| left(&cluster) < 10);
    std::fs::write(scene.path("end"), "").expect("written");
    let (out, err) = run.finish();
    assert_eq!(out.matches("OK").count(), 14, "{out}{err}");
}

#[test]
fn a_run_whose_lease_is_lost_on_one_node_is_not_taken_for_dead() {
    let Some(_turn) = turn() else { return };
    let (scene, cluster) = (Scene::new(), Cluster::without_replicas(PRIMARIES));
    let spec = cluster.spec();
    let run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec},copies=2"), "64 n");
    let leases: Vec<String> =
        cluster.nodes.iter().map(|node| node.ask("--scan --pattern lowtide:{runs*:????????????????")).collect();
    let with_lease: Vec<usize> = (0..PRIMARIES).filter(|i| !leases[*i].is_empty()).collect();
    assert_eq!(with_lease.len(), 2, "{leases:?}");
    for node in with_lease {
        assert_eq!(cluster.nodes[node].ask(&format!("DEL {}", leases[node])), "1");
        assert_eq!(scene.done(&format!("remote clean {spec}")), "0 keys of 0 runs that are gone were removed\n");
        assert_eq!(cluster.nodes[node].ask(&format!("SET {} 1 EX 600", leases[node])), "OK");
    }
    ends_well(&scene, run);
    assert_eq!(cluster.keys(), [0; PRIMARIES]);
}

/// It goes on as far as the node may know that is away and has the other lease.
#[test]
fn clean_leaves_a_run_whose_other_lease_may_be_on_a_node_that_is_away() {
    let Some(_turn) = turn() else { return };
    let (scene, cluster) = (Scene::new(), Cluster::without_replicas(PRIMARIES));
    let spec = cluster.spec();
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec},copies=2"), "64 n");
    run.kill();
    let lease = |node: &Server, pattern: &str| node.ask(&format!("--scan --pattern {pattern}:????????????????"));
    let at = |pattern| (0..PRIMARIES).find(|i| !lease(&cluster.nodes[*i], pattern).is_empty()).expect("a lease");
    let (list, other) = (at("lowtide:{runs}"), at("lowtide:{runs:?}"));
    assert_ne!(list, other);
    let first = lease(&cluster.nodes[list], "lowtide:{runs}");
    assert_eq!(cluster.nodes[list].ask(&format!("DEL {first}")), "1");
    let before: u64 = cluster.nodes.iter().map(Server::keys).sum();
    cluster.nodes[other].signal(Signal::STOP);
    let output = scene.ask(&format!("remote clean {spec}"));
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert_eq!((output.status.code(), out.as_ref()), (Some(125), "0 keys of 0 runs that are gone were removed\n"), "{err}");
    assert!(err.contains(&cluster.nodes[other].address()) && err.contains("and of 1 runs all"), "{err}");
    cluster.nodes[other].signal(Signal::CONT);
    cluster.is_whole();
    assert_eq!(scene.done(&format!("remote clean {spec}")), "0 keys of 0 runs that are gone were removed\n");
    assert_eq!(cluster.nodes.iter().map(Server::keys).sum::<u64>(), before);
    let second = lease(&cluster.nodes[other], "lowtide:{runs:?}");
    assert_eq!(cluster.nodes[other].ask(&format!("DEL {second}")), "1");
    assert!(scene.done(&format!("remote clean {spec}")).ends_with("keys of 1 runs that are gone were removed\n"));
    assert_eq!(cluster.keys(), [0; PRIMARIES]);
}

/// Pages of which a copy would be there go elsewhere.
#[test]
fn a_node_whose_memory_is_full_makes_a_full_area() {
    let Some(_turn) = turn() else { return };
    let (scene, cluster) = (Scene::new(), Cluster::without_replicas(PRIMARIES));
    let (spec, dir) = (cluster.spec(), scene.swap_dir("dir"));
    assert_eq!(cluster.nodes[0].ask("CONFIG SET maxmemory 16mb"), "OK");
    let options = format!("--quiet --ram 40M --pool 4M --swap {spec},size=128M,copies=2,prio=5 --swap {dir}");
    let mut run = scene.start(&options, &program("verifies"), "96 n");
    run.wait_until("the memory is filled", |_| scene.path("ready").exists());
    run.wait_until("the next area is used", |run| number(&area(&scene, run, &dir), "used") > 16 * MIB);
    run.wait_until("pages come back", |run| number(&area(&scene, run, &spec)["remote"], "pages_read") > 2000);
    let errors = cluster.nodes.iter().map(|node| node.ask("INFO errorstats").contains("errorstat_OOM"));
    assert_eq!(errors.collect::<Vec<_>>(), [true, false, false]);
    let remote = area(&scene, &run, &spec)["remote"].clone();
    assert_eq!(harmed(&remote), (0, 0), "{remote}");
    let err = ends_right(&scene, run);
    assert!(!err.contains("a copy of a page"), "{err}");
    assert_eq!(cluster.keys(), [0; PRIMARIES]);
}

#[test]
fn doctor_tries_both_copies() {
    let Some(_turn) = turn() else { return };
    let (scene, cluster) = (Scene::new(), Cluster::without_replicas(PRIMARIES));
    let out = scene.done(&format!("doctor {},copies=2", cluster.spec()));
    assert!(out.contains("ok   two copies") && out.contains("all of them are on one machine"), "{out}");
    let addresses: Vec<String> = cluster.nodes.iter().map(Server::address).collect();
    for address in &addresses {
        let page = out.lines().find(|line| line.contains(&format!("ok   a page           {address} and "))).expect("tried");
        let other = page.split(" and ").nth(1).and_then(|rest| rest.split(": ").next()).expect("another");
        assert!(other != address && addresses.iter().any(|one| one == other), "{page}");
    }
    assert_eq!(cluster.keys(), [0; PRIMARIES]);
    cluster.nodes[0].ask("CONFIG SET cluster-require-full-coverage yes");
    assert!(scene.done(&format!("doctor {},copies=2", cluster.spec())).contains("cluster-require-full-coverage no"));
    let two = Cluster::without_replicas(2);
    let output = scene.ask(&format!("doctor {},copies=2", two.spec()));
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code() == Some(1) && out.contains("NO   two copies") && out.contains("three primaries"), "{out}");
    assert!(scene.done(&format!("doctor {}", two.spec())).contains("ok   a page"), "without");
}

#[test]
fn two_copies_need_three_nodes() {
    let Some(_turn) = turn() else { return };
    let (scene, server) = (Scene::new(), Server::start(""));
    let run = |spec: &str| format!("run --ram 64M --swap {spec},copies=2 -- touch started");
    scene.refused(&run(&server.spec()), 2, &["copies=2 takes three primaries", "it is no cluster"]);
    scene.refused(&run(&Cluster::without_replicas(2).spec()), 2, &["copies=2 takes three primaries", "a cluster (2)"]);
    assert!(!scene.path("started").exists());
    let three = Cluster::without_replicas(PRIMARIES);
    three.nodes[0].ask("CONFIG SET cluster-require-full-coverage yes");
    let run = scene.start(&format!("--ram 64M --swap {},copies=2", three.spec()), Path::new("true"), "");
    let (_, err) = run.finish();
    assert!(err.contains("cluster-require-full-coverage no"), "{err}");
}
