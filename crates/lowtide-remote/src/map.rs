//! A cluster's nodes and their hash slots, from `CLUSTER NODES`. A standalone server is a cluster
//! of one node.

use lowtide_config::server::Address;

use crate::keys::HASH_SLOTS;

const NOBODY: u16 = u16::MAX;

/// One node's view of its cluster, which may be wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    /// The node with this view.
    pub from: Address,
    /// Whether it is a cluster.
    pub is_cluster: bool,
    /// All nodes that have an address.
    pub nodes: Vec<Node>,
    /// A node without a port of our kind (TLS or plain).
    pub without_port: Option<String>,
    /// Each slot's index into `nodes`, or [`NOBODY`].
    owners: Vec<u16>,
}

/// A node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Where it listens.
    pub address: Address,
    /// Its announced host name.
    pub name: Option<String>,
    /// Its id in the cluster; empty: unknown.
    pub id: String,
    /// Its primary's id; none: it is a primary.
    pub primary: Option<String>,
    /// The others find it unreachable.
    pub is_down: bool,
    /// Configuration epoch: the greater one decides about slots.
    pub epoch: u64,
}

impl Node {
    /// Only the address is known.
    fn at(address: &Address) -> Node {
        Node { address: address.clone(), name: None, id: String::new(), primary: None, is_down: false, epoch: 0 }
    }
}

impl Map {
    /// Of a standalone server.
    pub fn single(address: &Address) -> Map {
        let node = Node::at(address);
        Map {
            from: address.clone(),
            is_cluster: false,
            nodes: vec![node],
            without_port: None,
            owners: vec![0; usize::from(HASH_SLOTS)],
        }
    }

    /// Reads `from`'s answer to `CLUSTER NODES`. None: it is invalid.
    pub fn parse(text: &str, from: &Address) -> Option<Map> {
        let mut map = Map {
            from: from.clone(),
            is_cluster: true,
            nodes: Vec::new(),
            without_port: None,
            owners: vec![NOBODY; usize::from(HASH_SLOTS)],
        };
        for line in text.lines().filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split(' ').collect();
            let [id, place, flags, primary, _, _, epoch, _, slots @ ..] = words.as_slice() else { return None };
            let has = |flag: &str| flags.split(',').any(|one| one == flag);
            let (place, name) = place.split_once(',').unwrap_or((*place, ""));
            let place = place.split('@').next().unwrap_or_default();
            if has("noaddr") || has("handshake") {
                continue;
            }
            if place.ends_with(":0") {
                map.without_port = Some(place.to_owned());
                continue;
            }
            let address = address(place, from)?;
            let name = name.split(',').next().filter(|name| !name.is_empty() && !name.contains('=')).map(str::to_owned);
            let primary = (!has("master")).then(|| (*primary).to_owned());
            let (is_down, epoch) = (has("fail"), epoch.parse().ok()?);
            let node = Node { address, name, id: (*id).to_owned(), primary, is_down, epoch };
            let number = u16::try_from(map.nodes.len()).ok().filter(|number| *number != NOBODY)?;
            map.nodes.push(node);
            // Slots in migration stand in brackets.
            for slots in slots.iter().filter(|slots| !slots.starts_with('[')) {
                let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
                let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
                map.owners.get_mut(first..=last)?.fill(number);
            }
        }
        (!map.nodes.is_empty()).then_some(map)
    }

    /// The node of a hash slot.
    pub fn owner(&self, hash_slot: u16) -> Option<&Address> {
        self.nodes.get(usize::from(*self.owners.get(usize::from(hash_slot))?)).map(|node| &node.address)
    }

    /// The nodes that have slots, with the count.
    pub fn primaries(&self) -> Vec<(&Node, usize)> {
        let mut counts = vec![0; self.nodes.len()];
        for owner in &self.owners {
            if let Some(count) = counts.get_mut(usize::from(*owner)) {
                *count += 1;
            }
        }
        self.nodes.iter().zip(counts).filter(|(_, slots)| *slots > 0).collect()
    }

    /// Whether the sender of `nodes` (`CLUSTER NODES`) is the node at `address`. True if only the
    /// address is known.
    pub fn is_node(&self, address: &Address, nodes: &str) -> bool {
        let itself = nodes.lines().find(|line| line.split(' ').nth(2).is_some_and(|flags| flags.contains("myself")));
        let id = itself.and_then(|line| line.split(' ').next());
        let known = self.nodes.iter().find(|node| node.address == *address);
        known.is_none_or(|node| node.id.is_empty() || id == Some(&node.id))
    }

    /// Whether they share a node, or both are of a standalone server.
    pub fn is_of_one_cluster_with(&self, other: &Map) -> bool {
        let is_in_both = |node: &Node| other.nodes.iter().any(|one| one.id == node.id);
        self.is_cluster == other.is_cluster && self.nodes.iter().any(is_in_both)
    }

    /// Whether these are more than half of the nodes that have slots.
    pub fn are_most_primaries(&self, nodes: &[Address]) -> bool {
        let primaries = self.primaries();
        2 * primaries.iter().filter(|(node, _)| nodes.contains(&node.address)).count() > primaries.len()
    }

    /// Slots without a reachable node.
    pub fn uncovered(&self) -> usize {
        let has = |owner: &&u16| self.nodes.get(usize::from(**owner)).is_none_or(|node| node.is_down);
        self.owners.iter().filter(has).count()
    }

    /// Whether both have the same slots.
    pub fn is_same(&self, other: &Map) -> bool {
        (0..HASH_SLOTS).all(|slot| self.owner(slot) == other.owner(slot))
    }

    /// Nodes with slots that were replicas before.
    pub fn promoted_since(&self, before: &Map) -> usize {
        let was_replica = |node: &Node| before.nodes.iter().any(|old| old.id == node.id && old.primary.is_some());
        self.primaries().into_iter().filter(|(node, _)| node.primary.is_none() && was_replica(node)).count()
    }

    /// Its age. Counts nodes with slots only: another one may become a replica, which makes nothing
    /// newer.
    pub fn epoch(&self) -> u64 {
        let primaries = self.primaries().into_iter().map(|(node, _)| node);
        primaries.filter(|node| node.primary.is_none()).map(|node| node.epoch).max().unwrap_or(0)
    }

    /// Whether this may be right although `newer` was known: the cluster has dropped the nodes with
    /// greater epochs. Otherwise the sender has not heard yet of their taking over.
    pub fn has_forgotten(&self, newer: &Map) -> bool {
        let newer = newer.primaries().into_iter().map(|(node, _)| node);
        let mut counted_more = newer.filter(|node| node.primary.is_none() && node.epoch > self.epoch());
        counted_more.all(|node| self.nodes.iter().all(|one| one.id != node.id))
    }

    /// Notes a reported move of a slot.
    pub fn moved(&mut self, hash_slot: u16, to: &Address) {
        let known = self.nodes.iter().position(|node| node.address == *to);
        let number = known.unwrap_or_else(|| {
            self.nodes.push(Node::at(to));
            self.nodes.len() - 1
        });
        if let (Some(owner), Ok(number)) = (self.owners.get_mut(usize::from(hash_slot)), u16::try_from(number)) {
            *owner = number;
        }
    }
}

/// A node's address as nodes write it. Without a host it is the sender's.
pub fn address(text: &str, from: &Address) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    let host = if host.is_empty() || host == "?" { &from.host } else { host };
    Some(Address { host: host.to_owned(), port: port.parse().ok().filter(|port| *port != 0)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "aa 127.0.0.1:7001@17001,host-1 master - 0 1700 2 connected 5461-10922\n\
                        bb 127.0.0.1:7002@17002 slave aa 0 1700 2 connected\n\
                        cc :7000@17000 myself,master - 0 1700 1 connected 0-5460 [93->-aa] [77-<-dd]\n\
                        dd ::1:7003@17003,,shard-id=x master,fail - 0 1700 3 disconnected 10923-16382 16383\n\
                        ff 127.0.0.1:0@17004 master - 0 1700 0 connected\n\
                        ee :0@0 master,noaddr - 0 1 0 disconnected\n";

    fn at(host: &str, port: u16) -> Address {
        Address { host: host.to_owned(), port }
    }

    #[test]
    fn what_nodes_say() {
        let map = Map::parse(TEXT, &at("asked", 1)).unwrap();
        assert_eq!(map.owner(0), Some(&at("asked", 7000)), "who says so has the host that was asked");
        assert_eq!(map.owner(93), Some(&at("asked", 7000)), "what is on its way is not gone");
        assert_eq!((map.owner(5461), map.owner(16383)), (Some(&at("127.0.0.1", 7001)), Some(&at("::1", 7003))));
        assert_eq!((map.nodes.len(), map.primaries().len(), map.epoch()), (4, 3, 3));
        assert_eq!(map.without_port.as_deref(), Some("127.0.0.1:0"));
        assert_eq!(map.uncovered(), 5461, "those of the node that failed");
        assert_eq!(map.nodes[1].primary.as_deref(), Some("aa"));
        assert_eq!(map.nodes.iter().map(|node| node.name.as_deref()).collect::<Vec<_>>(), [Some("host-1"), None, None, None]);
        for nonsense in ["", "a b c", "aa x master - 0 0 1 connected", "aa h:1 master - 0 0 1 connected 0-16384"] {
            assert_eq!(Map::parse(nonsense, &at("asked", 1)), None, "{nonsense}");
        }
        for (address, is_it) in [(at("asked", 7000), true), (at("127.0.0.1", 7001), false), (at("new", 1), true)] {
            assert_eq!(map.is_node(&address, TEXT), is_it, "{address}: it says that it is cc");
        }
        assert!(!map.is_node(&at("asked", 7000), "no such reply"));
        let other = Map::parse("ff 127.0.0.1:7001@17001 master - 0 1700 2 connected 0-16383\n", &at("asked", 1)).unwrap();
        assert!(map.is_of_one_cluster_with(&map) && !map.is_of_one_cluster_with(&other));
        // Of three.
        let primaries = [at("asked", 7000), at("127.0.0.1", 7001)];
        let beside_a_replica = [at("asked", 7000), at("127.0.0.1", 7002)];
        assert!(map.are_most_primaries(&primaries) && !map.are_most_primaries(&beside_a_replica));
        let single = Map::single(&at("h", 1));
        assert_eq!((single.owner(0), single.owner(16383), single.uncovered()), (Some(&at("h", 1)), Some(&at("h", 1)), 0));
    }

    #[test]
    fn slots_move_and_replicas_take_over() {
        let before = Map::parse(TEXT, &at("asked", 1)).unwrap();
        let mut moved = before.clone();
        moved.moved(5, &at("127.0.0.1", 7001));
        moved.moved(6, &at("new", 9));
        assert_eq!((moved.owner(5), moved.owner(6)), (Some(&at("127.0.0.1", 7001)), Some(&at("new", 9))));
        let after = TEXT.replace("slave aa 0 1700 2 connected", "master - 0 1700 4 connected 5461-10922");
        let after = after.replace("master - 0 1700 2 connected 5461-10922", "master,fail - 0 1700 2 disconnected");
        let after = Map::parse(&after, &at("asked", 1)).unwrap();
        assert_eq!((after.owner(6000), after.epoch()), (Some(&at("127.0.0.1", 7002)), 4));
        assert!(!after.is_same(&before) && after.is_same(&after));
        assert_eq!((after.promoted_since(&before), after.promoted_since(&after), before.promoted_since(&moved)), (1, 0, 0));
        let empty = |role| Map::parse(&format!("{TEXT}gg h:1@1 {role} 0 0 9 connected\n"), &at("asked", 1)).unwrap();
        assert_eq!((empty("master -").epoch(), empty("slave cc").epoch()), (3, 3), "it has no slots");
        assert!(!before.has_forgotten(&after), "it is a replica of it still");
        let without = Map::parse(&TEXT.replace("bb 127.0.0.1:7002@17002 slave aa 0 1700 2 connected\n", ""), &at("asked", 1));
        assert!(without.is_some_and(|map| map.nodes.len() == 3 && map.has_forgotten(&after)));
        // A node reported slots there before it was known as a primary.
        let mut told = before.clone();
        told.moved(6000, &at("127.0.0.1", 7002));
        assert_eq!((told.promoted_since(&before), after.promoted_since(&told)), (0, 1));
    }
}
