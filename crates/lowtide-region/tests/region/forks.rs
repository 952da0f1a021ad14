//! A forked child has none of its parent's regions, and may have its own.

use lowtide_region::{Delivery, Error, Region, Swap};

use crate::content::{MIB, check_all, deliveries, fill};

/// How a child ends that does this: its status from waitpid.
fn child(f: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child does what is tested, and leaves without the test's own clean-up.
    unsafe {
        match libc::fork() {
            0 => {
                let good = f();
                libc::_exit(if good { 0 } else { 1 })
            }
            pid => {
                let mut status = 0;
                assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
                status
            }
        }
    }
}

fn region(delivery: Delivery) -> Region {
    let mut region = Region::builder(24 * MIB).ram(16 << 20).swap(Swap::Auto).delivery(delivery).build().unwrap();
    fill(&mut region, 0);
    region
}

#[test]
fn touching_a_parent_s_region_is_a_segmentation_fault() {
    for delivery in deliveries() {
        let region = region(delivery);
        for at in [0, 12 * MIB, 24 * MIB - 1] {
            let touch = || {
                // The test harness would say a lot.
                // SAFETY: what is tested.
                unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
                std::hint::black_box(region.as_slice()[at]) > 0
            };
            let status = child(touch);
            assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
        }
        check_all(&region, 0);
    }
}

#[test]
fn a_child_without_handlers_of_forks_is_refused_too() {
    let mut region = region(Delivery::InThread);
    // SAFETY: the child makes calls that are refused, and leaves.
    let pid = unsafe { libc::syscall(libc::SYS_fork) } as i32;
    if pid == 0 {
        let refused = region.evict(..) == Err(Error::Forked) && region.drop_range(..) == Err(Error::Forked);
        // SAFETY: leaves.
        unsafe { libc::_exit(if refused && region.stats() == Err(Error::Forked) { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0);
    check_all(&region, 0);
}

#[test]
fn calls_on_a_parent_s_region_fail_and_its_end_is_harmless() {
    for delivery in deliveries() {
        let mut region = region(delivery);
        let group = region.group().clone();
        let guard = region.resident(..MIB).unwrap();
        assert_eq!(child(|| region.evict(..) == Err(Error::Forked) && region.stats() == Err(Error::Forked)), 0);
        drop(guard);
        assert_eq!(child(|| region.drop_range(..) == Err(Error::Forked) && group.set_ram(32 << 20) == Err(Error::Forked)), 0);
        let copy = &raw const region;
        let end = || {
            // SAFETY: the child has a copy of the struct of its own, and does not use it again.
            drop(unsafe { copy.read() });
            drop(group.clone());
            true
        };
        assert_eq!(child(end), 0);
        check_all(&region, 0);
    }
}

#[test]
fn a_child_may_have_regions_of_its_own_and_children() {
    let parent = region(Delivery::InThread);
    let status = child(|| {
        let mine = region(Delivery::InThread);
        let grandchild = child(|| {
            check_all(&region(Delivery::InThread), 0);
            true
        });
        check_all(&mine, 0);
        grandchild == 0
    });
    assert_eq!(status, 0);
    check_all(&parent, 0);
}

#[test]
fn forks_while_threads_fault() {
    for delivery in deliveries() {
        let region = region(delivery);
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(std::sync::atomic::Ordering::Relaxed) {
                        check_all(&region, 0);
                    }
                });
            }
            for _ in 0..20 {
                assert_eq!(child(|| region.evict(..) == Err(Error::Forked)), 0);
            }
            over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
