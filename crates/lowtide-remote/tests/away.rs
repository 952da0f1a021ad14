//! A node that hangs must not hold up what is on other nodes: with nodes that answer as a test wants.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_config::server::{Address, Server};
use lowtide_core::device::wire::Run;
use lowtide_core::slot::CLUSTER_SLOTS;
use lowtide_remote::keys;
use lowtide_remote::pages::{Pages, Source};
use lowtide_remote::remote::Remote;
use rustix::io::Errno;

const DEVICE: &str = "lowtide:{test:1:";
/// What is not held up takes less.
const QUICK: Duration = Duration::from_millis(500);

/// A node of a cluster, which has half of the slots.
struct Node {
    port: u16,
    hangs: Arc<AtomicBool>,
}

impl Node {
    /// `nodes`: what it says of the cluster.
    fn start(listener: TcpListener, nodes: &str) -> Node {
        let node = Node { port: listener.local_addr().unwrap().port(), hangs: Arc::default() };
        let (port, hangs, nodes) = (node.port, node.hangs.clone(), nodes.to_owned());
        let pages: Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>> = Arc::default();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (hangs, nodes, pages) = (hangs.clone(), nodes.clone(), pages.clone());
                thread::spawn(move || serve(stream.unwrap(), port, &hangs, &nodes, &pages));
            }
        });
        node
    }
}

fn serve(stream: TcpStream, port: u16, hangs: &AtomicBool, nodes: &str, pages: &Mutex<HashMap<Vec<u8>, Vec<u8>>>) {
    let (mut from, mut to) = (BufReader::new(stream.try_clone().unwrap()), stream);
    while let Some(words) = words(&mut from) {
        while hangs.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(10));
        }
        let bulk = |bytes: &[u8]| [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        let reply = match words[0].as_slice() {
            b"INFO" => bulk(
                format!("redis_version:7.0.0\r\nrun_id:{port}\r\nrole:master\r\ncluster_enabled:1\r\nmaxmemory:0\r\n")
                    .as_bytes(),
            ),
            b"CLUSTER" => bulk(nodes.as_bytes()),
            b"SET" => {
                pages.lock().unwrap().insert(words[1].clone(), words[2].clone());
                b"+OK\r\n".to_vec()
            }
            b"GET" => pages.lock().unwrap().get(&words[1]).map_or(b"$-1\r\n".to_vec(), |page| bulk(page)),
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

/// A slot of the device that is in that half of a cluster's slots.
fn slot_in(is_second: bool) -> u64 {
    let in_half = |slot: &u64| {
        let mut key = Vec::new();
        keys::slot(&mut key, DEVICE, *slot);
        (keys::hash_slot(&key) >= 8192) == is_second
    };
    (0..).map(|cluster| cluster * CLUSTER_SLOTS as u64).find(in_half).unwrap()
}

#[test]
fn a_node_that_hangs_does_not_hold_up_the_others() {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [first, second] = [0, 1].map(|i| listeners[i].local_addr().unwrap());
    let nodes = format!("aa {first}@1 master - 0 1 1 connected 0-8191\nbb {second}@1 master - 0 1 2 connected 8192-16383\n");
    let [first, second] = listeners.map(|listener| Node::start(listener, &nodes));
    let host = |node: &Node| Address { host: "127.0.0.1".to_owned(), port: node.port };
    let server = Server { user: None, hosts: vec![host(&second)], db: 0 };
    let timeout = Duration::from_secs(20);
    let remote = Arc::new(Remote::new(server, None, timeout));
    let mut pages = Pages::new(remote.clone());
    let runs = [false, true].map(|is_second| Run { slot: slot_in(is_second), pages: 1 });
    assert_eq!(pages.write(DEVICE, &runs, &[2, 3], b"aabbb"), [Ok(()); 2]);
    let mut read = |since: Instant| {
        let (mut lengths, mut objects) = (Vec::new(), Vec::new());
        (pages.read(DEVICE, &runs, Source::Any, &mut lengths, &mut objects, since), lengths, objects)
    };
    assert_eq!(read(Instant::now()), (vec![Ok(()); 2], vec![2, 3], b"aabbb".to_vec()));

    first.hangs.store(true, Ordering::SeqCst);
    let half = (vec![Err(Errno::AGAIN), Ok(())], vec![0, 3], b"bbb".to_vec());
    assert_eq!(read(Instant::now()), half, "the reply of the other was taken");
    let began = Instant::now();
    assert_eq!(read(began), half);
    assert!(began.elapsed() < QUICK, "{:?}: it is known now", began.elapsed());
    assert_eq!(read(began.checked_sub(timeout).unwrap()).0[0], Err(Errno::TIMEDOUT));
    let began = Instant::now();
    assert_eq!(pages.write(DEVICE, &runs, &[1, 1], b"xy"), [Err(Errno::NOTCONN), Ok(())]);
    assert!(pages.remove(DEVICE, &runs[..1], None).is_err());
    assert!(began.elapsed() < QUICK, "{:?}", began.elapsed());
    remote.look();
    assert!(remote.has_away(), "it hangs still");

    first.hangs.store(false, Ordering::SeqCst);
    remote.look();
    assert!(!remote.has_away());
    let (mut lengths, mut objects) = (Vec::new(), Vec::new());
    assert_eq!(pages.read(DEVICE, &runs, Source::Any, &mut lengths, &mut objects, Instant::now()), [Ok(()); 2]);
    assert_eq!(objects, b"aay");
}
