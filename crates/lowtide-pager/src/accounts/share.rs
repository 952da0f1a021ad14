//! A process's count of anonymous memory shared through forks.
//!
//! A *family* is related by forks without exec; shared pages must count once in its sum. The exact
//! figure (`Pss_Anon` of `/proc/self/smaps_rollup`) takes 5 ms a GiB, so such a *look* is rare. In
//! between a process counts:
//!
//! - its exclusive memory and its growth (statm);
//! - a page for each fault that may have copied a shared one: at times too many, never too late;
//! - its share of shared pages, scaled to the family: right for pages shared by all;
//! - its part of pages that no member counts: a new child counts for nothing, so the sum stays;
//!   after an exit the others count what they shared.
//!
//! So the sum is right after fork, exec and exit, before any look.

use lowtide_wire::segment::Others;

/// Interval of looks, in durations: 5 % of a CPU.
const REST: u64 = 20;
/// Long looks: as many durations as milliseconds, up to this: 1 % from 20 GiB. Looks stop eviction
/// and hold the kernel's mmap lock.
const LONGEST_REST: u64 = 100;

/// Microseconds to the next look, with `others` in the family.
pub fn rest_after_look(took_us: u64, others: u64) -> u64 {
    took_us * (took_us / 1000).clamp(REST, LONGEST_REST) * (others + 1)
}

/// Cheap figures, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Now {
    /// Resident anonymous memory (statm), shared or not.
    pub resident: u64,
    /// Faults that the pager did not serve, as bytes of pages.
    pub faults: u64,
}

/// A look, in bytes of anonymous pages.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// All pages.
    pub anonymous: u64,
    /// Pages divided by their processes.
    pub proportional: u64,
    /// Pages of no other process.
    pub exclusive: u64,
}

/// The process's count, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Total.
    pub bytes: u64,
    /// For shared pages; relatives subtract it.
    pub shared: u64,
    /// For pages that no member counts.
    pub of_nobodys: u64,
}

/// State of one process's count.
#[derive(Debug, Clone, Copy, Default)]
pub struct Share {
    exclusive: u64,
    shared: u64,
    /// Family members then.
    members: u64,
    /// Bytes that may yet be copied.
    copyable: u64,
    then: Now,
}

impl Share {
    /// A process that shares nothing.
    pub fn alone(now: Now) -> Share {
        Share { exclusive: now.resident, shared: 0, members: 1, copyable: 0, then: now }
    }

    /// A child just forked: all is shared, and any fault may have copied.
    pub fn of_child(resident: u64) -> Share {
        Share { exclusive: 0, shared: 0, members: 1, copyable: resident, then: Now { resident, faults: 0 } }
    }

    /// A fork: all may be shared now. `now` and `others` from about then.
    pub fn forks(&mut self, now: Now, others: Others) {
        let bytes = self.count(now, others).bytes;
        *self =
            Share { exclusive: 0, shared: bytes, members: others.members.max(self.members), copyable: now.resident, then: now };
    }

    /// Unseen copies have joined the family.
    pub fn was_copied(&mut self, now: Now) {
        *self = Share { exclusive: 0, shared: now.resident, members: 1, copyable: now.resident, then: now };
    }

    /// A look; `before` precedes it, so later copies count.
    pub fn looked(&mut self, look: Look, before: Now, others: Others) {
        let exclusive = look.exclusive.min(look.proportional);
        *self = Share {
            exclusive,
            shared: look.proportional - exclusive,
            members: others.members + 1,
            copyable: look.anonymous.saturating_sub(exclusive),
            then: Now { resident: look.anonymous, ..before },
        };
    }

    /// The present count.
    pub fn count(&self, now: Now, others: Others) -> Count {
        if others.members == 0 {
            return Count { bytes: now.resident, ..Count::default() };
        }
        let members = others.members + 1;
        let grown = now.resident as i64 - self.then.resident as i64;
        let faults = now.faults.saturating_sub(self.then.faults);
        let copied = faults.saturating_sub(grown.max(0) as u64).min(self.copyable);
        let exclusive = self.exclusive as i64 + grown + copied as i64;
        let shared = (self.shared as u128 * u128::from(self.members) / u128::from(members)) as u64;
        // Losses reduce exclusive memory first, as eviction does.
        let shared = shared.min(self.copyable).saturating_sub((-exclusive).max(0) as u64);
        let exclusive = exclusive.max(0) as u64;
        // Until the next look a copied page stays in the share.
        let nobodys = (now.resident + copied).saturating_sub((exclusive + shared).saturating_add(others.shared));
        let of_nobodys = nobodys / members;
        Count { bytes: exclusive + shared + of_nobodys, shared, of_nobodys }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    const PAGE: u64 = lowtide_core::vm::PAGE_SIZE as u64;

    #[test]
    fn a_look_that_takes_long_is_rare() {
        let parts = [1_000, 20_000, 50_000, 5_000_000].map(|took| rest_after_look(took, 0) / took);
        assert_eq!(parts, [20, 20, 50, 100]);
        assert_eq!(rest_after_look(1_000, 3), 80_000, "they take turns");
    }

    struct Process {
        pages: BTreeMap<usize, u64>,
        faults: u64,
        share: Share,
        count: Count,
    }

    impl Process {
        fn now(&self) -> Now {
            Now { resident: self.pages.len() as u64 * PAGE, faults: self.faults * PAGE }
        }
    }

    #[derive(Default)]
    struct Family {
        processes: Vec<Process>,
        next_frame: u64,
    }

    impl Family {
        fn of_one(pages: usize) -> Family {
            let mut family = Family { processes: Vec::new(), next_frame: pages as u64 };
            let pages: BTreeMap<usize, u64> = (0..pages).map(|page| (page, page as u64)).collect();
            let mut first = Process { pages, faults: 7, share: Share::default(), count: Count::default() };
            first.share = Share::alone(first.now());
            family.processes.push(first);
            family.measure();
            family
        }

        fn others(&self, of: usize) -> Others {
            let shared = self.processes.iter().enumerate().filter(|(i, _)| *i != of).map(|(_, p)| p.count.shared).sum();
            Others { members: self.processes.len() as u64 - 1, shared }
        }

        fn measure(&mut self) {
            // Twice: each uses the others' previous figures.
            for i in (0..self.processes.len()).chain(0..self.processes.len()) {
                let others = self.others(i);
                let p = &mut self.processes[i];
                p.count = p.share.count(p.now(), others);
            }
        }

        fn fork(&mut self, parent: usize) {
            let others = self.others(parent);
            let p = &mut self.processes[parent];
            let now = p.now();
            p.share.forks(now, others);
            let child =
                Process { pages: p.pages.clone(), faults: 0, share: Share::of_child(now.resident), count: Count::default() };
            self.processes.push(child);
        }

        fn write(&mut self, process: usize, page: usize) {
            let frame = self.processes[process].pages.get(&page).copied();
            let maps = |p: &Process| p.pages.get(&page).copied() == frame;
            let is_shared = frame.is_some() && self.processes.iter().filter(|p| maps(p)).count() > 1;
            if frame.is_none() || is_shared {
                self.processes[process].faults += 1;
                self.next_frame += 1;
                self.processes[process].pages.insert(page, self.next_frame);
            }
        }

        fn mapped(&self) -> BTreeMap<u64, u64> {
            let mut mapped = BTreeMap::new();
            for frame in self.processes.iter().flat_map(|p| p.pages.values()) {
                *mapped.entry(*frame).or_default() += 1;
            }
            mapped
        }

        fn look(&mut self, i: usize) {
            let mapped = self.mapped();
            let parts: Vec<u64> = self.processes[i].pages.values().map(|frame| mapped[frame]).collect();
            let look = Look {
                anonymous: parts.len() as u64 * PAGE,
                proportional: parts.iter().map(|n| PAGE / n).sum(),
                exclusive: parts.iter().filter(|n| **n == 1).count() as u64 * PAGE,
            };
            let (now, others) = (self.processes[i].now(), self.others(i));
            self.processes[i].share.looked(look, now, others);
        }

        fn truth(&self) -> u64 {
            self.mapped().len() as u64 * PAGE
        }

        fn sum(&mut self) -> u64 {
            self.measure();
            self.processes.iter().map(|p| p.count.bytes).sum()
        }

        fn assert_close(&mut self, of: u64, when: &str) {
            let (sum, truth) = (self.sum(), self.truth());
            assert!(sum.abs_diff(truth) <= truth / of, "{when}: {} pages counted, {} used", sum / PAGE, truth / PAGE);
        }
    }

    #[test]
    fn the_sum_is_right_before_anyone_has_looked() {
        let mut family = Family::of_one(1000);
        family.assert_close(1000, "alone");
        family.fork(0);
        family.assert_close(500, "forked");
        for page in 0..300 {
            family.write(0, page);
        }
        family.assert_close(100, "the parent wrote");
        for page in 200..600 {
            family.write(1, page);
        }
        assert!(family.sum() >= family.truth(), "nobody knows that the parent's copies left pages to the child alone");
        family.processes.remove(0);
        assert_eq!(family.sum(), 1000 * PAGE, "the parent is gone");
    }

    #[test]
    fn a_copy_counts_once_whoever_is_measured_first() {
        for parent_first in [true, false] {
            let mut family = Family::of_one(540);
            let mut copy = Process {
                pages: family.processes[0].pages.clone(),
                faults: 0,
                share: Share::default(),
                count: Count::default(),
            };
            copy.pages.extend((1000..1810).map(|page| (page, page as u64 + 10_000)));
            family.processes.push(copy);
            family.look(1);
            let found = {
                let copy = &family.processes[1];
                copy.share.count(copy.now(), family.others(1))
            };
            assert_eq!((found.bytes - found.of_nobodys) / PAGE, 810 + 270, "its parent counts for all that they share");
            let parent = &mut family.processes[0];
            parent.share.was_copied(parent.now());
            family.processes[1].count = found;
            if parent_first {
                let others = family.others(0);
                let parent = &mut family.processes[0];
                parent.count = parent.share.count(parent.now(), others);
                assert_eq!(parent.count.bytes / PAGE, 270);
            }
            family.assert_close(1000, "both were measured");
        }
    }

    #[test]
    fn many_workers_count_for_one_parent_however_many_come_and_go() {
        let mut family = Family::of_one(1000);
        for _ in 0..80 {
            family.fork(0);
            family.assert_close(50, "workers come");
        }
        for i in 0..81 {
            family.look(i);
        }
        family.assert_close(50, "all have looked");
        for left in (1..80).rev() {
            family.processes.remove(left);
            family.assert_close(20, "workers go");
        }
        family.processes.remove(0);
        assert_eq!(family.sum(), 1000 * PAGE);
    }

    #[test]
    fn looks_that_are_old_never_count_too_little_while_copies_arise() {
        let mut family = Family::of_one(1000);
        family.fork(0);
        let mut random = 1u64;
        for step in 0..4000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let who = (random >> 40) as usize % family.processes.len();
            family.write(who, (random >> 33) as usize % 1200);
            match step % 400 {
                100 => family.look(0),
                200 => family.look(1),
                _ => {}
            }
            let (sum, truth) = (family.sum(), family.truth());
            assert!(sum >= truth - truth / 20, "step {step}: {} pages counted, {} used", sum / PAGE, truth / PAGE);
        }
        family.look(0);
        family.look(1);
        family.assert_close(1000, "both have looked");
    }

    #[test]
    fn a_loop_of_forks_leaves_nothing_behind() {
        let mut family = Family::of_one(500);
        for _ in 0..1000 {
            family.fork(0);
            family.assert_close(50, "forked");
            family.processes.remove(1);
            family.assert_close(500, "executed something else");
        }
    }
}
