//! A network between the run and its server that is cut, slow, or loses packets: two ends of a virtual cable, of which one is in a
//! network namespace. This takes root, and the kernel's veth and netem.

use crate::live::{MIB, Scene, area, is_root, number, skip, turn, verifier};
use crate::servers::{Place, Server};
use crate::{goes_on, is_stopped};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// A network namespace, and a cable to it.
pub struct Network {
    /// Of the namespace; of the ends of the cable here and there.
    name: String,
    ends: [String; 2],
    /// The third number of the addresses.
    net: u8,
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
        if !is_root() {
            return None;
        }
        let pid = std::process::id();
        let ends = [format!("lt{pid}a"), format!("lt{pid}b")];
        let network = Network { name: format!("lowtide-test-{pid}"), ends, net: (pid % 250) as u8 };
        let made = network.make();
        made.inspect_err(|why| skip(&format!("there can be no network of the test's own: {why}"))).is_ok().then_some(network)
    }

    fn make(&self) -> Result<(), String> {
        let Network { name, ends: [here, there], net } = self;
        done(&format!("ip netns add {name}"))?;
        done(&format!("ip link add {here} type veth peer name {there} netns {name}"))?;
        done(&format!("ip addr add 10.213.{net}.1/30 dev {here}"))?;
        done(&format!("ip -n {name} addr add {}/30 dev {there}", self.there()))?;
        done(&format!("ip link set {here} up"))?;
        done(&format!("ip -n {name} link set lo up"))?;
        self.join();
        Ok(())
    }

    /// The address of the other end.
    fn there(&self) -> String {
        format!("10.213.{}.2", self.net)
    }

    /// A server there.
    fn server(&self) -> Server {
        let command = ["ip", "netns", "exec", &self.name, "redis-server"].map(str::to_owned).to_vec();
        Server::start_at(Place { host: self.there(), command }, "")
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
    scene.wake();
    let (out, err) = run.finish();
    assert_eq!(out, "OK\n", "{err}");
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

#[test]
fn a_slow_network_that_loses_packets_only_takes_longer() {
    let Some(_turn) = turn() else { return };
    let Some(network) = Network::new() else { return };
    let (scene, server) = (Scene::new(), network.server());
    // No privilege is missing, but a part of the kernel: the machines of CI have none either. Guests of `make vm` do.
    if let Err(why) = network.is_bad() {
        eprintln!("SKIPPED: no netem here, nothing is slow: {why}");
        return;
    }
    let spec = server.spec();
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec}"), "64 n");
    run.wait_until("pages come back", |run| number(&area(&scene, run, &spec), "read_bytes") > 16 * MIB);
    let took = area(&scene, &run, &spec)["remote"]["read_latency_us"].clone();
    assert!(took["p50"].as_f64() > Some(1500.0), "{took}");
    scene.wake();
    let (out, err) = run.finish();
    assert_eq!(out, "OK\n", "{err}");
    assert_eq!(server.keys(), 0);
}
