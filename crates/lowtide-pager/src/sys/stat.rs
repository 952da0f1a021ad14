//! What `/proc/PID/stat` and `/proc/loadavg` say.

/// The CPU on which a thread runs or last ran.
pub fn parse_cpu(stat: &[u8]) -> Option<u32> {
    field(stat, 39)
}

/// The state of a thread, as a letter: see proc(5).
pub fn parse_state(stat: &[u8]) -> Option<u8> {
    let behind = stat.iter().rposition(|b| *b == b')')? + 1;
    stat[behind..].iter().copied().find(|b| *b != b' ')
}

/// Threads of the machine that run or wait for a CPU, of `/proc/loadavg`: the fourth field, up to the slash. The thread that
/// asks is among them.
pub fn parse_running(loadavg: &[u8]) -> Option<u32> {
    let field = loadavg.split(|b| *b == b' ').nth(3)?;
    core::str::from_utf8(field.split(|b| *b == b'/').next()?).ok()?.parse().ok()
}

/// A field by its number in proc(5), from the third on: the second is a name in parentheses, which may hold anything.
fn field(stat: &[u8], number: usize) -> Option<u32> {
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
    }
}
