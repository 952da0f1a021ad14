//! Guards: ranges that stay in memory.

use std::ops::RangeBounds;
use std::sync::atomic::Ordering;

use lowtide_pager::fault::BringIn;

use crate::error::Error;
use crate::pins::bytes;
use crate::region::Region;
use crate::signals;

impl Region {
    /// Brings a range into memory and keeps it there while the guard lives: for system calls and
    /// devices. Guards of a group keep at most half of its RAM limit.
    ///
    /// ```
    /// # use lowtide_region::{Region, Swap};
    /// # use std::io::Read;
    /// let mut region = Region::builder(32 << 20).ram(16 << 20).swap(Swap::Ram).build()?;
    /// let guard = region.resident(0..65536)?;
    /// // SAFETY: nothing else uses these bytes now.
    /// let bytes = unsafe { std::slice::from_raw_parts_mut(guard.as_mut_ptr(), guard.len()) };
    /// let read = std::fs::File::open("/proc/self/exe").unwrap().read(bytes).unwrap();
    /// assert!(read > 4 && bytes.starts_with(b"\x7fELF"));
    /// # Ok::<(), lowtide_region::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::TooMuchResident`], [`Error::OutOfRange`], [`Error::Empty`], [`Error::Forked`];
    /// [`Error::Lost`]: a page can't be read back.
    pub fn resident(&self, range: impl RangeBounds<usize>) -> Result<Resident<'_>, Error> {
        let (start, end) = self.bounds(range)?;
        Resident::new(self, start, end)
    }
}

/// A range in memory while this lives: see [`Region::resident`]. The region can't be dropped
/// meanwhile:
///
/// ```compile_fail,E0505
/// # use lowtide_region::{Region, Swap};
/// let region = Region::builder(1 << 20).ram(16 << 20).swap(Swap::Ram).build()?;
/// let guard = region.resident(..)?;
/// drop(region);
/// drop(guard);
/// # Ok::<(), lowtide_region::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the range may be evicted as soon as the guard is dropped"]
pub struct Resident<'a> {
    region: &'a Region,
    start: usize,
    end: usize,
}

impl<'a> Resident<'a> {
    pub(crate) fn new(region: &'a Region, start: usize, end: usize) -> Result<Resident<'a>, Error> {
        let instance = region.instance()?;
        let range = region.pages_of(start, end);
        let most = instance.pager.budget().asked() / 2;
        let fits = |now: u64| now.checked_add(bytes(range)).filter(|all| *all <= most);
        if let Err(now) = instance.resident.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            return Err(Error::TooMuchResident { bytes: now.saturating_add(bytes(range)), most });
        }
        let guard = Resident { region, start, end };
        {
            let mut pins = region.pins();
            let _blocked = signals::block();
            pins.add(range);
            // First, so that incoming pages stay. (There is room for a million ranges.)
            if !instance.pager.pin(range) {
                return Err(Error::TooMuchResident { bytes: bytes(range), most });
            }
        }
        region.bring_in(range, BringIn::All)?;
        Ok(guard)
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.as_mut_ptr()
    }

    /// The first byte, to write as well; see [`Region::as_mut_ptr`].
    pub fn as_mut_ptr(&self) -> *mut u8 {
        // SAFETY: inside the region.
        unsafe { self.region.as_mut_ptr().add(self.start) }
    }

    /// Its bytes.
    pub fn as_slice(&self) -> &'a [u8] {
        &self.region.as_slice()[self.start..self.end]
    }

    /// How many there are.
    #[allow(clippy::len_without_is_empty)] // there is no empty one
    pub fn len(&self) -> usize {
        self.end - self.start
    }
}

impl AsRef<[u8]> for Resident<'_> {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Drop for Resident<'_> {
    fn drop(&mut self) {
        let Ok(instance) = self.region.instance() else { return };
        let range = self.region.pages_of(self.start, self.end);
        let mut pins = self.region.pins();
        let _blocked = signals::block();
        pins.remove(range, |part| instance.pager.unpin(part));
        instance.resident.fetch_sub(bytes(range), Ordering::Relaxed);
    }
}
