//! Messages to the user: through the segment, printed by `lowtide run`, or directly to standard
//! error with `--verbose`.

use linux_raw_sys::general as sys;
use lowtide_sys::Line;
use rustix::process::{Pid, Signal};

use crate::process::agent;
use crate::process::thread::{syscall3, syscall4};

/// `lowtide run` prints it once.
pub fn warn(text: &[u8]) {
    agent::segment().warn(pid(), text);
}

/// `lowtide run` prints it and stops the run; this process stops at once.
pub fn fatal(text: &[u8]) -> ! {
    let segment = agent::segment();
    segment.fatal.put(pid(), text);
    let _ = rustix::thread::futex::wake(&segment.fatal.state, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
    stop()
}

/// Without running any of the program's code.
pub fn stop() -> ! {
    loop {
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
    }
}

fn pid() -> u32 {
    Pid::as_raw(Some(rustix::process::getpid())) as u32
}

pub fn verbose(line: &mut Line) {
    if agent::settings().verbose == 0 {
        return;
    }
    line.push(b"\n");
    // lowtide's threads have no standard error: use the main thread's.
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
