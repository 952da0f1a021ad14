//! CPU time of threads and processes, apart for user and system, as the kernel counts it in ticks.

use std::fs;
use std::ops::{Add, Sub};

/// Seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cpu {
    /// In its own code.
    pub user: f64,
    /// In the kernel for it.
    pub system: f64,
}

impl Add for Cpu {
    type Output = Cpu;
    fn add(self, other: Cpu) -> Cpu {
        Cpu { user: self.user + other.user, system: self.system + other.system }
    }
}

impl Sub for Cpu {
    type Output = Cpu;
    fn sub(self, other: Cpu) -> Cpu {
        Cpu { user: self.user - other.user, system: self.system - other.system }
    }
}

/// The name and the times in a line of `/proc/PID/stat` or `/proc/PID/task/TID/stat`.
fn read(stat: &str) -> Option<(&str, Cpu)> {
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut seconds = || Some(fields.next()?.parse::<f64>().ok()? / rustix::param::clock_ticks_per_second() as f64);
    Some((name, Cpu { user: seconds()?, system: seconds()? }))
}

/// What a process has had, also one that has ended and was not waited for.
pub fn of_process(pid: u32) -> Cpu {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    read(&stat).map_or_else(Cpu::default, |(_, cpu)| cpu)
}

/// What those threads of a process have had whose names begin so.
pub fn of_threads(pid: u32, name: &str) -> Cpu {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    stats
        .filter_map(|stat| read(&stat).filter(|(of, _)| of.starts_with(name)).map(|(_, cpu)| cpu))
        .fold(Cpu::default(), Cpu::add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernel_is_understood() {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let line = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20";
        assert_eq!(read(line), Some(("a) b", Cpu { user: 250.0 / ticks, system: 50.0 / ticks })));
        assert_eq!(read("7 (a) S"), None);
        assert_eq!(of_threads(std::process::id(), "no thread is called that"), Cpu::default());
    }
}
