//! Where the fault handler threads of a run are.

use std::collections::BTreeSet;
use std::fs;

use lowtide_config::proc;

/// A variable and its value with which handlers serve all faults: where threads serve their own, few are started.
pub const NEEDED: [&str; 2] = ["LOWTIDE_PAGE_FAULTS", "monitor"];

/// The numbers of one of the kernel's lists, as in "0-2,5".
fn numbers(list: &str) -> BTreeSet<usize> {
    let of = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
    };
    list.trim().split(',').filter_map(of).flatten().collect()
}

/// The CPUs on which a thread may run, by its place in /proc.
fn cpus(place: &str) -> Option<BTreeSet<usize>> {
    let status = fs::read_to_string(format!("/proc/{place}/status")).ok()?;
    status.lines().find_map(|line| Some(numbers(line.strip_prefix("Cpus_allowed_list:")?)))
}

/// Those of this thread, which are those of the programs that it starts.
pub fn own_cpus() -> BTreeSet<usize> {
    cpus("thread-self").expect("the kernel says")
}

/// Those of each fault handler thread of a run.
pub fn of(session: u32) -> Vec<BTreeSet<usize>> {
    let threads = |process: u32| proc::threads(process).unwrap_or_default().into_iter().map(move |thread| (process, thread));
    let is_handler = |(process, thread): &(u32, u32)| {
        fs::read_to_string(format!("/proc/{process}/task/{thread}/comm")).is_ok_and(|name| name.trim() == "lowtide-handler")
    };
    let all = proc::of_session(session).into_iter().flat_map(|process| threads(process.pid)).filter(is_handler);
    all.filter_map(|(process, thread)| cpus(&format!("{process}/task/{thread}"))).collect()
}
