//! Nodes that hang, do not know what has become of their cluster, or are others than they were: with nodes that answer as a test
//! wants.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_config::server::{Address, Server};
use lowtide_core::device::WhichCopy;
use lowtide_core::device::wire::Run;
use lowtide_core::slot::CLUSTER_SLOTS;
use lowtide_remote::keys;
use lowtide_remote::pages::{Pages, Source};
use lowtide_remote::remote::Remote;
use rustix::io::Errno;

const DEVICE: &str = "lowtide:{test:1:";
/// What is not held up takes less.
const QUICK: Duration = Duration::from_millis(500);

/// A node of a cluster.
struct Node {
    port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    hangs: AtomicBool,
    /// Milliseconds after which it answers.
    far: AtomicU64,
    /// What it says of the cluster.
    nodes: Mutex<String>,
    pages: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
    gets: AtomicUsize,
    /// How often somebody came.
    connections: AtomicUsize,
}

impl Node {
    /// `nodes`: what all say of the cluster.
    fn start(listener: TcpListener, nodes: &str) -> Node {
        let node = Node { port: listener.local_addr().unwrap().port(), state: Arc::default() };
        node.says(nodes);
        let (port, state) = (node.port, node.state.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let state = state.clone();
                thread::spawn(move || serve(stream.unwrap(), port, &state));
            }
        });
        node
    }

    fn says(&self, nodes: &str) {
        let itself = format!(":{}@1 ", self.port);
        *self.state.nodes.lock().unwrap() = nodes.replace(&itself, &format!("{itself}myself,"));
    }

    fn hangs(&self, hangs: bool) {
        self.state.hangs.store(hangs, Ordering::SeqCst);
    }

    fn address(&self) -> Address {
        Address { host: "127.0.0.1".to_owned(), port: self.port }
    }
}

/// As many listeners.
fn listeners<const N: usize>() -> ([TcpListener; N], [u16; N]) {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = listeners.each_ref().map(|listener| listener.local_addr().unwrap().port());
    (listeners, ports)
}

/// Nodes, each of which has as many slots as the others.
fn cluster<const N: usize>() -> [Node; N] {
    let (listeners, ports) = listeners::<N>();
    let line = |i: usize| {
        let (port, slots) = (ports[i], part(i, N));
        format!("a{i} 127.0.0.1:{port}@1 master - 0 1 {port} connected {}-{}\n", slots.start, slots.end - 1)
    };
    let nodes: String = (0..N).map(line).collect();
    listeners.map(|listener| Node::start(listener, &nodes))
}

/// The hash slots of a node among so many.
fn part(i: usize, n: usize) -> Range<usize> {
    i * 16384 / n..(i + 1) * 16384 / n
}

/// A slot of the device that is on a node among so many.
fn slot_on(i: usize, n: usize) -> u64 {
    let is_there = |slot: &u64| {
        let mut key = Vec::new();
        keys::slot(&mut key, DEVICE, *slot);
        part(i, n).contains(&usize::from(keys::hash_slot(&key)))
    };
    (0..).map(|cluster| cluster * CLUSTER_SLOTS as u64).find(is_there).unwrap()
}

/// A client of the cluster that this node belongs to.
fn remote(node: &Node, timeout: Duration) -> Remote {
    Remote::new(Server { user: None, hosts: vec![node.address()], db: 0, tls: None }, None, timeout).unwrap()
}

/// Reads pages; since when.
fn read(pages: &mut Pages, runs: &[Run], since: Instant) -> (Vec<Result<(), Errno>>, Vec<usize>, Vec<u8>) {
    let (mut lengths, mut objects) = (Vec::new(), Vec::new());
    (pages.read(DEVICE, runs, Source::Any, &mut lengths, &mut objects, since), lengths, objects)
}

fn serve(stream: TcpStream, port: u16, state: &State) {
    let State { hangs, far, nodes, pages, gets, connections } = state;
    connections.fetch_add(1, Ordering::SeqCst);
    let (mut from, mut to) = (BufReader::new(stream.try_clone().unwrap()), stream);
    while let Some(words) = words(&mut from) {
        while hangs.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_millis(far.load(Ordering::SeqCst)));
        let bulk = |bytes: &[u8]| [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        let reply = match words[0].as_slice() {
            b"INFO" => bulk(
                format!("redis_version:7.0.0\r\nrun_id:{port}\r\nrole:master\r\ncluster_enabled:1\r\nmaxmemory:0\r\n")
                    .as_bytes(),
            ),
            b"CLUSTER" => bulk(nodes.lock().unwrap().as_bytes()),
            b"SET" => {
                pages.lock().unwrap().insert(words[1].clone(), words[2].clone());
                b"+OK\r\n".to_vec()
            }
            b"GET" => {
                gets.fetch_add(1, Ordering::SeqCst);
                pages.lock().unwrap().get(&words[1]).map_or(b"$-1\r\n".to_vec(), |page| bulk(page))
            }
            _ => b":1\r\n".to_vec(),
        };
        if to.write_all(&reply).is_err() {
            return;
        }
    }
}

/// The words of the next command.
fn words(from: &mut impl BufRead) -> Option<Vec<Vec<u8>>> {
    let number = |from: &mut dyn BufRead| {
        let mut line = String::new();
        from.read_line(&mut line).ok()?;
        line.get(1..)?.trim().parse::<usize>().ok()
    };
    let n = number(from)?;
    let word = |_| {
        let mut bytes = vec![0; number(from)? + 2];
        from.read_exact(&mut bytes).ok()?;
        bytes.truncate(bytes.len() - 2);
        Some(bytes)
    };
    (0..n).map(word).collect()
}

#[test]
fn a_node_that_hangs_does_not_hold_up_the_others() {
    let [first, second] = cluster();
    let timeout = Duration::from_secs(20);
    let remote = Arc::new(remote(&second, timeout));
    let mut pages = Pages::new(remote.clone());
    let runs = [0, 1].map(|node| Run { slot: slot_on(node, 2), pages: 1 });
    assert_eq!(pages.write(DEVICE, &runs, &[2, 3], b"aabbb"), [Ok(()); 2]);
    assert_eq!(read(&mut pages, &runs, Instant::now()), (vec![Ok(()); 2], vec![2, 3], b"aabbb".to_vec()));

    first.hangs(true);
    let half = (vec![Err(Errno::AGAIN), Ok(())], vec![0, 3], b"bbb".to_vec());
    assert_eq!(read(&mut pages, &runs, Instant::now()), half, "the reply of the other was taken");
    let began = Instant::now();
    assert_eq!(read(&mut pages, &runs, began), half);
    assert!(began.elapsed() < QUICK, "{:?}: it is known now", began.elapsed());
    assert_eq!(read(&mut pages, &runs, began.checked_sub(timeout).unwrap()).0[0], Err(Errno::TIMEDOUT));
    let began = Instant::now();
    assert_eq!(pages.write(DEVICE, &runs, &[1, 1], b"xy"), [Err(Errno::NOTCONN), Ok(())]);
    assert_eq!(pages.remove(DEVICE, &runs, None), [Err(Errno::TIMEDOUT), Ok(())]);
    assert_eq!(pages.write(DEVICE, &runs[1..], &[1], b"y"), [Ok(())]);
    assert!(began.elapsed() < QUICK, "{:?}", began.elapsed());
    remote.look();
    assert!(remote.has_away(), "it hangs still");

    first.hangs(false);
    remote.look();
    assert!(!remote.has_away());
    assert_eq!(read(&mut pages, &runs, Instant::now()), (vec![Ok(()); 2], vec![2, 1], b"aay".to_vec()));
}

/// Each word takes long, and some are said before a connection can be used.
#[test]
fn nodes_that_are_far_away_are_asked_and_found_again() {
    let nodes: [Node; 2] = cluster();
    nodes.iter().for_each(|node| node.state.far.store(400, Ordering::SeqCst));
    let remote = remote(&nodes[1], Duration::from_secs(20));
    let known = remote.known(Instant::now() + Duration::from_secs(20)).unwrap();
    nodes.iter().for_each(|node| remote.set_away(&node.address()));
    remote.look();
    assert!(!remote.has_away());
    assert!(remote.newer(&known, Instant::now() + Duration::from_secs(20)).is_ok());
}

#[test]
fn a_node_that_is_slow_to_let_us_in_does_not_hold_up_what_goes_to_others() {
    let [first, second] = cluster();
    let mut pages = Pages::new(Arc::new(remote(&second, Duration::from_secs(20))));
    let runs = [0, 1].map(|node| Run { slot: slot_on(node, 2), pages: 1 });
    // It is connected to the second one only.
    assert_eq!(pages.write(DEVICE, &runs[1..], &[3], b"bbb"), [Ok(())]);
    first.hangs(true);
    let (state, began) = (second.state.clone(), Instant::now());
    let asked = thread::spawn(move || {
        while state.gets.load(Ordering::SeqCst) == 0 {
            thread::sleep(Duration::from_millis(5));
        }
        began.elapsed()
    });
    let (results, _, objects) = read(&mut pages, &runs, began);
    assert!(began.elapsed() > QUICK, "the first was waited for");
    assert_eq!((results, objects), (vec![Err(Errno::AGAIN), Ok(())], b"bbb".to_vec()));
    assert!(asked.join().unwrap() < QUICK, "meanwhile the second was asked");
}

/// A cluster of three with two copies of each page, and a page on each of two of them.
fn with_two_copies() -> ([Node; 3], Arc<Remote>, [Run; 2]) {
    let nodes = cluster();
    let (mut remote, soon) = (remote(&nodes[1], Duration::from_secs(20)), Instant::now() + Duration::from_secs(5));
    let survey = remote.survey(soon).unwrap();
    assert_eq!(remote.keep_two_copies(&survey, soon), Ok(None));
    (nodes, Arc::new(remote), [0, 1].map(|node| Run { slot: slot_on(node, 3), pages: 1 }))
}

#[test]
fn with_two_copies_a_node_that_hangs_is_not_waited_for() {
    let (nodes, remote, runs) = with_two_copies();
    let mut pages = Pages::new(remote.clone());
    assert_eq!(pages.write(DEVICE, &runs, &[2, 3], b"aabbb"), [Ok(()); 2]);
    let kept = |node: &Node| node.state.pages.lock().unwrap().len();
    assert_eq!(nodes.iter().map(kept).sum::<usize>(), 4);

    nodes[0].hangs(true);
    let right = (vec![Ok(()); 2], vec![2, 3], b"aabbb".to_vec());
    assert_eq!(read(&mut pages, &runs, Instant::now()), right);
    let began = Instant::now();
    assert_eq!(read(&mut pages, &runs, began), right);
    assert!(began.elapsed() < QUICK, "{:?}: it is known now", began.elapsed());
    pages.report(|_| true);
    assert_eq!((remote.counts.second_copies_read.get(), remote.counts.copies_lost.get()), (2, 0));
    let before: usize = nodes.iter().map(kept).sum();
    assert_eq!(pages.write(DEVICE, &[Run { slot: runs[0].slot + 1, pages: 1 }], &[1], b"x"), [Err(Errno::NOTCONN)]);
    assert_eq!(nodes.iter().map(kept).sum::<usize>(), before, "nor is it on one node alone");
    // Who has found that what came is wrong asks for one copy, and waits for that.
    let mut copy = |source| {
        let (mut lengths, mut objects) = (Vec::new(), Vec::new());
        (pages.read(DEVICE, &runs[..1], source, &mut lengths, &mut objects, Instant::now()), objects)
    };
    assert_eq!(copy(Source::Second), (vec![Ok(())], b"aa".to_vec()));
    assert_eq!(copy(Source::First), (vec![Err(Errno::AGAIN)], Vec::new()));
    nodes[0].hangs(false);
    remote.look();
    assert_eq!(copy(Source::First), (vec![Ok(())], b"aa".to_vec()));
}

/// It has come back without them.
#[test]
fn copies_that_are_lost_cost_no_more_than_a_question() {
    let (nodes, remote, runs) = with_two_copies();
    let mut pages = Pages::new(remote.clone());
    assert_eq!(pages.write(DEVICE, &runs, &[2, 3], b"aabbb"), [Ok(()); 2]);
    nodes[0].state.pages.lock().unwrap().clear();
    let connections = || nodes.iter().map(|node| node.state.connections.load(Ordering::SeqCst)).sum::<usize>();
    let right = (vec![Ok(()); 2], vec![2, 3], b"aabbb".to_vec());
    let mut read_all = || {
        assert_eq!(read(&mut pages, &runs, Instant::now()), right);
        pages.report(|_| true);
    };
    read_all();
    let before = connections();
    (0..20).for_each(|_| read_all());
    assert_eq!(connections(), before);
    assert_eq!((remote.counts.copies_lost.get(), remote.counts.copies_wrong.get()), (21, 0));
    let told = remote.told.take();
    assert!(told.len() == 1 && told[0].contains(&nodes[0].address().to_string()), "{told:?}");
    // Whose slot is being removed is not waited for there.
    assert_eq!(read(&mut pages, &runs, Instant::now()), right);
    pages.report(|slot| slot != runs[0].slot);
    assert_eq!(remote.counts.copies_lost.get(), 21);
    nodes[1..].iter().for_each(|node| node.state.pages.lock().unwrap().clear());
    assert_eq!(read(&mut pages, &runs, Instant::now()).0, [Err(Errno::NODATA); 2]);
}

/// It was stopped, and does not know it.
#[test]
fn a_node_whose_place_was_taken_has_lost_nothing() {
    let (nodes, remote, runs) = with_two_copies();
    let mut pages = Pages::new(remote.clone());
    assert_eq!(pages.write(DEVICE, &runs[..1], &[2], b"aa"), [Ok(())]);
    nodes[0].state.pages.lock().unwrap().clear();
    let said = nodes[1].state.nodes.lock().unwrap().clone().replace("myself,", "");
    let (first, others) = said.split_once('\n').unwrap();
    let slots = first.rsplit(' ').next().unwrap();
    let now = format!("a9 127.0.0.1:1@1 master - 0 1 70000 connected {slots}\n{others}");
    nodes[1..].iter().for_each(|node| node.says(&now));
    assert_eq!(read(&mut pages, &runs[..1], Instant::now()), (vec![Ok(())], vec![2], b"aa".to_vec()));
    pages.report(|_| true);
    assert_eq!((remote.counts.second_copies_read.get(), remote.counts.copies_lost.get()), (1, 0));
}

/// Who has opened the other copy says so.
#[test]
fn the_node_of_a_wrong_copy_is_named() {
    let (nodes, remote, runs) = with_two_copies();
    let mut pages = Pages::new(remote.clone());
    assert_eq!(pages.write(DEVICE, &runs[..1], &[2], b"aa"), [Ok(())]);
    pages.found_wrong(DEVICE, &runs[..1], WhichCopy::First);
    pages.found_wrong(DEVICE, &runs[..1], WhichCopy::Second);
    assert_eq!(remote.counts.copies_wrong.get(), 0, "who asked is answered before");
    pages.report(|_| true);
    let second = nodes[1..].iter().find(|node| !node.state.pages.lock().unwrap().is_empty()).unwrap();
    let told = remote.told.take();
    assert!(told[0].contains(&nodes[0].address().to_string()) && told[1].contains(&second.address().to_string()), "{told:?}");
    assert_eq!((remote.counts.copies_lost.get(), remote.counts.copies_wrong.get(), told.len()), (0, 2, 2));
}

/// Who had the copy when it came is not known then.
#[test]
fn no_node_is_named_of_a_wrong_copy_where_another_may_have_had_it() {
    let (nodes, remote, runs) = with_two_copies();
    let mut pages = Pages::new(remote.clone());
    assert_eq!(pages.write(DEVICE, &runs[..1], &[2], b"aa"), [Ok(())]);
    let soon = || Instant::now() + Duration::from_secs(5);
    let said = nodes[1].state.nodes.lock().unwrap().clone().replace("myself,", "");
    let now = said.replacen(
        &format!("a0 127.0.0.1:{}@1 master - 0 1 {}", nodes[0].port, nodes[0].port),
        "a9 127.0.0.1:1@1 master - 0 1 70000",
        1,
    );
    assert_ne!(said, now);
    nodes[1..].iter().for_each(|node| node.says(&now));
    remote.newer(&remote.known(soon()).unwrap(), soon()).unwrap();
    pages.found_wrong(DEVICE, &runs[..1], WhichCopy::First);
    pages.report(|_| true);
    assert_eq!((remote.counts.copies_wrong.get(), remote.told.take().len()), (1, 0));
}

/// Two that were stopped do not know it yet, when they go on.
#[test]
fn most_primaries_are_heard_of_who_has_what() {
    let (listeners, ports) = listeners::<6>();
    let nodes = |fifth: u16, epoch: u64| {
        let part = |i: usize| format!("{}-{}", i * 3277, (i * 3277 + 3276).min(16383));
        let line = |i: usize| {
            let (port, epoch) = if i == 4 { (fifth, epoch) } else { (ports[i], 1) };
            let id = ports.iter().position(|other| *other == port).unwrap();
            format!("a{id} 127.0.0.1:{port}@1 master - 0 1 {epoch} connected {}\n", part(i))
        };
        (0..5).map(line).collect::<String>()
    };
    let (before, after) = (nodes(ports[4], 1), nodes(ports[5], 2));
    let all = listeners.map(|listener| Node::start(listener, &before));
    let remote = remote(&all[0], Duration::from_secs(20));
    let soon = || Instant::now() + Duration::from_secs(5);
    let known = remote.known(soon()).unwrap();
    assert_eq!(known.map.owner(16383), Some(&all[4].address()));
    all[2..].iter().for_each(|node| node.says(&after));
    let known = remote.newer(&known, soon()).unwrap();
    assert_eq!(known.map.owner(16383), Some(&all[5].address()));
    // What is known is not forgotten where only those two answer.
    all[2..].iter().for_each(|node| node.hangs(true));
    assert!(remote.newer(&known, soon()).is_err());
    assert_eq!(remote.known(soon()).unwrap().map.owner(16383), Some(&all[5].address()));
}

/// Most say so, who have not heard of the newer; or they have forgotten the node that had it.
#[test]
fn older_news_is_believed_only_of_a_cluster_without_the_node_that_had_newer() {
    let (listeners, ports) = listeners::<4>();
    let line = |i: usize, role: &str, epoch: u64, slots: &str| {
        format!("a{i} 127.0.0.1:{}@1 {role} 0 1 {epoch} connected{slots}\n", ports[i])
    };
    let two = line(0, "master -", 1, " 0-5460") + &line(1, "master -", 2, " 5461-10922");
    let before = line(2, "master -", 3, " 10923-16383") + &line(3, "slave a2", 3, "") + &two;
    let after = line(2, "master,fail -", 3, "") + &line(3, "master -", 4, " 10923-16383") + &two;
    let forgotten = line(2, "master -", 3, " 10923-16383") + &two;
    let nodes = listeners.map(|listener| Node::start(listener, &after));
    let (remote, soon) = (remote(&nodes[0], Duration::from_secs(20)), || Instant::now() + Duration::from_secs(8));
    let known = remote.known(soon()).unwrap();
    assert_eq!(known.map.owner(16383), Some(&nodes[3].address()));
    nodes[3].hangs(true);
    nodes[..3].iter().for_each(|node| node.says(&before));
    assert!(remote.newer(&known, soon()).is_err());
    assert_eq!(remote.known(soon()).unwrap().map.owner(16383), Some(&nodes[3].address()));
    nodes[..3].iter().for_each(|node| node.says(&forgotten));
    assert_eq!(remote.newer(&known, soon()).unwrap().map.owner(16383), Some(&nodes[2].address()));
}

#[test]
fn another_server_at_the_address_of_a_node_gets_nothing() {
    let [first, second] = cluster();
    let mut pages = Pages::new(Arc::new(remote(&second, Duration::from_secs(20))));
    let runs = [0, 1].map(|node| Run { slot: slot_on(node, 2), pages: 1 });
    assert_eq!(pages.write(DEVICE, &runs[1..], &[3], b"bbb"), [Ok(())]);
    // It is of another cluster, and has all slots there.
    first.says(&format!("zz 127.0.0.1:{}@1 master - 0 1 1 connected 0-16383\n", first.port));
    assert_eq!(pages.write(DEVICE, &runs, &[2, 3], b"aaccc"), [Err(Errno::NOTCONN), Ok(())]);
    assert_eq!(first.state.pages.lock().unwrap().len(), 0);
    assert_eq!(read(&mut pages, &runs, Instant::now()).0, [Err(Errno::AGAIN), Ok(())]);
}
