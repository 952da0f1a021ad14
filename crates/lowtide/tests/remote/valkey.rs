//! Valkey in the place of Redis, where it is to be had.

use crate::cluster::{sleeper, statistics};
use crate::live::{MIB, Scene, area, number, turn, verifier};
use crate::servers::{Cluster, PRIMARIES, Place, Server};
use crate::{ends_right, ends_well};
use std::path::Path;
use std::process::{Command, Stdio};

/// The system's, or what `make setup` has unpacked. Not all systems have it: that is no failure.
fn valkey() -> Option<Place> {
    let unpacked = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../vm/valkey/valkey-server").display().to_string();
    let works = |program: &String| {
        let version = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    };
    let program = ["valkey-server".to_owned(), unpacked].into_iter().find(works);
    if program.is_none() {
        crate::live::skipped::skipped("no valkey-server here");
    }
    program.map(|program| Place::here(&program))
}

#[test]
fn pages_go_to_valkey_and_come_back_and_nothing_is_left_there() {
    let (Some(_turn), Some(valkey)) = (turn(), valkey()) else { return };
    let (scene, server) = (Scene::new(), Server::start_at(valkey, ""));
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
    let (Some(_turn), Some(valkey)) = (turn(), valkey()) else { return };
    let (scene, mut cluster) = (Scene::new(), Cluster::with_replicas(|_| valkey.clone(), ""));
    let run = sleeper(&scene, &cluster);
    cluster.nodes[0].kill();
    ends_right(&scene, run);
    assert_eq!(number(&statistics(&scene, &cluster), "failovers"), 1);
    assert_eq!(cluster.keys(), [0; PRIMARIES]);
}
