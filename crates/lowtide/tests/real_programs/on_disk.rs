//! What is on the disk after a run: nothing that can be read, and with `dir:` nothing at all.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use lowtide_config::proc;
use rustix::process::Signal;

use crate::machine::limited_turn_beside;
use crate::measure::{Job, Limit, Outcome, Running, Swap};
use crate::programs::job;

const MIB: u64 = 1 << 20;
/// What every line of the program's pages begins with.
const MARK: &[u8] = b"nobody may read";

/// A limit under which most pages go to the device: the pool is a tenth of what they compress to.
fn limit(spec: String) -> Limit {
    Limit { ram: 24 * MIB, swap: Swap::Options(["--swap", &spec, "--pool", "1M"].map(str::to_owned).to_vec()) }
}

fn with_file(label: &str, arguments: &str) -> Option<(Job, Limit)> {
    let job = job(label, "marked", arguments)?;
    let path = job.directory.join("swap");
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).expect("a file");
    file.set_len(256 * MIB).expect("room");
    Some((job, limit(format!("file:{}", path.display()))))
}

/// Pages of a swap file that hold something.
fn written_pages(file: &[u8]) -> usize {
    file.chunks(4096).skip(1).filter(|page| page.iter().any(|byte| *byte != 0)).count()
}

fn verify(directory: &Path) {
    let file = fs::read(directory.join("swap")).expect("the swap file stays");
    let written = written_pages(&file);
    assert!(written > 4000, "only {written} pages were written");
    // Sealed pages have no byte that comes more often than others; 16 bytes by chance: never.
    let found = file.windows(MARK.len()).position(|window| window == MARK);
    assert_eq!(found, None, "plaintext in the swap file");
}

/// Starts the program and waits until it waits.
fn start(job: &Job, limit: &Limit) -> Running {
    let mut run = job.start_limited(limit);
    let ready = job.directory.join("ready");
    if !run.wait_until(|_| ready.exists()) {
        run.kill_all();
        panic!("the program did not come to its wait: {:?}", run.finish());
    }
    run
}

fn kill_program(run: &Running) {
    let all = proc::of_session(run.session).into_iter().filter(|process| process.pid != run.session);
    all.max_by_key(|process| proc::anonymous(process.pid)).expect("the program runs").signal(Signal::KILL);
}

/// Kills the program, or lowtide with it, and waits.
fn killed(mut run: Running, lowtide_too: bool) -> Outcome {
    if lowtide_too {
        run.kill()
    } else {
        kill_program(&run)
    }
    run.finish()
}

#[test]
fn a_named_file_holds_no_plaintext() {
    let Some(_turn) = limited_turn_beside() else { return };
    let Some((job, limit)) = with_file("plaintext after exit", "96") else { return };
    let outcome = job.limited(&limit);
    assert!(outcome.status == 0 && outcome.stdout.starts_with("OK"), "{outcome:?}");
    verify(&job.directory);
}

#[test]
fn a_named_file_holds_no_plaintext_after_sigkill() {
    let Some(_turn) = limited_turn_beside() else { return };
    for lowtide_too in [false, true] {
        let Some((job, limit)) = with_file("plaintext after SIGKILL", "96 wait") else { return };
        let outcome = killed(start(&job, &limit), lowtide_too);
        assert_eq!(outcome.status, 128 + 9, "{outcome:?}");
        verify(&job.directory);
    }
}

#[test]
fn a_directory_holds_no_file_during_a_run_and_after_sigkill() {
    let Some(_turn) = limited_turn_beside() else { return };
    for lowtide_too in [false, true] {
        let Some(job) = job("directory after SIGKILL", "marked", "96 wait") else { return };
        let directory = job.directory.join("swap");
        fs::create_dir(&directory).expect("a directory");
        let names = || fs::read_dir(&directory).expect("it stays").count();
        let run = start(&job, &limit(format!("dir:{},size=256M", directory.display())));
        assert_eq!(names(), 0, "files with names while it runs");
        let outcome = killed(run, lowtide_too);
        assert_eq!((outcome.status, names()), (128 + 9, 0), "{outcome:?}");
    }
}
