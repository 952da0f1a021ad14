//! `lowtide top` on a terminal: what it shows of runs, what keys change, and that it leaves the terminal as it was.

#[path = "../live/mod.rs"]
mod live;
mod pty;

use live::{LOWTIDE, MIB, Run, Scene, program, turn};
use pty::Terminal;
use rustix::process::{Pid, Signal};
use std::process::Command;

/// `lowtide top` with colours, on a terminal.
fn top(scene: &Scene, arguments: &str, columns: u16, rows: u16) -> Terminal {
    Terminal::start(command(scene, arguments), columns, rows)
}

fn command(scene: &Scene, arguments: &str) -> Command {
    let mut command = scene.lowtide();
    command.arg("top").args(arguments.split_whitespace()).env("TERM", "xterm-256color").env("LANG", "C.UTF-8");
    command.env_remove("NO_COLOR").env_remove("LC_ALL").env_remove("LC_CTYPE");
    command
}

/// A program that checks and writes its memory all the while, in less than it takes.
fn busy(scene: &Scene) -> Run {
    let swap = scene.swap_dir("first");
    let mut run = scene.start(&format!("--quiet --ram 96M --pool 16M --swap {swap}"), &program("verifies"), "128 t");
    run.wait_until("the memory is filled", |_| scene.path("ready").exists());
    run
}

fn signal(pid: u32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid as i32).expect("a pid"), signal).expect("signal");
}

fn limit(scene: &Scene, run: &Run) -> u64 {
    scene.stat(run.pid)["ram_limit"].as_u64().expect("a number")
}

#[track_caller]
fn quits(mut terminal: Terminal, keys: &str, code: i32) {
    terminal.press(keys);
    assert_eq!(terminal.ends().code(), Some(code), "{}", terminal.text());
    assert!(terminal.is_as_before(), "{}", terminal.text());
}

#[test]
fn a_run_is_shown_and_changed_by_keys() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let mut run = busy(&scene);
    let process = run.processes(&scene)[0];
    let mut terminal = top(&scene, &process.to_string(), 80, 24);
    for words in [&format!("verifies ({})", run.pid), "of 96 MiB", "faults/s", "dir:", &process.to_string(), "q quit"] {
        terminal.shows(words);
    }
    let row = |text: &str| text.lines().find(|line| line.starts_with("faults/s")).map(str::to_owned).unwrap_or_default();
    terminal.wait_until("it counts faults", |text| {
        let value = row(text).split_whitespace().nth(1).unwrap_or("-").replace(',', "");
        value.parse::<u64>().is_ok_and(|faults| faults > 0)
    });
    assert!(terminal.has_colours());

    terminal.press("+");
    terminal.shows("limit 108 MiB, ");
    assert_eq!(limit(&scene, &run), 108 * MIB);
    terminal.shows("of 108 MiB");
    terminal.press("l192M\r");
    terminal.shows("limit 192 MiB, ");
    assert_eq!(limit(&scene, &run), 192 * MIB);
    terminal.press("l1M\r");
    terminal.shows("too small");
    assert_eq!(limit(&scene, &run), 192 * MIB);
    terminal.press("r16M\r");
    terminal.shows("moved out, ");
    let second = scene.swap_dir("second");
    terminal.press(&format!("a{second}\r"));
    terminal.shows("second: up to ");
    terminal.press("s1");
    terminal.shows("first: ");
    terminal.shows("the area is off");
    assert_eq!(scene.stat(run.pid)["areas"][0]["spec"], second.as_str(), "the other one is in use");

    for (columns, rows) in [(40, 10), (120, 40), (20, 3), (80, 24)] {
        terminal.resize(columns, rows);
        terminal.wait_until("it is drawn anew", |text| text.contains("of 192 MiB") || rows == 3 && text.contains("RAM"));
        assert!(text_fits(&terminal.text(), columns, rows), "{}", terminal.text());
    }
    quits(terminal, "q", 0);
    assert!(run.is_alive());
    scene.wake();
    assert_eq!(run.finish(), ("OK\n".to_owned(), String::new()));
}

fn text_fits(text: &str, columns: u16, rows: u16) -> bool {
    text.lines().count() <= rows.into() && text.lines().all(|line| line.chars().count() <= columns.into())
}

#[test]
fn it_ends_with_the_last_run() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let first = scene.sleeper("--ram 64M --quiet", 8, "t").listens();
    let mut alone = top(&scene, &first.pid.to_string(), 80, 24);
    let mut all = top(&scene, "", 80, 24);
    let other = Scene::new();
    // A new run is found, though it began later.
    let mut command = other.lowtide();
    command.env("XDG_RUNTIME_DIR", scene.path("runtime")).args(["run", "--ram", "32M", "--quiet", "sleep", "100"]);
    let second = scene.started(command).listens();
    all.shows(&second.pid.to_string());
    alone.shows(&format!("sleeps ({})", first.pid));
    let (first_pid, second_pid) = (first.pid, second.pid);
    scene.wake();
    first.finish();
    assert_eq!(alone.ends().code(), Some(0));
    assert!(
        alone.is_as_before() && alone.text().contains(&format!("sleeps ({first_pid}) has ended after")),
        "{}",
        alone.text()
    );
    all.shows(&format!("sleeps ({first_pid}) has ended after"));
    let is_first = |line: &str| line.contains(&format!("({first_pid})"));
    all.wait_until("the other one goes on", |text| text.lines().next().is_some_and(|line| !is_first(line)));

    // One that is stopped is said to be.
    signal(second_pid, Signal::STOP);
    all.press("\t");
    all.wait_until("it does not answer", |text| text.contains("no answer for") || !text.contains(&format!("({second_pid})")));
    signal(second_pid, Signal::CONT);
    quits(all, "\x03", 0);
    drop(second);
    // Nothing is left of a run that was killed, whoever looks first.
    let last = scene.start("--ram 32M --quiet", std::path::Path::new("sleep"), "100").listens();
    let mut terminal = top(&scene, &last.pid.to_string(), 60, 15);
    terminal.shows("of 32 MiB");
    drop(last);
    assert_eq!(terminal.ends().code(), Some(0));
    assert!(terminal.is_as_before() && terminal.text().contains("has ended"), "{}", terminal.text());
}

#[test]
fn the_terminal_is_given_back() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let run = scene.sleeper("--ram 64M --quiet", 8, "t").listens();
    let pid = run.pid.to_string();
    for (number, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131), (Signal::INT, 130)] {
        let terminal = top(&scene, &pid, 80, 24);
        terminal.shows("of 64 MiB");
        assert!(!terminal.is_a_shells(), "it has the terminal");
        signal(terminal.pid(), number);
        quits(terminal, "", code);
    }
    // ^Z, under a shell that can go on with it.
    let mut shell = Command::new("sh");
    let script = format!("set -m; {LOWTIDE} top {pid}; echo stopped $?; read line; fg >/dev/null; echo ended $?");
    shell.args(["-c", &script]).env("TERM", "xterm").env("LANG", "C.UTF-8").env("XDG_RUNTIME_DIR", scene.path("runtime"));
    let mut terminal = Terminal::start(shell, 80, 24);
    terminal.shows("of 64 MiB");
    terminal.press("\x1a");
    terminal.shows("stopped 148");
    assert!(terminal.is_as_before());
    terminal.press("\n");
    terminal.shows("of 64 MiB");
    terminal.press("q");
    terminal.shows("ended 0");
    assert!(terminal.ends().success() && terminal.is_as_before());
    drop(run);
}

#[test]
fn terminals_without_colours_and_what_is_none() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let run = scene.sleeper("--ram 64M --quiet", 8, "t").listens();
    for (name, value) in [("NO_COLOR", "1"), ("TERM", "vt100")] {
        let mut command = command(&scene, &run.pid.to_string());
        command.env(name, value);
        let terminal = Terminal::start(command, 80, 24);
        terminal.shows("of 64 MiB");
        terminal.shows("q quit");
        assert!(!terminal.has_colours(), "{name}={value}");
        quits(terminal, "q", 0);
    }
    let mut dumb = command(&scene, &run.pid.to_string());
    let mut terminal = Terminal::start(
        {
            dumb.env("TERM", "dumb");
            dumb
        },
        80,
        24,
    );
    assert_eq!(terminal.ends().code(), Some(2));
    assert!(terminal.text().starts_with("lowtide: top: ") && terminal.text().contains("TERM=dumb"), "{}", terminal.text());
    scene.refused(&format!("top {}", run.pid), 2, &["standard output is not a terminal", "lowtide stat"]);
    drop(run);
    let mut none = top(&Scene::new(), "4194304", 80, 24);
    assert_eq!(none.ends().code(), Some(2));
    assert!(none.text().contains("no process 4194304") && none.is_as_before(), "{}", none.text());
}
