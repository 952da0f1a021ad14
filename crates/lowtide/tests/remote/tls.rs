//! Servers and clusters by TLS (`rediss://`), with certificates that openssl makes here.

use crate::certificates::{Authority, Certificate};
use crate::live::{self, MIB, Run, Scene, area, number, turn, verifier};
use crate::servers::{Cluster, PRIMARIES, Server, free_port};
use crate::{ends_right, ends_well, goes_on};
use rustix::process::Signal;
use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

const HERE: &str = "IP:127.0.0.1";

/// As the statistics show it.
fn spec(server: &Server) -> String {
    format!("rediss://127.0.0.1:{}", server.secure_port())
}

/// Two nodes of a cluster, which are called so.
fn cluster_spec(cluster: &Cluster, host: &str) -> String {
    let places: Vec<_> = cluster.nodes.iter().take(2).map(|node| format!("{host}:{}", node.secure_port())).collect();
    format!("rediss://{}", places.join(","))
}

#[test]
fn pages_go_to_a_server_by_tls_and_come_back_and_nothing_is_left_there() {
    let Some(_turn) = turn() else { return };
    let (scene, authority) = (Scene::new(), Authority::new());
    let server = Server::start_with_tls(&authority, &authority.issue(HERE), "");
    let (spec, ca) = (spec(&server), authority.file());
    let mut run = verifier(&scene, &format!("--ram 48M --pool 4M --swap {spec},ca={}", ca.display()), "128 n");
    run.wait_until("pages come back", |run| number(&area(&scene, run, &spec), "read_bytes") > 64 * MIB);
    let clients = server.ask("CLIENT LIST");
    let secure = format!("laddr=127.0.0.1:{}", server.secure_port());
    assert!(clients.matches(&secure).count() >= 2, "{clients}");
    let remote = area(&scene, &run, &spec)["remote"].clone();
    assert_eq!(number(&remote, "reconnects"), 0, "{remote}");
    ends_well(&scene, run);
    assert_eq!(server.keys(), 0);
    let found = scene.done(&format!("doctor {spec},ca={}", ca.display()));
    assert!(found.contains("ok   a page") && found.contains(&format!("--swap {spec},ca=")), "{found}");
    assert!(scene.done(&format!("remote clean {spec},ca={}", ca.display())).contains("0 keys of 0 runs"));
}

/// Of each piece of 16 KiB at most, what encrypts and authenticates it passes, too: the server counts without.
#[test]
fn more_passes_by_tls_than_the_server_is_told() {
    let Some(_turn) = turn() else { return };
    let (scene, authority) = (Scene::new(), Authority::new());
    let server = Server::start_with_tls(&authority, &authority.issue(HERE), "");
    let spec = spec(&server);
    let options = format!("--quiet --ram 40M --pool 4M --swap {spec},ca={}", authority.file().display());
    let mut run = scene.sleeper(&options, 96, "n");
    let remote = |run: &Run, name: &str| number(&area(&scene, run, &spec)["remote"], name);
    let mut before = 0;
    run.wait_until("nothing more is written", |run| {
        thread::sleep(Duration::from_millis(500));
        let written = remote(run, "pages_written");
        std::mem::replace(&mut before, written) == written && written * 4096 > 32 * MIB
    });
    let info = server.ask("INFO stats");
    let told = info.lines().find_map(|line| line.strip_prefix("total_net_input_bytes:")?.trim().parse::<u64>().ok());
    let (told, sent) = (told.expect("a number"), remote(&run, "sent_bytes"));
    assert!(told > before * 4096 && sent > told + told / (16 << 10) * 20, "{sent} for {told}");
    ends_right(&scene, run);
}

/// Certificates are renewed while a run goes on: connections that are made later are made with those that are there then.
#[test]
fn certificates_are_read_anew_when_a_connection_is_made() {
    let Some(_turn) = turn() else { return };
    let (scene, authority) = (Scene::new(), Authority::new());
    let (server, ours) = (Server::start_with_tls(&authority, &authority.issue(HERE), ""), authority.issue("DNS:ours"));
    assert_eq!(server.ask("CONFIG SET tls-auth-clients yes"), "OK");
    let (spec, [cert, key]) = (spec(&server), ["cert.pem", "key.pem"].map(|name| scene.path(name)));
    let renew = |certificate: &Certificate| {
        std::fs::copy(&certificate.cert, &cert).expect("copied");
        std::fs::copy(&certificate.key, &key).expect("copied");
    };
    renew(&ours);
    let files = format!("ca={},cert={},key={}", authority.file().display(), cert.display(), key.display());
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec},{files}"), "64 n");
    goes_on(&scene, &mut run, &spec);
    // What is half there is not used.
    std::fs::write(&cert, "").expect("written");
    assert!(server.ask("CLIENT KILL TYPE normal").contains(char::is_numeric));
    goes_on(&scene, &mut run, &spec);
    // The old one is not believed any more: only who has read the new one gets in.
    let stranger = Authority::new();
    renew(&stranger.issue("DNS:ours"));
    assert_eq!(server.ask(&format!("CONFIG SET tls-ca-cert-file {}", stranger.file().display())), "OK");
    assert!(server.ask("CLIENT KILL TYPE normal").contains(char::is_numeric));
    goes_on(&scene, &mut run, &spec);
    assert!(number(&area(&scene, &run, &spec)["remote"], "reconnects") > 0);
    ends_right(&scene, run);
}

/// A key that others can read is nobody's own.
#[test]
fn a_key_that_others_can_read_or_that_is_encrypted_is_refused() {
    let Some(_turn) = turn() else { return };
    let (scene, authority) = (Scene::new(), Authority::new());
    let Certificate { cert, key } = authority.issue("DNS:ours");
    let run = format!(
        "run --ram 64M --swap rediss://127.0.0.1:{},cert={},key={} -- touch started",
        free_port(),
        cert.display(),
        key.display()
    );
    for mode in [0o640, 0o604] {
        std::fs::set_permissions(&key, Permissions::from_mode(mode)).expect("set");
        scene.refused(&run, 2, &["key=", "others can read it: `chmod 600 "]);
    }
    std::fs::write(&key, "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMA==\n-----END ENCRYPTED PRIVATE KEY-----\n")
        .expect("written");
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("set");
    scene.refused(&run, 2, &["key=", "it is encrypted"]);
    assert!(!scene.path("started").exists());
}

/// Paths are those of who says `swapon`; by `swapoff` it is called as it is shown.
#[test]
fn an_area_with_tls_is_turned_on_and_off_while_the_program_goes_on() {
    let Some(_turn) = turn() else { return };
    let (scene, authority) = (Scene::new(), Authority::new());
    let server = Server::start_with_tls(&authority, &authority.issue(HERE), "");
    let (spec, dir) = (spec(&server), scene.swap_dir("dir"));
    std::fs::copy(authority.file(), scene.path("ca.pem")).expect("copied");
    let mut command = scene.lowtide();
    let options = format!("run --quiet --ram 48M --pool 4M --swap {dir} --");
    command.args(options.split(' ')).arg(live::program("verifies")).args(["96", "n"]);
    command.current_dir(scene.path("dir"));
    let mut run = scene.started(command);
    run.wait_until("the memory is filled", |_| scene.path("dir/ready").exists());
    let pid = run.pid;
    scene.done(&format!("swapon {pid} {spec},ca=ca.pem,size=256M,prio=5"));
    run.wait_until("pages are out", |run| number(&area(&scene, run, &spec), "used") > 32 * MIB);
    scene.refused(&format!("swapon {pid} {spec},ca=ca.pem"), 2, &[&spec, "given twice"]);
    let out = scene.done(&format!("swapoff {pid} {spec}"));
    assert!(out.contains("the area is off"), "{out}");
    run.wait_until("nothing is left there", |_| server.keys() == 0);
    std::fs::write(scene.path("dir/go"), "").expect("written");
    let (out, err) = run.finish();
    assert_eq!((out.as_str(), err.as_str()), ("OK\n", ""));
}

#[test]
fn servers_that_are_not_who_they_should_be_are_refused_before_the_program_starts() {
    let Some(_turn) = turn() else { return };
    let (scene, authority) = (Scene::new(), Authority::new());
    let ca = authority.file().display().to_string();
    let run = |spec: &str| format!("run --ram 64M --swap {spec} -- touch started");
    let server = |certificate| Server::start_with_tls(&authority, &certificate, "");
    let good = server(authority.issue(HERE));
    let stranger = Authority::new();
    let of_another = format!("{},ca={}", spec(&good), stranger.file().display());
    scene.refused(&run(&of_another), 2, &[&spec(&good), "from no authority that is known here", "ca=FILE"]);
    let [one, other] = [(); 2].map(|()| Authority::called("one's own"));
    let namesake = Server::start_with_tls(&one, &one.issue(HERE), "");
    let of_namesake = format!("{},ca={}", spec(&namesake), other.file().display());
    scene.refused(&run(&of_namesake), 2, &[&spec(&namesake), "another authority than the one of the same name"]);
    let elsewhere = server(authority.issue("DNS:elsewhere.test,IP:127.0.0.2"));
    scene.refused(&run(&format!("{},ca={ca}", spec(&elsewhere))), 2, &[&spec(&elsewhere), "not for `127.0.0.1`"]);
    let expired = server(authority.issue_expired(HERE));
    scene.refused(&run(&format!("{},ca={ca}", spec(&expired))), 2, &[&spec(&expired), "has expired"]);
    // So does `doctor`, and `swapon` asks in the same way.
    let output = scene.ask(&format!("doctor {},ca={ca}", spec(&expired)));
    let found = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code() == Some(1) && found.contains("NO   server") && found.contains("has expired"), "{found}");
    let output = scene.ask(&format!("remote clean {},ca={ca}", spec(&expired)));
    live::assert_refused(&output, "remote clean", 125, &["has expired"]);

    scene.refused(&run(&format!("redis://127.0.0.1:{}", good.secure_port())), 2, &["rediss://"]);
    scene.refused(&run(&format!("rediss://{},ca={ca}", good.address())), 2, &["does not answer TLS", "redis://"]);
    scene.refused(&run(&format!("rediss://127.0.0.1:{},ca={ca}", free_port())), 2, &["no server listens there"]);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = format!("rediss://127.0.0.1:{},ca={ca}", silent.local_addr().expect("a port").port());
    scene.refused(&run(&silent), 2, &["does not answer TLS"]);

    let spec = spec(&good);
    scene.refused(&run(&format!("{spec},ca=nonexistent")), 2, &["ca=nonexistent: no such file"]);
    std::fs::write(scene.path("empty"), "nothing").expect("written");
    scene.refused(&run(&format!("{spec},ca=empty")), 2, &["ca=empty: there is no certificate in it"]);
    scene.refused(&run(&format!("{spec},ca={ca},cert={ca}")), 2, &["cert= and key= belong together"]);
    std::fs::set_permissions(scene.path("empty"), Permissions::from_mode(0o600)).expect("set");
    scene.refused(&run(&format!("{spec},ca={ca},cert={ca},key=empty")), 2, &["key=empty: there is no private key in it"]);
    assert!(!scene.path("started").exists());
}

#[test]
fn a_server_that_wants_a_certificate_gets_one() {
    let Some(_turn) = turn() else { return };
    let (scene, authority) = (Scene::new(), Authority::new());
    let (ours, other) = (authority.issue("DNS:client.test"), Authority::new());
    let stranger = other.issue("DNS:client.test");
    // The older version says it in the middle, the newer one afterwards.
    for versions in ["TLSv1.2", "TLSv1.3"] {
        // One that keeps no sessions wants none resumed.
        let options = format!("--tls-auth-clients yes --tls-session-caching no --tls-protocols {versions}");
        let server = Server::start_with_tls(&authority, &authority.issue(HERE), &options);
        let run = |options: &str| {
            let spec = format!("{},ca={}{options}", spec(&server), authority.file().display());
            scene.ask(&format!("run --quiet --ram 64M --swap {spec} -- true"))
        };
        live::assert_refused(&run(""), versions, 2, &[&spec(&server), "certificate of ours"]);
        let with =
            |certificate: &Certificate| format!(",cert={},key={}", certificate.cert.display(), certificate.key.display());
        live::assert_refused(&run(&with(&stranger)), versions, 2, &["our certificate"]);
        let output = run(&with(&ours));
        assert!(output.status.success() && output.stderr.is_empty(), "{versions}: {output:?}");
    }
}

/// Without `ca=`.
#[test]
fn the_authorities_of_the_system_are_believed() {
    let Some(_turn) = turn() else { return };
    let (scene, authority) = (Scene::new(), Authority::new());
    let server = Server::start_with_tls(&authority, &authority.issue("DNS:localhost"), "");
    let run = |file: &std::path::Path| {
        let mut command = scene.lowtide();
        command.env("SSL_CERT_FILE", file).env_remove("SSL_CERT_DIR");
        let words = format!("run --quiet --ram 64M --swap rediss://localhost:{} -- true", server.secure_port());
        command.args(words.split(' ')).output().expect("lowtide starts")
    };
    let output = run(&authority.file());
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let other = Authority::new();
    live::assert_refused(&run(&other.file()), "another one's", 2, &["from no authority that is known here"]);
    std::fs::write(scene.path("none"), "").expect("written");
    live::assert_refused(&run(&scene.path("none")), "none", 2, &["no certificates of authorities", "ca=FILE"]);
}

#[test]
fn a_server_with_tls_that_hangs_for_a_moment_is_waited_for() {
    let Some(_turn) = turn() else { return };
    let (scene, authority) = (Scene::new(), Authority::new());
    let server = Server::start_with_tls(&authority, &authority.issue(HERE), "");
    let spec = spec(&server);
    let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec},ca={}", authority.file().display()), "64 n");
    server.signal(Signal::STOP);
    // New connections wait for their first word meanwhile.
    thread::sleep(Duration::from_secs(5));
    server.signal(Signal::CONT);
    goes_on(&scene, &mut run, &spec);
    assert!(number(&area(&scene, &run, &spec)["remote"], "reconnects") > 0);
    ends_right(&scene, run);
    assert_eq!(server.keys(), 0);
}

/// Nodes are known by their addresses, or by the names that they announce; a replica that takes over, too.
#[test]
fn all_nodes_of_a_cluster_are_reached_by_tls() {
    let Some(_turn) = turn() else { return };
    let by_name = "--cluster-announce-hostname node.test --cluster-preferred-endpoint-type hostname";
    for (names, host, options) in [(HERE, "127.0.0.1", ""), ("DNS:localhost,DNS:node.test", "localhost", by_name)] {
        let (scene, authority) = (Scene::new(), Authority::new());
        let mut cluster = Cluster::with_tls(&authority, &authority.issue(names), options);
        let spec = cluster_spec(&cluster, host);
        let mut run = verifier(&scene, &format!("--ram 40M --pool 4M --swap {spec},ca={}", authority.file().display()), "64 n");
        let slots = cluster.slots_of_pages(0);
        assert!(!slots.is_empty(), "no pages on the first node");
        let mut moved = 0;
        // A map that is asked for between a move and the next read knows the place already.
        run.wait_until("a node says where a slot is", |_| {
            let slot = slots[moved / 2 % slots.len()];
            let (from, to) = if moved % 2 == 0 { (0, 2) } else { (2, 0) };
            cluster.begin_to_move(slot, from, to, 100);
            cluster.end_to_move(slot, from, to);
            moved += 1;
            [0, 2].iter().any(|i: &usize| cluster.nodes[*i].ask("INFO errorstats").contains("errorstat_MOVED"))
        });
        goes_on(&scene, &mut run, &spec);
        let is_plain = |client: &str, node: &Server| client.contains(&format!("laddr=127.0.0.1:{} ", node.port));
        for node in &cluster.nodes[..PRIMARIES] {
            let clients = node.ask("CLIENT LIST");
            let secure = format!("laddr=127.0.0.1:{} ", node.secure_port());
            assert!(clients.matches(&secure).count() >= 2, "{host}: {clients}");
            // But for the test's own.
            let plain = clients.lines().filter(|client| is_plain(client, node) && !client.contains("cmd=client|list"));
            assert_eq!(plain.count(), 0, "{host}: {clients}");
        }
        dies_and_is_replaced(&scene, &mut cluster, run, &spec);
        assert_eq!(cluster.keys(), [0; PRIMARIES], "{host}");
    }
}

/// A replica takes a primary's place as is planned, by which nothing is lost; then the primary is gone.
fn dies_and_is_replaced(scene: &Scene, cluster: &mut Cluster, mut run: Run, spec: &str) {
    let dead = 1;
    cluster.nodes[dead + PRIMARIES].ask("CLUSTER FAILOVER");
    run.wait_until("its replica has taken its place", |_| cluster.nodes[dead + PRIMARIES].ask("ROLE").contains("master"));
    cluster.nodes[dead].kill();
    goes_on(scene, &mut run, spec);
    assert!(number(&area(scene, &run, spec)["remote"], "failovers") > 0);
    ends_right(scene, run);
}

#[test]
fn a_cluster_of_which_a_node_has_another_name_is_refused() {
    let Some(_turn) = turn() else { return };
    let (scene, authority) = (Scene::new(), Authority::new());
    let options = "--cluster-announce-hostname node.test";
    let cluster = Cluster::with_tls(&authority, &authority.issue("DNS:localhost,DNS:other.test"), options);
    let spec = format!("{},ca={}", cluster_spec(&cluster, "localhost"), authority.file().display());
    scene.refused(&format!("run --ram 64M --swap {spec} -- touch started"), 2, &["its certificate is not for `node.test`"]);
    let plain = Cluster::without_replicas(PRIMARIES);
    assert_eq!(plain.nodes[1].ask("CONFIG SET port 0"), "OK");
    plain.wait_until("they know", |cluster| cluster.nodes[0].ask("CLUSTER NODES").contains(":0@"));
    let spec = format!("redis://{}", plain.nodes[0].address());
    scene.refused(&format!("run --ram 64M --swap {spec} -- touch started"), 2, &["has no port without TLS"]);
    assert!(!scene.path("started").exists());
}
