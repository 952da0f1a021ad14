//! A redis-server on loopback, ended when it is dropped.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

pub struct Redis(Child, pub u16);

impl Redis {
    pub fn start() -> Redis {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).unwrap().port();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("redis-server is installed (`make setup`)");
        let until = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "redis-server does not listen");
            thread::sleep(Duration::from_millis(20));
        }
        Redis(child, port)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
