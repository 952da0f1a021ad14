//! Calls that change memory, of programs without hooks. Once memory is registered they get the
//! errors of an older kernel, for which C libraries and runtimes are prepared (`realloc` copies):
//! the events of raw calls of several threads may come in any order, and some calls drop pages
//! without an event. (The kernel refuses guards and lazy frees of other processes by itself.)

use super::calls_under_way::{CallsUnderWay, is_there};
use super::notices::Told;
use linux_raw_sys::general::{__NR_mremap, __NR_set_tid_address};
use lowtide_config::proc::{self, Status};
use lowtide_sys::maps::Maps;
use lowtide_sys::stat::parse_is_io_worker;
use lowtide_wire::segment::{Proc, Segment};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// With a process that starts a thread of lowtide's; it may be stopped.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_micros(100);

/// Lets a call go on, or refuses it. `segment`: the run's processes. (Anybody in the run may write
/// there, so nothing may hang on it.)
pub fn answer(told: Told, segment: Option<&Segment>, under_way: &CallsUnderWay) {
    let Some((process, proc)) = segment.and_then(|segment| process_of(segment, told.thread)) else { return told.goes_on() };
    if told.number == __NR_set_tid_address {
        // In musl it serves all other threads, too.
        if let Some(proc) = proc.filter(|_| process == told.thread && told.waits()) {
            proc.cleared_word.store(told.arguments[0], Ordering::Relaxed);
        }
        return told.goes_on();
    }
    under_way.note(process, told.thread);
    let Some(proc) = proc.filter(|proc| !proc.may_call_go_on()) else { return told.goes_on() };
    under_way.has_left(told.thread);
    match why_refused(&told, proc) {
        // The thread has waited all along, so its number was not reused.
        Some(errno) if told.waits() => {
            proc.counters.calls_refused.fetch_add(1, Ordering::Relaxed);
            told.fails(errno);
        }
        _ => told.goes_on(),
    }
}

/// The process of a thread, and its slot if it has one.
fn process_of(segment: &Segment, thread: u32) -> Option<(u32, Option<&Proc>)> {
    let find = |pid: u32| segment.used_procs().iter().find(|proc| proc.pid.load(Ordering::Relaxed) == pid && is_its(proc, pid));
    if let Some(proc) = find(thread) {
        return Some((thread, Some(proc)));
    }
    let process = Status::of(thread)?.number("Tgid")?;
    Some((process, find(process)))
}

/// False: the place is a predecessor's, which has ended, or executed what got no agent.
fn is_its(proc: &Proc, pid: u32) -> bool {
    proc.threads().next().is_none_or(|thread| is_there(pid, thread))
}

fn why_refused(told: &Told, proc: &Proc) -> Option<Errno> {
    let pid = proc.pid.load(Ordering::Relaxed);
    if told.number != __NR_mremap {
        return Some(Errno::INVAL);
    }
    // What a single thread does is reported in order.
    let may_be = has_one_thread(proc, pid) || is_of_file(told.thread, told.arguments[0]);
    (!may_be).then_some(Errno::NOMEM)
}

/// Whether the program has one thread, beside lowtide's.
fn has_one_thread(proc: &Proc, pid: u32) -> bool {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Some(is_alone) = proc.steadily(|own| has_one_beside(pid, own)) {
            return is_alone;
        }
        std::thread::sleep(PAUSE);
    }
    false
}

fn has_one_beside(pid: u32, own: usize) -> bool {
    let all = own + 1;
    // st_nlink counts a directory for each thread, and two more.
    match std::fs::metadata(format!("/proc/{pid}/task")).map(|tasks| (tasks.nlink() as usize).saturating_sub(2)) {
        Ok(threads) if threads > all => {
            // Threads of io_uring change no mappings.
            let stat = |thread: &u32| proc::read(format!("/proc/{pid}/task/{thread}/stat"));
            let is_worker = |thread: &u32| stat(thread).is_ok_and(|stat| parse_is_io_worker(&stat) == Some(true));
            let threads = proc::threads(pid).unwrap_or_default().into_iter();
            threads.filter(|thread| !is_worker(thread)).take(all + 1).count() == all
        }
        Ok(threads) => threads == all,
        Err(_) => false,
    }
}

/// Whether the mapping at `addr` is a file's, or shared: lowtide registers neither.
fn is_of_file(thread: u32, addr: u64) -> bool {
    let Ok(maps) = std::fs::File::open(format!("/proc/{thread}/maps")) else { return false };
    let next = Maps::from(OwnedFd::from(maps)).next_mapping(addr as usize);
    next.is_ok_and(|next| next.is_some_and(|next| next.range.start as u64 <= addr && !next.is_anonymous))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::process::{Child, Command};

    fn proc_of(pid: u32) -> Box<Proc> {
        // SAFETY: all fields are atomics, for which zeros are valid.
        let proc: Box<Proc> = Box::new(unsafe { std::mem::zeroed() });
        proc.pid.store(pid, Ordering::Relaxed);
        proc
    }

    /// A process of one thread.
    struct Sleeper(Child);

    impl Sleeper {
        fn new() -> Sleeper {
            Sleeper(Command::new("sleep").arg("60").spawn().unwrap())
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn threads_of_lowtide_are_not_counted() {
        let sleeper = Sleeper::new();
        let pid = sleeper.0.id();
        let proc = proc_of(pid);
        assert!(has_one_thread(&proc, pid));
        let starts = || {
            assert!(!has_one_thread(&proc, pid), "one that starts might be any of them");
            Ok::<_, Errno>(pid)
        };
        proc.starts_thread(starts).unwrap();
        assert!(!has_one_thread(&proc, pid), "it is lowtide's");
        drop(sleeper);
        assert!(!has_one_thread(&proc_of(pid), pid), "it is gone");
        let own = std::process::id();
        assert!(!has_one_thread(&proc_of(own), own), "the first one, and that of the test");
    }

    #[test]
    fn files_are_told_from_memory() {
        let page = |flags, fd| {
            // SAFETY: a new mapping.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, flags, fd, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            at.addr() as u64
        };
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let own = std::process::id();
        assert!(is_of_file(own, page(libc::MAP_PRIVATE, file.as_raw_fd()) + 100));
        assert!(is_of_file(own, page(libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)));
        assert!(!is_of_file(own, page(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)));
        assert!(!is_of_file(own, 0) && !is_of_file(u32::MAX, 0));
    }
}
