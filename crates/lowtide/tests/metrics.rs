//! `--metrics` and `lowtide metrics`: what is served, to whom, and that nobody can disturb a run by asking.

mod live;

use live::{Run, Scene, program, skip, turn};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);

/// An address that was free a moment ago.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").to_string()
}

/// Sends bytes and reads the answer to its end.
fn ask(mut stream: impl Read + Write, request: &str) -> String {
    // Who is turned away may find the connection closed before all is said.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

fn connected(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connected");
    stream.set_read_timeout(Some(DEADLINE)).expect("a time-out");
    stream
}

fn get(address: &str) -> String {
    let answer = ask(connected(address), "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    body.to_owned()
}

/// Samples by name, with labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            line.rsplit_once(' ').map(|(name, value)| (name.to_owned(), value.parse().expect("a number"))).expect("a sample")
        })
        .collect()
}

/// A run that evicts, and then waits with all its pages as they are.
fn thrashed(scene: &Scene, options: &str) -> Run {
    scene.sleeper(&format!("--ram 32M --quiet {options}"), 96, "tnz").listens()
}

fn ends_well(scene: &Scene, run: Run) {
    scene.wake();
    let (out, err) = run.finish();
    let native = Command::new(program("sleeps")).args(["96", "tnz"]).current_dir(scene.dir.path()).output().expect("it starts");
    assert_eq!((out.as_str(), err.as_str()), (&*String::from_utf8_lossy(&native.stdout), ""));
}

#[test]
fn what_is_served_is_what_stat_says() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let address = free_address();
    let run = thrashed(&scene, &format!("--metrics {address}"));
    let before = scene.stat(run.pid);
    let text = get(&address);
    let printed = scene.done(&format!("metrics {}", run.pid));
    let after = scene.stat(run.pid);
    assert!(text.ends_with("# EOF\n") && printed.ends_with("# EOF\n"));
    let (served, printed) = (samples(&text), samples(&printed));
    let names = |samples: &BTreeMap<String, f64>| samples.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&served), names(&printed));
    for (name, group, key) in [
        ("lowtide_evictions_pages_total", "evictions", "pages"),
        ("lowtide_pages_zero_total", "pages", "zero"),
        ("lowtide_pages_stored_total", "pages", "stored"),
        ("lowtide_faults_total{kind=\"first_touch\"}", "faults", "first_touch"),
        ("lowtide_writeback_bytes_total", "writeback", "bytes"),
        ("lowtide_pool_refused_total", "pool", "refused"),
        ("lowtide_work_lock_waits_total", "work", "lock_waits"),
        ("lowtide_evictions_moved_calls_total", "evictions", "moved_calls"),
    ] {
        let value = *served.get(name).unwrap_or_else(|| panic!("no {name}: {text}"));
        let of = |stat: &Value| stat[group][key].as_u64().unwrap_or_else(|| panic!("no {group}.{key}")) as f64;
        assert!(of(&before) <= value && value <= of(&after), "{name}: {value}, {} to {}", of(&before), of(&after));
    }
    assert!(served["lowtide_evictions_pages_total"] > 1000.0 && served["lowtide_pages_zero_total"] > 0.0);
    assert_eq!(served["lowtide_ram_limit_bytes"], f64::from(32 << 20));
    let buckets: Vec<f64> = text
        .lines()
        .filter(|line| line.contains("_bucket{"))
        .map(|line| line.rsplit_once(' ').expect("two").1.parse().expect("a number"))
        .collect();
    assert!(buckets.is_sorted() && buckets.last() == served.get("lowtide_fault_service_seconds_count"), "{buckets:?}");
    let area =
        format!("lowtide_area_used_bytes{{area=\"{}\",number=\"0\"}}", after["areas"][0]["spec"].as_str().expect("a spec"));
    assert!(served.contains_key(&area), "{area}: {text}");
    ends_well(&scene, run);
    assert!(TcpStream::connect(&address).is_err(), "over with the run");
}

#[test]
fn a_strict_reader_understands_it() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    // A program's name is text like any other.
    let odd = scene.path("od\"d\\ {x=\"1\"} name");
    std::os::unix::fs::symlink(program("sleeps"), &odd).expect("a link");
    let mut run = scene.start("--ram 64M --quiet", &odd, "8 t").listens();
    run.wait_until("it is ready", |_| scene.path("ready").exists());
    let text = scene.done(&format!("metrics {}", run.pid));
    let python = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("venv/bin/python");
    let parse = "import sys\nfrom prometheus_client.openmetrics.parser import text_string_to_metric_families as parse\n\
                 for f in parse(sys.stdin.read()):\n assert f.documentation and f.type in ('counter', 'gauge', 'info', 'histogram'), f\n \
                 assert f.name.startswith('lowtide_'), f\n for s in f.samples:\n  print(s.name, s.labels.get('program', ''))\n";
    let can = Command::new(&python).args(["-c", "import prometheus_client"]).stderr(Stdio::null()).status();
    if !can.is_ok_and(|status| status.success()) {
        return skip("there is no prometheus_client in target/venv: tests/setup.sh installs it");
    }
    let mut child =
        Command::new(&python).args(["-c", parse]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python starts");
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("waited for");
    assert!(output.status.success(), "{text}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains(&format!("lowtide_run_info {}", odd.display())), "{said}");
    scene.wake();
    run.finish();
}

#[test]
fn odd_clients_disturb_nobody() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let address = free_address();
    let run = thrashed(&scene, &format!("--metrics {address}"));
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404"),
        ("GET /metricsx HTTP/1.1\r\n\r\n", "404"),
        ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", "200"),
        ("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n", "200"),
        ("GET /metrics HTTP/1.1\r\nHost: a-page.example:1\r\n\r\n", "403"),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\n", "405"),
        ("hello\r\n\r\n", "400"),
        ("\0\0\0\0\0\0", "400"),
    ] {
        let answer = ask(connected(&address), request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer}");
    }
    let head = ask(connected(&address), "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n") && !head.contains("# EOF"), "{head}");
    let endless = ask(connected(&address), &format!("GET /metrics HTTP/1.1\r\nX: {}", "y".repeat(9000)));
    assert!(endless.is_empty() || endless.starts_with("HTTP/1.1 431"), "{endless}");
    // Some say nothing, more than are served at a time.
    let silent: Vec<TcpStream> = (0..12).map(|_| connected(&address)).collect();
    assert_eq!(scene.stat(run.pid)["ram_limit"], 32 << 20, "the supervisor does not wait for them");
    // The last ones were turned away, the others are let go after a while.
    for stream in silent {
        let answer = ask(stream, "");
        assert!(answer.starts_with("HTTP/1.1 503") || answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
    assert!(get(&address).ends_with("# EOF\n"));
    ends_well(&scene, run);
}

#[test]
fn a_path_is_its_users_alone_and_goes_with_the_run() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let path = scene.path("m.sock");
    let run = thrashed(&scene, &format!("--metrics unix:{}", path.display()));
    assert_eq!(path.metadata().expect("it is there").permissions().mode() & 0o777, 0o600);
    let stream = UnixStream::connect(&path).expect("connected");
    stream.set_read_timeout(Some(DEADLINE)).expect("a time-out");
    assert!(ask(stream, "GET /metrics HTTP/1.1\r\n\r\n").ends_with("# EOF\n"));
    let taken = scene.ask(&format!("run --ram 64M --metrics unix:{} -- touch started", path.display()));
    live::assert_refused(&taken, "a path in use", 2, &["--metrics", "already"]);
    assert!(!scene.path("started").exists());
    ends_well(&scene, run);
    assert!(!path.exists());
}

#[test]
fn what_can_not_be_served_is_refused_before_the_program_starts() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().map(|address| (taken, address)).expect("an address");
    for (options, words) in [
        (format!("--metrics {}", taken.1), &["--metrics 127.0.0.1", "another port"][..]),
        ("--metrics 0.0.0.0:0".to_owned(), &["--metrics 0.0.0.0:0", "--metrics-anywhere"]),
        ("--metrics nonsense".to_owned(), &["--metrics nonsense", "127.0.0.1:PORT"]),
        ("--metrics-anywhere".to_owned(), &["--metrics"]),
        ("--report /nonexistent/r.html".to_owned(), &["--report /nonexistent/r.html", "can't be written"]),
    ] {
        scene.refused(&format!("run --ram 64M {options} -- touch started"), 2, words);
        assert!(!scene.path("started").exists(), "{options}");
    }
    // By name it is allowed; where it is is said, as nobody could know.
    let output = scene.ask("run --ram 64M --quiet --metrics 0.0.0.0:0 --metrics-anywhere -- touch started");
    assert!(output.status.success() && scene.path("started").exists());
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("lowtide: metrics at http://0.0.0.0:"));
}

/// Names of metrics in an expression.
fn metrics_of(expression: &str) -> impl Iterator<Item = &str> {
    expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("lowtide_"))
}

fn strings<'a>(value: &'a Value, key: &str, all: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, field)| match field {
            Value::String(text) if name == key => all.push(text),
            field => strings(field, key, all),
        }),
        Value::Array(list) => list.iter().for_each(|item| strings(item, key, all)),
        _ => {}
    }
}

#[test]
fn the_dashboard_asks_for_what_there_is() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let run = thrashed(&scene, "");
    let served = samples(&scene.done(&format!("metrics {}", run.pid)));
    let there: BTreeSet<&str> = served.keys().map(|name| name.split('{').next().expect("a name")).collect();
    let file: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/grafana.json");
    let dashboard: Value = serde_json::from_slice(&std::fs::read(file).expect("it is there")).expect("JSON");
    let mut expressions = Vec::new();
    strings(&dashboard, "expr", &mut expressions);
    strings(&dashboard, "query", &mut expressions);
    let asked: BTreeSet<&str> = expressions.into_iter().flat_map(metrics_of).collect();
    assert!(asked.len() > 15, "{asked:?}");
    for name in asked {
        assert!(there.contains(name), "{name} is none of {there:?}");
    }
    ends_well(&scene, run);
}
