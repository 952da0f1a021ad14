//! What was sent on a connection that was given up must not come behind what is written later: with a real server, and a network
//! that holds back what it was given.

mod redis;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_config::server::{Address, Server};
use lowtide_core::device::wire::Run;
use lowtide_remote::pages::{Pages, Source};
use lowtide_remote::remote::Remote;
use redis::Redis;

/// Bytes that were kept, and where they were going.
type Kept = (TcpStream, Vec<u8>);

/// A way to a server on which what is sent by old connections is kept while `holds` is set.
struct Network {
    port: u16,
    holds: Arc<AtomicBool>,
    kept: Arc<Mutex<Vec<Kept>>>,
}

impl Network {
    fn to(server: u16) -> Network {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (holds, kept) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let network = Network { port: listener.local_addr().unwrap().port(), holds: holds.clone(), kept: kept.clone() };
        thread::spawn(move || {
            while let Ok((mut client, _)) = listener.accept() {
                // What is made while others are held back passes.
                let is_old = !holds.load(Ordering::SeqCst);
                let mut server = TcpStream::connect(("127.0.0.1", server)).unwrap();
                let (mut back_from, mut back_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
                let (holds, kept) = (holds.clone(), kept.clone());
                thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(n @ 1..) = client.read(&mut bytes) {
                        if is_old && holds.load(Ordering::SeqCst) {
                            kept.lock().unwrap().push((server.try_clone().unwrap(), bytes[..n].to_vec()));
                        } else if server.write_all(&bytes[..n]).is_err() {
                            return;
                        }
                    }
                    // The server does not learn that the client has gone, if that is held back.
                    if !(is_old && holds.load(Ordering::SeqCst)) {
                        let _ = server.shutdown(std::net::Shutdown::Write);
                    }
                });
            }
        });
        network
    }

    /// Delivers what was held back.
    fn deliver(&self) -> usize {
        let mut kept = self.kept.lock().unwrap();
        kept.drain(..).map(|(mut server, bytes)| server.write_all(&bytes).map_or(0, |()| bytes.len())).sum()
    }
}

fn fetched(pages: &mut Pages, runs: &[Run]) -> Vec<u8> {
    let (mut lengths, mut objects) = (Vec::new(), Vec::new());
    assert_eq!(pages.read("d:", runs, Source::Any, &mut lengths, &mut objects, Instant::now()), [Ok(())]);
    objects
}

#[test]
fn a_late_write_does_not_undo_a_later_one() {
    let redis = Redis::start();
    let network = Network::to(redis.1);
    let hosts = vec![Address { host: "127.0.0.1".to_owned(), port: network.port }];
    let server = Server { user: None, hosts, db: 0, tls: None };
    let remote = Arc::new(Remote::new(server, None, Duration::from_secs(1)).unwrap());
    let (mut one, mut other) = (Pages::new(remote.clone()), Pages::new(remote.clone()));
    let runs = [Run { slot: 5, pages: 1 }];
    assert_eq!(one.write("d:", &runs, &[5], b"first"), [Ok(())]);
    network.holds.store(true, Ordering::SeqCst);
    assert!(one.write("d:", &runs, &[4], b"late")[0].is_err(), "nobody has answered");
    remote.look();
    // The slot is another page's now.
    assert_eq!(other.write("d:", &runs, &[3], b"new"), [Ok(())]);
    assert!(network.deliver() > 0, "something was held back");
    thread::sleep(Duration::from_millis(300));
    assert_eq!(fetched(&mut other, &runs), b"new");
    assert_eq!(fetched(&mut one, &runs), b"new");
}
