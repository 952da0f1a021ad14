//! The lists of an area's clusters. The lock around [`Lists`] protects the lists and nothing else; it is taken with a cluster's
//! lock held, never the other way round, except by `try_lock`.

use core::sync::atomic::Ordering::Relaxed;

use super::cluster::{Cluster, Inner, ListState, MAX_ORDER};
use crate::lock::{Guard, Lock};

const ORDERS: usize = MAX_ORDER as usize + 1;

/// Which list: one each of free and full clusters, and per order one of nonfull and one of frag clusters.
fn list(state: ListState, order: u8) -> Option<usize> {
    match state {
        ListState::None => None,
        ListState::Free => Some(0),
        ListState::Full => Some(1),
        ListState::NonFull => Some(2 + order as usize),
        ListState::Frag => Some(2 + ORDERS + order as usize),
    }
}

/// Heads and tails of the lists, as index of a cluster plus one, 0 for none.
#[derive(Debug)]
pub(super) struct Lists {
    ends: [(u32, u32); 2 + 2 * ORDERS],
}

impl Lists {
    pub(super) const fn new() -> Lists {
        Lists { ends: [(0, 0); 2 + 2 * ORDERS] }
    }

    fn push(&mut self, clusters: &[Cluster], list: usize, i: usize) {
        let me = i as u32 + 1;
        let (head, tail) = &mut self.ends[list];
        clusters[i].next.store(0, Relaxed);
        clusters[i].prev.store(*tail, Relaxed);
        match *tail {
            0 => *head = me,
            t => clusters[t as usize - 1].next.store(me, Relaxed),
        }
        *tail = me;
    }

    fn unlink(&mut self, clusters: &[Cluster], list: usize, i: usize) {
        let (next, prev) = (clusters[i].next.load(Relaxed), clusters[i].prev.load(Relaxed));
        let (head, tail) = &mut self.ends[list];
        match prev {
            0 => *head = next,
            p => clusters[p as usize - 1].next.store(next, Relaxed),
        }
        match next {
            0 => *tail = prev,
            n => clusters[n as usize - 1].prev.store(prev, Relaxed),
        }
    }
}

/// Takes the first cluster of a list whose lock is free off the list and returns it locked. `order` matters for the lists that
/// exist per order.
pub(super) fn isolate<'a>(
    lists: &Lock<Lists>,
    clusters: &'a [Cluster],
    state: ListState,
    order: u8,
) -> Option<(usize, Guard<'a, Inner>)> {
    let list = list(state, order)?;
    let mut lists = lists.lock();
    let mut at = lists.ends[list].0;
    while at != 0 {
        let i = at as usize - 1;
        if let Some(mut inner) = clusters[i].inner.try_lock() {
            lists.unlink(clusters, list, i);
            inner.state = ListState::None;
            return Some((i, inner));
        }
        at = clusters[i].next.load(Relaxed);
    }
    None
}

/// Puts a locked cluster to the tail of the list `to`, from whichever list it is on. `was_order` is the order it had when it was
/// put there.
pub(super) fn relocate(lists: &Lock<Lists>, clusters: &[Cluster], i: usize, inner: &mut Inner, was_order: u8, to: ListState) {
    let (from, target) = (list(inner.state, was_order), list(to, inner.order));
    if from == target {
        return;
    }
    let mut lists = lists.lock();
    if let Some(from) = from {
        lists.unlink(clusters, from, i);
    }
    if let Some(target) = target {
        lists.push(clusters, target, i);
    }
    inner.state = to;
}
