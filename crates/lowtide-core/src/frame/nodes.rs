//! The NUMA node of each CPU.

use crate::kernel_text;
use crate::percpu::{self, MAX_CPUS, each_in_list, last_in};

/// Nodes beyond this many are ignored.
pub(super) const MAX_NODES: usize = 64;

/// Nodes that have CPUs, without gaps.
#[derive(Clone, Copy)]
pub(super) struct NodesOfCpus {
    /// At least 1.
    pub(super) nodes: usize,
    /// By CPU.
    pub(super) of: [u8; MAX_CPUS],
}

/// One if the kernel lists none.
pub(super) fn detect() -> NodesOfCpus {
    match percpu::forced_nodes() {
        0 => {}
        nodes => return NodesOfCpus::evenly(percpu::count(), nodes),
    }
    let mut found = NodesOfCpus { nodes: 0, of: [0; MAX_CPUS] };
    let last = last_in(c"/sys/devices/system/node/has_cpu").unwrap_or(0);
    for node in 0..=last.min(MAX_NODES - 1) {
        let mut text = [0u8; 4096];
        let Some(list) = read_cpus(node, &mut text) else { continue };
        found.add(list);
    }
    found.nodes = found.nodes.max(1);
    found
}

impl NodesOfCpus {
    /// Neighbours share a node.
    fn evenly(cpus: usize, nodes: usize) -> NodesOfCpus {
        let nodes = nodes.clamp(1, cpus.min(MAX_NODES));
        NodesOfCpus { nodes, of: core::array::from_fn(|cpu| (cpu * nodes / cpus).min(nodes - 1) as u8) }
    }

    /// `arenas`: at most as many as nodes; neighbours share.
    pub(super) fn onto(&self, arenas: usize) -> [u8; MAX_CPUS] {
        self.of.map(|node| (usize::from(node) * arenas / self.nodes) as u8)
    }

    /// `list`: in the kernel's format "0-3,8". No effect without CPUs.
    fn add(&mut self, list: &[u8]) {
        let mut any = false;
        each_in_list(list, MAX_CPUS, |cpu| {
            self.of[cpu] = self.nodes as u8;
            any = true;
        });
        self.nodes += usize::from(any);
    }
}

fn read_cpus(node: usize, text: &mut [u8]) -> Option<&[u8]> {
    let mut path = *b"/sys/devices/system/node/node00/cpulist\0\0";
    let digits = path.iter().position(|&c| c == b'0')?;
    if node < 10 {
        path[digits] = b'0' + node as u8;
        path.copy_within(digits + 2.., digits + 1);
    } else {
        (path[digits], path[digits + 1]) = (b'0' + (node / 10) as u8, b'0' + (node % 10) as u8);
    }
    kernel_text::read(core::ffi::CStr::from_bytes_until_nul(&path).ok()?, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_without_cpus_do_not_count() {
        let mut found = NodesOfCpus { nodes: 0, of: [9; MAX_CPUS] };
        found.add(b"0-1,4\n");
        found.add(b"\n");
        found.add(b"2-3,5-5000\n");
        assert_eq!((found.nodes, &found.of[..7]), (2, &[0, 0, 1, 1, 0, 1, 1][..]));
        assert_eq!(found.of[MAX_CPUS - 1], 1);
    }

    #[test]
    fn forced_nodes_have_as_many_cpus_each() {
        let found = NodesOfCpus::evenly(8, 2);
        assert_eq!((found.nodes, &found.of[..9]), (2, &[0, 0, 0, 0, 1, 1, 1, 1, 1][..]));
        assert_eq!(NodesOfCpus::evenly(2, 8).nodes, 2, "a node has a CPU");
    }

    #[test]
    fn where_arenas_are_fewer_nodes_share_them_evenly() {
        let mut found = NodesOfCpus { nodes: 8, of: [0; MAX_CPUS] };
        found.of.iter_mut().enumerate().for_each(|(cpu, node)| *node = (cpu % 8) as u8);
        let arenas = |n| found.onto(n)[..8].to_vec();
        assert_eq!((arenas(8), arenas(1)), ([0, 1, 2, 3, 4, 5, 6, 7].into(), [0; 8].into()));
        assert_eq!((arenas(4), arenas(3)), ([0, 0, 1, 1, 2, 2, 3, 3].into(), [0, 0, 0, 1, 1, 1, 2, 2].into()));
    }

    #[test]
    fn this_machine_has_nodes() {
        let found = detect();
        assert!(found.nodes >= 1 && found.of.iter().all(|&n| usize::from(n) < found.nodes));
    }
}
