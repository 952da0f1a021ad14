//! The processes of a run as a tree.
//!
//! Parents and names come from the run, else from `/proc`. Not the command line: reading it touches
//! the process's memory, which may be out.

use super::sample::Process;
use lowtide_config::proc::Stat;
use std::collections::{HashMap, HashSet};

/// Longest chain of ancestors.
const DEEPEST: usize = 64;

/// A process in its place in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Branch {
    pub process: usize,
    /// For each ancestor in the tree and for itself, whether siblings follow.
    pub more: Vec<bool>,
    /// Not escaped; empty: the process is gone.
    pub name: String,
}

/// Name and parent.
pub type Kin = (String, u32);

/// From `/proc`.
pub fn kin(pid: u32) -> Option<Kin> {
    let stat = Stat::of(pid)?;
    Some((stat.name, stat.parent))
}

/// Orders processes, each behind its parent, and skips unmanaged ones between them. `kin` looks up
/// skipped processes and those that the run does not know.
pub fn order(processes: &[Process], kin: impl Fn(u32) -> Option<Kin>) -> Vec<Branch> {
    let places: HashMap<u32, usize> = processes.iter().enumerate().map(|(place, process)| (process.pid, place)).collect();
    let (mut names, mut children, mut roots) = (HashMap::new(), HashMap::<u32, Vec<u32>>::new(), Vec::new());
    for pid in places.keys().copied() {
        let found = processes[places[&pid]].kin.clone().or_else(|| kin(pid));
        let mut parent = found.as_ref().map_or(0, |(_, parent)| *parent);
        names.insert(pid, found.map_or(String::new(), |(name, _)| name));
        for _ in 0..DEEPEST {
            if parent <= 1 || places.contains_key(&parent) {
                break;
            }
            parent = kin(parent).map_or(0, |(_, parent)| parent);
        }
        // Reused pids must not put a process below itself.
        match places.contains_key(&parent) && parent != pid {
            true => children.entry(parent).or_default().push(pid),
            false => roots.push(pid),
        }
    }
    let mut walk = Walk { places: &places, children, names, seen: HashSet::new(), all: Vec::new() };
    roots.sort_unstable();
    walk.down(&roots, &[]);
    // Processes in a cycle are below no root.
    let mut lost: Vec<u32> = places.keys().copied().filter(|pid| !walk.seen.contains(pid)).collect();
    lost.sort_unstable();
    lost.into_iter().for_each(|pid| walk.down(&[pid], &[]));
    walk.all
}

struct Walk<'a> {
    places: &'a HashMap<u32, usize>,
    children: HashMap<u32, Vec<u32>>,
    names: HashMap<u32, String>,
    seen: HashSet<u32>,
    all: Vec<Branch>,
}

impl Walk<'_> {
    fn down(&mut self, pids: &[u32], above: &[bool]) {
        for (i, pid) in pids.iter().enumerate() {
            if above.len() > DEEPEST || !self.seen.insert(*pid) {
                continue;
            }
            let more = [above, &[i + 1 < pids.len()]].concat();
            let name = self.names.remove(pid).unwrap_or_default();
            self.all.push(Branch { process: self.places[pid], more: more.clone(), name });
            let mut below = self.children.remove(pid).unwrap_or_default();
            below.sort_unstable();
            self.down(&below, &more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(pids: &[u32]) -> Vec<Process> {
        pids.iter().map(|pid| Process { pid: *pid, ..Process::default() }).collect()
    }

    /// Pid, depth, whether siblings follow.
    fn shape(processes: &[Process], parents: &[(u32, u32)]) -> Vec<(u32, usize, bool)> {
        let kin = |pid| parents.iter().find(|(child, _)| *child == pid).map(|(_, parent)| (format!("p{pid}"), *parent));
        let line = |branch: &Branch| (processes[branch.process].pid, branch.more.len() - 1, branch.more[branch.more.len() - 1]);
        order(processes, kin).iter().map(line).collect()
    }

    #[test]
    fn children_follow_their_parents() {
        let processes = list(&[30, 10, 21, 20]);
        // 15 is not managed: 20 and 21 are below 10 all the same.
        let tree = shape(&processes, &[(10, 5), (5, 1), (15, 10), (20, 15), (21, 10), (30, 20)]);
        assert_eq!(tree, [(10, 0, false), (20, 1, true), (30, 2, false), (21, 1, false)]);
    }

    #[test]
    fn what_the_run_says_goes_before_proc() {
        let said = |pid, parent| Process { pid, kin: Some((format!("n{pid}"), parent)), ..Process::default() };
        let tree = order(&[said(2, 1), said(3, 2), said(4, 9)], |pid| (pid == 9).then(|| ("between".to_owned(), 3)));
        let lines: Vec<(&str, usize)> = tree.iter().map(|branch| (branch.name.as_str(), branch.more.len())).collect();
        assert_eq!(lines, [("n2", 1), ("n3", 2), ("n4", 3)]);
    }

    #[test]
    fn all_are_there_whatever_proc_says() {
        let processes = list(&[1, 2, 3, 4]);
        for parents in [&[][..], &[(1, 2), (2, 1)], &[(3, 3)], &[(1, 2), (2, 3), (3, 4), (4, 1)], &[(2, 1), (3, 2), (4, 3)]] {
            let mut pids: Vec<u32> = shape(&processes, parents).iter().map(|(pid, ..)| *pid).collect();
            pids.sort_unstable();
            assert_eq!(pids, [1, 2, 3, 4], "{parents:?}");
        }
        let chain: Vec<(u32, u32)> = (2..2000).map(|pid| (pid, pid - 1)).collect();
        let long = list(&(1..2000).collect::<Vec<_>>());
        assert_eq!(shape(&long, &chain).len(), 1999, "a deep one is shown in parts");
    }

    #[test]
    fn this_process_has_a_name_and_a_parent() {
        assert!(kin(std::process::id()).is_some_and(|(name, parent)| !name.is_empty() && parent > 1));
    }
}
