//! lowtide's threads inside a program are held up for long, or ended: the program goes on, or is stopped with a message. It
//! never reads a wrong byte, and nothing hangs.
//!
//! A debugger can hold up single threads, and so can a machine that lacks CPUs; a system call filter can end them. Here it is
//! done by ptrace, by the thread of the test.

mod live;

use live::{Run, Scene, program, turn};
use lowtide_config::proc::{self, Stat};
use std::ptr::null_mut;
use std::thread;
use std::time::Duration;

/// How long threads are held up.
const HELD: Duration = Duration::from_secs(10);
/// Whatever becomes of a run is so within this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// A run of a program that checks its memory all the time, twice as much as its limit, and its process.
fn verifier(scene: &Scene) -> (Run, u32) {
    let mut run = scene.start("--quiet --ram 48M --pool 8M", &program("verifies"), "96 tn");
    run.wait_until("the memory is filled", |_| scene.path("ready").exists());
    let process = run.processes(scene)[0];
    (run, process)
}

/// The ids of lowtide's threads of this name.
fn threads(process: u32, name: &str) -> Vec<i32> {
    let threads = proc::threads(process).expect("it lives").into_iter();
    let is_wanted = |thread: &u32| Stat::of_thread(process, *thread).is_some_and(|stat| stat.name == name);
    threads.filter(is_wanted).map(|thread| thread as i32).collect()
}

/// A request of ptrace for a thread, without an address.
fn ptrace(request: libc::c_uint, thread: i32, data: *mut libc::c_void) -> Result<(), std::io::Error> {
    // SAFETY: the structures that `data` points to are those of the requests below.
    let r = unsafe { libc::ptrace(request, thread, null_mut::<libc::c_void>(), data) };
    if r == -1 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// A thread that stands still, wherever it was, until this is dropped.
struct Held(i32);

impl Held {
    fn new(thread: i32) -> Held {
        let options = libc::PTRACE_O_TRACESYSGOOD as usize as *mut libc::c_void;
        ptrace(libc::PTRACE_SEIZE, thread, options).expect("traced");
        ptrace(libc::PTRACE_INTERRUPT, thread, null_mut()).expect("interrupted");
        let held = Held(thread);
        held.wait();
        held
    }

    /// Waits until it stands still; how it came to that. None: it is gone.
    fn wait(&self) -> Option<i32> {
        let mut status = 0;
        // SAFETY: room for a status.
        let r = unsafe { libc::waitpid(self.0, &raw mut status, libc::__WALL) };
        (r == self.0 && libc::WIFSTOPPED(status)).then(|| libc::WSTOPSIG(status))
    }

    /// It makes the system call `exit` in place of its next one.
    fn ends(self) {
        loop {
            ptrace(libc::PTRACE_SYSCALL, self.0, null_mut()).expect("it goes on");
            match self.wait() {
                None => panic!("thread {} is gone already", self.0),
                Some(how) if how == libc::SIGTRAP | 0x80 => break,
                Some(_) => {}
            }
        }
        // SAFETY: integers.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        ptrace(libc::PTRACE_GETREGS, self.0, (&raw mut registers).cast()).expect("registers");
        registers.orig_rax = libc::SYS_exit as u64;
        registers.rdi = 0;
        ptrace(libc::PTRACE_SETREGS, self.0, (&raw mut registers).cast()).expect("registers");
        ptrace(libc::PTRACE_CONT, self.0, null_mut()).expect("it goes on");
        assert_eq!(self.wait(), None, "thread {} has ended", self.0);
        std::mem::forget(self);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = ptrace(libc::PTRACE_DETACH, self.0, null_mut());
    }
}

/// All is well: the program has checked its memory, and nobody complains.
#[track_caller]
fn goes_on(scene: &Scene, run: Run) {
    scene.wake();
    let (out, err) = run.finish();
    assert_eq!((out.as_str(), err.as_str()), ("OK\n", ""));
}

/// Three runs: of one the reclaimer is held up, of one a monitor, of one all.
#[test]
#[ignore = "takes long: make test-long"]
fn who_is_held_up_for_ten_seconds_does_no_harm() {
    let Some(_turn) = turn() else { return };
    let mut random = fastrand::Rng::new();
    let kinds: [&[&str]; 3] = [&["lowtide-reclaim"], &["lowtide-handler"], &["lowtide-reclaim", "lowtide-handler"]];
    let mut runs: Vec<_> = kinds
        .iter()
        .map(|names| {
            let scene = Scene::new();
            let (run, process) = verifier(&scene);
            let mut ids: Vec<i32> = names.iter().flat_map(|name| threads(process, name)).collect();
            assert!(ids.len() >= names.len(), "{ids:?}");
            if names.len() == 1 {
                ids.truncate(1);
            }
            (scene, run, ids)
        })
        .collect();
    // Anywhere, many times, and not for long.
    for _ in 0..200 {
        for (_, _, ids) in &runs {
            let _held = Held::new(ids[random.usize(..ids.len())]);
            thread::sleep(Duration::from_millis(random.u64(..8)));
        }
    }
    let held: Vec<Held> = runs.iter().flat_map(|(_, _, ids)| ids.iter().map(|&id| Held::new(id))).collect();
    thread::sleep(HELD);
    drop(held);
    for (scene, run, ids) in runs.drain(..) {
        eprintln!("{ids:?}");
        goes_on(&scene, run);
    }
}

/// A run of which threads have been ended ends with one message.
#[track_caller]
fn is_stopped_without(name: &str, most: usize) {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let (mut run, process) = verifier(&scene);
    threads(process, name).into_iter().take(most).for_each(|id| Held::new(id).ends());
    let Some(output) = run.ended_within(PATIENCE) else { panic!("without {name} it hangs") };
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert_eq!(output.status.code(), Some(125), "{out}{err}");
    assert!(
        err.starts_with("lowtide: ")
            && err.contains(&format!("threads in process {process} was ended"))
            && err.lines().count() == 1,
        "{err}"
    );
}

#[test]
fn without_its_reclaimer() {
    is_stopped_without("lowtide-reclaim", 1);
}

#[test]
#[ignore = "takes long: make test-long"]
fn without_a_handler() {
    is_stopped_without("lowtide-handler", 1);
}

#[test]
#[ignore = "takes long: make test-long"]
fn without_any_handler() {
    is_stopped_without("lowtide-handler", usize::MAX);
}
