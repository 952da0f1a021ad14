//! The kernel meets pages that are out.

use std::os::fd::AsRawFd;

use lowtide_region::{Delivery, Region, Swap};

use crate::content::{MIB, PAGE, deliveries, fill, resident_bytes};

/// Writes a page of the region to a pipe; what the kernel says.
fn send(at: *const u8) -> Result<usize, i32> {
    let (_reader, writer) = std::io::pipe().unwrap();
    // SAFETY: a page of the region.
    let sent = unsafe { libc::write(writer.as_raw_fd(), at.cast(), PAGE) };
    if sent < 0 { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) } else { Ok(sent as usize) }
}

#[test]
fn a_system_call_fails_without_a_guard_and_works_with_one_or_with_a_monitor() {
    for delivery in deliveries() {
        let mut region = Region::builder(4 * MIB).ram(16 << 20).swap(Swap::Ram).delivery(delivery).build().unwrap();
        fill(&mut region, 0);
        region.evict(..).unwrap();
        let answer = send(region.as_ptr());
        if delivery == Delivery::Monitor {
            assert_eq!(answer, Ok(PAGE));
            continue;
        }
        assert_eq!(answer, Err(libc::EFAULT), "{delivery:?}");
        let guard = region.resident(..PAGE).unwrap();
        assert_eq!(send(guard.as_ptr()), Ok(PAGE));
        drop(guard);
        region.evict(..).unwrap();
        assert_eq!(resident_bytes(region.as_ptr() as usize, PAGE), 0);
    }
}
