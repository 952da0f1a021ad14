//! Divides CPUs among a few fault handler threads: one for each CPU if there are enough, else one
//! for neighbours that share a cache or at least a node.

/// Sorts `cpus` and divides them into about equal groups, one for each CPU but at most `most`;
/// returns their number. Calls `f` with each CPU and its group. `place`: equal for CPUs that share
/// a cache, near for near ones.
pub fn divide(cpus: &mut [u16], most: usize, place: impl Fn(u16) -> u16, mut f: impl FnMut(u16, usize)) -> usize {
    cpus.sort_unstable_by_key(|&cpu| (place(cpu), cpu));
    let groups = cpus.len().min(most);
    for (i, &cpu) in cpus.iter().enumerate() {
        f(cpu, i * groups / cpus.len());
    }
    groups
}

/// At most `first` groups with initial threads: far apart, and different for each process, or many
/// would share a few CPUs.
pub fn at_first(pid: u32, groups: usize, first: usize) -> impl Iterator<Item = usize> {
    // The upper bits of a product scatter regularly spaced pids.
    let begin = (pid.wrapping_mul(0x9e37_79b1) >> 16) as usize;
    let count = first.min(groups);
    (0..count).map(move |i| (begin + i * groups / count) % groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const MOST: usize = 16;

    fn groups(cpus: impl IntoIterator<Item = u16>, place: impl Fn(u16) -> u16) -> Vec<Vec<u16>> {
        let mut cpus: Vec<u16> = cpus.into_iter().collect();
        let mut found = std::vec![Vec::new(); MOST];
        let count = divide(&mut cpus, MOST, place, |cpu, group| found[group].push(cpu));
        assert!(found[count..].iter().all(Vec::is_empty));
        found.truncate(count);
        found
    }

    #[test]
    fn each_cpu_has_one_of_its_own_while_there_are_enough() {
        assert_eq!(groups([], |_| 0), Vec::<Vec<u16>>::new());
        assert_eq!(groups([7], |_| 0), [[7]]);
        assert_eq!(groups([9, 2], |_| 0), [[2], [9]]);
        assert_eq!(groups(0..16, |_| 0).concat(), Vec::from_iter(0..16));
    }

    #[test]
    fn more_cpus_share_them_evenly() {
        for n in [17, 24, 31, 64, 100, 256, 1000, 8192] {
            let sizes: Vec<usize> = groups(0..n, |_| 0).iter().map(Vec::len).collect();
            assert_eq!(sizes.len(), MOST);
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(*least > 0 && most - least <= 1, "{n} CPUs: {sizes:?}");
        }
    }

    #[test]
    fn those_that_share_a_cache_or_a_node_are_together() {
        // Two nodes with alternating CPUs, two caches each; second hyperthreads last.
        let place = |cpu: u16| cpu % 2 * 2 + cpu % 32 / 16;
        for group in groups(0..64, place) {
            assert!(group.len() == 4 && group.iter().all(|&cpu| place(cpu) == place(group[0])), "{group:?}");
        }
    }

    #[test]
    fn processes_begin_in_different_places() {
        assert_eq!(Vec::from_iter(at_first(1234, 1, 2)), [0]);
        for groups in 2..=MOST {
            let mut of_pids = std::vec![0; groups];
            for pid in (1000..).step_by(4).take(groups * 100) {
                let first = Vec::from_iter(at_first(pid, groups, 2));
                assert!(first.len() == 2 && first[0] != first[1] && first.iter().all(|&group| group < groups), "{first:?}");
                first.into_iter().for_each(|group| of_pids[group] += 1);
            }
            assert!(of_pids.iter().all(|&n| (100..300).contains(&n)), "{groups} groups: {of_pids:?}");
        }
    }
}
