//! The loads of the race.

use super::content::Content;
use super::kernel::Swap;
use super::real::{self, Need};
use super::run::Task;
use super::site::Site;
use super::synthetic::{Synthetic, Touch};

const MIB: usize = 256;

impl Site {
    fn synthetic(&self, touch: Touch, content: Content, mib: usize, count: usize) -> Result<Task, String> {
        let load = Synthetic { touch, pages: mib * MIB, content, count };
        Ok(Task { command: load.command()?, directory: self.directory.clone(), client: None })
    }
}

#[derive(Debug)]
pub struct Load {
    pub name: &'static str,
    /// Least factor between the kernel's time and lowtide's; `None`: no promise.
    pub target: Option<f64>,
    /// The swap for which it runs unless named.
    pub home: Swap,
    pub needs: &'static [Need],
    pub task: fn(&Site) -> Result<Task, String>,
}

const LOADS: &[Load] = &[
    Load {
        name: "sequential",
        target: Some(2.5),
        home: Swap::Zram,
        needs: &[],
        task: |site| site.synthetic(Touch::Passes, Content::COMPRESSIBLE, site.pick(512, 1024), site.pick(4, 5)),
    },
    Load {
        name: "random-read",
        target: Some(1.25),
        home: Swap::Zram,
        needs: &[],
        task: |site| site.synthetic(Touch::Reads, Content::COMPRESSIBLE, site.pick(512, 1024), site.pick(200_000, 600_000)),
    },
    Load {
        name: "random-write",
        target: Some(1.2),
        home: Swap::Zram,
        needs: &[],
        task: |site| site.synthetic(Touch::Writes, Content::COMPRESSIBLE, site.pick(512, 1024), site.pick(200_000, 500_000)),
    },
    Load {
        name: "threads",
        target: Some(1.2),
        home: Swap::Zram,
        needs: &[],
        task: |site| site.synthetic(Touch::Threads, Content::COMPRESSIBLE, site.pick(512, 1024), site.pick(200_000, 600_000)),
    },
    Load {
        name: "zipf",
        target: Some(1.0),
        home: Swap::Zram,
        needs: &[],
        task: |site| site.synthetic(Touch::Zipf, Content::COMPRESSIBLE, site.pick(512, 1024), site.pick(1_000_000, 3_000_000)),
    },
    Load {
        name: "zeros",
        target: None,
        home: Swap::Zram,
        needs: &[],
        task: |site| {
            let content = Content { zeros: 80, ..Content::COMPRESSIBLE };
            site.synthetic(Touch::Reads, content, site.pick(512, 1024), site.pick(200_000, 600_000))
        },
    },
    Load { name: "sort", target: Some(1.0), home: Swap::Zram, needs: &[Need::Command("sort")], task: real::sort },
    Load { name: "sqlite", target: Some(1.0), home: Swap::Zram, needs: &[Need::Module("sqlite3")], task: real::sqlite },
    Load { name: "python", target: Some(1.0), home: Swap::Zram, needs: &[Need::Module("zlib")], task: real::objects },
    Load { name: "redis", target: Some(1.0), home: Swap::Zram, needs: &[Need::Command("redis-server")], task: real::redis },
    Load { name: "saves", target: Some(1.0), home: Swap::Zram, needs: &[Need::Command("redis-server")], task: real::saves },
    Load { name: "gcc", target: Some(1.0), home: Swap::Zram, needs: &[Need::Command("gcc")], task: real::gcc },
    Load { name: "javascript", target: Some(1.0), home: Swap::Zram, needs: &[Need::Command("node")], task: real::javascript },
    Load { name: "duckdb", target: None, home: Swap::Zram, needs: &[Need::Module("duckdb")], task: real::duckdb },
    Load { name: "numpy", target: None, home: Swap::Zram, needs: &[Need::Module("numpy")], task: real::numpy },
    Load { name: "matrices", target: Some(1.0), home: Swap::Zram, needs: &[Need::Module("numpy")], task: real::matrices },
    Load { name: "mariadb", target: None, home: Swap::Zram, needs: real::MARIADB_NEEDS, task: real::mariadb },
    Load {
        name: "file-passes",
        target: Some(2.0),
        home: Swap::File,
        needs: &[],
        task: |site| site.synthetic(Touch::Updates, Content::NOISE, site.pick(600, 1536), site.pick(2, 3)),
    },
    Load {
        name: "file-random",
        target: Some(1.0),
        home: Swap::File,
        needs: &[],
        task: |site| site.synthetic(Touch::Reads, Content::NOISE, site.pick(600, 1536), site.pick(5_000, 40_000)),
    },
];

pub fn names() -> impl Iterator<Item = &'static str> {
    LOADS.iter().map(|load| load.name)
}

/// The loads with these names, in this file's order; without names, those at home with `swap`.
/// Loads at home with zram are so with zswap.
pub fn chosen(names: &[String], swap: Swap) -> Vec<&'static Load> {
    let home = if swap == Swap::Zswap { Swap::Zram } else { swap };
    let wanted = |load: &&Load| if names.is_empty() { load.home == home } else { names.iter().any(|name| name == load.name) };
    LOADS.iter().filter(wanted).collect()
}

/// A line about loads that can't run here and why.
pub fn missing(loads: &[&Load]) -> Option<String> {
    let lacks = |load: &&Load| {
        let what: Vec<String> = load.needs.iter().filter_map(|need| need.missing()).collect();
        (!what.is_empty()).then(|| format!("{} needs {}", load.name, what.join(" and ")))
    };
    let lines: Vec<String> = loads.iter().filter_map(lacks).collect();
    (!lines.is_empty()).then(|| format!("{} (`make race` installs it, `--only` runs others)", lines.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_chosen_by_home_or_by_name() {
        let names = |loads: Vec<&Load>| loads.iter().map(|load| load.name).collect::<Vec<_>>();
        assert_eq!(names(chosen(&[], Swap::File)), ["file-passes", "file-random"]);
        assert!(
            names(chosen(&[], Swap::Zram)).starts_with(&["sequential"]) && chosen(&[], Swap::Zram).len() == LOADS.len() - 2
        );
        assert_eq!(names(chosen(&["zipf".to_owned(), "file-passes".to_owned()], Swap::Zram)), ["zipf", "file-passes"]);
    }

    #[test]
    fn what_is_missing_is_said_with_the_load_that_needs_it() {
        let load = Load { needs: &[Need::Command("sh"), Need::Command("no-such-command")], ..LOADS[0] };
        let line = missing(&[&LOADS[0], &load]).unwrap();
        assert!(line.starts_with("sequential needs no-such-command ("), "{line}");
        assert_eq!(missing(&[&LOADS[0]]), None);
    }
}
