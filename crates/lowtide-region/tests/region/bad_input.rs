//! What can't be done is refused with one clear line.

use lowtide_region::{Codec, Delivery, Error, Group, Region, Swap};

use crate::child;
use crate::content::MIB;

fn line(result: Result<Region, Error>) -> String {
    let line = result.unwrap_err().to_string();
    assert!(!line.is_empty() && !line.contains('\n'), "{line}");
    line
}

fn small() -> Region {
    Region::builder(MIB).ram(16 << 20).swap(Swap::Ram).build().unwrap()
}

#[test]
fn sizes() {
    assert!(line(Region::builder(0).ram(16 << 20).build()).contains("zero"));
    for len in [usize::MAX, usize::MAX - 4095, isize::MAX as usize, 1 << 47] {
        assert!(line(Region::builder(len).ram(16 << 20).build()).contains("address space"));
    }
    assert!(line(Region::builder(MIB).build()).contains("ram("));
    assert!(line(Region::builder(MIB).ram((16 << 20) - 1).build()).contains("16 MiB"));
    assert!(line(Region::builder(MIB).ram(0).build()).contains("16 MiB"));
}

#[test]
fn what_a_group_can_t_be() {
    assert!(line(Region::builder(MIB).ram(16 << 20).codec(Codec::Zstd(0)).build()).contains("level 0"));
    let nowhere = Swap::Dir { dir: "/nonexistent".into(), size: None };
    assert!(line(Region::builder(MIB).ram(16 << 20).swap(nowhere).build()).contains("/nonexistent"));
    let group = Group::builder().ram(16 << 20).swap(Swap::Ram).build().unwrap();
    assert!(line(Region::builder(MIB).ram(16 << 20).group(&group).build()).contains("group"));
    assert_eq!(group.set_ram(0).unwrap_err(), Error::RamTooSmall { ram: 0, least: 16 << 20 });
}

#[test]
fn ranges() {
    let mut region = small();
    let out = |start, end| Err(Error::OutOfRange { start, end, len: MIB });
    assert_eq!(region.evict(0..=MIB), out(0, MIB + 1));
    assert_eq!(region.prefetch(5..MIB + 1), out(5, MIB + 1));
    assert_eq!(region.prefetch(usize::MAX..), out(usize::MAX, MIB));
    assert_eq!(region.drop_range(..=usize::MAX), out(0, usize::MAX));
    assert_eq!(region.evict(7..7), Err(Error::Empty));
    assert_eq!(region.resident(MIB..).map(drop), Err(Error::Empty));
}

#[test]
fn more_resident_than_can_be() {
    let region = Region::builder(32 * MIB).ram(16 << 20).swap(Swap::Ram).build().unwrap();
    let guard = region.resident(..4 * MIB).unwrap();
    let refused = region.resident(8 * MIB..13 * MIB).unwrap_err();
    assert_eq!(refused, Error::TooMuchResident { bytes: 9 << 20, most: 8 << 20 });
    let second = region.resident(8 * MIB..12 * MIB).unwrap();
    drop(guard);
    region.resident(..4 * MIB).map(drop).expect("there is room for it again");
    drop(second);
    assert!(!region.is_guarded() && region.stats().unwrap().resident_bytes == 0);
}

#[test]
fn a_region_dropped_while_a_guard_lives() {
    // The borrow checker refuses it (see the documentation of `Resident`), unless the guard is leaked: then the region goes,
    // and the group counts nothing of it any more.
    let group = Group::builder().ram(32 << 20).swap(Swap::Ram).build().unwrap();
    let mut region = Region::builder(8 * MIB).group(&group).build().unwrap();
    let guard = region.resident(MIB..2 * MIB).unwrap();
    assert_eq!(group.stats().unwrap().resident_bytes, 1 << 20);
    std::mem::forget(guard);
    assert_eq!(region.drop_range(..), Err(Error::Guarded));
    drop(region);
    assert_eq!(group.stats().unwrap().resident_bytes, 0);
    assert_eq!(group.set_ram(16 << 20), Ok(()));
}

#[test]
fn a_limit_below_what_guards_keep() {
    let region = Region::builder(64 * MIB).ram(64 << 20).swap(Swap::Ram).build().unwrap();
    let guard = region.resident(..16 * MIB).unwrap();
    assert_eq!(region.set_ram(20 << 20), Err(Error::RamTooSmall { ram: 20 << 20, least: 32 << 20 }));
    drop(guard);
    assert_eq!(region.set_ram(20 << 20), Ok(()));
}

#[test]
fn a_kernel_without_userfaultfd() {
    if child::is_child() {
        let why = line(Region::builder(MIB).ram(16 << 20).swap(Swap::Ram).build());
        assert!(why.contains("CONFIG_USERFAULTFD"), "{why}");
        return;
    }
    let mut command = child::command("bad_input::a_kernel_without_userfaultfd");
    child::without_system_call(&mut command, libc::SYS_userfaultfd, libc::ENOSYS);
    child::passes(&mut command);
}

#[test]
fn a_filter_that_forbids_userfaultfd() {
    if child::is_child() {
        let why = line(Region::builder(MIB).ram(16 << 20).swap(Swap::Ram).build());
        assert!(why.contains("filter"), "{why}");
        return;
    }
    let mut command = child::command("bad_input::a_filter_that_forbids_userfaultfd");
    child::without_system_call(&mut command, libc::SYS_userfaultfd, libc::EPERM);
    child::passes(&mut command);
}

#[test]
fn under_lowtide_run() {
    if child::is_child() {
        assert!(line(Region::builder(MIB).ram(16 << 20).delivery(Delivery::InThread).build()).contains("lowtide run"));
        return;
    }
    child::passes(child::command("bad_input::under_lowtide_run").env("LOWTIDE_SEGMENT", "x"));
}
