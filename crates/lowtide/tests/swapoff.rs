//! What the processes of a run do when it is changed while they go on: pages move, and every byte stays right.

mod live;
mod progress;

use live::{MIB, Run, Scene, area, ends_well, number, turn, turn_alone, verifier};
use rustix::process::{Pid, Signal};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

#[test]
fn an_area_is_emptied_into_another_one() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let (first, second) = (scene.swap_dir("first"), scene.swap_file("second", 256 * MIB));
    let mut run = verifier(&scene, &format!("--ram 48M --pool 4M --swap {first}"), "96 n");
    run.wait_until("pages are out", |run| number(&area(&scene, run, &first), "used") > 32 * MIB);
    let pid = run.pid;
    for (from, to) in [(&first, &second), (&second, &first), (&first, &second)] {
        scene.done(&format!("swapon {pid} {to}"));
        let out = scene.done(&format!("swapoff {pid} {from}"));
        assert!(out.contains("the area is off"), "{out}");
        let (gone, now) = (area(&scene, &run, from), area(&scene, &run, to));
        assert!(gone["state"] == "off" && number(&gone, "used") == 0, "{gone}");
        assert!(number(&now, "used") > 24 * MIB && number(&now, "writes") > 0, "{now}");
    }
    // It is nobody's now.
    let other = Scene::new();
    other.done(&format!("run --ram 64M --quiet --swap {first} -- true"));
    ends_well(&scene, run);
}

#[test]
fn pages_come_in_where_the_limit_allows() {
    let Some(_turn) = turn_alone() else { return };
    let scene = Scene::new();
    let dir = scene.swap_dir("dir");
    let run = verifier(&scene, &format!("--ram 48M --pool 4M --swap {dir}"), "96 n");
    let pid = run.pid;
    scene.refused(&format!("swapoff {pid} {dir}"), 2, &["are missing"]);
    scene.done(&format!("limit {pid} 192M"));
    let now = number(&scene.stat(pid), "ram_now");
    assert!(now < 100 * MIB, "nothing is brought in by force: {now}");
    scene.done(&format!("swapoff {pid} {dir}"));
    let stat = scene.stat(pid);
    assert!(number(&stat, "ram_now") > 90 * MIB && number(&stat["pages"], "on_device") == 0, "{stat}");
    ends_well(&scene, run);
}

#[test]
fn a_lower_limit_holds_soon() {
    let Some(_turn) = turn_alone() else { return };
    let scene = Scene::new();
    let run = verifier(&scene, "--ram 256M", "128 t");
    for limit in [96u64, 200, 64, 48] {
        let out = scene.done(&format!("limit {} {limit}M", run.pid));
        assert!(!out.contains("the rest"), "{out}");
        thread::sleep(Duration::from_millis(300));
        let now = number(&scene.stat(run.pid), "ram_now");
        assert!(now <= limit * MIB + limit * MIB / 50 + 4 * MIB, "{limit} MiB: {now}");
    }
    ends_well(&scene, run);
}

#[test]
fn a_limit_below_what_is_fixed_is_refused() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    // Registered, so that somebody can say it.
    let run = verifier(&scene, "--ram 80M", "64 t 40");
    scene.refused(&format!("limit {} 32M", run.pid), 2, &["limit 32M", "MiB can't be moved out", "lower than that"]);
    assert_eq!(number(&scene.stat(run.pid), "ram_limit"), 80 * MIB);
    scene.done(&format!("limit {} 72M", run.pid));
    ends_well(&scene, run);
}

#[test]
fn reclaim_moves_out_what_is_asked() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    // Nothing is registered yet.
    let mut run = scene.sleeper("--ram 256M --quiet", 96, "t");
    run.wait_until("it is counted", |run| number(&scene.stat(run.pid), "ram_now") > 96 * MIB);
    let before = number(&scene.stat(run.pid), "ram_now");
    let out = scene.done(&format!("reclaim {} 48M", run.pid));
    assert!(out.contains("moved out"), "{out}");
    let now = number(&scene.stat(run.pid), "ram_now");
    assert!(now < before - 20 * MIB, "{before} -> {now}: {out}");
    scene.done(&format!("reclaim {} 16M", run.pid));
    assert!(number(&scene.stat(run.pid), "ram_now") < now);
    scene.wake();
    assert!(run.finish().0.starts_with("OK"));
}

/// What a broken disk has lost is named, the rest is moved, and the area stays.
#[test]
fn a_page_that_can_not_be_read_is_named() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let (file, dir) = (scene.swap_file("file", 256 * MIB), scene.swap_dir("dir"));
    let mut run = scene.sleeper(&format!("--quiet --ram 32M --pool 2M --swap {file}"), 96, "n");
    run.wait_until("pages are out", |run| number(&area(&scene, run, &file), "used") > 64 * MIB);
    std::fs::File::options().write(true).open(scene.path("file")).and_then(|file| file.set_len(40 * MIB)).expect("cut");
    scene.done(&format!("swapon {} {dir}", run.pid));
    scene.refused(&format!("swapoff {} {file}", run.pid), 1, &["can't be read", "0x", "the area stays in use"]);
    let (old, new) = (area(&scene, &run, &file), area(&scene, &run, &dir));
    assert!(number(&new, "used") > 16 * MIB && old["state"] != "emptying" && number(&old, "used") > 16 * MIB, "{old} {new}");
    // Counts are published when the reclaimer next looks.
    run.wait_until("the errors are counted", |run| number(&area(&scene, run, &file), "errors") > 0);
    assert!(run.is_alive(), "{old}");
    run.kill();
}

/// Compiles some of tests/programs, two at a time, and prints the sums of the objects.
const BUILD: &str = r#"
out=$1; shift; mkdir $out
printf '%s\n' "$@" | xargs -P 2 -I FILE sh -c 'cc -O2 -std=gnu11 -pthread -c "$0" -o "$1/$(basename "$0").o"' FILE $out || exit
cd $out && sha256sum *.o
"#;

/// Two areas in turn, of a run of many processes.
#[test]
fn a_build_whose_area_is_taken_off_again_and_again_makes_the_same_objects() {
    let Some(_turn) = turn() else { return };
    const PROGRAMS: [&str; 8] = ["daemonize", "forks", "grows", "own_blocks", "pauses", "sleeps", "still", "grows_down"];
    let scene = Scene::new();
    let sources = PROGRAMS.map(|name| live::source(name).with_extension("c"));
    let mut command = std::process::Command::new("sh");
    command.args(["-c", BUILD, "build"]).arg(scene.path("natively")).args(&sources);
    let native = command.output().expect("sh starts");
    assert!(
        native.status.success() && native.stdout.iter().filter(|byte| **byte == b'\n').count() == PROGRAMS.len(),
        "{native:?}"
    );
    let areas = [scene.swap_dir("a"), scene.swap_dir("b")];
    let mut command = scene.lowtide();
    command.args(["run", "--ram", "16M", "--pool", "2M", "--swap", &areas[0], "--", "sh", "-c", BUILD, "build"]);
    command.arg(scene.path("limited")).args(&sources);
    let mut run = scene.started(command).listens();
    let (mut offs, mut most) = (0, 0);
    let ask = format!("stat {} --json", run.pid);
    while run.is_alive() {
        if let Ok(stat) = serde_json::from_slice::<serde_json::Value>(&scene.ask(&ask).stdout) {
            most = most.max(number(&stat["pages"], "on_device"));
        }
        let [on, off] = [&areas[(offs + 1) % 2], &areas[offs % 2]].map(|area| format!("{} {area}", run.pid));
        let asked = [format!("swapon {on}"), format!("swapoff {off}")];
        if let Some(refused) = asked.iter().map(|words| scene.ask(words)).find(|answer| !answer.status.success()) {
            // Only at its end: soon nothing answers.
            const MOST: usize = 200;
            let answers = (0..MOST).take_while(|_| scene.ask(&ask).status.success()).count();
            assert!(answers < MOST, "{refused:?}");
            break;
        }
        offs += 1;
    }
    let (out, err) = run.finish();
    assert_eq!(out.as_bytes(), native.stdout, "{err}");
    assert!(offs > 4 && most > 1000, "{offs} areas were taken off, at most {most} pages were out");
}

fn begin_swapoff(scene: &Scene, run: &Run, spec: &str) -> Child {
    let mut command = scene.lowtide();
    command.args(["swapoff", &run.pid.to_string(), spec]).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("lowtide starts")
}

fn signal(pid: u32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid as i32).expect("a pid"), signal).expect("sent");
}

/// A stopped program can't help: it is named, and ^C leaves the area in use.
#[test]
fn who_is_waited_for_is_named_and_it_can_be_cancelled() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let (first, second) = (scene.swap_dir("first"), scene.swap_dir("second"));
    let run = verifier(&scene, &format!("--ram 48M --pool 4M --swap {first} --swap {second}"), "96 n");
    let process = run.processes(&scene)[0];
    signal(process, Signal::STOP);
    let mut client = run.connect();
    client.send(format!("{{\"lowtide\":1,\"do\":\"swapoff\",\"spec\":\"{first}\"}}\n"));
    loop {
        let progress = client.line().expect("progress")["progress"].clone();
        assert!(number(&progress, "total_bytes") >= number(&progress, "left_bytes"), "{progress}");
        if progress["waiting_for"][0] == process {
            break;
        }
    }
    assert_eq!(area(&scene, &run, &first)["state"], "emptying");
    scene.refused(&format!("swapoff {} {first}", run.pid), 2, &["already"]);
    // Who goes away cancels.
    drop(client);
    thread::sleep(Duration::from_millis(200));
    assert_ne!(area(&scene, &run, &first)["state"], "emptying");
    // So does ^C.
    let swapoff = begin_swapoff(&scene, &run, &first);
    thread::sleep(Duration::from_millis(500));
    signal(swapoff.id(), Signal::INT);
    let output = swapoff.wait_with_output().expect("waited for");
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{line}");
    assert!(line.contains("cancelled") && line.contains("the area stays in use"), "{line}");
    signal(process, Signal::CONT);
    assert_eq!(area(&scene, &run, &first)["state"], "active");
    scene.done(&format!("swapoff {} {first}", run.pid));
    ends_well(&scene, run);
}

/// What the processes of a run and lowtide have in memory, as the kernel counts it, in bytes.
fn in_memory(pids: &[u32]) -> u64 {
    pids.iter().map(|pid| lowtide_config::proc::part_of_anonymous(*pid)).sum()
}

/// Looks again and again whether a run is within its limit, which others change.
struct Watch {
    /// In bytes; 0: it has just been lowered, and nothing is said.
    limit: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    /// Samples, and the worst of them in percent of what was allowed.
    thread: thread::JoinHandle<(u64, u64)>,
}

impl Watch {
    fn start(pids: Vec<u32>) -> Watch {
        let (limit, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let thread = thread::spawn({
            let (limit, stop) = (limit.clone(), stop.clone());
            move || {
                let (mut samples, mut worst) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    let before = limit.load(Ordering::Acquire);
                    let found = in_memory(&pids);
                    if before > 0 && limit.load(Ordering::Acquire) == before {
                        let allowed = before + before / 10 + 32 * MIB;
                        samples += 1;
                        let percent = found * 100 / allowed;
                        if percent > worst {
                            eprintln!("{percent} % of what is allowed: {} of {} MiB", found / MIB, before / MIB);
                            worst = percent;
                        }
                    }
                    thread::sleep(Duration::from_millis(5));
                }
                (samples, worst)
            }
        });
        Watch { limit, stop, thread }
    }
}

/// Changes everything at random, so many times; a swapoff is cancelled now and then.
/// (Over 70 lines: an arm for each thing that may change.)
fn everything_changes_at_random(rounds: u64, progress: Option<progress::Progress>) {
    let Some(_turn) = turn_alone() else { return };
    const SIZE: u64 = 128;
    let scene = Scene::new();
    let areas = [scene.swap_dir("a"), scene.swap_dir("b"), scene.swap_file("c", 512 * MIB)];
    let seed = std::env::var("LOWTIDE_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| std::process::id().into());
    eprintln!("LOWTIDE_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let run = verifier(&scene, &format!("--ram 64M --pool 16M --swap {}", areas[0]), &format!("{SIZE} tnz"));
    let pid = run.pid;
    let mut pids = run.processes(&scene);
    pids.push(pid);
    let watch = Watch::start(pids);
    watch.limit.store(64 * MIB, Ordering::Release);
    let mut on = [true, false, false];
    let (mut offs, mut cancelled, mut refused) = (0, 0, 0);
    let mut may_be_full = false;
    for round in 0..rounds {
        progress.iter().for_each(|progress| progress.at(round, "rounds"));
        match random.u32(..10) {
            0..3 => {
                let limit = random.u64(SIZE / 5..=SIZE);
                watch.limit.store(0, Ordering::Release);
                let out = scene.done(&format!("limit {pid} {limit}M"));
                // Where no area is left, or not enough in RAM, it may not be held, which is said.
                let is_held = !out.contains("the rest") && on.contains(&true);
                may_be_full |= !is_held;
                watch.limit.store(if is_held { limit * MIB } else { 0 }, Ordering::Release);
            }
            3 => drop(scene.done(&format!("reclaim {pid} {}M", random.u64(1..SIZE / 4)))),
            _ => {
                let i = random.usize(..3);
                if !on[i] {
                    scene.done(&format!("swapon {pid} {}", areas[i]));
                    on[i] = true;
                    continue;
                }
                let swapoff = begin_swapoff(&scene, &run, &areas[i]);
                if random.u32(..3) == 0 {
                    thread::sleep(Duration::from_millis(random.u64(..120)));
                    signal(swapoff.id(), Signal::INT);
                }
                let output = swapoff.wait_with_output().expect("waited for");
                let line = String::from_utf8_lossy(&output.stderr);
                match output.status.code() {
                    Some(0) => {
                        (on[i], offs) = (false, offs + 1);
                        if !on.contains(&true) {
                            may_be_full = true;
                            watch.limit.store(0, Ordering::Release);
                        }
                    }
                    // Or the signal came before it had asked for anything.
                    Some(130) | None => cancelled += 1,
                    // The last one is needed, or what there is beside it is too small.
                    Some(1 | 2) if line.contains("missing") || line.contains("no room") => refused += 1,
                    code => panic!("{code:?}: {line}"),
                }
            }
        }
        let stat = scene.stat(pid);
        let list = stat["areas"].as_array().expect("a list");
        let there = |spec: &String| list.iter().any(|area| area["spec"] == **spec && area["state"] != "off");
        assert_eq!(areas.each_ref().map(there), on, "no area is lost, and none stays: {stat}");
    }
    watch.stop.store(true, Ordering::Relaxed);
    let (samples, worst) = watch.thread.join().expect("it watches");
    eprintln!(
        "{rounds} rounds: {offs} areas off, {cancelled} cancelled, {refused} refused; {samples} samples, the worst {worst} % of what is allowed"
    );
    assert!(worst <= 100 && samples > rounds, "{worst} % of what is allowed");
    scene.wake();
    let (out, err) = run.finish();
    let is_said = |line: &str| line.starts_with("lowtide: warning: swap is full") && may_be_full;
    assert!(out == "OK\n" && err.lines().all(is_said), "{out}{err}");
}

#[test]
fn everything_changes_at_random_and_every_byte_stays_right() {
    everything_changes_at_random(20, None);
}

#[test]
#[ignore = "100 rounds: make soak"]
fn soak_everything_changes_at_random() {
    everything_changes_at_random(100, Some(progress::Progress::new("swapoff", 100)));
}

/// How long the program waits for pages while areas are emptied, against before; printed, not judged, because machines differ.
#[test]
#[ignore = "some 20 seconds: make soak"]
fn soak_latency_while_areas_are_emptied() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let areas = [scene.swap_dir("a"), scene.swap_dir("b")];
    let mut run = verifier(&scene, &format!("--ram 192M --pool 16M --swap {}", areas[0]), "384 n");
    run.wait_until("pages are out", |run| number(&area(&scene, run, &areas[0]), "used") > 128 * MIB);
    let process = run.processes(&scene)[0];
    let measure = || {
        let _ = std::fs::remove_file(scene.path("latency"));
        signal(process, Signal::USR1);
        while !scene.path("latency").exists() {
            thread::sleep(Duration::from_millis(1));
        }
        let text = std::fs::read_to_string(scene.path("latency")).expect("numbers");
        let numbers: Vec<u64> = text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        (numbers[0], numbers[1], numbers[2])
    };
    let mut ratios = Vec::new();
    for round in 0..6 {
        measure();
        thread::sleep(Duration::from_secs(2));
        let before = measure();
        let (from, to) = (&areas[round % 2], &areas[1 - round % 2]);
        scene.done(&format!("swapon {} {to}", run.pid));
        measure();
        let out = scene.done(&format!("swapoff {} {from}", run.pid));
        let during = measure();
        eprintln!("waits, p50, p99 in us: before {before:?}, during a swapoff {during:?}; {}", out.trim());
        ratios.push(during.2 as f64 / before.2.max(1) as f64);
    }
    ratios.sort_by(f64::total_cmp);
    eprintln!("p99 during a swapoff over that before: median {:.2}, most {:.2}", ratios[3], ratios[5]);
    ends_well(&scene, run);
}
