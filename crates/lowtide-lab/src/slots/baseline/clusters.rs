//! The data under the baseline's one lock: a bitmap for each cluster, and lists of free clusters,
//! and by order of those with room (nonfull) and those where a search failed (frag).

const CLUSTER: usize = 512;
const ORDERS: usize = 10;

/// Lists: free, nonfull by order, frag by order. A full cluster is on none.
const NONE: u8 = u8::MAX;
const FREE: u8 = 0;
const NONFULL: u8 = 1;
const FRAG: u8 = NONFULL + ORDERS as u8;
const LISTS: usize = FRAG as usize + ORDERS;

const NIL: u32 = u32::MAX;

#[derive(Clone)]
struct Cluster {
    /// A bit for each slot, set when in use.
    map: [u64; CLUSTER / 64],
    used: u16,
    order: u8,
    list: u8,
    next: u32,
    prev: u32,
}

pub struct Clusters {
    clusters: Vec<Cluster>,
    ends: [(u32, u32); LISTS],
    /// The cluster that each CPU used last, by order.
    current: Vec<[u32; ORDERS]>,
    by_order: bool,
}

/// The bits of a word where an aligned run of 2^order slots can begin, order 0 to 6.
const STARTS: [u64; 7] =
    [u64::MAX, 0x5555555555555555, 0x1111111111111111, 0x0101010101010101, 0x0001000100010001, 0x0000000100000001, 1];

impl Cluster {
    fn find(&self, order: u32) -> Option<usize> {
        if CLUSTER - (self.used as usize) < 1 << order {
            return None;
        }
        if order > 6 {
            let words = 1 << (order - 6);
            return self.map.chunks(words).position(|run| run.iter().all(|w| *w == 0)).map(|i| i * words * 64);
        }
        self.map.iter().enumerate().find_map(|(i, word)| {
            let runs = (0..order).fold(!word, |free, k| free & free >> (1 << k)) & STARTS[order as usize];
            (runs != 0).then(|| i * 64 + runs.trailing_zeros() as usize)
        })
    }

    /// Flips the bits of a run, which are all alike.
    fn flip(&mut self, first: usize, n: usize) {
        let (mut at, end) = (first, first + n);
        while at < end {
            let bits = (64 - at % 64).min(end - at);
            self.map[at / 64] ^= (u64::MAX >> (64 - bits)) << (at % 64);
            at += bits;
        }
    }
}

impl Clusters {
    /// The first slot is never given out. `by_order`: runs may come from partly used clusters.
    pub fn new(slots: usize, cpus: usize, by_order: bool) -> Clusters {
        let empty = Cluster { map: [0; CLUSTER / 64], used: 0, order: 0, list: NONE, next: NIL, prev: NIL };
        let mut all = Clusters {
            clusters: vec![empty; slots.div_ceil(CLUSTER)],
            ends: [(NIL, NIL); LISTS],
            current: vec![[NIL; ORDERS]; cpus],
            by_order,
        };
        let tail = all.clusters.len() * CLUSTER - slots;
        all.block(0, 1);
        if tail > 0 {
            all.block(slots, tail);
        }
        for i in 0..all.clusters.len() as u32 {
            all.settle(i, NONFULL);
        }
        all
    }

    fn block(&mut self, first: usize, n: usize) {
        let cluster = &mut self.clusters[first / CLUSTER];
        cluster.flip(first % CLUSTER, n);
        cluster.used += n as u16;
    }

    pub fn take(&mut self, cpu: usize, order: u32) -> Option<u64> {
        let i = self.find_cluster(cpu, order)?;
        let first = self.clusters[i as usize].find(order)?;
        self.took(i, first, 1 << order, order);
        Some((i as usize * CLUSTER + first) as u64)
    }

    /// Appends up to `want` single slots to `into`.
    pub fn take_singles(&mut self, cpu: usize, want: usize, into: &mut Vec<u64>) {
        while into.len() < want
            && let Some(i) = self.find_cluster(cpu, 0)
        {
            let cluster = &self.clusters[i as usize];
            let (mut taken, mut map) = (0, cluster.map);
            for (w, word) in map.iter_mut().enumerate() {
                while *word != u64::MAX && into.len() < want {
                    let bit = word.trailing_ones() as usize;
                    *word |= 1 << bit;
                    taken += 1;
                    into.push((i as usize * CLUSTER + w * 64 + bit) as u64);
                }
            }
            self.clusters[i as usize].map = map;
            self.count(i, taken, 0);
        }
    }

    fn find_cluster(&mut self, cpu: usize, order: u32) -> Option<u32> {
        let current = self.current[cpu][order as usize];
        if current != NIL && self.usable(current, order) && self.fits(current, order) {
            return Some(current);
        }
        let found = self.search(order)?;
        self.current[cpu][order as usize] = found;
        Some(found)
    }

    fn search(&mut self, order: u32) -> Option<u32> {
        let free = self.ends[FREE as usize].0;
        if free != NIL {
            return Some(free);
        }
        if order > 0 && !self.by_order {
            return None;
        }
        let (nonfull, frag) = (NONFULL + order as u8, FRAG + order as u8);
        loop {
            let i = self.ends[nonfull as usize].0;
            if i == NIL {
                break;
            }
            if self.fits(i, order) {
                return Some(i);
            }
            self.put_on(i, frag);
        }
        if let Some(i) = self.walk(frag, order) {
            return Some(i);
        }
        // Single slots take whatever there is.
        let others = (1..ORDERS as u8).flat_map(|o| [FRAG + o, NONFULL + o]);
        if order == 0 { others.into_iter().find_map(|list| self.walk(list, 0)) } else { None }
    }

    fn walk(&self, list: u8, order: u32) -> Option<u32> {
        let mut i = self.ends[list as usize].0;
        while i != NIL && !self.fits(i, order) {
            i = self.clusters[i as usize].next;
        }
        (i != NIL).then_some(i)
    }

    fn usable(&self, i: u32, order: u32) -> bool {
        let cluster = &self.clusters[i as usize];
        cluster.used == 0 || cluster.order as u32 == order
    }

    fn fits(&self, i: u32, order: u32) -> bool {
        self.clusters[i as usize].find(order).is_some()
    }

    fn took(&mut self, i: u32, first: usize, n: usize, order: u32) {
        self.clusters[i as usize].flip(first, n);
        self.count(i, n, order);
    }

    /// Counts taken slots of a cluster, and moves it to its list.
    fn count(&mut self, i: u32, n: usize, order: u32) {
        let cluster = &mut self.clusters[i as usize];
        if cluster.used == 0 {
            cluster.order = order as u8;
        }
        cluster.used += n as u16;
        let stays = if (FRAG..LISTS as u8).contains(&cluster.list) { FRAG } else { NONFULL };
        self.settle(i, stays);
    }

    pub fn give(&mut self, first: u64, n: u64) {
        let (i, at) = (first as usize / CLUSTER, first as usize % CLUSTER);
        let cluster = &mut self.clusters[i];
        debug_assert!((at..at + n as usize).all(|s| cluster.map[s / 64] >> (s % 64) & 1 == 1), "freed twice");
        cluster.flip(at, n as usize);
        cluster.used -= n as u16;
        self.settle(i as u32, NONFULL);
    }

    /// Moves a cluster to its count's list, or to the list `partly` of its order.
    fn settle(&mut self, i: u32, partly: u8) {
        let cluster = &self.clusters[i as usize];
        let to = match cluster.used as usize {
            0 => FREE,
            CLUSTER => NONE,
            _ => partly + cluster.order,
        };
        if cluster.list != to {
            self.put_on(i, to);
        }
    }

    /// Moves a cluster to the tail of a list.
    fn put_on(&mut self, i: u32, to: u8) {
        let Cluster { list: from, next, prev, .. } = self.clusters[i as usize];
        if from != NONE {
            match prev {
                NIL => self.ends[from as usize].0 = next,
                p => self.clusters[p as usize].next = next,
            }
            match next {
                NIL => self.ends[from as usize].1 = prev,
                n => self.clusters[n as usize].prev = prev,
            }
        }
        let tail = if to == NONE { NIL } else { std::mem::replace(&mut self.ends[to as usize].1, i) };
        match tail {
            NIL if to != NONE => self.ends[to as usize].0 = i,
            NIL => {}
            t => self.clusters[t as usize].next = i,
        }
        let cluster = &mut self.clusters[i as usize];
        (cluster.list, cluster.next, cluster.prev) = (to, NIL, tail);
    }

    pub fn has_free_run(&self, order: u32) -> bool {
        self.clusters.iter().any(|c| c.find(order).is_some())
    }

    /// Slots given out, and those that never are.
    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.clusters.iter().map(|c| c.used as usize).sum()
    }
}
