//! The agent's entry in every process of a run:
//!
//! - The loader runs the constructor before main, first of all if it can (`hooks/beside.rs`).
//!   Usually the process has one thread, but nothing relies on that.
//! - In a program without a loader, `lowtide run` maps this library during exec and calls
//!   [`lowtide_enter`] before the first instruction. The three functions from the C library are
//!   missing there, and no code on that path may call them.
//!
//! Only glibc gets hooks. Elsewhere lowtide finds memory calls and forks like raw system calls.

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::Ordering;

use linux_raw_sys::general as sys;
use lowtide_core::vm::{self, PAGE_SIZE, Whose};
use lowtide_wire::segment::NO_PLACE;
use rustix::fd::{FromRawFd, OwnedFd, RawFd};

use crate::exec::environment::variables;
use crate::exec::{self, follow, one_shot_fd, settings_variable};
use crate::fork;
use crate::handlers::{descriptors, in_thread};
use crate::hooks;
use crate::hooks::objects::{self, Object};
use crate::process::files::{self, Files};
use crate::process::thread::{self, syscall3};
use crate::process::{agent, pid_in_run, resident, say, skip, thread_end};
use crate::reclaimer;

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = construct;

unsafe extern "C" {
    static __ehdr_start: u8;
    static _end: u8;
}

const STRANGE_LIBRARY: &[u8] = b"a process of the run is not limited: lowtide can't tell where its C library is";

extern "C" fn construct(_argc: c_int, _argv: *const *const c_char, envp: *const *const c_char) {
    match objects::c_library() {
        Some(library) => begin(envp, CLibrary::Glibc(library), None, 0),
        None => match objects::musl().and_then(|musl| musl.symbol(c"environ")) {
            Some(environ) => {
                // SAFETY: the C library's variable, already set.
                begin(unsafe { *(environ.at as *const *const *const c_char) }, CLibrary::WithoutHooks, None, 0);
                thread_end::tells_word();
                if agent::present() && exec::can_follow() {
                    follow::calls();
                }
            }
            None => begin(envp, CLibrary::Unknown, None, 0),
        },
    }
}

/// Called by `lowtide run`, which traces a program without a loader, in its only thread, on its
/// stack. `settings`, `segment`: descriptors of the run's files, or -1 if the process may follow
/// their paths. `parent`: the run's number of the process copied here, or 0.
#[unsafe(no_mangle)]
extern "C" fn lowtide_enter(envp: *const *const c_char, settings: RawFd, segment: RawFd, parent: u32) -> ! {
    let open = (settings >= 0 && segment >= 0).then(|| {
        // SAFETY: left open by `lowtide run` for this function alone.
        unsafe { (OwnedFd::from_raw_fd(settings), OwnedFd::from_raw_fd(segment)) }
    });
    begin(envp, CLibrary::WithoutHooks, open, parent);
    // `lowtide run` waits for this signal, drops it, and restores the registers.
    loop {
        let thread = thread::id();
        // SAFETY: touches no memory.
        unsafe { syscall3(sys::__NR_tgkill, agent::pid() as usize, thread as usize, sys::SIGSTOP as usize) };
    }
}

enum CLibrary {
    Glibc(Object),
    WithoutHooks,
    Unknown,
}

/// `open`: the run's files, if open. `parent`: as for [`lowtide_enter`].
fn begin(envp: *const *const c_char, library: CLibrary, open: Option<(OwnedFd, OwnedFd)>, parent: u32) {
    let found = find_settings(envp).and_then(|origin| match &open {
        Some((settings, segment)) => files::map_open(settings, segment),
        None => files::map(origin),
    });
    let preload = found
        .as_ref()
        .map_or(&b""[..], |files| CStr::from_bytes_until_nul(&files.settings.preload).map_or(b"", CStr::to_bytes));
    // SAFETY: the constructor runs once.
    unsafe { one_shot_fd::finish(envp, preload) };
    let Some(Files { settings, segment, by_number }) = found else { return };
    agent::set_run(settings, segment);
    #[cfg(feature = "faults")]
    // SAFETY: passed by the C library to constructors.
    unsafe {
        crate::faults::install(envp)
    };
    let (start, end) = (&raw const __ehdr_start as usize, &raw const _end as usize);
    let own = vm::own(start & !(PAGE_SIZE - 1), end.next_multiple_of(PAGE_SIZE), Whose::Lowtide);
    // lowtide's threads call memcpy and the like, which read the C library's variables: these must
    // never be swapped out.
    let own = own.and_then(|()| match &library {
        CLibrary::Glibc(library) => vm::own(library.range().0, library.range().1, Whose::Program),
        CLibrary::WithoutHooks | CLibrary::Unknown => Ok(()),
    });
    let number = pid_in_run::of_image(by_number);
    let Some(proc) = segment.claim(number.there) else { return say::warn(NO_PLACE) };
    agent::set_proc(proc, number);
    reclaimer::forget_requests(proc);
    if matches!(library, CLibrary::WithoutHooks) {
        agent::FORKS_UNSEEN.store(true, Ordering::Relaxed);
        proc.has_no_hooks();
        resident::in_copy(parent);
        // Other threads may be in calls that were let go on.
        if parent != 0 || !thread::has_one(0) {
            proc.lets_calls_go_on();
        }
        if parent != 0 {
            descriptors::close_parents();
            // The parent's, if the C library has one for all threads.
            let of_parent = segment.used_procs().iter().find(|other| other.pid.load(Ordering::Relaxed) == parent);
            match of_parent.map_or(0, |parent| parent.cleared_word.load(Ordering::Relaxed)) {
                0 => thread_end::tells_word(),
                word => proc.cleared_word.store(word, Ordering::Relaxed),
            }
        }
    }
    if own.is_err() || matches!(library, CLibrary::Unknown) {
        return say::warn(STRANGE_LIBRARY);
    }
    if let CLibrary::Glibc(library) = library {
        if let Some(why) = skip::why() {
            return say::warn(why);
        }
        // SAFETY: this is the constructor.
        unsafe { hooks::install(&library) };
        fork::install();
        in_thread::find_rseq();
    }
    if thread::spawn(reclaimer::fresh, 0).is_err() {
        say::warn(reclaimer::NO_THREAD);
    }
}

fn find_settings(envp: *const *const c_char) -> Option<&'static [u8]> {
    // SAFETY: the C library passes the environment to constructors.
    let mut all = unsafe { variables(envp) }.map(CStr::to_bytes_with_nul).filter(|variable| settings_variable::is_it(variable));
    // SAFETY: the constructor calls this, until one is kept.
    all.find_map(|variable| unsafe { settings_variable::keep(variable) })
}
