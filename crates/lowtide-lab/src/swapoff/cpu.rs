//! User and system CPU time of threads and processes, as the kernel counts it in ticks.

use std::ops::{Add, Sub};

use lowtide_config::proc::{self, Stat};
use rustix::param::clock_ticks_per_second;

/// Seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cpu {
    pub user: f64,
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

fn of(stat: &Stat) -> Cpu {
    let [user, system] = [stat.user_ticks, stat.system_ticks].map(|ticks| ticks as f64 / clock_ticks_per_second() as f64);
    Cpu { user, system }
}

/// Also of an ended process that is not reaped.
pub fn of_process(pid: u32) -> Cpu {
    Stat::of(pid).as_ref().map_or_else(Cpu::default, of)
}

/// Of a process's threads whose names begin with `name`.
pub fn of_threads(pid: u32, name: &str) -> Cpu {
    let threads = proc::threads(pid).unwrap_or_default();
    let stats = threads.into_iter().filter_map(|thread| Stat::of_thread(pid, thread));
    stats.filter(|stat| stat.name.starts_with(name)).map(|stat| of(&stat)).fold(Cpu::default(), Cpu::add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_seconds() {
        let ticks = clock_ticks_per_second() as f64;
        let line = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0 4242";
        assert_eq!(of(&Stat::parse(line.as_bytes()).unwrap()), Cpu { user: 250.0 / ticks, system: 50.0 / ticks });
        assert_eq!(of_threads(std::process::id(), "no thread is called that"), Cpu::default());
    }
}
