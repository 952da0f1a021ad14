//! Pages on real servers: right bytes or a message, whatever becomes of the servers; and nothing is left there.

#[allow(dead_code)]
#[path = "../../../lowtide-remote/tests/certificates/mod.rs"]
mod certificates;
#[allow(dead_code)] // a part is used here
#[path = "../real_programs/check.rs"]
mod check;
mod cluster;
mod copies;
#[path = "../live/mod.rs"]
mod live;
#[allow(dead_code)]
#[path = "../real_programs/machine.rs"]
mod machine;
#[allow(dead_code)]
#[path = "../real_programs/measure.rs"]
mod measure;
mod network;
mod programs;
mod regions;
mod rounds;
mod servers;
mod single;
mod tls;
mod valkey;

use live::{Run, Scene, area, number};
use std::process::Output;
use std::time::Duration;

/// Whatever is waited for comes within this time.
const SOON: Duration = Duration::from_secs(30);

/// The run was stopped by lowtide with a message that holds these words, and no byte was wrong.
#[track_caller]
fn is_stopped(run: &mut Run, words: &[&str]) -> String {
    let Output { status, stdout, stderr } = run.ended_within(SOON).expect("it ends");
    let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert_eq!(status.code(), Some(125), "{out}{err}");
    assert!(out.is_empty() && err.contains("was stopped: a page of the program could not be read back: "), "{out}{err}");
    for word in words {
        assert!(err.contains(word), "`{word}` is not in: {err}");
    }
    err
}

/// Pages come back again.
#[track_caller]
fn goes_on(scene: &Scene, run: &mut Run, spec: &str) {
    let reads = |run: &Run| number(&area(scene, run, spec), "reads");
    let before = reads(run);
    run.wait_until("pages come back again", |run| reads(run) > before + 100);
}

/// The program wakes, finds every byte as it was, and ends. What lowtide said meanwhile.
#[track_caller]
fn ends_right(scene: &Scene, run: Run) -> String {
    scene.wake();
    let (out, err) = run.finish();
    assert!(says_ok(&out), "{out}{err}");
    err
}

/// Every byte was right, and nobody complained, but of a server that did not take a write in two seconds: on a busy machine that
/// happens, and pages go elsewhere then.
#[track_caller]
fn ends_well(scene: &Scene, run: Run) {
    const BUSY: &str = ": the server takes no pages; pages go elsewhere, and it is tried again now and then";
    scene.wake();
    let (out, err) = run.finish();
    assert!(out == "OK\n" && err.lines().all(|line| line.ends_with(BUSY)), "{out}{err}");
}

/// It says so, and no more, but perhaps the sum of its bytes.
fn says_ok(out: &str) -> bool {
    let is_sum = |sum: &str| sum.len() == 16 && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
    out.strip_suffix('\n').is_some_and(|line| line == "OK" || line.strip_prefix("OK ").is_some_and(is_sum))
}
