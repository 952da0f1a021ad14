//! A page that can't be read back is told to the thread that needs it, and to nobody else.

use std::io::{Seek, Write};
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use lowtide_region::{Delivery, Error, Region, Swap};

use crate::child;
use crate::content::{MIB, check_all, fill};

const DIR: &str = env!("CARGO_TARGET_TMPDIR");

/// A region many of whose pages are in a swap file that was overwritten since. A third of it is noise, twice what compressed
/// RAM could hold: how much more of it went to the file is a matter of time.
fn spoilt(delivery: Delivery) -> Region {
    let swap = Swap::Dir { dir: DIR.into(), size: None };
    let mut region = Region::builder(96 * MIB).ram(16 << 20).swap(swap).delivery(delivery).build().unwrap();
    fill(&mut region, 0);
    region.evict(..).unwrap();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().map(Result::unwrap) {
        if std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with(DIR)) {
            let mut file = std::fs::File::options().write(true).open(entry.path()).unwrap();
            file.rewind().unwrap();
            file.write_all(&vec![0x5a; 2 * region.len()]).unwrap();
        }
    }
    assert!(region.stats().unwrap().file_pages > 1000);
    region
}

#[test]
fn the_thread_gets_sigbus_and_one_line_says_why() {
    if let Some(delivery) = std::env::var_os("LOWTIDE_TEST_DELIVERY") {
        let delivery = if delivery == "monitor" { Delivery::UserMonitor } else { Delivery::InThread };
        check_all(&spoilt(delivery), 0);
        return;
    }
    for delivery in ["thread", "monitor"] {
        let mut command = child::command("lost::the_thread_gets_sigbus_and_one_line_says_why");
        let output = command.env("LOWTIDE_TEST_DELIVERY", delivery).output().unwrap();
        let text = child::text(&output);
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{text}");
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("could not be read back")).collect();
        assert_eq!(lines.len(), 1, "{text}");
        assert!(lines[0].contains(DIR) && lines[0].contains("SIGBUS"), "{text}");
    }
}

#[test]
fn calls_say_so_and_the_rest_goes_on() {
    let mut region = spoilt(Delivery::InThread);
    assert_eq!(region.prefetch(..), Err(Error::Lost));
    assert_eq!(region.resident(..8 * MIB).map(drop), Err(Error::Lost));
    region.drop_range(..).unwrap();
    fill(&mut region, 7);
    check_all(&region, 7);
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

/// The program's own handler, from before: it gets the fault, with its address.
extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's siginfo. The process ends here.
    unsafe {
        HANDLED.store((*info).si_addr() as usize, Ordering::Relaxed);
        libc::_exit(if (*info).si_addr() as usize == EXPECTED.load(Ordering::Relaxed) { 42 } else { 43 });
    }
}

static EXPECTED: AtomicUsize = AtomicUsize::new(0);

#[test]
fn a_handler_of_the_program_gets_it_with_its_address() {
    if child::is_child() {
        // SAFETY: a handler that is one.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as extern "C" fn(_, _, _) as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()), 0);
        }
        let region = spoilt(Delivery::InThread);
        // Some page is in the file, not all: the pool holds a part.
        for at in (0..region.len()).step_by(4096) {
            EXPECTED.store(region.as_ptr() as usize + at + 5, Ordering::Relaxed);
            std::hint::black_box(region.as_slice()[at + 5]);
        }
        return;
    }
    let output = child::command("lost::a_handler_of_the_program_gets_it_with_its_address").output().unwrap();
    assert_eq!(output.status.code(), Some(42), "{}", child::text(&output));
}
