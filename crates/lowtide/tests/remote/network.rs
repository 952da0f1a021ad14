//! A network between the run and its server that is cut, slow, or loses packets, and one between the nodes of a cluster that falls
//! apart: virtual cables to network namespaces, and between these. This takes root, and the kernel's veth and netem.

use crate::cluster::{sleeper, statistics};
use crate::live::{MIB, Scene, area, is_root, number, skip, turn, verifier};
use crate::servers::{Cluster, PRIMARIES, Place, Server};
use crate::{ends_right, goes_on, is_stopped};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A network namespace, and a cable to it.
pub struct Network {
    /// Of the namespace; of the ends of the cable here and there.
    name: String,
    ends: [String; 2],
    /// How its addresses begin, and the last number of the one here.
    net: String,
    here: u8,
}

/// Whether a command of the system works; what it says if not.
fn done(words: &str) -> Result<(), String> {
    let mut words = words.split_whitespace();
    let output = Command::new(words.next().unwrap_or_default()).args(words).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
}

impl Network {
    /// None, said loudly, where there can be none.
    fn new() -> Option<Network> {
        if is_root() { made(Network::make()) } else { None }
    }

    fn make() -> Result<Network, String> {
        static MADE: AtomicU8 = AtomicU8::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let (ends, net) = ([format!("lt{pid}{number}a"), format!("lt{pid}{number}b")], format!("10.213.{}", pid % 250));
        let network = Network { name: format!("lowtide-test-{pid}-{number}"), ends, net, here: 4 * number + 1 };
        network.is_set_up().map(|()| network)
    }

    fn is_set_up(&self) -> Result<(), String> {
        let Network { name, ends: [here, there], net, here: number } = self;
        done(&format!("ip netns add {name}"))?;
        done(&format!("ip link add {here} type veth peer name {there} netns {name}"))?;
        done(&format!("ip addr add {net}.{number}/30 dev {here}"))?;
        done(&format!("ip -n {name} addr add {}/30 dev {there}", self.there()))?;
        done(&format!("ip link set {here} up"))?;
        done(&format!("ip -n {name} link set lo up"))?;
        self.join();
        Ok(())
    }

    /// The address of the other end.
    fn there(&self) -> String {
        format!("{}.{}", self.net, self.here + 1)
    }

    /// A server there.
    fn server(&self) -> Server {
        Server::start_at(self.place(), "")
    }

    /// Where that is.
    fn place(&self) -> Place {
        let command = ["ip", "netns", "exec", &self.name, "redis-server"].map(str::to_owned).to_vec();
        Place { host: self.there(), command }
    }

    /// What goes there from here goes nowhere any more, and nobody is told; or it arrives again.
    fn hears_us(&self, hears: bool) {
        passes("", &self.ends[0], &self.there(), hears);
    }

    /// Nothing passes any more, and nobody is told.
    fn part(&self) {
        done(&format!("ip -n {} link set {} down", self.name, self.ends[1])).expect("down");
    }

    /// It passes again.
    fn join(&self) {
        done(&format!("ip -n {} link set {} up", self.name, self.ends[1])).expect("up");
    }

    /// Both ways take a millisecond, and of a hundred packets one is lost. Or what the kernel says to that.
    fn is_bad(&self) -> Result<(), String> {
        let netem = "root netem delay 1ms loss 1%";
        done(&format!("tc qdisc add dev {} {netem}", self.ends[0]))?;
        done(&format!("tc -n {} qdisc add dev {} {netem}", self.name, self.ends[1]))
    }
}

/// None, said loudly.
fn made<T>(made: Result<T, String>) -> Option<T> {
    made.inspect_err(|why| skip(&format!("there can be no network of the test's own: {why}"))).ok()
}

/// By an end of a cable, what is sent to an address arrives or not: then it has a receiver whom nobody has.
fn passes(of: &str, end: &str, to: &str, passes: bool) {
    let what = match passes {
        true => format!("del {to} dev {end}"),
        false => format!("replace {to} lladdr 02:00:00:00:00:01 dev {end} nud permanent"),
    };
    done(&format!("ip {of} neigh {what}")).expect("changed");
}

/// Two networks, and a cable between them by which those in one reach those in the other.
struct Two {
    all: [Network; 2],
    ends: [String; 2],
}

impl Two {
    fn new() -> Option<Two> {
        if is_root() { made(Two::make()) } else { None }
    }

    fn make() -> Result<Two, String> {
        let pid = std::process::id();
        let two = Two { all: [Network::make()?, Network::make()?], ends: [format!("lt{pid}x"), format!("lt{pid}y")] };
        let ([a, b], [x, y]) = (&two.all, &two.ends);
        done(&format!("ip -n {} link add {x} type veth peer name {y} netns {}", a.name, b.name))?;
        for (from, to, end) in [(a, b, x), (b, a, y)] {
            done(&format!("ip -n {} link set {end} up", from.name))?;
            done(&format!("ip -n {} route add {}/32 dev {end} src {}", from.name, to.there(), from.there()))?;
        }
        Ok(two)
    }

    /// Those in one and those in the other do not hear each other any more, and nobody is told; or they do again. Here all are
    /// heard.
    fn hear_each_other(&self, hear: bool) {
        let ([a, b], [x, y]) = (&self.all, &self.ends);
        for (from, to, end) in [(a, b, x), (b, a, y)] {
            passes(&format!("-n {}", from.name), end, &to.there(), hear);
        }
    }

    /// A cluster, of which the last primary is in the second network, and all others are in the first one, with its replica.
    fn cluster(&self) -> Cluster {
        Cluster::with_replicas(|i| self.all[usize::from(i == ALONE)].place(), "")
    }
}

/// The primary that is apart.
const ALONE: usize = PRIMARIES - 1;

impl Drop for Network {
    fn drop(&mut self) {
        // The cable goes with one of its ends.
        let _ = done(&format!("ip link del {}", self.ends[0]));
        let _ = done(&format!("ip netns del {}", self.name));
    }
}

#[test]
fn a_network_that_is_cut_for_a_while_is_waited_for() {
    let Some(_turn) = turn() else { return };
    let Some(network) = Network::new() else { return };
    let (scene, server) = (Scene::new(), network.server());
    let spec = server.spec();
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec}"), "64 n");
    run.wait_until("pages come back", |run| number(&area(&scene, run, &spec), "reads") > 1000);
    network.part();
    thread::sleep(Duration::from_secs(6));
    let reads = |run: &_| number(&area(&scene, run, &spec)["remote"], "pages_read");
    let before = reads(&run);
    thread::sleep(Duration::from_secs(1));
    assert_eq!(reads(&run), before, "it was cut");
    network.join();
    goes_on(&scene, &mut run, &spec);
    assert!(number(&area(&scene, &run, &spec)["remote"], "reconnects") > 0);
    ends_right(&scene, run);
    assert_eq!(server.keys(), 0);
}

#[test]
fn a_network_that_stays_cut_ends_the_run() {
    let Some(_turn) = turn() else { return };
    let Some(network) = Network::new() else { return };
    let (scene, server) = (Scene::new(), network.server());
    let spec = server.spec();
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec},timeout=4s"), "64 n");
    let began = Instant::now();
    network.part();
    is_stopped(&mut run, &["the server did not answer in time", &spec]);
    assert!(began.elapsed() > Duration::from_secs(4), "{:?}", began.elapsed());
}

/// It goes on as a primary, for all that it knows, and can be reached.
#[test]
fn a_primary_that_is_parted_from_the_others_is_not_believed() {
    let Some(_turn) = turn() else { return };
    let Some(two) = Two::new() else { return };
    let (scene, cluster) = (Scene::new(), two.cluster());
    let mut run = sleeper(&scene, &cluster);
    two.hear_each_other(false);
    let replica = &cluster.nodes[ALONE + PRIMARIES];
    run.wait_until("its place was taken", |_| replica.ask("ROLE").contains("master"));
    assert!(cluster.nodes[ALONE].ask("ROLE").contains("master"), "it does not know");
    replica.ask("CONFIG RESETSTAT");
    ends_right(&scene, run);
    assert_eq!(number(&statistics(&scene, &cluster), "failovers"), 1);
    assert!(replica.ask("INFO commandstats").contains("cmdstat_get:"));
    assert!(cluster.nodes[ALONE].ask("ROLE").contains("master"), "nor then");
    two.hear_each_other(true);
    cluster.is_whole();
    assert_eq!(cluster.keys(), [0; PRIMARIES]);
}

/// What it has taken in the meantime is lost.
#[test]
fn with_two_copies_a_cluster_that_falls_apart_loses_nothing() {
    let Some(_turn) = turn() else { return };
    let Some(two) = Two::new() else { return };
    let (scene, cluster) = (Scene::new(), two.cluster());
    let (spec, dir) = (cluster.spec(), scene.swap_dir("dir"));
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec},copies=2,prio=5 --swap {dir}"), "64 n");
    two.hear_each_other(false);
    run.wait_until("its place was taken", |_| cluster.nodes[ALONE + PRIMARIES].ask("ROLE").contains("master"));
    let harmed = |run: &_| {
        let remote = area(&scene, run, &spec)["remote"].clone();
        number(&remote, "copies_lost") + number(&remote, "copies_wrong")
    };
    run.wait_until("other copies are read", |run| harmed(run) > 0);
    two.hear_each_other(true);
    cluster.is_whole();
    goes_on(&scene, &mut run, &spec);
    ends_right(&scene, run);
    assert_eq!(cluster.keys(), [0; PRIMARIES]);
}

/// The nodes go on together, but most of them are not to be reached from here.
#[test]
fn a_cluster_of_which_most_is_out_of_reach_for_a_while_is_waited_for() {
    let Some(_turn) = turn() else { return };
    let Some(two) = Two::new() else { return };
    let (scene, cluster) = (Scene::new(), two.cluster());
    let spec = cluster.spec();
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec}"), "64 n");
    two.all[0].hears_us(false);
    thread::sleep(Duration::from_secs(6));
    two.all[0].hears_us(true);
    goes_on(&scene, &mut run, &spec);
    let remote = area(&scene, &run, &spec)["remote"].clone();
    assert!(number(&remote, "reconnects") > 0 && number(&remote, "failovers") == 0, "{remote}");
    ends_right(&scene, run);
    assert_eq!(cluster.keys(), [0; PRIMARIES]);
}

#[test]
fn a_slow_network_that_loses_packets_only_takes_longer() {
    let Some(_turn) = turn() else { return };
    let Some(network) = Network::new() else { return };
    let (scene, server) = (Scene::new(), network.server());
    // No privilege is missing, but a part of the kernel: the machines of CI have none either. Guests of `make vm` do.
    if let Err(why) = network.is_bad() {
        crate::live::skipped::skipped(format_args!("no netem here, nothing is slow: {why}"));
        return;
    }
    let spec = server.spec();
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec}"), "64 n");
    run.wait_until("pages come back", |run| number(&area(&scene, run, &spec), "read_bytes") > 16 * MIB);
    let took = area(&scene, &run, &spec)["remote"]["read_latency_us"].clone();
    assert!(took["p50"].as_f64() > Some(1500.0), "{took}");
    ends_right(&scene, run);
    assert_eq!(server.keys(), 0);
}
