//! What the program gives up of its rights, lowtide's threads give up too: they share its memory, and whoever takes the program
//! over has them as well.
//!
//! The kernel keeps rights for each thread, and the C library changes those of its own threads only. The reclaimer looks once a
//! second what those of the program's main thread are, and follows when they have stayed the same for a second; the fault handler
//! threads follow it. A seccomp filter that the program sets may forbid the calls that this takes, and would end the program for
//! them: a thread of lowtide's that has got one stays as it is.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lowtide_core::kernel_text;
use lowtide_pager::sys::credentials::Credentials;
use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, capabilities, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::watch;

/// Between two looks, in microseconds.
const LOOK_US: u64 = 1_000_000;
/// What is read of a thread's `status`. With hundreds of groups the capabilities are cut off, and taken for none.
const TEXT: usize = 4096;

/// How often the reclaimer has followed.
static FOLLOWED: AtomicU32 = AtomicU32::new(0);
/// Filters that the reclaimer began with, of a container or a service: the program itself gives up its rights under them.
static FILTERS: AtomicU64 = AtomicU64::new(0);

fn of(path: &core::ffi::CStr) -> Option<Credentials> {
    let mut text = [0u8; TEXT];
    Some(Credentials::parse(kernel_text::read(path, &mut text)?))
}

/// Those of the program's main thread.
fn of_program() -> Option<Credentials> {
    of(c"/proc/self/status").map(without_filters)
}

/// Filters are not copied.
fn without_filters(credentials: Credentials) -> Credentials {
    Credentials { filters: 0, ..credentials }
}

fn of_this_thread() -> Option<Credentials> {
    of(c"/proc/thread-self/status")
}

/// Makes what the program has the calling thread's, which has `own`, as far as it may: it gains nothing.
fn take(program: &Credentials, own: &Credentials) {
    let Ok(dumpable) = dumpable_behavior() else { return };
    if (program.groups, program.group, program.user) != (own.groups, own.group, own.user) {
        let _ = set_thread_groups(&[]);
    }
    let [real, effective, saved] = program.group.map(Gid::from_raw);
    let _ = set_thread_res_gid(real, effective, saved);
    for capability in CapabilitySet::from_bits_retain(own.bounding & !program.bounding).iter() {
        let _ = remove_capability_from_bounding_set(capability);
    }
    let [real, effective, saved] = program.user.map(Uid::from_raw);
    let _ = set_thread_res_uid(real, effective, saved);
    if let Ok(now) = capabilities(None) {
        let [inheritable, permitted, effective] =
            [program.inheritable, program.permitted, program.effective].map(CapabilitySet::from_bits_retain);
        let permitted = now.permitted & permitted;
        let _ = set_capabilities(
            None,
            CapabilitySets { permitted, effective: effective & permitted, inheritable: now.inheritable & inheritable },
        );
    }
    if program.no_new_privileges {
        let _ = set_no_new_privs(true);
    }
    // To become another user makes a process one that others may not look into, and the program may have said otherwise since.
    if dumpable == DumpableBehavior::Dumpable {
        let _ = set_dumpable_behavior(dumpable);
    }
}

/// The calling thread gives up what the program has not. False: it has got a filter, or what the program has can't be seen.
fn follow(program: &Credentials) -> bool {
    match of_this_thread() {
        Some(own) if own.filters == FILTERS.load(Ordering::Relaxed) => {
            take(program, &own);
            true
        }
        _ => false,
    }
}

/// The reclaimer's looks.
pub struct Look {
    /// What the program had when it was last followed.
    followed: Option<Credentials>,
    /// What it had at the last look.
    seen: Option<Credentials>,
    looked_us: u64,
}

impl Look {
    /// At its start, when it has what the thread had that started it.
    pub fn new() -> Look {
        let own = of_this_thread();
        FILTERS.store(own.map_or(0, |own| own.filters), Ordering::Relaxed);
        let own = own.map(without_filters);
        Look { followed: own, seen: own, looked_us: 0 }
    }

    /// Now and then: looks, if it is time for it, and lets lowtide's threads give up what the program has given up.
    pub fn now(&mut self, now_us: u64) {
        if now_us.saturating_sub(self.looked_us) < LOOK_US {
            return;
        }
        self.looked_us = now_us;
        let Some(program) = of_program() else { return };
        // A program that is about to give up something more, or to set a filter, is not followed half way.
        let stays = self.seen.replace(program) == Some(program);
        if stays && self.followed != Some(program) {
            self.followed = Some(program);
            if follow(&program) {
                // Release: pairs with the Acquire in `Handler::follow`.
                FOLLOWED.fetch_add(1, Ordering::Release);
                watch::call_all();
            }
        }
    }
}

/// A fault handler thread's.
pub struct Handler(u32);

impl Handler {
    /// At its start: it has what the reclaimer has, who has started it.
    pub fn new() -> Handler {
        Handler(FOLLOWED.load(Ordering::Acquire))
    }

    /// Does what the reclaimer has done since.
    pub fn follow(&mut self) {
        // Acquire: pairs with the Release in `Look::now`.
        let followed = FOLLOWED.load(Ordering::Acquire);
        if followed != self.0 {
            self.0 = followed;
            if let Some(program) = of_program() {
                follow(&program);
            }
        }
    }
}
