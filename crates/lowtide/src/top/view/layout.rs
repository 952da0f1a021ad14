//! Distributes the screen's lines to its parts.

/// From top to bottom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    Header,
    /// Only with several runs.
    Runs,
    Memory,
    Activity,
    Areas,
    Processes,
    Status,
    Keys,
}

use Section::{Activity, Areas, Header, Keys, Memory, Processes, Runs, Status};

const SECTIONS: usize = 8;

/// Order of distribution, each up to this many lines.
const ORDER: [(Section, u16); 18] = [
    (Header, 1),
    (Status, 1),
    (Memory, 1),
    (Activity, 1),
    (Runs, 3),
    (Keys, 1),
    (Status, u16::MAX),
    (Memory, 3),
    (Activity, 4),
    (Areas, 2),
    (Activity, 8),
    (Processes, 2),
    (Runs, 6),
    (Activity, 12),
    (Areas, u16::MAX),
    (Processes, 5),
    (Activity, u16::MAX),
    (Processes, u16::MAX),
];

/// Wanted or given lines of each part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Heights([u16; SECTIONS]);

impl Heights {
    pub fn of(&self, section: Section) -> u16 {
        self.0[section as usize]
    }

    pub fn want(mut self, section: Section, lines: u16) -> Heights {
        self.0[section as usize] = lines;
        self
    }

    pub fn share(&self, lines: u16) -> Heights {
        let (mut given, mut left) = (Heights::default(), lines);
        for (section, upto) in ORDER {
            let had = given.of(section);
            let more = self.of(section).min(upto).saturating_sub(had).min(left);
            // A heading alone says nothing.
            let is_table = matches!(section, Runs | Areas | Processes);
            if is_table && had + more < 2 {
                continue;
            }
            given = given.want(section, had + more);
            left -= more;
        }
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual(runs: u16) -> Heights {
        let wants = [(Header, 1), (Memory, 3), (Activity, 14), (Areas, 2), (Processes, 3), (Status, 1), (Keys, 1)];
        wants.into_iter().fold(Heights::default(), |all, (section, lines)| all.want(section, lines)).want(Runs, runs)
    }

    #[test]
    fn what_matters_most_stays() {
        for lines in 0..60 {
            for runs in [0, 2, 3, 20] {
                let given = usual(runs).share(lines);
                assert!(given.0.iter().sum::<u16>() <= lines, "{lines}: {given:?}");
                assert!(given.0.iter().zip(usual(runs).0).all(|(got, wanted)| *got <= wanted));
                assert!([Runs, Areas, Processes].iter().all(|section| given.of(*section) != 1), "{lines}: {given:?}");
                if lines >= 4 {
                    assert!([Header, Status, Memory, Activity].iter().all(|section| given.of(*section) > 0), "{lines}");
                }
            }
        }
        assert_eq!(usual(0).share(60), usual(0), "nobody gets more than it wants");
        let small = usual(0).share(10);
        assert_eq!((small.of(Memory), small.of(Activity), small.of(Areas)), (3, 4, 0));
        let usual = usual(0).share(24);
        assert!(usual.of(Activity) >= 12 && usual.of(Areas) == 2 && usual.of(Processes) >= 2, "{usual:?}");
    }
}
