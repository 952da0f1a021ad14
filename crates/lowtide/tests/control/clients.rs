//! Clients that don't know how to ask, never read, or are many.

use crate::live::{Client, Scene, turn};
use crate::{STAT, ends_well, small};
use serde_json::Value;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn who_does_not_know_how_to_ask_is_told() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let run = small(&scene);
    let garbage: [&[u8]; 5] = [b"hello\n", b"\n", b"\x00\xff\xfe\n", b"{\"lowtide\":1,\"do\":\n", b"GET / HTTP/1.1\r\n\r\n"];
    for bytes in garbage {
        let mut client = run.connect();
        client.send(bytes);
        client.refused(2, &["not a line of JSON"]);
        assert!(client.is_closed());
    }
    // Of what is JSON, one can be wrong and the next right.
    let mut client = run.connect();
    for (line, words) in [
        ("7", &["no \"lowtide\""][..]),
        (r#"{"lowtide":2,"do":"stat"}"#, &["version"]),
        (r#"{"lowtide":1,"do":"dance"}"#, &["swapoff"]),
        (r#"{"lowtide":1,"do":"limit"}"#, &["size"]),
        (r#"{"lowtide":1,"do":"cancel"}"#, &["nothing to cancel"]),
    ] {
        client.send(format!("{line}\n"));
        client.refused(2, words);
    }
    assert_eq!(client.ask(STAT)["ok"], true);
    // Several requests at once are answered in their order.
    client.send(format!("{STAT}\n{{\"lowtide\":1,\"do\":\"ps\"}}\n7\n"));
    assert_eq!((client.answer()["schema"].clone(), client.answer()["schema"].clone()), (1.into(), Value::Null));
    client.refused(2, &["lowtide"]);

    // Who has nothing more to say still gets an answer, if that takes time.
    let mut client = run.connect();
    client.send("{\"lowtide\":1,\"do\":\"swapoff\",\"spec\":\"auto\"}\n");
    client.stream.shutdown(std::net::Shutdown::Write).expect("shut down");
    assert_eq!(client.answer()["ok"], true);
    assert!(client.is_closed());

    let mut client = run.connect();
    client.send(&STAT[..12]);
    client.stream.shutdown(std::net::Shutdown::Write).expect("shut down");
    client.refused(2, &["cut off"]);
    assert!(client.is_closed());

    for huge in [vec![b'x'; 4 << 20], [vec![b'['; 70_000], b"\n".to_vec()].concat()] {
        let mut client = run.connect();
        // Closed before all of it is sent, perhaps.
        client.send(&huge);
        client.refused(2, &["longer than 65536 bytes"]);
    }
    // Just what is allowed.
    let padded = format!("{STAT:<65535}\n");
    assert_eq!(run.connect().ask(padded.trim_end_matches('\n'))["ok"], true);
    ends_well(&scene, run);
}

#[test]
fn who_never_reads_is_dropped() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let run = small(&scene);
    let mut client = run.connect();
    client.stream.set_nonblocking(true).expect("set");
    let (line, started) = (format!("{STAT}\n"), Instant::now());
    let mut sent = 0;
    // Until it is closed.
    loop {
        match client.stream.write(line.as_bytes()) {
            Ok(n) => sent += n,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(20)),
            Err(_) => break,
        }
        assert!(started.elapsed() < Duration::from_secs(30), "it is not dropped after {sent} bytes");
    }
    // Others were served all the time.
    assert_eq!(run.connect().ask(STAT)["ok"], true);
    let bytes = lowtide_config::proc::anonymous(run.pid);
    assert!((1..8 << 20).contains(&bytes), "lowtide holds {bytes} bytes");
    ends_well(&scene, run);
}

#[test]
fn a_hundred_clients_at_once_and_too_many() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let run = small(&scene);
    thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| {
                let mut client = run.connect();
                for _ in 0..3 {
                    assert_eq!(client.ask(STAT)["ok"], true);
                }
            });
        }
    });
    let mut idle: Vec<Client> = (0..256).map(|_| run.connect()).collect();
    // The last of them is served, so all are there.
    assert_eq!(idle.last_mut().expect("256").ask(STAT)["ok"], true);
    let mut one_more = run.connect();
    one_more.refused(1, &["256 clients"]);
    assert!(one_more.is_closed());
    scene.refused(&format!("stat {}", run.pid), 1, &["256 clients"]);
    drop(idle);
    let until = Instant::now() + Duration::from_secs(5);
    while !scene.ask(&format!("stat {}", run.pid)).status.success() {
        assert!(Instant::now() < until, "there is room again");
    }
    ends_well(&scene, run);
}
