//! The making of a region.

use std::ptr::NonNull;

use lowtide_core::codec::Codec;
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use crate::error::Error;
use crate::group::{Group, GroupBuilder};
use crate::instance::Delivery;
use crate::region::Region;
use crate::swap::Swap;

impl Region {
    /// Begins a region of `len` bytes.
    ///
    /// ```
    /// use lowtide_region::{Region, Swap};
    /// let mut region = Region::builder(64 << 20).ram(16 << 20).swap(Swap::Ram).build()?;
    /// region.as_mut_slice()[40 << 20] = 7;
    /// assert_eq!(region.as_slice()[40 << 20], 7);
    /// # Ok::<(), lowtide_region::Error>(())
    /// ```
    pub fn builder(len: usize) -> Builder {
        Builder::new(len)
    }
}

/// The properties of a region: see [`Region::builder`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Builder {
    len: usize,
    own: GroupBuilder,
    group: Option<Group>,
}

impl Builder {
    pub(crate) fn new(len: usize) -> Builder {
        Builder { len, own: GroupBuilder::default(), group: None }
    }

    /// The RAM limit in bytes: see [`GroupBuilder::ram`].
    pub fn ram(mut self, bytes: u64) -> Self {
        self.own.ram = Some(bytes);
        self
    }

    /// Where pages go that leave RAM.
    pub fn swap(mut self, swap: Swap) -> Self {
        self.own.swap = Some(swap);
        self
    }

    /// The compressor of pages in RAM.
    pub fn codec(mut self, codec: Codec) -> Self {
        self.own.codec = Some(codec);
        self
    }

    /// How missing pages come in.
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.own.delivery = Some(delivery);
        self
    }

    /// Shares this group's RAM limit, pool, swap and delivery.
    pub fn group(mut self, group: &Group) -> Self {
        self.group = Some(group.clone());
        self
    }

    /// Makes the region.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::TooLarge`]: the length. [`Error::GroupHasItsOwn`]: another
    /// property beside a group. Else those of [`GroupBuilder::build`].
    pub fn build(self) -> Result<Region, Error> {
        if self.len == 0 {
            return Err(Error::Empty);
        }
        let own = &self.own;
        let says_more = own.ram.is_some() || own.swap.is_some() || own.codec.is_some() || own.delivery.is_some();
        let too_large = Error::TooLarge { bytes: self.len };
        let whole = self.len.checked_next_multiple_of(PAGE_SIZE).filter(|whole| *whole <= isize::MAX as usize - 2 * PAGE_SIZE);
        let whole = whole.ok_or(too_large.clone())?;
        let group = match self.group {
            Some(_) if says_more => return Err(Error::GroupHasItsOwn),
            Some(group) => group,
            None => self.own.build()?,
        };
        group.instance()?;
        let start = map(whole).map_err(|errno| match errno {
            Errno::NOMEM => too_large,
            errno => Error::System { what: "mapping the region", errno },
        })?;
        Region::over(start, self.len, whole, group)
    }
}

/// Between two inaccessible pages, so that the kernel merges it with no other mapping.
fn map(len: usize) -> Result<NonNull<u8>, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: fresh memory of the kernel's choice, and a part of it.
    unsafe {
        let base = rustix::mm::mmap_anonymous(core::ptr::null_mut(), len + 2 * PAGE_SIZE, ProtFlags::empty(), flags)?;
        let start = base.cast::<u8>().add(PAGE_SIZE);
        let made = rustix::mm::mprotect(start.cast(), len, MprotectFlags::READ | MprotectFlags::WRITE)
            .and_then(|()| rustix::mm::madvise(base, len + 2 * PAGE_SIZE, Advice::LinuxDontFork));
        if let Err(errno) = made {
            let _ = rustix::mm::munmap(base, len + 2 * PAGE_SIZE);
            return Err(errno);
        }
        NonNull::new(start).ok_or(Errno::NOMEM)
    }
}
