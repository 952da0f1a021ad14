//! Parsers for `/proc/PID/stat`, `/proc/PID/syscall` and `/proc/loadavg`.

use core::str::FromStr;

/// The CPU of a thread's latest run.
pub fn parse_cpu(stat: &[u8]) -> Option<u32> {
    field(stat, 39)
}

/// The state letter of a thread: see proc(5).
pub fn parse_state(stat: &[u8]) -> Option<u8> {
    let behind = stat.iter().rposition(|b| *b == b')')? + 1;
    stat[behind..].iter().copied().find(|b| *b != b' ')
}

/// Exit status of a process's first thread. None: running.
pub fn parse_ended(stat: &[u8]) -> Option<i32> {
    let status: i32 = field(stat, 52)?;
    (parse_state(stat) == Some(b'Z')).then_some(status >> 8 & 0xff)
}

/// A thread's work so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Minor page faults.
    pub faults: u64,
    /// User time, about hundredths of a second.
    pub user_ticks: u64,
}

/// Work so far.
pub fn parse_work(stat: &[u8]) -> Option<Work> {
    Some(Work { faults: field(stat, 10)?, user_ticks: field(stat, 14)? })
}

/// A sleeping thread's stack pointer, from `/proc/PID/syscall`.
pub fn parse_stack(syscall: &[u8]) -> Option<usize> {
    let number = syscall.split(|b| *b == b' ').rev().nth(1)?.strip_prefix(b"0x")?;
    usize::from_str_radix(core::str::from_utf8(number).ok()?, 16).ok()
}

/// Whether a thread is io_uring's kernel worker.
pub fn parse_is_io_worker(stat: &[u8]) -> Option<bool> {
    /// PF_IO_WORKER.
    const IO_WORKER: u32 = 0x10;
    field(stat, 9).map(|flags: u32| flags & IO_WORKER != 0)
}

/// User time of a thread, in clock ticks.
pub fn parse_user_ticks(stat: &[u8]) -> Option<u32> {
    field(stat, 14)
}

/// Runnable threads of the machine, from `/proc/loadavg`, the caller included.
pub fn parse_running(loadavg: &[u8]) -> Option<u32> {
    let field = loadavg.split(|b| *b == b' ').nth(3)?;
    core::str::from_utf8(field.split(|b| *b == b'/').next()?).ok()?.parse().ok()
}

/// A field by its number in proc(5), from the third: the second, a name in parentheses, may contain
/// anything.
fn field<T: FromStr>(stat: &[u8], number: usize) -> Option<T> {
    let behind = stat.iter().rposition(|b| *b == b')')? + 1;
    let field = stat[behind..].split(|b| *b == b' ').filter(|field| !field.is_empty()).nth(number - 3)?;
    core::str::from_utf8(field).ok()?.trim_ascii().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_many_threads_run() {
        assert_eq!(parse_running(b"0.53 2.36 2.35 12/146 28470\n"), Some(12));
        assert!(parse_running(&std::fs::read("/proc/loadavg").unwrap()) >= Some(1), "this one");
        assert_eq!((parse_running(b""), parse_running(b"0.53 2.36 2.35 /146 28470")), (None, None));
    }

    #[test]
    fn the_cpu_of_this_thread() {
        let only = rustix::thread::sched_getaffinity(None).unwrap();
        let stat = std::fs::read("/proc/thread-self/stat").unwrap();
        assert!(only.is_set(parse_cpu(&stat).unwrap() as usize), "{}", std::string::String::from_utf8_lossy(&stat));
        let odd = b"1 (a) b) 7) S 1 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0 9 0 0 0 0 0 0 0 0 0 0 0 0 17 3 0 0";
        assert_eq!(parse_cpu(odd), Some(3));
        assert_eq!((parse_state(&stat), parse_state(odd), parse_state(b"1 (a")), (Some(b'R'), Some(b'S'), None));
        assert_eq!((parse_cpu(b""), parse_cpu(b"1 (a) S 1")), (None, None));
        assert_eq!((parse_ended(&stat), parse_ended(b"1 (a) Z 1")), (None, None));
        assert_eq!((parse_user_ticks(odd), parse_user_ticks(b"1 (a) S 1")), (Some(0), None));
        assert_eq!([&stat[..], odd, b"1 (a) S 1"].map(parse_is_io_worker), [Some(false), Some(false), None]);
    }

    #[test]
    fn the_end_of_a_first_thread() {
        let mut child = std::process::Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        let path = std::format!("/proc/{}/stat", child.id());
        while parse_state(&std::fs::read(&path).unwrap()) != Some(b'Z') {
            std::thread::yield_now();
        }
        assert_eq!(parse_ended(&std::fs::read(&path).unwrap()), Some(7));
        child.wait().unwrap();
    }

    #[test]
    fn what_a_thread_has_done_and_where_it_sleeps() {
        let work = || parse_work(&std::fs::read("/proc/thread-self/stat").unwrap()).unwrap();
        let before = work();
        let fresh = lowtide_core::vm::map(64 << 12, lowtide_core::vm::OnFork::Copy).unwrap();
        // SAFETY: the test's memory, without pages.
        (0..64).for_each(|page| unsafe { fresh.as_ptr().add(page << 12).write_volatile(1) });
        assert!(work().faults >= before.faults + 48, "{before:?} {:?}", work());
        assert_eq!(parse_work(b"1 (a) S 1"), None);
        let texts =
            ["202 0x7f 0x0 0x0 0x0 0x0 0x0 0x7ffc10 0x7f12\n", "-1 0x7ffc10 0x7f12\n", "running\n", "", "-1 7 0x7f12\n"];
        let stack = Some(0x7ffc10);
        assert_eq!(texts.map(|text| parse_stack(text.as_bytes())), [stack, stack, None, None, None]);
    }

    #[test]
    fn the_kernel_s_workers_are_told_apart() {
        use rustix::io_uring::{
            IoringEnterFlags, IoringFeatureFlags, IoringOp, IoringSqeFlags, io_uring_enter, io_uring_params, io_uring_setup,
            io_uring_sqe,
        };
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let mut params = io_uring_params::default();
        // SAFETY: zeros are default parameters.
        let ring = match unsafe { io_uring_setup(1, &mut params) } {
            Ok(ring) => ring,
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "cannot run here, and CI must not skip: io_uring: {error}");
                crate::skipped::skipped(format_args!("io_uring is not allowed: {error}"));
                return;
            }
        };
        assert!(params.features.contains(IoringFeatureFlags::SINGLE_MMAP));
        let map = |len, offset| {
            let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
            // SAFETY: fresh memory, mapped as io_uring_setup(2) requires.
            unsafe { mmap(core::ptr::null_mut(), len, prot, flags, &ring, offset).unwrap().cast::<u8>() }
        };
        let queue = map(4096, rustix::io_uring::IORING_OFF_SQ_RING);
        let entry = map(4096, rustix::io_uring::IORING_OFF_SQES).cast::<io_uring_sqe>();
        // SAFETY: the queue's only entry, at the kernel's offsets: a no-op in a worker.
        unsafe {
            let mut nop = io_uring_sqe::default();
            (nop.opcode, nop.flags) = (IoringOp::Nop, IoringSqeFlags::ASYNC);
            entry.write(nop);
            queue.add(params.sq_off.array as usize).cast::<u32>().write(0);
            queue.add(params.sq_off.tail as usize).cast::<u32>().write_volatile(1);
            assert_eq!(io_uring_enter(&ring, 1, 1, IoringEnterFlags::GETEVENTS), Ok(1));
        }
        // (An idle worker ends after seconds.)
        let workers = std::fs::read_dir("/proc/self/task").unwrap().filter(|thread| {
            let stat = thread.as_ref().map(|thread| std::fs::read(thread.path().join("stat")).unwrap_or_default());
            parse_is_io_worker(&stat.unwrap()).unwrap_or(false)
        });
        assert!(workers.count() >= 1);
    }
}
