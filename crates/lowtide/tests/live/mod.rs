//! Runs that go on, to be asked and changed: what the tests of the control socket share.
#![allow(dead_code)] // each of the tests uses a part

#[allow(clippy::duplicate_mod)]
#[path = "../../../../tests/compiled.rs"]
pub mod compiled;
#[allow(clippy::duplicate_mod)]
#[path = "../../../../tests/skipped.rs"]
pub mod skipped;
#[allow(clippy::duplicate_mod)]
#[path = "../../../../tests/turn.rs"]
mod turn;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};
use turn::Turn;

pub const LOWTIDE: &str = env!("CARGO_BIN_EXE_lowtide");
pub const MIB: u64 = 1 << 20;
/// Whatever is waited for comes within this time.
const DEADLINE: Duration = Duration::from_secs(60);

/// Few at a time. None, said loudly, where lowtide can't run.
pub(crate) fn turn() -> Option<Turn> {
    works().then(turn::beside)
}

/// The same for a test that bounds memory: no other runs meanwhile.
pub(crate) fn turn_alone() -> Option<Turn> {
    works().then(turn::alone)
}

fn works() -> bool {
    static WORKS: LazyLock<bool> =
        LazyLock::new(|| Command::new(LOWTIDE).arg("doctor").output().expect("lowtide starts").status.success());
    if !*WORKS {
        skip("`lowtide doctor` says that run doesn't work here");
    }
    *WORKS
}

/// With `CI` set, what would be skipped fails.
pub fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "cannot run here, and CI must not skip: {why}");
    skipped::skipped(why);
}

pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("this takes root, who can be everybody");
    }
    root
}

/// The program `name` of tests/programs: a file, or all files of a directory.
pub fn program(name: &str) -> PathBuf {
    built(name, name, "cc", &[])
}

/// The same, statically linked.
pub fn static_program(name: &str) -> PathBuf {
    built(name, &format!("{name}.static"), "cc", &["-static"])
}

/// The same, statically linked with musl, which has none of the kernel's headers.
pub fn musl_program(name: &str) -> PathBuf {
    let headers = ["-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"];
    built(name, &format!("{name}.musl"), "musl-gcc", &[&["-static"], &headers[..]].concat())
}

/// The program `name`.go, which has no file of C.
pub fn go_program(name: &str) -> PathBuf {
    let source = source(name).with_extension("go");
    let output = directory().join(format!("{name}.go"));
    compiled::compiled(&output, std::slice::from_ref(&source), |output| {
        let mut go = Command::new("go");
        go.args(["build", "-o"]).arg(output).arg(&source).env("GO111MODULE", "off").env("CGO_ENABLED", "0");
        assert!(go.status().expect("Go is installed: golang-go").success(), "go build {name}");
    });
    output
}

/// Where a program is in tests/programs, but for the ending of a file.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs").join(name)
}

/// Where what is built goes.
fn directory() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("live");
    std::fs::create_dir_all(&directory).expect("a directory under target/");
    directory
}

/// `output`: the name of the file.
fn built(name: &str, output: &str, compiler: &str, options: &[&str]) -> PathBuf {
    let source = source(name);
    let files: Vec<PathBuf> = match std::fs::read_dir(&source) {
        Ok(list) => list.filter_map(Result::ok).map(|entry| entry.path()).collect(),
        Err(_) => vec![source.with_extension("c")],
    };
    let output = directory().join(output);
    compiled::compiled(&output, &files, |output| {
        let mut cc = Command::new(compiler);
        cc.args(["-O2", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread", "-rdynamic"])
            .args(options)
            .arg("-o")
            .arg(output);
        cc.args(files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "c")));
        assert!(cc.status().expect("the compiler starts").success(), "{compiler} {name}");
    });
    output
}

/// A user's place for runs: their sockets, their swap files, what the programs leave.
pub struct Scene {
    pub dir: tempfile::TempDir,
}

impl Scene {
    pub fn new() -> Scene {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
        std::fs::create_dir(dir.path().join("runtime")).expect("a directory");
        Scene { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A new directory, as a SPEC.
    pub fn swap_dir(&self, name: &str) -> String {
        let path = self.path(name);
        std::fs::create_dir(&path).expect("a directory");
        format!("dir:{}", path.display())
    }

    /// A new swap file, as a SPEC.
    pub fn swap_file(&self, name: &str, bytes: u64) -> String {
        let path = self.path(name);
        std::fs::File::create(&path).and_then(|file| file.set_len(bytes)).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("mode");
        format!("file:{}", path.display())
    }

    pub fn lowtide(&self) -> Command {
        let mut command = Command::new(LOWTIDE);
        for name in ["LOWTIDE_RAM", "LOWTIDE_DIR", "LOWTIDE_SEGMENT", "LD_PRELOAD"] {
            command.env_remove(name);
        }
        command.env("XDG_RUNTIME_DIR", self.path("runtime")).stdin(Stdio::null()).current_dir(self.dir.path());
        command
    }

    /// Runs a command of lowtide to its end.
    pub fn ask(&self, words: &str) -> Output {
        self.lowtide().args(words.split_whitespace()).output().expect("lowtide starts")
    }

    /// The same, which must succeed; its standard output.
    #[track_caller]
    pub fn done(&self, words: &str) -> String {
        let output = self.ask(words);
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The same, which must fail with this status and one line that holds all the words.
    #[track_caller]
    pub fn refused(&self, words: &str, code: i32, expected: &[&str]) {
        assert_refused(&self.ask(words), words, code, expected);
    }

    /// A run of `PROGRAM ARGUMENTS` with these options.
    pub fn start(&self, options: &str, program: &Path, arguments: &str) -> Run {
        let mut command = self.lowtide();
        command.arg("run").args(options.split_whitespace()).arg("--").arg(program).args(arguments.split_whitespace());
        self.started(command)
    }

    pub fn started(&self, mut command: Command) -> Run {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("lowtide starts");
        let pid = child.id();
        let socket = self.path("runtime").join(format!("lowtide/{pid}.sock"));
        Run { child: Some(child), pid, socket }
    }

    /// A run of the program `sleeps`, which has filled so much memory with this kind of content, and waits for [`Scene::wake`].
    pub fn sleeper(&self, options: &str, mib: u64, kinds: &str) -> Run {
        let mut run = self.start(options, &program("sleeps"), &format!("{mib} {kinds}"));
        run.wait_until("the memory is filled", |_| self.path("ready").exists());
        run
    }

    pub fn wake(&self) {
        std::fs::write(self.path("go"), "").expect("written");
    }

    pub fn stat(&self, pid: u32) -> Value {
        serde_json::from_str(&self.done(&format!("stat {pid} --json"))).expect("JSON")
    }
}

#[track_caller]
pub fn assert_refused(output: &Output, what: &str, code: i32, expected: &[&str]) {
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{what}: {line}");
    assert!(line.starts_with("lowtide: ") && line.matches('\n').count() == 1, "{what}: not one line: {line:?}");
    for word in expected {
        assert!(line.contains(word), "{what}: `{word}` is not in: {line}");
    }
    assert!(output.stdout.is_empty(), "{what}: {}", String::from_utf8_lossy(&output.stdout));
}

/// A run that goes on. Killed when it is dropped.
pub struct Run {
    child: Option<Child>,
    pub pid: u32,
    pub socket: PathBuf,
}

impl Run {
    /// Waits until something is so.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, mut is_so: impl FnMut(&mut Run) -> bool) {
        let until = Instant::now() + DEADLINE;
        while !is_so(self) {
            assert!(self.is_alive(), "the run ended before {what}: {:?}", self.child.take().map(Child::wait_with_output));
            assert!(Instant::now() < until, "not within {DEADLINE:?}: {what}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it listens.
    #[track_caller]
    pub fn listens(mut self) -> Run {
        self.wait_until("it listens", |run| run.socket.exists());
        self
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub fn connect(&self) -> Client {
        Client::new(UnixStream::connect(&self.socket).expect("connected"))
    }

    /// SIGKILL for `lowtide run`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Waits for its end, which must be a good one; its standard output and error.
    #[track_caller]
    pub fn finish(mut self) -> (String, String) {
        let output = self.child.take().expect("not finished yet").wait_with_output().expect("waited for");
        let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(output.status.success(), "{:?}: {out}{err}", output.status);
        (out, err)
    }

    /// Waits so long for its end; its status, standard output and error. None: it goes on.
    pub fn ended_within(&mut self, time: Duration) -> Option<Output> {
        let until = Instant::now() + time;
        while self.is_alive() {
            if Instant::now() > until {
                return None;
            }
            thread::sleep(Duration::from_millis(20));
        }
        Some(self.child.take().expect("not finished yet").wait_with_output().expect("waited for"))
    }

    /// The pids of the program and its children.
    pub fn processes(&self, scene: &Scene) -> Vec<u32> {
        let stat = scene.stat(self.pid);
        let list = stat["processes"].as_array().expect("a list");
        list.iter().filter_map(|process| process["pid"].as_u64()).map(|pid| pid as u32).collect()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A client of a control socket, without manners of its own.
pub struct Client {
    pub stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Client {
    pub fn new(stream: UnixStream) -> Client {
        stream.set_read_timeout(Some(DEADLINE)).expect("a time-out");
        stream.set_write_timeout(Some(DEADLINE)).expect("a time-out");
        let lines = BufReader::new(stream.try_clone().expect("cloned"));
        Client { stream, lines }
    }

    /// Sends bytes; whether all of them were taken.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// The next line; None: the connection is closed.
    #[track_caller]
    pub fn line(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => {
                assert!(line.ends_with('\n'), "cut off: {line}");
                let value: Value = serde_json::from_str(&line).expect("JSON");
                assert_eq!(value["lowtide"], 1, "{value}");
                Some(value)
            }
        }
    }

    /// The answer to a request, progress left out.
    #[track_caller]
    pub fn ask(&mut self, request: &str) -> Value {
        assert!(self.send(format!("{request}\n")), "{request}: closed");
        self.answer()
    }

    #[track_caller]
    pub fn answer(&mut self) -> Value {
        loop {
            let line = self.line().expect("an answer");
            if line.get("progress").is_none() {
                return line;
            }
        }
    }

    /// Reads an error that holds all the words.
    #[track_caller]
    pub fn refused(&mut self, code: u8, words: &[&str]) {
        let answer = self.answer();
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(answer["ok"] == false && answer["code"] == code, "{answer}");
        for word in words {
            assert!(error.contains(word) && !error.contains('\n'), "`{word}` is not in: {answer}");
        }
    }

    /// Whether the other side has closed it.
    pub fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        self.lines.read_to_end(&mut rest).is_ok() && rest.is_empty()
            || matches!(self.stream.take_error(), Ok(Some(_)))
            || !self.send("\n")
    }
}

/// A number of a JSON object.
pub fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no {key}: {value}"))
}

/// A run of the program that checks its memory all the time.
pub fn verifier(scene: &Scene, options: &str, arguments: &str) -> Run {
    let mut run = scene.start(&format!("--quiet {options}"), &program("verifies"), arguments);
    run.wait_until("the memory is filled", |_| scene.path("ready").exists());
    run
}

/// Every byte was right, and nobody complained.
#[track_caller]
pub fn ends_well(scene: &Scene, run: Run) {
    scene.wake();
    let (out, err) = run.finish();
    assert_eq!((out.as_str(), err.as_str()), ("OK\n", ""));
}

/// A number of an area, by its SPEC.
#[track_caller]
pub fn area(scene: &Scene, run: &Run, spec: &str) -> Value {
    let stat = scene.stat(run.pid);
    let areas = stat["areas"].as_array().expect("a list");
    areas.iter().find(|area| area["spec"] == spec).unwrap_or_else(|| panic!("no {spec}: {stat}")).clone()
}
