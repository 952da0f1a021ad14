//! Lost or wrong copies of pages whose other copy is good (`copies=2`): counts each, and reports
//! the first of each kind and node.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard};

use lowtide_config::server::Address;

/// The damage of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Harm {
    /// The node has no such key.
    Lost,
    /// The node has an older or a foreign value.
    Wrong,
}

/// Reported and unreported lines.
#[derive(Debug, Default)]
pub struct Told(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    told: HashSet<(Address, Harm)>,
    waiting: Vec<String>,
}

impl Told {
    /// Records a node's damage of a copy.
    pub fn tell(&self, node: &Address, harm: Harm) {
        let mut lines = self.lines();
        if lines.told.insert((node.clone(), harm)) {
            let what = match harm {
                Harm::Lost => "has lost a copy of a page",
                Harm::Wrong => "has a copy of a page that is not what was written there",
            };
            lines.waiting.push(format!("{node} {what}; the other copy was read, and so will be those of further such pages"));
        }
    }

    /// Whether a node's damage of this kind is recorded.
    pub fn has(&self, node: &Address, harm: Harm) -> bool {
        self.lines().told.contains(&(node.clone(), harm))
    }

    /// Takes the unreported lines.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines().waiting)
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_is_named_once_for_each_kind() {
        let told = Told::default();
        let at = |port| Address { host: "h".to_owned(), port };
        told.tell(&at(1), Harm::Lost);
        told.tell(&at(1), Harm::Lost);
        assert!(told.has(&at(1), Harm::Lost) && !told.has(&at(1), Harm::Wrong) && !told.has(&at(2), Harm::Lost));
        told.tell(&at(1), Harm::Wrong);
        assert_eq!(told.take().len(), 2);
        told.tell(&at(1), Harm::Wrong);
        told.tell(&at(2), Harm::Wrong);
        let lines = told.take();
        assert!(lines.len() == 1 && lines[0].starts_with("h:2 has a copy"), "{lines:?}");
    }
}
