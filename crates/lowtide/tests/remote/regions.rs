//! Regions of the library, whose threads speak to the servers themselves.

use crate::certificates::Authority;
use crate::live::turn;
use crate::servers::{Cluster, PRIMARIES, Server, free_port};
use lowtide::{Delivery, Error, Group, Region, Swap};
use std::thread;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const WORDS: usize = 4096 / 8;

/// 16 MiB of RAM for this.
const SIZE: usize = 64 * MIB;

fn swap(spec: &str) -> Swap {
    spec.parse().expect("a server")
}

fn region(spec: &str, delivery: Delivery) -> Region {
    Region::builder(SIZE).ram(16 << 20).swap(swap(spec)).delivery(delivery).build().expect("a region")
}

fn noise(round: u64, page: usize, word: usize) -> u64 {
    let mixed = (round << 40 ^ (page * WORDS + word) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// What does not become smaller by compression.
fn fill(region: &mut Region, round: u64) {
    for (page, bytes) in region.as_mut_slice().chunks_exact_mut(4096).enumerate() {
        for (word, bytes) in bytes.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&noise(round, page, word).to_le_bytes());
        }
    }
}

#[track_caller]
fn is_as_filled(region: &Region, round: u64) {
    let word_is_right = |page| move |(word, bytes): (usize, &[u8])| bytes == noise(round, page, word).to_le_bytes();
    let wrong = region.as_slice().chunks_exact(4096).enumerate();
    let mut wrong = wrong.filter(|(page, bytes)| !bytes.chunks_exact(8).enumerate().all(word_is_right(*page)));
    assert_eq!(wrong.next().map(|(page, _)| page), None);
}

/// A second group of the kind has what the first one leaves of tables, and nothing else of it.
#[test]
fn pages_of_regions_go_to_a_server_and_come_back_and_nothing_is_left_there() {
    let Some(_turn) = turn() else { return };
    let server = Server::start("");
    for delivery in [Delivery::InThread, Delivery::UserMonitor] {
        for round in 0..3 {
            let mut region = region(&server.spec(), delivery);
            fill(&mut region, round);
            is_as_filled(&region, round);
            let stats = region.stats().expect("its own");
            assert!(stats.pages_in > 12_000 && stats.ram_now <= 17 << 20, "{stats:?}");
            assert!(server.keys() > 4000, "a page is a key");
            drop(region);
            assert_eq!(server.keys(), 0, "{delivery:?}, {round}");
        }
    }
}

/// Each has threads and names of its own.
#[test]
fn groups_share_a_server_and_regions_a_group() {
    let Some(_turn) = turn() else { return };
    let server = Server::start("");
    let group = Group::builder().ram(16 << 20).swap(swap(&server.spec())).build().expect("a group");
    let of_group = || Region::builder(SIZE / 2).group(&group).build().expect("a region");
    let (mut regions, mut alone) = ([of_group(), of_group()], region(&server.spec(), Delivery::InThread));
    thread::scope(|scope| {
        for (round, region) in (5..).zip(regions.iter_mut().chain([&mut alone])) {
            scope.spawn(move || {
                fill(region, round);
                is_as_filled(region, round);
            });
        }
    });
    let [first, second] = regions;
    let before = server.keys();
    drop(first);
    is_as_filled(&second, 6);
    drop(alone);
    is_as_filled(&second, 6);
    assert!(server.keys() < before && server.keys() > 1000);
    drop((second, group));
    assert_eq!(server.keys(), 0);
}

/// By TLS, with the password that the environment has, where there is one.
#[test]
fn a_server_that_will_not_do_is_refused_in_a_line() {
    let Some(_turn) = turn() else { return };
    let why = |spec: &str| match Region::builder(SIZE).ram(16 << 20).swap(swap(spec)).build() {
        Err(Error::Swap(why)) => why,
        other => panic!("{spec}: {other:?}"),
    };
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    assert!(why(&nobody).starts_with(&nobody), "{}", why(&nobody));
    let forgetful = Server::start("--maxmemory 100mb --maxmemory-policy allkeys-lru");
    assert!(why(&forgetful.spec()).contains("maxmemory-policy"), "{}", why(&forgetful.spec()));
    let guarded = Server::start("--requirepass secret");
    assert!(why(&guarded.spec()).contains("LOWTIDE_REDIS_PASSWORD"), "{}", why(&guarded.spec()));
    let (authority, stranger) = (Authority::new(), Authority::new());
    let secure = Server::start_with_tls(&authority, &authority.issue("IP:127.0.0.1"), "");
    let spec = format!("rediss://127.0.0.1:{}", secure.secure_port());
    let of_stranger = why(&format!("{spec},ca={}", stranger.file().display()));
    assert!(of_stranger.starts_with(&spec) && of_stranger.contains("no authority"), "{of_stranger}");
    let mut region = region(&format!("{spec},ca={}", authority.file().display()), Delivery::InThread);
    fill(&mut region, 1);
    is_as_filled(&region, 1);
    drop(region);
    assert_eq!(secure.keys(), 0);
}

#[test]
fn with_two_copies_a_region_goes_on_when_a_node_is_lost() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::without_replicas(PRIMARIES);
    let mut region = region(&format!("{},copies=2", cluster.spec()), Delivery::InThread);
    fill(&mut region, 1);
    cluster.nodes[1].kill();
    is_as_filled(&region, 1);
    // What that one has of them can't be removed, and is gone.
    let began = Instant::now();
    drop(region);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert!([0, 2].iter().all(|node| cluster.nodes[*node].keys() < 20), "leases are left, and the list of runs");
}

/// Its pages are waited for, as in a run.
#[test]
fn a_server_that_hangs_for_a_moment_is_waited_for_by_a_region() {
    let Some(_turn) = turn() else { return };
    let server = Server::start("");
    let mut region = region(&server.spec(), Delivery::InThread);
    fill(&mut region, 1);
    server.signal(rustix::process::Signal::STOP);
    thread::scope(|scope| {
        let reads = scope.spawn(|| is_as_filled(&region, 1));
        thread::sleep(Duration::from_secs(3));
        assert!(!reads.is_finished(), "pages are there");
        server.signal(rustix::process::Signal::CONT);
    });
    drop(region);
    assert_eq!(server.keys(), 0);
}
