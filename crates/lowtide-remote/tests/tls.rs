//! Connections by TLS: right however what is said is cut into records and packets; what was decrypted is taken before the socket
//! is waited for; and no wait is longer than it may be.

#[allow(dead_code)] // a part is used here
mod certificates;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use certificates::{Authority, Certificate};
use lowtide_config::server::Tls;
use lowtide_remote::resp::{Connection, Reply};
use lowtide_remote::stream::{Socket, Stream};
use lowtide_remote::tls::Trust;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

const NAMES: &str = "IP:127.0.0.1";
/// What is not held up takes less, by far.
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_secs(1);

type Peer = StreamOwned<ServerConnection, TcpStream>;

/// A port at which one connection is served by TLS.
fn serving(certificate: &Certificate, serve: impl FnOnce(Peer) + Send + 'static) -> u16 {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let chain = CertificateDer::pem_file_iter(&certificate.cert).unwrap().collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(&certificate.key).unwrap();
    let config = Arc::new(builder.with_no_client_auth().with_single_cert(chain, key).unwrap());
    accepting(move |socket| {
        socket.set_nodelay(true).unwrap();
        serve(StreamOwned::new(ServerConnection::new(config).unwrap(), socket));
    })
}

/// A port at which one connection is served.
fn accepting(serve: impl FnOnce(TcpStream) + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || serve(listener.accept().unwrap().0));
    port
}

fn connected(authority: &Authority, port: u16, time: Duration) -> io::Result<Connection> {
    stream(authority, port, time).map(Connection::new)
}

fn stream(authority: &Authority, port: u16, time: Duration) -> io::Result<Stream> {
    let trust = Trust::of(&Tls { ca: Some(authority.file()), own: None }).unwrap();
    let socket = Socket::new(TcpStream::connect(("127.0.0.1", port))?, Arc::default(), Instant::now() + time)?;
    Stream::tls(&trust, "127.0.0.1", socket)
}

/// Says no more, until the other side is gone.
fn is_silent(peer: &mut Peer) {
    let _ = io::copy(peer, &mut io::sink());
}

#[test]
fn replies_come_however_they_are_cut_into_records() {
    let authority = Authority::new();
    let certificate = authority.issue(NAMES);
    let long = vec![b'x'; 300_000];
    let said = [b"+OK\r\n$3\r\na\r\n\r\n$300000\r\n", long.as_slice(), b"\r\n:7\r\n-ERR x\r\n*1\r\n$-1\r\n"].concat();
    // Bytes of a record, and whether all of them are sent at once.
    for (record, at_once) in [(1, true), (7, true), (7, false), (5000, true), (5000, false), (16384, true), (usize::MAX, true)]
    {
        let said = said.clone();
        let port = serving(&certificate, move |mut peer| {
            // With the first byte all is agreed.
            peer.read_exact(&mut [0]).unwrap();
            peer.conn.set_buffer_limit(None);
            for piece in said.chunks(record) {
                peer.conn.writer().write_all(piece).unwrap();
                if !at_once {
                    peer.flush().unwrap();
                }
            }
            peer.flush().unwrap();
            is_silent(&mut peer);
        });
        let mut connection = connected(&authority, port, LONG).unwrap();
        connection.send(b"?").unwrap();
        let mut next = || connection.reply().unwrap_or_else(|error| panic!("records of {record}, {at_once}: {error:?}"));
        assert_eq!(next(), Reply::Simple("OK".to_owned()));
        assert_eq!(next(), Reply::Bytes(b"a\r\n".to_vec()));
        assert_eq!(next(), Reply::Bytes(long.clone()));
        assert_eq!(next(), Reply::Number(7));
        assert_eq!(next(), Reply::Error("ERR x".to_owned()));
        assert_eq!(next(), Reply::List(vec![Reply::Nothing]));
        let began = Instant::now();
        connection.until(began + SHORT).unwrap();
        assert_eq!(connection.reply().unwrap_err().kind(), ErrorKind::TimedOut, "nothing more is said");
        assert!(began.elapsed() >= SHORT && began.elapsed() < LONG, "{:?}", began.elapsed());
    }
}

/// Nothing more comes by the socket.
#[test]
fn what_was_decrypted_is_taken_before_the_socket_is_waited_for() {
    let authority = Authority::new();
    let port = serving(&authority.issue(NAMES), |mut peer| {
        peer.conn.writer().write_all(b"abc").unwrap();
        peer.conn.writer().write_all(b"def").unwrap();
        peer.flush().unwrap();
        is_silent(&mut peer);
    });
    let mut stream = stream(&authority, port, LONG / 4).unwrap();
    for expected in b"abcdef" {
        let mut byte = [0];
        assert_eq!(stream.receive(&mut byte).unwrap_or_else(|error| panic!("{}: {error}", *expected as char)), 1);
        assert_eq!(byte[0], *expected);
    }
}

#[test]
fn what_is_sent_waits_for_a_server_that_is_slow_to_take_it() {
    let authority = Authority::new();
    let port = serving(&authority.issue(NAMES), |mut peer| {
        let (mut taken, mut bytes) = (0, [0; 10_000]);
        while taken < 8 << 20 {
            let n = peer.read(&mut bytes).unwrap();
            assert!(bytes[..n].iter().enumerate().all(|(i, byte)| *byte == ((taken + i) % 251) as u8));
            taken += n;
            if taken % 7 == 0 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        peer.write_all(b"+OK\r\n").unwrap();
        is_silent(&mut peer);
    });
    let mut connection = connected(&authority, port, LONG).unwrap();
    let bytes: Vec<u8> = (0..8usize << 20).map(|i| (i % 251) as u8).collect();
    connection.send(&bytes).unwrap();
    assert_eq!(connection.done().unwrap(), Ok(()));
}

#[test]
fn a_server_that_hangs_or_drips_is_waited_for_no_longer_than_it_may_be() {
    let authority = Authority::new();
    let certificate = authority.issue(NAMES);
    let is_late = |port: u16| {
        let began = Instant::now();
        let error = connected(&authority, port, SHORT).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(began.elapsed() >= SHORT && began.elapsed() < LONG / 4, "{:?}", began.elapsed());
        error.to_string()
    };
    let silent = is_late(accepting(|mut socket| _ = io::copy(&mut socket, &mut io::sink())));
    assert!(silent.contains("it does not answer TLS") && silent.contains("redis://"), "{silent}");
    // Of a long record a byte at a time.
    is_late(accepting(|mut socket| {
        let _ = socket.write_all(&[0x16, 3, 3, 0x3f, 0xff, 2, 0, 0x3f, 0xfb]);
        while socket.write_all(&[0]).is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    }));
    // When all is agreed.
    let port = serving(&certificate, |mut peer| is_silent(&mut peer));
    let mut connection = connected(&authority, port, LONG).unwrap();
    let began = Instant::now();
    connection.until(began + SHORT).unwrap();
    assert_eq!(connection.reply().unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(began.elapsed() < LONG / 4, "{:?}", began.elapsed());
    // Nobody takes it.
    let port = serving(&certificate, |mut peer| {
        peer.conn.complete_io(&mut peer.sock).unwrap();
        thread::sleep(LONG);
    });
    let mut connection = connected(&authority, port, LONG).unwrap();
    let began = Instant::now();
    connection.until(began + SHORT).unwrap();
    assert_eq!(connection.send(&vec![0; 64 << 20]).unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(began.elapsed() < LONG / 4, "{:?}", began.elapsed());
}

#[test]
fn an_end_is_an_end_with_and_without_a_word() {
    let authority = Authority::new();
    let certificate = authority.issue(NAMES);
    for with_a_word in [true, false] {
        let port = serving(&certificate, move |mut peer| {
            peer.write_all(b"+OK\r\n").unwrap();
            if with_a_word {
                peer.conn.send_close_notify();
                peer.flush().unwrap();
            }
        });
        let mut connection = connected(&authority, port, LONG).unwrap();
        assert_eq!(connection.done().unwrap(), Ok(()));
        assert_eq!(connection.reply().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
    // Before anything was said.
    let port = serving(&certificate, |mut peer| _ = peer.conn.complete_io(&mut peer.sock));
    let mut connection = connected(&authority, port, LONG).unwrap();
    let error = connection.reply().unwrap_err();
    assert!(error.to_string().contains("cert=FILE,key=FILE"), "{error}");
}
