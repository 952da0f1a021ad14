//! Valkey in the place of Redis, where it is installed.

use crate::cluster::{all_is_right, sleeper, statistics};
use crate::live::{MIB, Scene, area, ends_well, number, turn, verifier};
use crate::servers::{Cluster, PRIMARIES, Place, Server};
use std::process::{Command, Stdio};

const PROGRAM: &str = "valkey-server";

/// Not all systems have it: that is no failure.
fn is_there() -> bool {
    let version = Command::new(PROGRAM).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_there = version.is_ok_and(|status| status.success());
    if !is_there {
        eprintln!("SKIPPED: no {PROGRAM} here");
    }
    is_there
}

#[test]
fn pages_go_to_valkey_and_come_back_and_nothing_is_left_there() {
    let Some(_turn) = turn().filter(|_| is_there()) else { return };
    let (scene, server) = (Scene::new(), Server::start_at(Place::here(PROGRAM), ""));
    let spec = server.spec();
    let mut run = verifier(&scene, &format!("--ram 48M --pool 4M --swap {spec}"), "128 n");
    run.wait_until("pages come back", |run| number(&area(&scene, run, &spec), "read_bytes") > 64 * MIB);
    ends_well(&scene, run);
    assert_eq!(server.keys(), 0);
    let found = scene.done(&format!("doctor {spec}"));
    assert!(found.contains("ok   server           valkey "), "{found}");
}

#[test]
fn a_primary_of_valkey_that_is_killed_is_replaced_by_its_replica() {
    let Some(_turn) = turn().filter(|_| is_there()) else { return };
    let (scene, mut cluster) = (Scene::new(), Cluster::with_replicas(|_| Place::here(PROGRAM), ""));
    let run = sleeper(&scene, &cluster);
    cluster.nodes[0].kill();
    all_is_right(&scene, run);
    assert_eq!(number(&statistics(&scene, &cluster), "failovers"), 1);
    assert_eq!(cluster.keys(), [0; PRIMARIES]);
}
