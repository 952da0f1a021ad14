//! Inserts and removes the pool's objects.

use super::Store;
use super::table_word::{Made, Object};
use crate::codec::Filter;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Insert {
    Anywhere,
    /// Only into existing room.
    IntoRoom,
}

impl Store {
    /// Whether some tier would take a page now, as far as known without trying. An all-zero page
    /// needs none.
    pub fn would_take(&self) -> bool {
        // New pages take the slots of clean copies.
        self.counters.cached_now.get() > 0 || self.pool.accepts() || self.devices_have_room()
    }

    /// `None` when the pool has no room.
    pub(super) fn keep(&self, data: &[u8], made: Made, filter: Option<Filter>, how: Insert) -> Option<Object> {
        let handle = match how {
            Insert::Anywhere => self.pool.insert(data)?,
            Insert::IntoRoom => self.pool.insert_into_room(data)?,
        };
        Some(Object { handle, made, filter })
    }

    /// Takes an object out of the pool. The caller is its only owner.
    pub(super) fn let_go(&self, object: Object) {
        let removed = self.pool.remove(object.handle);
        debug_assert!(removed.is_ok(), "a table word named no object");
    }
}
