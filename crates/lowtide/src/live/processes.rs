//! The processes of a run one by one.

use lowtide_config::proc::Stat;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_wire::segment::{Proc, Segment, proc_state};
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Serialize)]
pub struct Process {
    /// In its own pid namespace.
    pub pid: u32,
    /// The pid of its parent, or 0.
    pub parent: u32,
    /// `/proc/PID/comm` of its first thread, or empty.
    pub name: String,
    /// `watching`: at native speed, nothing registered; or `active`.
    pub state: &'static str,
    /// All that counts for it.
    pub ram_bytes: u64,
    /// Of that, lowtide's own.
    pub own_bytes: u64,
    /// Of that, the program's.
    pub resident_bytes: u64,
    /// Of lowtide's own, pages in staging, and the pool.
    pub staged_bytes: u64,
    pub pool_bytes: u64,
    /// Bytes of its pages in the pool or on a device; ...
    pub out_bytes: u64,
    /// ... of those, on a device.
    pub on_device_bytes: u64,
    /// Registered bytes of address space.
    pub adopted_bytes: u64,
    /// Faults served since its last exec, first touches included; ...
    pub faults: u64,
    /// ... and evicted pages.
    pub evicted_pages: u64,
}

/// Processes that live, or whose death was not noticed yet.
pub fn alive(segment: &Segment) -> impl Iterator<Item = &Proc> {
    segment.used_procs().iter().filter(|p| p.state.load(Ordering::Acquire) >= proc_state::WATCHING)
}

/// Whether a process has registered memory: no other has pages out.
pub fn is_active(p: &Proc) -> bool {
    p.state.load(Ordering::Acquire) == proc_state::ACTIVE
}

pub fn pid(p: &Proc) -> u32 {
    p.pid.load(Ordering::Relaxed)
}

fn name(pid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned()
}

pub fn list(segment: &Segment) -> Vec<Process> {
    let get = |gauge: &AtomicU64| gauge.load(Ordering::Relaxed);
    let pages = |gauge: &AtomicU64| get(gauge).saturating_mul(PAGE_SIZE as u64);
    let list = alive(segment).map(|p| Process {
        pid: pid(p),
        parent: Stat::of(pid(p)).map_or(0, |stat| stat.parent),
        name: name(pid(p)),
        state: if is_active(p) { "active" } else { "watching" },
        ram_bytes: get(&p.ram_bytes),
        own_bytes: get(&p.own_bytes),
        resident_bytes: get(&p.ram_bytes).saturating_sub(get(&p.own_bytes)),
        staged_bytes: get(&p.staged_bytes),
        pool_bytes: get(&p.pool_bytes),
        out_bytes: pages(&p.now_stored),
        on_device_bytes: pages(&p.now_on_device),
        adopted_bytes: get(&p.adopted_bytes),
        faults: get(&p.counters.faults_total),
        evicted_pages: get(&p.counters.evictions_pages),
    });
    list.collect()
}
