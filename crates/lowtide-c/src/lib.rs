//! The C interface. cbindgen makes the header, its documentation, from this file.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use lowtide_region as lowtide;
use lowtide_region::{Codec, Delivery, Error, Resident, Swap};

/// The thread that touches a missing page brings it in, in a handler of SIGBUS. Needs no privilege.
pub const LOWTIDE_IN_THREAD: c_int = 0;
/// A thread of lowtide brings pages in, also during system calls. Needs a privilege: root,
/// CAP_SYS_PTRACE, access to /dev/userfaultfd, or vm.unprivileged_userfaultfd=1.
pub const LOWTIDE_MONITOR: c_int = 1;
/// A thread of lowtide brings pages in, without privilege: for programs that can't have a handler
/// of SIGBUS.
pub const LOWTIDE_USER_MONITOR: c_int = 2;

/// A region. Made by lowtide_region_new().
pub struct Region {
    region: lowtide::Region,
    guards: AtomicUsize,
}

/// A range that stays in memory. Made by lowtide_resident().
pub struct Guard {
    /// `lowtide_region_free` refuses to free the borrowed region while it has guards.
    guard: Option<Resident<'static>>,
    region: *const Region,
}

/// Options of a region. Fill it with zeros first: zero members have their defaults.
#[repr(C)]
pub struct Options {
    /// RAM limit in bytes, at least 16 MiB: resident and compressed pages and lowtide's tables.
    /// Required without group_with.
    pub ram: u64,
    /// "auto" (the default: compressed RAM, then an unnamed file in $LOWTIDE_DIR or /var/tmp),
    /// "ram" (compressed RAM only), "dir:DIR[,size=8G]" (an unnamed file in DIR),
    /// "redis://HOST:PORT" or "rediss://..." (a Valkey or Redis server or cluster).
    pub swap: *const c_char,
    /// Level of zstd (-7 to -1, 1 to 22); 0: LZ4.
    pub zstd_level: c_int,
    /// One of LOWTIDE_IN_THREAD (the default), LOWTIDE_MONITOR, LOWTIDE_USER_MONITOR.
    pub delivery: c_int,
    /// A region that shares its RAM limit and swap; the members above must be zero then.
    pub group_with: *const Region,
}

/// Figures of a region and its group. Bytes, and pages of 4096 bytes.
#[repr(C)]
#[derive(Default)]
pub struct Stats {
    /// The RAM limit.
    pub ram_limit: u64,
    /// Memory that counts against it now.
    pub ram_now: u64,
    /// Of that, lowtide's own: pool, staging, tables.
    pub own_bytes: u64,
    /// Memory of the compressed pool.
    pub pool_bytes: u64,
    /// Pages stored now, in the pool or in the swap file.
    pub stored_pages: u64,
    /// Of those, in the swap file only.
    pub file_pages: u64,
    /// Memory held by guards.
    pub resident_bytes: u64,
    /// Touches of missing pages, and requests for them.
    pub faults: u64,
    /// Evicted pages that came in again.
    pub pages_in: u64,
    /// Evicted pages.
    pub pages_out: u64,
    /// Nanoseconds of the longest fault.
    pub longest_fault_ns: u64,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

fn errno_of(error: &Error) -> c_int {
    match error {
        Error::TooLarge { .. } => libc::ENOMEM,
        Error::OutOfRange { .. } => libc::ERANGE,
        Error::TooMuchResident { .. } => libc::ENOBUFS,
        Error::Guarded => libc::EBUSY,
        Error::Forked => libc::ECHILD,
        Error::UnderRun => libc::ENOTSUP,
        Error::Lost => libc::EIO,
        Error::Userfaultfd { errno, .. } | Error::System { errno, .. } => errno.raw_os_error(),
        _ => libc::EINVAL,
    }
}

/// Records the error for this thread.
fn failed(error: &Error) -> c_int {
    let text = CString::new(error.to_string().replace('\0', "?")).unwrap_or_default();
    // An ending thread has lost its storage.
    let _ = LAST.try_with(|last| last.replace(text));
    // SAFETY: errno is this thread's.
    unsafe { *libc::__errno_location() = errno_of(error) };
    -1
}

fn done(result: Result<(), Error>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => failed(&error),
    }
}

/// This thread's latest error in one line: what is wrong and what to do; empty without one. Valid
/// until the next error.
#[unsafe(no_mangle)]
pub extern "C" fn lowtide_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Makes a region of len bytes, all zero. NULL on failure, with errno: EINVAL (a wrong len or
/// option: zero, no RAM limit or less than 16 MiB, an unknown swap, level or delivery), ENOMEM (no
/// address space for len), EPERM or EACCES (no privilege for LOWTIDE_MONITOR, or a filter forbids
/// userfaultfd), ENOSYS (no userfaultfd in this kernel), ENOTSUP (the program runs under `lowtide
/// run`), ECHILD (group_with is a parent process's), or another one from the kernel.
///
/// # Safety
/// options points to a struct lowtide_options whose pointers are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lowtide_region_new(len: usize, options: *const Options) -> *mut Region {
    // SAFETY: the caller's promise.
    match unsafe { make(len, options) } {
        Ok(region) => Box::into_raw(Box::new(Region { region, guards: AtomicUsize::new(0) })),
        Err(error) => {
            failed(&error);
            ptr::null_mut()
        }
    }
}

/// # Safety
/// As [`lowtide_region_new`].
unsafe fn make(len: usize, options: *const Options) -> Result<lowtide::Region, Error> {
    // SAFETY: the caller's pointers are NULL or valid.
    let (options, group) = unsafe {
        let Some(options) = options.as_ref() else { return Err(Error::NoLimit) };
        (options, options.group_with.as_ref())
    };
    let mut builder = lowtide::Region::builder(len);
    if options.ram != 0 {
        builder = builder.ram(options.ram);
    }
    if !options.swap.is_null() {
        // SAFETY: a valid string.
        let text = unsafe { CStr::from_ptr(options.swap) }.to_string_lossy();
        builder = builder.swap(text.parse::<Swap>()?);
    }
    if options.zstd_level != 0 {
        builder = builder.codec(Codec::Zstd(options.zstd_level));
    }
    match options.delivery {
        LOWTIDE_IN_THREAD => {}
        LOWTIDE_MONITOR => builder = builder.delivery(Delivery::Monitor),
        LOWTIDE_USER_MONITOR => builder = builder.delivery(Delivery::UserMonitor),
        other => return Err(Error::UnknownDelivery { number: other }),
    }
    if let Some(with) = group {
        builder = builder.group(with.region.group());
    }
    builder.build()
}

/// Frees a region, whose memory must not be touched any more. Ignores NULL. -1 with errno EBUSY,
/// and nothing freed, while the region has guards.
///
/// # Safety
/// region is NULL or a live region, and no other thread uses it or its memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lowtide_region_free(region: *mut Region) -> c_int {
    if region.is_null() {
        return 0;
    }
    // SAFETY: a region of `lowtide_region_new`, which the caller gives back.
    unsafe {
        // Acquire: pairs with the Release in `lowtide_guard_free`.
        if (*region).guards.load(Ordering::Acquire) > 0 {
            return failed(&Error::Guarded);
        }
        drop(Box::from_raw(region));
    }
    0
}

/// The first byte of a region, page-aligned. Valid until the region is freed.
///
/// # Safety
/// region is a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lowtide_region_data(region: *const Region) -> *mut c_void {
    // SAFETY: a region.
    unsafe { (*region).region.as_mut_ptr().cast() }
}

/// Bytes of a region.
///
/// # Safety
/// region is a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lowtide_region_len(region: *const Region) -> usize {
    // SAFETY: a region.
    unsafe { (*region).region.len() }
}

/// Sets the RAM limit, in bytes, of a region and its group. A lower one takes effect gradually.
/// Errors: EINVAL (less than 16 MiB, or than twice the memory held by guards), ECHILD (a parent
/// process's region).
///
/// # Safety
/// region is a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lowtide_set_ram(region: *const Region, bytes: u64) -> c_int {
    // SAFETY: a region.
    done(unsafe { (*region).region.set_ram(bytes) })
}

/// Writes a region's figures to stats. Errors: ECHILD (a parent process's region).
///
/// # Safety
/// region is a region, and stats points to a struct lowtide_stats.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lowtide_get_stats(region: *const Region, stats: *mut Stats) -> c_int {
    // SAFETY: a region.
    match unsafe { (*region).region.stats() } {
        Ok(s) => {
            let out = Stats {
                ram_limit: s.ram_limit,
                ram_now: s.ram_now,
                own_bytes: s.own_bytes,
                pool_bytes: s.pool_bytes,
                stored_pages: s.stored_pages,
                file_pages: s.file_pages,
                resident_bytes: s.resident_bytes,
                faults: s.faults,
                pages_in: s.pages_in,
                pages_out: s.pages_out,
                longest_fault_ns: s.longest_fault_ns,
            };
            // SAFETY: the caller's struct.
            unsafe { stats.write(out) };
            0
        }
        Err(error) => failed(&error),
    }
}

/// Brings in the missing pages of a range: a hint. Errors: ERANGE (not in the region), EINVAL (no
/// bytes), EIO (a page can't be read back), ECHILD (a parent process's region).
///
/// # Safety
/// region is a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lowtide_prefetch(region: *const Region, offset: usize, len: usize) -> c_int {
    // SAFETY: a region.
    done(unsafe { (*region).region.prefetch(offset..offset.saturating_add(len)) })
}

/// Evicts the pages of a range now, except those that guards hold or no swap takes. Errors: ERANGE,
/// EINVAL, ECHILD, as for lowtide_prefetch().
///
/// # Safety
/// region is a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lowtide_evict(region: *const Region, offset: usize, len: usize) -> c_int {
    // SAFETY: a region.
    done(unsafe { (*region).region.evict(offset..offset.saturating_add(len)) })
}

/// Zeroes a range, and frees its memory and its room in swap. No other thread may use the range
/// meanwhile. Errors: ERANGE, EINVAL, ECHILD, as for lowtide_prefetch(); EBUSY: a guard holds some
/// of it.
///
/// # Safety
/// region is a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lowtide_drop(region: *const Region, offset: usize, len: usize) -> c_int {
    // SAFETY: a region; the caller relies on none of the bytes.
    done(unsafe { (*region).region.drop_shared(offset, offset.saturating_add(len)) })
}

/// Holds a range in memory until lowtide_guard_free(), for system calls and devices. Guards hold at
/// most half of the RAM limit. NULL on failure, with errno: ENOBUFS (that would be more), ERANGE,
/// EINVAL, EIO, ECHILD, as for lowtide_prefetch().
///
/// # Safety
/// region is a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lowtide_resident(region: *const Region, offset: usize, len: usize) -> *mut Guard {
    // SAFETY: a region; not freed while `guards` counts this one.
    let of: &'static Region = unsafe { &*region };
    of.guards.fetch_add(1, Ordering::Relaxed);
    match of.region.resident(offset..offset.saturating_add(len)) {
        Ok(guard) => Box::into_raw(Box::new(Guard { guard: Some(guard), region })),
        Err(error) => {
            of.guards.fetch_sub(1, Ordering::Release);
            failed(&error);
            ptr::null_mut()
        }
    }
}

/// Permits a range's eviction again. Ignores NULL.
///
/// # Safety
/// guard is NULL or a live guard.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lowtide_guard_free(guard: *mut Guard) {
    if guard.is_null() {
        return;
    }
    // SAFETY: the caller gives back a guard of `lowtide_resident`; its region lives while it counts
    // this one.
    unsafe {
        let mut guard = Box::from_raw(guard);
        drop(guard.guard.take());
        // Release: pairs with the Acquire in `lowtide_region_free`.
        (*guard.region).guards.fetch_sub(1, Ordering::Release);
    }
}
