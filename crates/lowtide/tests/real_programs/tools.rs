//! Tools that everyone has: memtester, GNU sort, gcc, and shell pipelines of them.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::check::{Data, Growth, compare, ends_well};
use crate::machine::{tool, turn};
use crate::measure::{Job, Outcome};
use crate::programs::compiled;

const SORTED_LINES: u64 = 900_000;
const COMPILED_FUNCTIONS: u64 = 2_000;

/// The shell says the checksum of what `script` prints.
fn shell(label: &str, script: &str) -> Option<Job> {
    Some(Job::new(label, tool("sh")?).args(["-c", script]))
}

/// A generated input file, kept between runs.
fn input(name: &str, make: impl Fn() -> String) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    if !path.is_file() {
        fs::write(&path, make()).expect("a file under target/");
    }
    path
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn lines() -> String {
    let (mut text, mut state) = (String::new(), 3);
    for _ in 0..SORTED_LINES {
        let _ = write!(text, "{}", random(&mut state) % (1 << 24));
        for _ in 0..3 {
            let field = random(&mut state) % 24;
            let _ = write!(text, " field{field}=value-of-{field}-value-of-{field}-");
        }
        text.push('\n');
    }
    text
}

fn big_source() -> String {
    let mut text = String::new();
    for i in 0..COMPILED_FUNCTIONS {
        let (words, before) = (i % 7 + 1, i.saturating_sub(1));
        let _ = write!(
            text,
            "struct s{i} {{ int a; long b[{words}]; struct s{i} *next; }};\n\
             long f{i}(struct s{i} *p, long n) {{ long r = {i};\n\
             for (long i = 0; i < n; i++) {{ r += p->b[i % {words}] * (i ^ {i}); if (r & 1) r = r / 3 + p->a; else p->b[0] = r; }}\n\
             switch (n % 5) {{ case 0: return r; case 1: return r + f{before}((void *)p, n - 1); default: return r ^ n; }} }}\n"
        );
    }
    text
}

/// 32 hexadecimal digits, as md5sum prints them.
fn prints_checksums(outcome: &Outcome) -> bool {
    let is_sum = |word: &str| word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    outcome.status == 0 && outcome.stdout.lines().all(|line| line.split_whitespace().next().is_some_and(is_sum))
}

#[test]
#[ignore = "takes long: make test-long"]
fn memtester() {
    let Some(_turn) = turn() else { return };
    let Some(program) = tool("memtester") else { return };
    // Of its tests: random value, compare AND, and the stuck address that always runs.
    let job = Job::new("memtester", program).words("160M 1").env("MEMTESTER_TEST_MASK", "0x41");
    compare(&job, Growth::Existing, Data::Any, |outcome| outcome.status == 0 && outcome.stdout.contains("Done."));
}

#[test]
#[ignore = "takes long: make test-long"]
fn gnu_sort() {
    let Some(_turn) = turn() else { return };
    let file = input("lines.txt", lines);
    let Some(mut job) = shell("GNU sort", &format!("sort -S 300M --parallel=2 '{}' | md5sum", file.display())) else { return };
    // It compares strings all over its memory: two million faults at 40 %, minutes on a busy machine.
    job.deadline = Duration::from_secs(600);
    compare(&job, Growth::Existing, Data::Compressible, prints_checksums);
}

#[test]
#[ignore = "takes long: make test-long"]
fn gcc() {
    let Some(_turn) = turn() else { return };
    if tool("gcc").is_none() {
        return;
    }
    let file = input("big.c", big_source);
    let script = format!("gcc -O0 -g -w -c '{}' -o big.o && md5sum < big.o", file.display());
    let Some(job) = shell("gcc", &script) else { return };
    compare(&job, Growth::Stream, Data::Compressible, prints_checksums);
}

#[test]
#[ignore = "takes long: make test-long"]
fn shell_pipelines() {
    let Some(_turn) = turn() else { return };
    let script = "seq 1 900000 | sed 's/$/ and a tail that makes the line long enough to fill memory/' | sort -S 300M -k1,1r | md5sum; \
                  seq 1 1500000 | awk '{ seen[$1 % 300000] = seen[$1 % 300000] + $1 } END { for (i = 0; i < 300000; i++) print i, seen[i] }' | md5sum; \
                  for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; done | while read n; do seq $n | md5sum; done";
    let Some(job) = shell("shell pipelines", script) else { return };
    compare(&job, Growth::Existing, Data::Any, prints_checksums);
}

/// Wrappers run the agent's start too; the settings must reach the real program.
#[test]
fn through_wrappers() {
    let Some(_turn) = turn() else { return };
    let Some(program) = crate::programs::job("through wrappers", "one_malloc", "160 zwt") else { return };
    let Some(wrapper) = tool("timeout") else { return };
    let shell = ["sh", "-c", "\"$@\"; exit $?", "sh"];
    let job = program.behind(wrapper, &[&["120", "nice", "-n", "1"], &shell[..], &["env", "SOME=thing"]].concat());
    compare(&job, Growth::Existing, Data::Compressible, ends_well);
}

/// Who traces the program sees the program: with lowtide's threads traced this took five times as long, and showed their calls.
#[test]
fn strace_sees_the_program_only() {
    let Some(_turn) = turn() else { return };
    let (Some(strace), Some(program)) = (tool("strace"), compiled("small_mallocs")) else { return };
    // `|cat`: what it shows goes where the program's own output goes.
    let job = Job::new("strace", strace).words("-f -qq -e trace=ioctl -o |cat").args([program]).words("1500000");
    compare(&job, Growth::Existing, Data::Compressible, ends_well);
}
