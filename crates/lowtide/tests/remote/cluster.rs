//! A cluster of six: three primaries, each with a replica.

use crate::live::{MIB, Run, Scene, area, number, program, turn, turn_alone, verifier};
use crate::servers::{Cluster, PRIMARIES, Server};
use crate::{ends_right, ends_well, goes_on, is_stopped};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::thread;
use std::time::{Duration, Instant};

/// A run whose pages are in the cluster and do not change: it waits for [`Scene::wake`], and then looks at all of them.
pub fn sleeper(scene: &Scene, cluster: &Cluster) -> Run {
    let spec = cluster.spec();
    let stats = scene.path("stats.json");
    let mut run = scene.sleeper(&format!("--quiet --stats {} --ram 40M --pool 4M --swap {spec}", stats.display()), 96, "n");
    run.wait_until("pages are out", |run| number(&area(scene, run, &spec), "used") > 32 * MIB);
    let keys = |cluster: &Cluster| cluster.keys().iter().sum::<u64>();
    let mut before = 0;
    cluster.wait_until("nothing more is written", |cluster| {
        let now = keys(cluster);
        thread::sleep(Duration::from_millis(500));
        let is_so = now == before;
        before = now;
        is_so
    });
    cluster.is_replicated();
    run
}

/// What a run that is over has said of its cluster.
#[track_caller]
pub fn statistics(scene: &Scene, cluster: &Cluster) -> Value {
    let stats = std::fs::read_to_string(scene.path("stats.json")).expect("written");
    let stats: Value = serde_json::from_str(&stats).expect("JSON");
    assert_eq!(stats["areas"][0]["spec"], cluster.spec());
    stats["areas"][0]["remote"].clone()
}

/// A primary dies, and a replica takes its place that has not got all that was written. The program does nothing meanwhile: from
/// other copies it would have read all before.
pub fn fails_over_with_a_loss(scene: &Scene, run: &mut Run, cluster: &mut Cluster) {
    cluster.nodes[PRIMARIES].signal(Signal::STOP);
    // The kernel would keep up to 36 MiB for it (tcp_rmem, tcp_wmem), which may be all.
    assert_eq!(cluster.nodes[0].ask("CLIENT KILL TYPE replica"), "1");
    let spec = cluster.spec();
    let writes = |run: &Run| number(&area(scene, run, &spec), "write_bytes");
    let before = writes(run);
    run.wait_until("much is written anew", |run| writes(run) > before + 48 * MIB);
    let program: Vec<Pid> = run.processes(scene).into_iter().filter_map(|pid| Pid::from_raw(pid as i32)).collect();
    let signal = |signal| program.iter().for_each(|pid| kill_process(*pid, signal).expect("it runs"));
    signal(Signal::STOP);
    cluster.nodes[0].kill();
    cluster.nodes[PRIMARIES].signal(Signal::CONT);
    run.wait_until("its replica has taken its place", |_| cluster.nodes[PRIMARIES].ask("ROLE").contains("master"));
    signal(Signal::CONT);
}

#[test]
fn pages_go_to_all_nodes_and_come_back_and_nothing_is_left_there() {
    let Some(_turn) = turn_alone() else { return };
    let (scene, cluster) = (Scene::new(), Cluster::start(""));
    let spec = cluster.spec();
    let mut run = verifier(&scene, &format!("--ram 48M --pool 4M --swap {spec}"), "128 n");
    run.wait_until("pages come back", |run| number(&area(&scene, run, &spec), "read_bytes") > 64 * MIB);
    let keys = cluster.keys();
    assert!(keys.len() == PRIMARIES && keys.iter().all(|keys| *keys > 1000), "{keys:?}");
    let stat = scene.stat(run.pid);
    // What is allowed where existing mappings grow (bench/README.md).
    assert!(number(&stat, "ram_peak") <= 48 * MIB * 105 / 100 + 16 * MIB, "{stat}");
    for node in &cluster.nodes[..PRIMARIES] {
        let errors = || node.ask("INFO errorstats");
        assert!(!errors().contains("MOVED") && !errors().contains("CROSSSLOT"), "to the right node at once: {}", errors());
        // It would say so.
        node.ask("MGET {a}x {b}x");
        (0..PRIMARIES).for_each(|i| _ = node.ask(&format!("GET {{{i}}}x")));
        assert!(errors().contains("MOVED") && errors().contains("CROSSSLOT"), "{}", errors());
    }
    ends_well(&scene, run);
    assert_eq!(cluster.keys(), [0; PRIMARIES]);
}

#[test]
fn a_cluster_that_will_not_do_is_refused_before_the_program_starts() {
    let Some(_turn) = turn() else { return };
    let (scene, cluster) = (Scene::new(), Cluster::start("--maxmemory 64mb"));
    let run = |spec: &str| format!("run --ram 64M --swap {spec} -- touch started");
    let place = |i: usize| format!("127.0.0.1:{}", cluster.nodes[i].port);
    scene.refused(&run(&format!("{}/1", cluster.spec())), 2, &["it has no database 1", "cluster mode"]);
    scene.refused(&run(&format!("{},size=1G", cluster.spec())), 2, &["more than its maxmemory (192 MiB)"]);
    for node in [2, 5] {
        cluster.nodes[node].ask("CONFIG SET maxmemory-policy allkeys-lru");
        scene.refused(&run(&cluster.spec()), 2, &[&place(node), "allkeys-lru", "noeviction"]);
        cluster.nodes[node].ask("CONFIG SET maxmemory-policy noeviction");
    }
    let alone = Server::start("");
    let two = format!("redis://127.0.0.1:{},{}", alone.port, place(0));
    scene.refused(&run(&two), 2, &["is no cluster"]);
    assert_eq!(cluster.nodes[1].ask("CLUSTER DELSLOTSRANGE 6000 6009"), "OK");
    scene.refused(&run(&format!("redis://{}", place(1))), 2, &["10 of its cluster's 16384 slots", "redis-cli --cluster check"]);
    assert!(!scene.path("started").exists());
}

#[test]
fn doctor_and_clean_see_all_nodes() {
    let Some(_turn) = turn() else { return };
    let (scene, cluster) = (Scene::new(), Cluster::start(""));
    let spec = cluster.spec();
    let out = scene.done(&format!("doctor {spec}"));
    assert!(out.contains("a cluster of 3 primaries and 3 replicas"), "{out}");
    for node in &cluster.nodes[..PRIMARIES] {
        assert!(out.contains(&format!("ok   a page           127.0.0.1:{}: written", node.port)), "{out}");
    }
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec}"), "64 n");
    run.kill();
    assert_eq!(scene.done(&format!("remote clean {spec}")), "0 keys of 0 runs that are gone were removed\n");
    assert!(cluster.keys().iter().all(|keys| *keys > 500), "{:?}", cluster.keys());
    let leases = |node: &Server| node.ask("--scan --pattern lowtide:{runs}:*");
    let (node, lease) =
        cluster.nodes[..PRIMARIES].iter().map(|node| (node, leases(node))).find(|(_, key)| !key.is_empty()).unwrap();
    // The list and the lease are lost with their node.
    assert_eq!(node.ask(&format!("DEL {lease} lowtide:{{runs}}")), "2");
    let out = scene.done(&format!("remote clean {spec}"));
    assert!(out.starts_with("0 keys of 0 runs") && out.contains("\n1 runs were not in the list"), "{out}");
    assert_eq!(node.ask(&format!("DEL {lease}")), "1");
    let out = scene.done(&format!("remote clean {spec}"));
    assert!(out.ends_with("keys of 1 runs that are gone were removed\n"), "{out}");
    assert_eq!(cluster.keys(), [0; PRIMARIES]);
}

/// A run that was killed, and the node that has its list and its lease, which is over.
fn killed_run(scene: &Scene, cluster: &Cluster) -> usize {
    let mut run = verifier(scene, &format!("--ram 40M --pool 4M --swap {}", cluster.spec()), "64 n");
    run.kill();
    let lease = |node: &Server| node.ask("--scan --pattern lowtide:{runs}:*");
    let list = cluster.nodes.iter().position(|node| !lease(node).is_empty()).expect("a lease");
    assert_eq!(cluster.nodes[list].ask(&format!("DEL {}", lease(&cluster.nodes[list]))), "1");
    list
}

/// `remote clean`, which must fail with these words; what it says of what it has done all the same.
#[track_caller]
fn cleans_in_part(scene: &Scene, spec: &str, words: &[&str]) -> String {
    let output = scene.ask(&format!("remote clean {spec}"));
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.code() == Some(125) && err.matches('\n').count() == 1, "{out}{err}");
    assert!(words.iter().all(|word| err.contains(word)), "{words:?}: {err}");
    out
}

#[test]
fn clean_leaves_what_a_node_has_that_is_away_and_says_so() {
    let Some(_turn) = turn() else { return };
    let (scene, cluster) = (Scene::new(), Cluster::without_replicas(PRIMARIES));
    let (spec, list) = (cluster.spec(), killed_run(&scene, &cluster));
    let [away, other] = [(list + 1) % PRIMARIES, (list + 2) % PRIMARIES].map(|i| &cluster.nodes[i]);
    let kept = away.keys();
    assert!(kept > 500 && other.keys() > 500);
    away.signal(Signal::STOP);
    let out = cleans_in_part(&scene, &spec, &[&away.address(), "it does not answer", "what is there was left; "]);
    assert!(out.ends_with("keys of 1 runs that are gone were removed\n") && !out.starts_with("0 "), "{out}");
    // But for the list.
    assert_eq!((cluster.nodes[list].keys(), other.keys()), (1, 0));
    away.signal(Signal::CONT);
    cluster.is_whole();
    let out = scene.done(&format!("remote clean {spec}"));
    assert_eq!(out, format!("{kept} keys of 1 runs that are gone were removed\n"));
    assert_eq!(cluster.keys(), [0; PRIMARIES]);
}

#[test]
fn clean_removes_nothing_while_the_node_is_away_that_has_the_list() {
    let Some(_turn) = turn() else { return };
    let (scene, mut cluster) = (Scene::new(), Cluster::without_replicas(PRIMARIES));
    let (spec, list) = (cluster.spec(), killed_run(&scene, &cluster));
    let keys = |cluster: &Cluster| (0..PRIMARIES).filter(|i| *i != list).map(|i| cluster.nodes[i].keys()).sum::<u64>();
    let before = keys(&cluster);
    cluster.nodes[list].kill();
    let place = cluster.nodes[list].address();
    scene.refused(&format!("remote clean {spec}"), 125, &[&place, "which has the list of runs", "no server listens there"]);
    assert_eq!(keys(&cluster), before);
}

/// A process ends while a replica hangs: it does not learn that its pages are removed, and has them when it takes over.
#[test]
fn what_a_failover_brings_back_is_removed_at_the_end() {
    let Some(_turn) = turn() else { return };
    let (scene, mut cluster) = (Scene::new(), Cluster::start(""));
    let mut command = scene.lowtide();
    let options = format!("run --quiet --ram 40M --pool 4M --swap {} -- /bin/sh -c", cluster.spec());
    command.args(options.split(' ')).arg("\"$0\" 96 n; while [ ! -e end ]; do sleep 0.1; done").arg(program("sleeps"));
    let mut run = scene.started(command);
    run.wait_until("the memory is filled", |_| scene.path("ready").exists());
    run.wait_until("pages are out", |_| cluster.nodes[0].keys() > 2000);
    cluster.is_replicated();
    cluster.nodes[PRIMARIES].signal(Signal::STOP);
    cluster.nodes[0].fills_its_replicas_socket();
    scene.wake();
    run.wait_until("its pages are removed", |_| cluster.nodes[0].keys() < 10);
    cluster.nodes[0].kill();
    cluster.nodes[PRIMARIES].signal(Signal::CONT);
    run.wait_until("the replica has taken its place", |_| cluster.nodes[PRIMARIES].ask("ROLE").contains("master"));
    assert!(cluster.nodes[PRIMARIES].keys() > 1000, "it has them still");
    std::fs::write(scene.path("end"), "").expect("written");
    let (out, err) = run.finish();
    assert!(out.starts_with("OK"), "{out}{err}");
    assert_eq!(cluster.keys(), [0; PRIMARIES], "{err}");
}

#[test]
fn a_primary_that_is_killed_is_replaced_by_its_replica() {
    let Some(_turn) = turn() else { return };
    let (scene, mut cluster) = (Scene::new(), Cluster::start(""));
    let run = sleeper(&scene, &cluster);
    cluster.nodes[0].kill();
    ends_right(&scene, run);
    let remote = statistics(&scene, &cluster);
    assert_eq!(number(&remote, "failovers"), 1, "{remote}");
    assert!(number(&remote, "reconnects") > 0 && number(&remote, "pages_read") * 4096 > 32 * MIB, "{remote}");
    // It took as long to find that out.
    assert!(remote["read_latency_us"]["max"].as_f64() > Some(500_000.0), "{remote}");
    assert!(cluster.primaries().contains(&PRIMARIES), "{}", cluster.nodes[1].ask("CLUSTER NODES"));
    assert_eq!(cluster.keys(), [0; PRIMARIES]);
}

/// Its place is taken meanwhile, which it does not know when it goes on.
#[test]
fn a_primary_that_hangs_and_comes_back_as_a_replica_is_not_asked() {
    let Some(_turn) = turn() else { return };
    let (scene, cluster) = (Scene::new(), Cluster::start(""));
    let mut run = sleeper(&scene, &cluster);
    cluster.nodes[0].signal(Signal::STOP);
    scene.wake();
    run.wait_until("its replica has taken its place", |_| cluster.nodes[PRIMARIES].ask("ROLE").contains("master"));
    // What is on the way to it comes before it learns what it is now: it takes that for its own.
    cluster.nodes[0].signal(Signal::CONT);
    ends_right(&scene, run);
    assert_eq!(number(&statistics(&scene, &cluster), "failovers"), 1);
    assert!(cluster.nodes[0].ask("ROLE").contains("slave"));
    assert_eq!(cluster.keys(), [0; PRIMARIES]);
}

#[test]
fn a_failover_that_loses_acknowledged_writes_is_found_out() {
    let Some(_turn) = turn() else { return };
    let (scene, mut cluster) = (Scene::new(), Cluster::start(""));
    let spec = cluster.spec();
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec}"), "64 n");
    fails_over_with_a_loss(&scene, &mut run, &mut cluster);
    is_stopped(&mut run, &["could not be read back", &spec]);
}

#[test]
fn slots_that_nobody_has_any_more_end_the_run() {
    let Some(_turn) = turn() else { return };
    let (scene, mut cluster) = (Scene::new(), Cluster::start(""));
    let spec = cluster.spec();
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec},timeout=4s"), "64 n");
    let began = Instant::now();
    cluster.nodes[PRIMARIES].kill();
    cluster.nodes[0].kill();
    is_stopped(&mut run, &["the server did not answer in time", &spec]);
    assert!(began.elapsed() > Duration::from_secs(4), "{:?}: they were waited for", began.elapsed());
}

#[test]
fn a_cluster_that_is_down_for_a_while_is_waited_for() {
    let Some(_turn) = turn() else { return };
    let (scene, cluster) = (Scene::new(), Cluster::start(""));
    let spec = cluster.spec();
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec}"), "64 n");
    // The third has no majority.
    let two = &cluster.nodes[..2];
    two.iter().for_each(|node| node.signal(Signal::STOP));
    run.wait_until("the cluster is down", |_| cluster.nodes[2].ask("CLUSTER INFO").contains("cluster_state:fail"));
    two.iter().for_each(|node| node.signal(Signal::CONT));
    goes_on(&scene, &mut run, &spec);
    ends_right(&scene, run);
}

#[test]
fn slots_that_move_to_another_node_are_followed() {
    let Some(_turn) = turn() else { return };
    let (scene, cluster) = (Scene::new(), Cluster::start(""));
    let spec = cluster.spec();
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec}"), "64 n");
    // Chance decides which node has how many.
    let slots = |node: &usize| cluster.slots_of_pages(*node);
    let from = (0..PRIMARIES).max_by_key(|node| slots(node).len()).unwrap();
    let [near, far] = [1, 2].map(|i| (from + i) % PRIMARIES);
    let slots = slots(&from);
    assert!(slots.len() >= 3, "{slots:?}");
    // One stays on its way, with a part of its keys on either side.
    let (half, moved) = slots.split_first().unwrap();
    cluster.begin_to_move(*half, from, near, 100);
    for slot in moved {
        cluster.begin_to_move(*slot, from, far, 100);
        cluster.end_to_move(*slot, from, far);
    }
    goes_on(&scene, &mut run, &spec);
    let errors = cluster.nodes[from].ask("INFO errorstats");
    assert!(errors.contains("errorstat_ASK") && errors.contains("errorstat_MOVED"), "{errors}");
    ends_well(&scene, run);
    assert_eq!(cluster.keys(), [0; PRIMARIES], "those on their way, too");
}

/// A replica that would throw pages away gets none when it takes its primary's place.
#[test]
fn the_policy_is_asked_again_after_a_failover() {
    let Some(_turn) = turn() else { return };
    let (scene, cluster) = (Scene::new(), Cluster::start("--maxmemory 512mb"));
    let (spec, dir) = (cluster.spec(), scene.swap_dir("dir"));
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec},prio=5 --swap {dir}"), "64 n");
    let replica = &cluster.nodes[PRIMARIES];
    replica.ask("CONFIG SET maxmemory-policy allkeys-lru");
    assert_eq!(replica.ask("CLUSTER FAILOVER"), "OK");
    run.wait_until("it has taken over", |_| replica.ask("ROLE").contains("master"));
    replica.ask("CONFIG RESETSTAT");
    run.wait_until("pages go elsewhere", |run| number(&area(&scene, run, &dir), "used") > 8 * MIB);
    goes_on(&scene, &mut run, &spec);
    let stats = replica.ask("INFO commandstats");
    assert!(stats.contains("cmdstat_get:") && !stats.contains("cmdstat_set:"), "{stats}");
    ends_right(&scene, run);
}
