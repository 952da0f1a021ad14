//! Places the two copies of a page, with `copies=2`, on different nodes of a cluster.
//!
//! The first copy has the page's usual name. The second's name has one more number between its
//! braces: the least one that puts it on another node. The numbers must stay the same for the whole
//! run, so they derive from the map of its beginning, not from a list. A replica that replaces its
//! primary takes all of its slots, so copies stay apart. Moving slots to another node may bring
//! both copies together: writes count that (`pages.rs`).

use lowtide_core::slot::CLUSTER_SLOTS;

use crate::keys;
use crate::map::Map;

/// The places of a slot cluster's copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// The hash slot of the first copies.
    pub first: u16,
    /// Number and hash slot of the second copies.
    pub second: Option<(u8, u16)>,
}

impl Places {
    /// `cluster`: the slot cluster's number. `begun`: the map of the run's beginning, with two
    /// copies.
    pub fn of(device: &str, cluster: u64, begun: Option<&Map>) -> Places {
        let (mut key, slot) = (Vec::new(), cluster * CLUSTER_SLOTS as u64);
        keys::slot(&mut key, device, slot);
        let first = keys::hash_slot(&key);
        let second = begun.map(|map| {
            let mut place = |number| {
                keys::second(&mut key, device, slot, number);
                (number, keys::hash_slot(&key))
            };
            let is_apart = |place: &(u8, u16)| map.owner(place.1) != map.owner(first);
            // The search may fail if one node has nearly all slots.
            (0..=u8::MAX).map(&mut place).find(is_apart).unwrap_or_else(|| place(0))
        });
        Places { first, second }
    }

    /// Whether both copies are on one node now.
    pub fn are_together(self, map: &Map) -> bool {
        self.second.is_some_and(|(_, second)| map.owner(self.first) == map.owner(second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_config::server::Address;

    #[test]
    fn copies_are_on_two_nodes_and_stay_where_they_are() {
        let at = |port| Address { host: "h".to_owned(), port };
        let line = |id: &str, port: u16, slots: &str| format!("{id} h:{port}@1 master - 0 0 1 connected {slots}\n");
        let parse = |text: &str| Map::parse(text, &at(1)).unwrap();
        let even = line("aa", 1, "0-5460") + &line("bb", 2, "5461-10922") + &line("cc", 3, "10923-16383");
        let uneven = line("aa", 1, "0-15000") + &line("bb", 2, "15001-16383");
        for begun in [parse(&even), parse(&uneven)] {
            for cluster in 0..2000 {
                let places = Places::of("lowtide:{r:1:", cluster, Some(&begun));
                assert!(!places.are_together(&begun), "{cluster}: {places:?}");
                assert_eq!(places.first, Places::of("lowtide:{r:1:", cluster, None).first);
            }
        }
        let begun = parse(&even);
        let places: Vec<Places> = (0..300).map(|cluster| Places::of("lowtide:{r:1:", cluster, Some(&begun))).collect();
        // A replica has replaced the third node; then the first got all slots of the second.
        let failed_over = parse(&even.replace("cc h:3", "dd h:4"));
        assert!(places.iter().all(|places| !places.are_together(&failed_over)));
        let moved = parse(&(line("aa", 1, "0-10922") + &line("cc", 3, "10923-16383")));
        let together = places.iter().filter(|places| places.are_together(&moved)).count();
        assert!((50..200).contains(&together), "{together}");
        assert_eq!(Places::of("lowtide:{r:1:", 7, None).second, None);
    }
}
