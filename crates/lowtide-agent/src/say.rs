//! Words to the user: through the segment to `lowtide run`, which prints them, or straight to standard error when asked to be
//! verbose.

use linux_raw_sys::general as sys;
use lowtide_pager::sys::Line;
use rustix::process::{Pid, Signal};

use crate::agent;
use crate::thread::{syscall3, syscall4};

/// A warning: shown once, by `lowtide run`.
pub fn warn(text: &[u8]) {
    agent::segment().warn(pid(), text);
}

/// The run can't go on: `lowtide run` shows the message and stops the tree; this process stops at once.
pub fn fatal(text: &[u8]) -> ! {
    let segment = agent::segment();
    segment.fatal.put(pid(), text);
    let _ = rustix::thread::futex::wake(&segment.fatal.state, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
    stop()
}

/// Ends this process without running any of its code.
pub fn stop() -> ! {
    loop {
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
    }
}

fn pid() -> u32 {
    Pid::as_raw(Some(rustix::process::getpid())) as u32
}

/// With `--verbose`: a line on the program's standard error.
pub fn verbose(line: &mut Line) {
    if agent::settings().verbose == 0 {
        return;
    }
    line.push(b"\n");
    // lowtide's threads have no standard error of their own; the main thread's is looked up by its number.
    let mut path = Line::new();
    path.push(b"/proc/").number(u64::from(pid())).push(b"/fd/2\0");
    // SAFETY: a NUL-terminated path, and bytes to write; the descriptor is closed again.
    unsafe {
        let fd = syscall3(
            sys::__NR_open,
            path.bytes().as_ptr() as usize,
            (sys::O_WRONLY | sys::O_APPEND | sys::O_NONBLOCK) as usize,
            0,
        );
        if fd >= 0 {
            syscall4(sys::__NR_write, fd as usize, line.bytes().as_ptr() as usize, line.bytes().len(), 0);
            syscall3(sys::__NR_close, fd as usize, 0, 0);
        }
    }
}
