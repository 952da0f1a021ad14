//! A real fork of the test's process. The child has no pager: the parent's brings in all of its memory. It waits, and nothing else:
//! other threads of the harness may hold any lock at the fork.

unsafe extern "C" {
    fn syscall(number: i64, ...) -> i64;
    fn alarm(seconds: u32) -> u32;
    fn kill(pid: i32, signal: i32) -> i32;
    fn pause() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
}

const SIGKILL: i32 = 9;
const SIGCHLD: i64 = 17;

/// A child that lives until it is dropped.
pub struct Child(i32);

impl Child {
    pub fn new() -> Child {
        // By a raw call: the C library's would hold the locks of malloc until the handlers, which call malloc here, have read the
        // event.
        // SAFETY: see the head of this file.
        let pid = unsafe { syscall(linux_raw_sys::general::__NR_clone.into(), SIGCHLD, 0, 0, 0, 0) } as i32;
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: no handler is set. A child that is forgotten is killed after a while.
            unsafe { alarm(120) };
            loop {
                // SAFETY: it runs nothing of the harness.
                unsafe { pause() };
            }
        }
        Child(pid)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let mut status = 0;
        // SAFETY: a child of this process that was not waited for.
        unsafe {
            kill(self.0, SIGKILL);
            waitpid(self.0, &mut status, 0);
        }
    }
}
