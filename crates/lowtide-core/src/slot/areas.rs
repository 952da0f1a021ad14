//! The swap areas of a store: by number, and by priority for allocation. Higher priorities first, areas of the same in turn.
//!
//! Whoever uses an area holds a reference, so that swapoff can wait until nobody does. References are counted per CPU.

use alloc::boxed::Box;
use core::ops::Deref;
use core::ptr::null_mut;

use rustix::io::Errno;

use super::area::Area;
use super::cluster::ORDERS;
use super::error::SlotError;
use super::swap_cache::SwapCache;
use crate::lock::rank;
use crate::percpu::{self, CacheAligned};
use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use crate::sync::{Lock, pause, rest};

/// Most areas: an entry has 8 bits for them. Models need few, and look at each of them again and again.
const MAX: usize = if cfg!(any(feature = "loom", feature = "shuttle")) { 2 } else { 256 };
/// Counters of references that an area has: CPUs share them.
const STRIPES: usize = 16;

type Users = [CacheAligned<AtomicU32>; STRIPES];

/// What has one number: an area, or none now.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) area: AtomicPtr<Area>,
    /// Made with the first area that has the number; lives as long as [`Areas`], so that a late user finds it.
    users: AtomicPtr<Users>,
}

/// An area that takes pages.
#[derive(Clone, Copy, Debug, Default)]
struct Listed {
    priority: i16,
    id: u8,
}

/// The areas that take pages, in the order in which they are to be tried.
#[derive(Clone, Copy, Debug)]
struct Available {
    list: [Listed; MAX],
    len: usize,
}

/// The areas of a store. All methods are thread-safe unless they say otherwise.
#[derive(Debug)]
pub struct Areas {
    pub(super) cells: [Cell; MAX],
    /// No cell from this index on ever had an area. Only grows.
    high: AtomicUsize,
    available: Lock<Available, { rank::AVAILABLE }>,
    /// By CPU and order, the number of the area used last, plus one; 0: none.
    last: Box<[CacheAligned<[AtomicU32; ORDERS]>]>,
}

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

impl Available {
    /// Enters an area behind those of its priority and higher.
    fn insert(&mut self, new: Listed) {
        let at = self.list[..self.len].iter().position(|l| l.priority < new.priority).unwrap_or(self.len);
        self.list.copy_within(at..self.len, at + 1);
        self.list[at] = new;
        self.len += 1;
    }

    fn remove(&mut self, id: u8) {
        if let Some(at) = self.list[..self.len].iter().position(|l| l.id == id) {
            self.list.copy_within(at + 1..self.len, at);
            self.len -= 1;
        }
    }
}

impl Default for Areas {
    fn default() -> Areas {
        Areas::new()
    }
}

impl Areas {
    /// No areas.
    #[must_use]
    pub fn new() -> Areas {
        let cell = |_| Cell { area: AtomicPtr::new(null_mut()), users: AtomicPtr::new(null_mut()) };
        Areas {
            cells: core::array::from_fn(cell),
            high: AtomicUsize::new(0),
            available: Lock::new(Available { list: [Listed::default(); MAX], len: 0 }),
            last: (0..percpu::count()).map(|_| CacheAligned(core::array::from_fn(|_| AtomicU32::new(0)))).collect(),
        }
    }

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

    /// The areas, by number.
    pub fn iter(&self) -> impl Iterator<Item = AreaRef<'_>> {
        // Acquire: pairs with the Release in `add`, which has made the number's users before.
        (0..self.high.load(Ordering::Acquire)).filter_map(|id| self.get(id as u8))
    }

    /// Adds an area under the lowest free number. `listed`: [`Areas::alloc`] gives out its slots.
    ///
    /// # Errors
    /// `TooManyAreas`.
    pub fn add(&self, area: Area, listed: bool) -> Result<u8, SlotError> {
        let area = Box::into_raw(Box::new(area));
        for (id, cell) in self.cells.iter().enumerate() {
            if cell.users.load(Ordering::Acquire).is_null() {
                let users: Box<Users> = Box::new(core::array::from_fn(|_| CacheAligned(AtomicU32::new(0))));
                let users = Box::into_raw(users);
                // Release: pairs with the Acquire in `get`, `wait_for_users` and here.
                if cell.users.compare_exchange(null_mut(), users, Ordering::AcqRel, Ordering::Acquire).is_err() {
                    // SAFETY: made above and entered nowhere.
                    drop(unsafe { Box::from_raw(users) });
                }
            }
            // Release: pairs with the Acquire in `iter`.
            self.high.fetch_max(id + 1, Ordering::AcqRel);
            // Sequentially consistent, for its Release: pairs with the load in `get`, which then sees all of the area.
            if cell.area.compare_exchange(null_mut(), area, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                if listed {
                    self.reopen(id as u8);
                }
                return Ok(id as u8);
            }
        }
        // SAFETY: made above and entered nowhere.
        drop(unsafe { Box::from_raw(area) });
        Err(SlotError::TooManyAreas)
    }

    /// Gives out 2^`order` aligned slots of an available area: the highest priority first, areas of one priority in turn. (A
    /// turn lasts until a CPU's cluster is used up.) Areas that rest give out nothing. Returns the area and the first slot.
    pub fn alloc<'a>(&'a self, order: u32, cache: &dyn SwapCache) -> Option<(AreaRef<'a>, u64)> {
        self.alloc_if(order, cache, true)
    }

    /// As [`Areas::alloc`], but areas that rest serve if no other does: for pages that need not be written now.
    pub fn alloc_to_write_later<'a>(&'a self, order: u32, cache: &dyn SwapCache) -> Option<(AreaRef<'a>, u64)> {
        self.alloc_if(order, cache, true).or_else(|| {
            let resting = self.iter().any(|area| area.rests());
            if resting { self.alloc_if(order, cache, false) } else { None }
        })
    }

    /// `writable`: in areas that don't rest; else in those that do.
    fn alloc_if<'a>(&'a self, order: u32, cache: &dyn SwapCache, writable: bool) -> Option<(AreaRef<'a>, u64)> {
        let last = self.last[percpu::current()].0.get(order as usize)?;
        if writable
            && let Some(id) = last.load(Ordering::Relaxed).checked_sub(1)
            && let Some(area) = self.get(id as u8)
            && let Some(slot) = area.alloc_next(order)
        {
            return Some((area, slot));
        }
        let available = self.take_turn();
        let try_area = |area: AreaRef<'a>| {
            let slot = if area.rests() == writable { None } else { area.alloc_reclaiming(order, cache) }?;
            if writable {
                last.store(u32::from(area.id()) + 1, Ordering::Relaxed);
            }
            Some((area, slot))
        };
        let found = available.list[..available.len].iter().find_map(|l| try_area(self.get(l.id)?));
        // Full areas are off the list, and have room all the same if they can take slots back.
        let full = |area: &AreaRef<'_>| area.availability().is_full() && area.may_be_reclaimed();
        found.or_else(|| self.iter().filter(full).find_map(try_area))
    }

    /// What is available now; for the next who asks, the first has gone behind the others of its priority.
    fn take_turn(&self) -> Available {
        let mut available = self.available.lock();
        let now = *available;
        if let Some(first) = now.list[..now.len].first() {
            available.remove(first.id);
            available.insert(*first);
        }
        now
    }

    /// Puts an area on the list or takes it off, if it is for this thread to do.
    #[cold]
    fn update_list(&self, id: u8, area: &Area) {
        let mut available = self.available.lock();
        if area.availability().try_delist() {
            available.remove(id);
        } else if area.availability().try_relist() {
            available.insert(Listed { priority: area.priority, id });
        }
    }

    /// The first step of swapoff: nothing more is allocated there. Waits for calls in flight.
    ///
    /// # Errors
    /// `Closed` when there is no such area, or it is closed already.
    pub fn close(&self, id: u8) -> Result<(), SlotError> {
        {
            let area = self.get(id).ok_or(SlotError::Closed)?;
            let mut available = self.available.lock();
            if area.availability().close().ok_or(SlotError::Closed)? {
                available.remove(id);
            }
        }
        self.wait_for_users(id);
        // Still there: nobody removes it before it is quiet.
        if let Some(area) = self.get(id) {
            area.availability().quiesced();
        }
        Ok(())
    }

    /// Opens an area: one that was closed, or a new one. No effect while another thread is in [`Areas::close`] or
    /// [`Areas::remove`] with it.
    pub fn reopen(&self, id: u8) {
        if let Some(area) = self.get(id) {
            let mut available = self.available.lock();
            if area.availability().open() && area.availability().try_relist() {
                available.insert(Listed { priority: area.priority, id });
            }
        }
    }

    /// The last step of swapoff: removes a closed area of which no slot is in use. Waits for calls in flight.
    ///
    /// # Errors
    /// `Closed` when there is no such area; `StillInUse` when it is not closed (or [`Areas::close`] has not returned yet) or
    /// not empty.
    pub fn remove(&self, id: u8) -> Result<(), SlotError> {
        {
            let area = self.get(id).ok_or(SlotError::Closed)?;
            if !area.availability().begin_removal() {
                return Err(SlotError::StillInUse);
            }
            // Slot 0 is always used, once its cluster is.
            if area.used() > 1 {
                area.availability().cancel_removal();
                return Err(SlotError::StillInUse);
            }
        }
        self.take_out(id);
        Ok(())
    }

    /// The last step of a swapoff as far as this process is concerned: removes a closed area, or one of a parent's, where this
    /// process has nothing, as the caller knows. (Forked children may have something there: the slots stay theirs, and are
    /// given out no more.) Waits for calls in flight.
    ///
    /// # Errors
    /// `Closed` when there is no such area; `StillInUse` when it is not closed, or [`Areas::close`] has not returned yet.
    pub fn dismiss(&self, id: u8) -> Result<(), SlotError> {
        {
            let area = self.get(id).ok_or(SlotError::Closed)?;
            if !area.is_inherited() && !area.availability().begin_removal() {
                return Err(SlotError::StillInUse);
            }
        }
        self.take_out(id);
        Ok(())
    }

    /// Takes an area out, whatever is in use there.
    fn take_out(&self, id: u8) {
        // Sequentially consistent: pairs with the count in `get`.
        let area = self.cells[id as usize].area.swap(null_mut(), Ordering::SeqCst);
        if !area.is_null() {
            self.wait_for_users(id);
            // SAFETY: it came from a Box, and nobody has a reference: those who came before the swap have gone, and since then
            // nobody got one.
            drop(unsafe { Box::from_raw(area) });
        }
    }

    /// Waits until everybody who had a reference at the time of the call has dropped it.
    fn wait_for_users(&self, id: u8) {
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

    /// Child side of a fork: areas that a parent made become inherited, and take no more pages; those that hold nothing
    /// (`is_empty`) are removed.
    ///
    /// # Safety
    /// Only in a forked child that has one thread and no [`AreaRef`], when no call that changes anything was in flight in the
    /// parent at the moment of the fork.
    pub unsafe fn after_fork(&self, is_empty: &dyn Fn(&Area) -> bool) {
        // SAFETY: the caller answers.
        unsafe { self.available.reset_after_fork() };
        // Threads of the parent that were using an area at the moment of the fork (to read figures, say) are users here too,
        // and would be waited for without end.
        for cell in &self.cells {
            // SAFETY: as in `get`.
            if let Some(users) = unsafe { cell.users.load(Ordering::Relaxed).as_ref() } {
                users.iter().for_each(|stripe| stripe.0.store(0, Ordering::Relaxed));
            }
        }
        for id in 0..=u8::MAX {
            let Some(area) = self.get(id) else { continue };
            // SAFETY: the caller answers.
            unsafe { area.after_fork() };
            if !area.is_inherited() {
                continue;
            }
            self.available.lock().remove(id);
            if is_empty(&area) {
                drop(area);
                self.take_out(id);
            }
        }
    }

    /// How many areas take pages now, for tests.
    #[cfg(test)]
    pub(super) fn listed(&self) -> alloc::vec::Vec<u8> {
        let available = self.available.lock();
        available.list[..available.len].iter().map(|l| l.id).collect()
    }
}

impl Drop for Areas {
    fn drop(&mut self) {
        for (id, cell) in self.cells.iter().enumerate() {
            self.take_out(id as u8);
            let users = cell.users.load(Ordering::Acquire);
            if !users.is_null() {
                // SAFETY: made from a Box, and nobody else uses the list.
                drop(unsafe { Box::from_raw(users) });
            }
        }
    }
}
