//! Servers of the tests' own: redis-server on loopback, or behind a network of its own, ended by their ids.

use crate::SOON;
use crate::certificates::{Authority, Certificate};
use rustix::process::{Pid, Signal};
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// How an empty word of a command is written.
const EMPTY: &str = "''";

/// A redis-server, without a file unless it is told otherwise. Killed when it is dropped.
pub struct Server {
    place: Place,
    pub port: u16,
    options: Vec<String>,
    child: Child,
    dir: tempfile::TempDir,
}

/// Where a server is, and what it is.
#[derive(Clone)]
pub struct Place {
    /// Its address.
    pub host: String,
    /// The words of the command.
    pub command: Vec<String>,
}

impl Place {
    /// On loopback.
    pub fn here(program: &str) -> Place {
        Place { host: "127.0.0.1".to_owned(), command: vec![program.to_owned()] }
    }

    fn spawn(&self, port: u16, dir: &Path, options: &[String]) -> Child {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).args(["--port", &port.to_string(), "--bind", &self.host]);
        command.args(["--protected-mode", "no", "--save", "", "--appendonly", "no", "--dir"]).arg(dir).args(options);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("redis-server is installed (`make setup`)")
    }
}

impl Server {
    /// On loopback.
    pub fn start(options: &str) -> Server {
        Server::start_at(Place::here("redis-server"), options)
    }

    /// With TLS, too, by this certificate: at the port [`Server::secure_port`].
    pub fn start_with_tls(authority: &Authority, certificate: &Certificate, options: &str) -> Server {
        Server::start(&format!("{} {options}", with_tls(authority, certificate)))
    }

    pub fn start_at(place: Place, options: &str) -> Server {
        let (port, dir) = (free_port(), tempfile::tempdir_in("/var/tmp").expect("a directory"));
        let options: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
        let child = place.spawn(port, dir.path(), &options);
        let server = Server { place, port, options, child, dir };
        server.listens();
        server
    }

    fn listens(&self) {
        let until = Instant::now() + SOON;
        while !self.ask("PING").contains("PONG") && !self.ask("PING").contains("NOAUTH") {
            assert!(Instant::now() < until, "redis-server does not answer");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// What redis-cli prints.
    pub fn ask(&self, words: &str) -> String {
        let mut command = Command::new("redis-cli");
        let words = words.split_whitespace().map(|word| if word == EMPTY { "" } else { word });
        let output = command.args(["-h", &self.place.host, "-p", &self.port.to_string()]).args(words).output();
        String::from_utf8_lossy(&output.expect("redis-cli is installed (`make setup`)").stdout).trim().to_owned()
    }

    fn option(&self, name: &str) -> &str {
        let place = self.options.iter().position(|option| option == name).expect("given");
        &self.options[place + 1]
    }

    /// What it sends from now on to a replica that hangs is lost with the server.
    pub fn fills_its_replicas_socket(&self) {
        const FILLS: &str = "redis.call('set',KEYS[1],string.rep('x',100000000))return(redis.call('del',KEYS[1]))";
        // A key of its own.
        let mut answers = (0..1000).map(|key| self.ask(&format!("EVAL {FILLS} 1 {key}")));
        assert_eq!(answers.find(|answer| !answer.starts_with("MOVED")).as_deref(), Some("1"));
    }

    pub fn keys(&self) -> u64 {
        self.ask("DBSIZE").trim_start_matches("(integer) ").parse().expect("a number")
    }

    pub fn spec(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Without TLS.
    pub fn address(&self) -> String {
        format!("{}:{}", self.place.host, self.port)
    }

    /// The port with TLS.
    pub fn secure_port(&self) -> u16 {
        self.option("--tls-port").parse().expect("a port")
    }

    /// The port by which nodes of its cluster give it keys.
    fn port_for_nodes(&self) -> u16 {
        if self.options.iter().any(|option| option == "--tls-cluster") { self.secure_port() } else { self.port }
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_raw(self.child.id() as i32).expect("a pid"), signal).expect("sent");
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn start_again(&mut self) {
        self.kill();
        self.child = self.place.spawn(self.port, self.dir.path(), &self.options);
        self.listens();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be stopped.
        self.kill();
    }
}

/// Options of a server with TLS, at a port of its own.
fn with_tls(authority: &Authority, Certificate { cert, key }: &Certificate) -> String {
    let (port, [ca, cert, key]) = (free_port(), [&authority.file(), cert, key].map(|path| path.display().to_string()));
    format!("--tls-port {port} --tls-cert-file {cert} --tls-key-file {key} --tls-ca-cert-file {ca} --tls-auth-clients no")
}

/// A port that nobody listens on, and that nobody was given before.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
        if GIVEN.lock().expect("nobody panics with it").insert(port) {
            return port;
        }
    }
}

/// Options of a node of a cluster, with a port of its own for other nodes.
fn clustered(options: &str) -> String {
    let bus = free_port();
    format!(
        "--cluster-enabled yes --cluster-port {bus} --cluster-node-timeout {NODE_TIMEOUT} \
         --cluster-replica-validity-factor 0 --repl-diskless-sync-delay 0 {options}"
    )
}

/// Primaries, three most often: primary N has the Nth part of the slots, and node N + 3 copies it, if there are replicas. Each is
/// a [`Server`].
pub struct Cluster {
    pub nodes: Vec<Server>,
    primaries: usize,
}

/// Milliseconds after which nodes take another for gone. Not so few that a busy machine looks like a failure.
const NODE_TIMEOUT: u64 = 2500;
const SLOTS: u16 = 16384;
pub const PRIMARIES: usize = 3;

impl Cluster {
    /// Each primary with a replica.
    pub fn start(options: &str) -> Cluster {
        Cluster::with_replicas(|_| Place::here("redis-server"), options)
    }

    /// The same, at places.
    pub fn with_replicas(place: impl Fn(usize) -> Place, options: &str) -> Cluster {
        Cluster::of(PRIMARIES, 2 * PRIMARIES, |i| Server::start_at(place(i), &clustered(options)))
    }

    /// The same, of which nobody listens without TLS but for what a test asks.
    pub fn with_tls(authority: &Authority, certificate: &Certificate, options: &str) -> Cluster {
        let options = format!("--tls-cluster yes --tls-replication yes {options}");
        Cluster::of(PRIMARIES, 2 * PRIMARIES, |_| Server::start_with_tls(authority, certificate, &clustered(&options)))
    }

    /// Without replicas: what is left goes on when a node is lost.
    pub fn without_replicas(primaries: usize) -> Cluster {
        Cluster::of(primaries, primaries, |_| Server::start(&clustered("--cluster-require-full-coverage no")))
    }

    fn of(primaries: usize, nodes: usize, start: impl Fn(usize) -> Server) -> Cluster {
        let cluster = Cluster { nodes: (0..nodes).map(start).collect(), primaries };
        let (first, others) = cluster.nodes.split_first().expect("nodes");
        let ids: Vec<String> = cluster.nodes.iter().map(|node| node.ask("CLUSTER MYID")).collect();
        for (node, epoch) in cluster.nodes.iter().zip(1..) {
            node.ask(&format!("CLUSTER SET-CONFIG-EPOCH {epoch}"));
        }
        for other in others {
            let (host, port, bus) = (&other.place.host, other.port_for_nodes(), other.option("--cluster-port"));
            first.ask(&format!("CLUSTER MEET {host} {port} {bus}"));
        }
        for (i, primary) in cluster.nodes[..primaries].iter().enumerate() {
            let part = |i: usize| i * usize::from(SLOTS) / primaries;
            assert_eq!(primary.ask(&format!("CLUSTER ADDSLOTSRANGE {} {}", part(i), part(i + 1) - 1)), "OK");
        }
        let knows_all = |node: &Server| ids.iter().all(|id| node.ask("CLUSTER NODES").contains(id));
        cluster.wait_until("all know each other", |cluster| cluster.nodes.iter().all(knows_all));
        for (replica, primary) in cluster.nodes[primaries..].iter().zip(&ids) {
            assert_eq!(replica.ask(&format!("CLUSTER REPLICATE {primary}")), "OK");
        }
        cluster.is_whole();
        cluster
    }

    /// All slots are served, all replicas have what their primaries have, and all nodes know that.
    pub fn is_whole(&self) {
        self.wait_until("the cluster is whole", |cluster| {
            let replicas = cluster.nodes.len() - cluster.primaries;
            let is_ok = |node: &Server| {
                let info = node.ask("INFO replication");
                let is_linked = !info.contains("role:slave") || info.contains("master_link_status:up");
                let knows = node.ask("CLUSTER NODES").matches("slave").count() == replicas;
                node.ask("CLUSTER INFO").contains("cluster_state:ok") && is_linked && knows
            };
            let primaries = cluster.primaries();
            let has_replica = |node: &usize| cluster.nodes[*node].ask("INFO replication").contains("state=online");
            let all_replicas = replicas == 0 || primaries.iter().all(has_replica);
            cluster.nodes.iter().all(is_ok) && primaries.len() == cluster.primaries && all_replicas
        });
    }

    /// Which nodes are primaries with slots, as the first of the nodes that answers sees it.
    pub fn primaries(&self) -> Vec<usize> {
        let text = self.nodes.iter().map(|node| node.ask("CLUSTER NODES")).find(|text| text.contains("myself"));
        let text = text.unwrap_or_default();
        let has_slots = |node: &Server| {
            let bus = format!("@{}", node.option("--cluster-port"));
            let line = text.lines().find(|line| line.contains(&bus)).unwrap_or_default();
            line.contains("master") && !line.contains("fail") && line.split(' ').count() > 8
        };
        (0..self.nodes.len()).filter(|i| has_slots(&self.nodes[*i])).collect()
    }

    /// What primaries have been told has come to their replicas.
    pub fn is_replicated(&self) {
        self.wait_until("all is replicated", |cluster| {
            let offset = |node: &Server, name: &str| {
                let info = node.ask("INFO replication");
                info.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned)).unwrap_or_default()
            };
            (0..PRIMARIES).all(|i| {
                let at = offset(&cluster.nodes[i + PRIMARIES], "slave_repl_offset:");
                offset(&cluster.nodes[i], "master_repl_offset:").trim() == at.trim()
            })
        });
    }

    pub fn wait_until(&self, what: &str, mut is_so: impl FnMut(&Cluster) -> bool) {
        let until = Instant::now() + SOON;
        while !is_so(self) {
            assert!(Instant::now() < until, "it is never so that {what}: {}", self.nodes[0].ask("CLUSTER NODES"));
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Two of the nodes: they know the others.
    pub fn spec(&self) -> String {
        let places: Vec<_> = self.nodes.iter().take(2).map(Server::address).collect();
        format!("redis://{}", places.join(","))
    }

    /// Keys of each primary.
    pub fn keys(&self) -> Vec<u64> {
        self.primaries().into_iter().map(|i| self.nodes[i].keys()).collect()
    }

    /// A slot of primary `from` goes to primary `to`: it is on its way, with so many of its keys.
    pub fn begin_to_move(&self, slot: u16, from: usize, to: usize, keys: usize) {
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let [source_id, target_id] = [source, target].map(|node| node.ask("CLUSTER MYID"));
        assert_eq!(target.ask(&format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}")), "OK");
        assert_eq!(source.ask(&format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}")), "OK");
        self.move_keys(slot, from, to, keys);
    }

    fn move_keys(&self, slot: u16, from: usize, to: usize, keys: usize) {
        let (source, host, target) = (&self.nodes[from], &self.nodes[to].place.host, self.nodes[to].port_for_nodes());
        let names =
            source.ask(&format!("CLUSTER GETKEYSINSLOT {slot} {keys}")).split_whitespace().collect::<Vec<_>>().join(" ");
        if !names.is_empty() {
            let moved = source.ask(&format!("MIGRATE {host} {target} {EMPTY} 0 5000 KEYS {names}"));
            assert!(moved.contains("OK") || moved.contains("NOKEY"), "{moved}");
        }
    }

    /// The rest of it follows.
    pub fn end_to_move(&self, slot: u16, from: usize, to: usize) {
        while self.nodes[from].ask(&format!("CLUSTER COUNTKEYSINSLOT {slot}")) != "0" {
            self.move_keys(slot, from, to, 200);
        }
        let target = self.nodes[to].ask("CLUSTER MYID");
        for node in [to, from] {
            assert_eq!(self.nodes[node].ask(&format!("CLUSTER SETSLOT {slot} NODE {target}")), "OK");
        }
    }

    /// Slots of a node that have keys of pages.
    pub fn slots_of_pages(&self, node: usize) -> Vec<u16> {
        let keys = self.nodes[node].ask("--scan --pattern lowtide:{*:0");
        let slot = |key: &str| self.nodes[node].ask(&format!("CLUSTER KEYSLOT {key}")).parse().expect("a slot");
        let mut slots: Vec<u16> = keys.lines().map(slot).collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }
}
