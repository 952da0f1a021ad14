//! A test in a process of its own: the test starts this program again, for itself alone.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

const MARK: &str = "LOWTIDE_TEST_CHILD";

/// Whether this is such a process.
pub fn is_child() -> bool {
    std::env::var_os(MARK).is_some()
}

/// The command that runs the test of this name alone.
pub fn command(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(MARK, "1");
    command
}

/// Runs it, and asserts that it went well.
pub fn passes(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success() && ran_one(&output), "{}", text(&output));
}

/// Not that no test has that name.
fn ran_one(output: &Output) -> bool {
    String::from_utf8_lossy(&output.stdout).contains("1 passed")
}

/// What it wrote.
pub fn text(output: &Output) -> String {
    format!("{}\n{}{}", output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Lets the system call of this number fail with this error in the child.
pub fn without_system_call(command: &mut Command, number: libc::c_long, errno: i32) {
    // Load the number; if it is that one, the error, else allow.
    let filter = [
        libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 },
        libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: number as u32 },
        libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ERRNO | errno as u32 },
        libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ];
    let install = move || {
        let mut filter = filter;
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: two system calls about this process, with arguments that live until they return.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        };
        if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: what is done between fork and exec is async-signal-safe.
    unsafe { command.pre_exec(install) };
}
