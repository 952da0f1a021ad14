//! A run that goes on is never taken for one that is gone.

mod redis;

use std::sync::Arc;
use std::time::{Duration, Instant};

use lowtide_config::server::{Address, Server};
use lowtide_remote::client::Client;
use lowtide_remote::keys::RunName;
use lowtide_remote::lease;
use lowtide_remote::remote::Remote;
use lowtide_remote::resp::Reply;
use redis::Redis;

#[test]
fn a_lease_is_renewed_where_memory_is_full() {
    let redis = Redis::start();
    let hosts = vec![Address { host: "127.0.0.1".to_owned(), port: redis.1 }];
    let remote = Arc::new(Remote::new(Server { user: None, hosts, db: 0, tls: None }, None, Duration::from_secs(5)).unwrap());
    let (mut client, mut other) = (Client::new(remote.clone()), Client::new(remote));
    let (run, soon) = (RunName(7), || Instant::now() + Duration::from_secs(5));
    let key = run.lease();
    let mut ask = |words: &[&[u8]]| other.ask(&key, words, soon());
    lease::renew(&mut client, run, soon()).expect("there is room");
    assert_eq!(ask(&[b"EXPIRE", key.as_bytes(), b"3"]), Ok(Reply::Number(1)));
    ask(&[b"CONFIG", b"SET", b"maxmemory", b"1"]).expect("set");
    ask(&[b"SET", b"x", b"y"]).expect_err("it is full");
    let _ = lease::renew(&mut client, run, soon());
    let Ok(Reply::Number(seconds)) = ask(&[b"TTL", key.as_bytes()]) else { panic!("no time to live") };
    assert!(seconds > 60, "{seconds}");
}
