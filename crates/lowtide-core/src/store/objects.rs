//! Where objects come into the pool and leave it, and whether a page would find a place at all.

use super::Store;
use super::table_word::{Made, Object};
use crate::slot::AreaRef;

/// Where an object may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Insert {
    /// The pool may grow for it.
    Anywhere,
    /// Only where there is room.
    IntoRoom,
}

impl Store {
    /// Whether some tier would take a page now, as far as is known without trying: the pool, or a device with free slots that
    /// does not rest after a failure. A page that is all zero needs none.
    pub fn would_take(&self) -> bool {
        let takes = |area: AreaRef<'_>| area.device.is_some() && area.unavailable().is_none();
        // Clean copies are given up for new pages.
        self.counters.cached_now.get() > 0 || self.pool.accepts() || self.areas.iter().any(takes)
    }

    /// Puts a page's bytes into the pool. `None` when the pool has no room.
    pub(super) fn keep(&self, data: &[u8], made: Made, how: Insert) -> Option<Object> {
        let handle = match how {
            Insert::Anywhere => self.pool.insert(data)?,
            Insert::IntoRoom => self.pool.insert_into_room(data)?,
        };
        Some(Object { handle, made })
    }

    /// Takes an object out of the pool. The caller is its one owner.
    pub(super) fn let_go(&self, object: Object) {
        let removed = self.pool.remove(object.handle);
        debug_assert!(removed.is_ok(), "a table word named no object");
    }
}
