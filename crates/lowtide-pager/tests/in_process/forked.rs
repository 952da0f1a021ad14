//! A real fork of the test's process. The child has no pager: the parent's brings in all of its memory. It reads memory and calls
//! the kernel, and nothing else: other threads of the harness may hold any lock at the fork.

use std::fs;
use std::io::{PipeWriter, Read};

unsafe extern "C" {
    fn syscall(number: i64, ...) -> i64;
    fn _exit(status: i32) -> !;
    fn alarm(seconds: u32) -> u32;
    fn kill(pid: i32, signal: i32) -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
}

const SIGKILL: i32 = 9;
const SIGCHLD: i64 = 17;

/// A child that waits until it is told to go on.
pub struct Child {
    pid: i32,
    go: Option<PipeWriter>,
}

impl Child {
    /// Forks. Once told to go on, the child ends with 0 if `is_right` says so.
    pub fn that_checks(is_right: impl FnOnce() -> bool) -> Child {
        let (mut waits, go) = std::io::pipe().unwrap();
        // By a raw call: the C library's would hold the locks of malloc until the monitors, which call malloc here, have read the
        // event.
        // SAFETY: see the head of this file.
        let pid = unsafe { syscall(linux_raw_sys::general::__NR_clone.into(), SIGCHLD, 0, 0, 0, 0) } as i32;
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: no handler is set. A child that hangs is killed after a while.
            unsafe { alarm(120) };
            // Or it would wait for itself.
            drop(go);
            while waits.read(&mut [0; 1]).is_err() {}
            let status = i32::from(!is_right());
            // SAFETY: ends the child without running anything of the harness.
            unsafe { _exit(status) }
        }
        Child { pid, go: Some(go) }
    }

    /// Tells it to go on, and waits for its end; whether it found all right.
    pub fn ends_well(mut self) -> bool {
        self.go = None;
        let mut status = 0;
        // SAFETY: waits for a child of this process.
        assert_eq!(unsafe { waitpid(self.pid, &mut status, 0) }, self.pid);
        std::mem::forget(self);
        status == 0
    }

    /// Bytes of anonymous memory that this process and the child have together, each page counted once.
    pub fn bytes_with_parent(&self) -> u64 {
        pss("self") + pss(&self.pid.to_string())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let mut status = 0;
        // SAFETY: a child of this process that was not waited for.
        unsafe {
            kill(self.pid, SIGKILL);
            waitpid(self.pid, &mut status, 0);
        }
    }
}

fn pss(pid: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss_Anon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
