//! A small HTTP server for `GET /metrics` only, in threads of its own: the supervisor never waits
//! for a client. Silent clients, and clients that read nothing, are dropped.

use super::address::Listening;
use super::requests::Asker;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time for a client to ask, and again to read.
const PATIENCE: Duration = Duration::from_secs(5);
/// Concurrent clients; the next gets a retry answer.
const MOST: usize = 8;
const LONGEST: usize = 8 << 10;
const HEADERS: usize = 64;
const STACK: usize = 256 << 10;
/// OpenMetrics 1.0.
const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

trait Stream: Read + Write + Send + 'static {
    fn let_wait(&self, time: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn let_wait(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

impl Stream for UnixStream {
    fn let_wait(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

#[derive(Clone, Copy)]
enum Audience {
    /// Programs of this machine. A browser here requests what any page tells it to, and the owner
    /// of a name can point it to 127.0.0.1 (DNS rebinding); the request's Host header has the name.
    Local,
    /// All who can connect: the user permitted it.
    Anyone,
}

impl Audience {
    /// Whether a request with this Host header (None: without one) is allowed.
    fn lets_in(self, host: Option<&str>) -> bool {
        let Some(host) = host.filter(|_| matches!(self, Audience::Local)) else { return true };
        let is_address = host.parse::<IpAddr>().is_ok() || host.parse::<SocketAddr>().is_ok();
        let name = host.split(':').next().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        is_address
            || bare.is_some_and(|host| host.parse::<IpAddr>().is_ok())
            || name == "localhost"
            || name.ends_with(".localhost")
    }
}

/// Serves until this process ends. Call it after starting the program: the forking process must
/// have one thread.
///
/// # Errors
/// No thread or descriptor is left.
pub fn start(listening: &Listening, asker: Asker) -> io::Result<()> {
    match listening {
        Listening::Tcp(listener, _) => {
            let listener = listener.try_clone()?;
            let audience = if listener.local_addr()?.ip().is_loopback() { Audience::Local } else { Audience::Anyone };
            spawn(move || accept(|| listener.accept().map(|(stream, _)| stream), audience, &asker))
        }
        Listening::Unix(listener, ..) => {
            let listener = listener.try_clone()?;
            spawn(move || accept(|| listener.accept().map(|(stream, _)| stream), Audience::Anyone, &asker))
        }
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name("metrics".to_owned()).stack_size(STACK).spawn(work).map(drop)
}

fn accept<S: Stream>(next: impl Fn() -> io::Result<S>, audience: Audience, asker: &Asker) {
    let served = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok(mut stream) = next() else {
            // Probably no descriptors: a retry at once would spin.
            std::thread::sleep(Duration::from_millis(200));
            continue;
        };
        if served.load(Ordering::Relaxed) >= MOST {
            let _ = stream.let_wait(Duration::from_millis(10)).and_then(|()| answer(&mut stream, &busy(), false));
            continue;
        }
        served.fetch_add(1, Ordering::Relaxed);
        let (asker, count) = (asker.clone(), served.clone());
        let started = spawn(move || {
            let _ = serve(stream, audience, &asker);
            count.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            served.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

struct Answer {
    status: &'static str,
    kind: &'static str,
    more: &'static str,
    body: String,
}

fn plain(status: &'static str, more: &'static str, body: &str) -> Answer {
    Answer { status, kind: "text/plain; charset=utf-8", more, body: body.to_owned() }
}

fn busy() -> Answer {
    plain("503 Service Unavailable", "Retry-After: 1\r\n", "many clients are connected already\n")
}

fn serve(mut stream: impl Stream, audience: Audience, asker: &Asker) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let mut input = Vec::new();
    let (answered, head) = loop {
        match asked(&input, audience) {
            Asked::More if input.len() >= LONGEST => {
                break (plain("431 Request Header Fields Too Large", "", "the request is too long\n"), false);
            }
            Asked::More => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break (plain("408 Request Timeout", "", "the request did not end\n"), false);
                }
                stream.let_wait(left)?;
                let mut chunk = [0; 1024];
                match stream.read(&mut chunk) {
                    Ok(0) => return Ok(()),
                    Ok(n) => input.extend_from_slice(&chunk[..n]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                    Err(error) => return Err(error),
                }
            }
            Asked::Metrics { head } => {
                let text = asker.text(PATIENCE);
                let stopped = || plain("503 Service Unavailable", "", "lowtide run does not answer: is it stopped?\n");
                break (text.map_or_else(stopped, |body| Answer { status: "200 OK", kind: TYPE, more: "", body }), head);
            }
            Asked::Other(answer) => break (answer, false),
        }
    };
    stream.let_wait(PATIENCE)?;
    answer(&mut stream, &answered, head)
}

enum Asked {
    /// The request is incomplete.
    More,
    Metrics {
        /// Without the body.
        head: bool,
    },
    Other(Answer),
}

fn asked(input: &[u8], audience: Audience) -> Asked {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(input) {
        Ok(httparse::Status::Partial) => return Asked::More,
        Ok(httparse::Status::Complete(_)) => {}
        Err(_) => return Asked::Other(plain("400 Bad Request", "", "this is not HTTP\n")),
    }
    let host = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("host"));
    if !audience.lets_in(host.map(|header| core::str::from_utf8(header.value).unwrap_or("?"))) {
        let why = "ask for it as localhost or by its address: other names could be anyone's\n";
        return Asked::Other(plain("403 Forbidden", "", why));
    }
    let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
    match (request.method.unwrap_or_default(), path) {
        (_, path) if path != "/metrics" => Asked::Other(plain("404 Not Found", "", "there is /metrics only\n")),
        ("GET", _) => Asked::Metrics { head: false },
        ("HEAD", _) => Asked::Metrics { head: true },
        _ => Asked::Other(plain("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "GET and HEAD only\n")),
    }
}

fn answer(stream: &mut impl Write, answer: &Answer, head: bool) -> io::Result<()> {
    let Answer { status, kind, more, body } = answer;
    let length = body.len();
    let mut all = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{more}\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    );
    if !head {
        all += body;
    }
    stream.write_all(all.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_this_machine_must_name_it() {
        for host in [
            "localhost",
            "LocalHost:9900",
            "a.localhost:1",
            "localhost.",
            "127.0.0.1",
            "127.0.0.1:80",
            "[::1]:80",
            "[::1]",
            "::1",
        ] {
            assert!(Audience::Local.lets_in(Some(host)), "{host}");
        }
        for host in
            ["example.org", "example.org:9900", "localhost.example.org", "notlocalhost", "127.0.0.1.example.org", "", ":80"]
        {
            assert!(!Audience::Local.lets_in(Some(host)), "{host}");
            assert!(Audience::Anyone.lets_in(Some(host)), "{host}");
        }
        assert!(Audience::Local.lets_in(None));
    }
}
