//! Where each CPU has its lists: a node, and a number among that node's CPUs.
//!
//! In arenas of other nodes a CPU uses the lists with the same number: frames that it frees stay
//! warm on their own node, and there are as many sets as CPUs, not CPUs times nodes. The cost: a
//! lock shared with one CPU of each node.

use alloc::boxed::Box;
use alloc::vec::Vec;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) node: u16,
    /// In the arena of its node, and in others with as many.
    pub(super) lists: u16,
}

#[derive(Debug)]
pub(super) struct Places {
    places: Box<[Place]>,
    /// CPUs below this have lists of their own number on the only node.
    direct: usize,
}

impl Places {
    /// `most`: sets of lists per node; `node_of_cpu` repeats. Also returns each node's sets, at
    /// least one.
    pub(super) fn new(cpus: usize, node_of_cpu: &[u8], nodes: usize, most: usize) -> (Places, Vec<usize>) {
        assert!(cpus <= 1 << u16::BITS, "more CPUs than numbers of lists");
        let most = most.max(1);
        let mut lists = Vec::from_iter((0..nodes).map(|_| 0usize));
        let mut place = |node: u8| {
            let number = &mut lists[usize::from(node)];
            *number += 1;
            Place { node: node.into(), lists: ((*number - 1) % most) as u16 }
        };
        let places = node_of_cpu.iter().cycle().take(cpus).map(|&node| place(node)).collect();
        // A node without CPUs has frames, too.
        lists.iter_mut().for_each(|n| *n = (*n).clamp(1, most));
        let direct = if nodes == 1 { lists[0] } else { 0 };
        (Places { places, direct }, lists)
    }

    pub(super) fn table_bytes(&self) -> usize {
        size_of_val(&*self.places)
    }

    /// Numbers beyond the table wrap around.
    #[inline]
    pub(super) fn of(&self, cpu: usize) -> Place {
        // No load from the table: the lock would wait for it, 2 ns of some 20.
        if cpu < self.direct {
            return Place { node: 0, lists: cpu as u16 };
        }
        match self.places.get(cpu) {
            Some(place) => *place,
            None => self.places[cpu % self.places.len()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(cpus: usize, node_of_cpu: &[u8], nodes: usize, most: usize) -> (Vec<(u16, u16)>, Vec<usize>) {
        let (places, lists) = Places::new(cpus, node_of_cpu, nodes, most);
        (Vec::from_iter((0..cpus).map(|cpu| (places.of(cpu).node, places.of(cpu).lists))), lists)
    }

    #[test]
    fn cpus_have_lists_on_their_node_only() {
        assert_eq!(places(4, &[0, 1, 0, 1], 2, 9), ([(0, 0), (1, 0), (0, 1), (1, 1)].into(), [2, 2].into()));
        assert_eq!(places(3, &[0], 1, 9), ([(0, 0), (0, 1), (0, 2)].into(), [3].into()));
        assert_eq!(places(3, &[1, 1, 1], 3, 9).1, [1, 3, 1], "who has no CPU has lists for those of others");
        let of_all = places(256, &Vec::from_iter((0..=255).map(|cpu| cpu / 32)), 8, 1000);
        assert_eq!((of_all.1, of_all.0[255]), ([32; 8].into(), (7, 31)));
    }

    #[test]
    fn where_lists_are_few_cpus_share_them() {
        assert_eq!(places(5, &[0], 1, 2), ([(0, 0), (0, 1), (0, 0), (0, 1), (0, 0)].into(), [2].into()));
        assert_eq!(places(2, &[0], 1, 0).1, [1]);
        let (places, _) = Places::new(3, &[0, 0, 1], 2, 9);
        assert_eq!([2, 5, 3].map(|cpu| places.of(cpu).node), [1, 1, 0]);
    }
}
