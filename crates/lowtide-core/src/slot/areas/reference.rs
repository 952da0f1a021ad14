//! References to areas, so that swapoff can wait until nobody uses one. They are counted per CPU.

use core::ops::Deref;

use rustix::io::Errno;

use super::Areas;
use crate::percpu::{self, CacheAligned};
use crate::slot::area::Area;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{pause, rest};

/// Counters of references that an area has: CPUs share them.
const STRIPES: usize = 16;

pub(super) type Users = [CacheAligned<AtomicU32>; STRIPES];

/// An area, which stays as long as this.
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

    /// A write to the area's device failed: the area rests ([`Area::rests`]), and [`Areas::alloc`] passes it over meanwhile.
    #[cold]
    pub fn failed(&self, errno: Errno) {
        self.area.availability().write_failed(errno);
        // A thread that is choosing the area at this moment makes its CPU go on there, until its write fails as well.
        for last in self.areas.last.iter().flat_map(|cpu| &cpu.0) {
            let _ = last.compare_exchange(u32::from(self.id) + 1, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// A write to the area's device went well.
    pub fn wrote(&self) {
        if self.area.availability().write_succeeded() {
            // The device was gone for a while: what could not be written then is no sign of bad places.
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
        // Whoever made it full, or not full again, comes by here.
        if self.area.availability().may_change_list() {
            self.areas.update_list(self.id, self.area);
        }
        // Release: pairs with the load in `wait_for_users`, after which nobody uses the area.
        self.users.fetch_sub(1, Ordering::Release);
    }
}

impl Areas {
    /// The area of that number.
    #[inline]
    pub fn get(&self, id: u8) -> Option<AreaRef<'_>> {
        let cell = self.cells.get(id as usize)?;
        // Acquire: pairs with the Release in `add`.
        // SAFETY: made from a Box, and freed only with the list itself, which is borrowed.
        let users = unsafe { cell.users.load(Ordering::Acquire).as_ref()? };
        let users = &users[percpu::current() % STRIPES].0;
        // Sequentially consistent, as is what `take_out` does: either that sees this reference, or this sees no area.
        users.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the pointer came from a Box, which is freed only after the pointer was taken away and nobody counted as a
        // user since.
        match unsafe { cell.area.load(Ordering::SeqCst).as_ref() } {
            Some(area) => Some(AreaRef { areas: self, id, area, users }),
            None => {
                users.fetch_sub(1, Ordering::Release);
                None
            }
        }
    }

    /// Waits until everybody who had a reference at the time of the call has dropped it.
    pub(super) fn wait_for_users(&self, id: u8) {
        // SAFETY: as in `get`.
        let Some(users) = (unsafe { self.cells[id as usize].users.load(Ordering::Acquire).as_ref() }) else { return };
        for stripe in users {
            let mut looks = 0u32;
            // A stripe that is zero once has let go of all who came before. (Acquire: pairs with the Release with which they
            // drop their references. Sequentially consistent: as in `get`.)
            while stripe.0.load(Ordering::SeqCst) != 0 {
                looks += 1;
                // Somebody has it while he waits for a disk. With few CPUs, who only yields is run just when that is so.
                if looks > 64 { rest() } else { pause() }
            }
        }
    }
}
