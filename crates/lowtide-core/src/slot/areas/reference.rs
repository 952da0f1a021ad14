//! References to areas, counted per CPU.

use core::ops::Deref;

use rustix::io::Errno;

use super::Areas;
use crate::percpu::{self, CacheAligned};
use crate::slot::area::Area;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{pause, rest};

/// Per area; CPUs share them.
const STRIPES: usize = 16;

pub(super) type Users = [CacheAligned<AtomicU32>; STRIPES];

/// A reference that keeps an area alive.
#[derive(Debug)]
pub struct AreaRef<'a> {
    areas: &'a Areas,
    id: u8,
    area: &'a Area,
    users: &'a AtomicU32,
}

impl AreaRef<'_> {
    /// The area's number.
    pub fn id(&self) -> u8 {
        self.id
    }

    /// After a failed write: the area rests ([`Area::rests`]), and [`Areas::alloc`] skips it.
    #[cold]
    pub fn failed(&self, errno: Errno) {
        self.area.availability().write_failed(errno);
        // A thread that is choosing the area may still set it, until its own write fails.
        for last in self.areas.last.iter().flat_map(|cpu| &cpu.0) {
            let _ = last.compare_exchange(u32::from(self.id) + 1, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// After a successful write.
    pub fn wrote(&self) {
        if self.area.availability().write_succeeded() {
            // The whole device had failed: earlier failures don't mean bad places.
            (0..self.area.opened_clusters()).for_each(|cluster| self.area.ages.mended(cluster));
        }
    }
}

impl Deref for AreaRef<'_> {
    type Target = Area;
    #[inline]
    fn deref(&self) -> &Area {
        self.area
    }
}

impl Drop for AreaRef<'_> {
    #[inline]
    fn drop(&mut self) {
        // A thread that fills the area or makes room passes here.
        if self.area.availability().may_change_list() {
            self.areas.update_list(self.id, self.area);
        }
        // Release: pairs with the load in `wait_for_users`, after which the area has no users.
        self.users.fetch_sub(1, Ordering::Release);
    }
}

impl Areas {
    /// The area with that number.
    #[inline]
    pub fn get(&self, id: u8) -> Option<AreaRef<'_>> {
        let cell = self.cells.get(id as usize)?;
        // Acquire: pairs with the Release in `add`.
        // SAFETY: made from a Box, and freed only with `self`, which is borrowed.
        let users = unsafe { cell.users.load(Ordering::Acquire).as_ref()? };
        let users = &users[percpu::current() % STRIPES].0;
        // SeqCst, as in `take_out`: either `take_out` sees this reference, or this sees no area.
        users.fetch_add(1, Ordering::SeqCst);
        // SAFETY: from a Box, which is freed only after the pointer is removed and no user counted
        // since.
        match unsafe { cell.area.load(Ordering::SeqCst).as_ref() } {
            Some(area) => Some(AreaRef { areas: self, id, area, users }),
            None => {
                users.fetch_sub(1, Ordering::Release);
                None
            }
        }
    }

    /// Waits until all present references are dropped.
    pub(super) fn wait_for_users(&self, id: u8) {
        // SAFETY: as in `get`.
        let Some(users) = (unsafe { self.cells[id as usize].users.load(Ordering::Acquire).as_ref() }) else { return };
        for stripe in users {
            let mut looks = 0u32;
            // A stripe that is zero once has lost all earlier references. Acquire: pairs with the
            // Release on drop. SeqCst: as in `get`.
            while stripe.0.load(Ordering::SeqCst) != 0 {
                looks += 1;
                // The holder waits for a disk. With few CPUs, a thread that only yields keeps
                // running.
                if looks > 64 { rest() } else { pause() }
            }
        }
    }
}
