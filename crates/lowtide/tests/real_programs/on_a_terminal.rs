//! Programs in the foreground of a terminal, which ^Z stops and a shell continues.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::machine::{be_alone, limited_turn, say, tool};
use crate::programs::{compiled, compiled_statically, with_musl};
use crate::pty::Terminal;
use crate::raw_moves::following_turn;

/// How often it is stopped.
const STOPS: u64 = 20;
const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

/// A shell with job control.
fn shell(bash: &Path) -> Terminal {
    let mut command = Command::new(bash);
    command.args(["--norc", "--noprofile", "-i"]).envs([("PS1", "$ "), ("TERM", "dumb"), ("HISTFILE", ""), ("LC_ALL", "C")]);
    command.env_remove("LD_PRELOAD");
    Terminal::start(command, 100, 30)
}

/// Has the shell say something that is not what was typed.
fn says(shell: &mut Terminal, number: u64) {
    shell.press(&format!("echo number-$(({number}+1))\n"));
    shell.shows(&format!("number-{}", number + 1));
}

/// It is stopped again and again, and does not end by itself. Its statistics, and how long it took to stop at most.
fn is_stopped_and_goes_on(bash: &Path, program: &Path) -> (Value, Duration) {
    let stats = Path::new(env!("CARGO_TARGET_TMPDIR")).join("on-a-terminal.json");
    let _ = std::fs::remove_file(&stats);
    be_alone();
    let mut shell = shell(bash);
    says(&mut shell, 0);
    let words = ["run", "--quiet", "--ram", "32M", "--stats"];
    let lowtide = env!("CARGO_BIN_EXE_lowtide");
    shell.press(&format!("{lowtide} {} {} -- {} 4 1000000 16\n", words.join(" "), stats.display(), program.display()));
    let mut longest = Duration::ZERO;
    for stop in 1..=STOPS {
        // It goes on.
        std::thread::sleep(Duration::from_millis(300 + 37 * stop));
        let asked = Instant::now();
        shell.press(CTRL_Z);
        says(&mut shell, 1000 + stop);
        longest = longest.max(asked.elapsed());
        assert!(!shell.text().contains("FAILED"), "{}", shell.text());
        shell.press("fg\n");
    }
    std::thread::sleep(Duration::from_millis(500));
    shell.press(CTRL_C);
    shell.press("echo status-$?\n");
    shell.shows("status-130");
    assert!(!shell.text().contains("FAILED"), "{}", shell.text());
    let stats = std::fs::read(stats).expect("they are written at the end");
    (serde_json::from_slice(&stats).expect("--stats is JSON"), longest)
}

fn stopped(program: Option<PathBuf>, has_hooks: bool) {
    let (Some(bash), Some(program)) = (tool("bash"), program) else { return };
    let (stats, longest) = is_stopped_and_goes_on(&bash, &program);
    say(&format!("  ^Z: {longest:.1?} at most"));
    assert!(longest < Duration::from_secs(10), "{longest:?} until the shell is there again");
    let number = |path: [&str; 2]| path.iter().fold(&stats, |value, key| &value[key]).as_u64().expect("a number");
    assert!(number(["evictions", "pages"]) > 1000, "{stats}");
    assert_eq!(number(["work", "calls_refused"]) == 0, has_hooks, "{stats}");
}

/// Threads that wait for an answer do not stop.
#[test]
fn a_program_whose_calls_are_refused_is_stopped() {
    let Some(_turn) = following_turn() else { return };
    stopped(compiled_statically("own_blocks"), false);
    stopped(with_musl("own_blocks", true), false);
}

/// Nor do those whose change of mappings is to be read.
#[test]
fn a_program_with_hooks_is_stopped() {
    let Some(_turn) = limited_turn() else { return };
    stopped(compiled("own_blocks"), true);
}
