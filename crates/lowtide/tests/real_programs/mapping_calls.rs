//! Calls that change mappings or drop pages, under a limit: mremap in all its cases, pages that are dropped without an event,
//! and calls that fill memory, which take long.

use crate::cgroup::Cgroup;
use crate::check::{Data, Growth, compare, ends_well};
use crate::machine::{limited_turn_beside, native_only, skipped, turn, turn_beside};
use crate::measure::{Job, Limit, Outcome, Swap};
use crate::programs::job;

/// Natively and at a limit: the same output, and something was evicted.
fn same(job: &Job, limit: &Limit) -> Option<Outcome> {
    let native = job.native();
    assert!(ends_well(&native), "{}: the native run is unsound: {native:?}", job.name);
    if native_only() {
        return None;
    }
    let limited = job.limited(limit);
    let differ: Vec<_> =
        native.stdout.lines().zip(limited.stdout.lines()).filter(|(native, limited)| native != limited).collect();
    assert!(differ.is_empty(), "{}: natively, and under lowtide: {differ:#?}", job.name);
    assert_eq!((limited.status, &limited.stdout), (native.status, &native.stdout), "{}: {}", job.name, limited.stderr);
    assert!(limited.stat("evictions.pages") > 0.0, "{}: nothing was evicted: {}", job.name, limited.stats);
    Some(limited)
}

/// What each call returns, and which pages are mapped afterwards, is the same natively; the bytes are right.
#[test]
fn mremap_in_all_cases() {
    let Some(_turn) = turn_beside() else { return };
    let Some(job) = job("mremap", "mremap_cases", "96") else { return };
    same(&job, &Limit { ram: 40 << 20, swap: Swap::Ram });
}

/// That a range was unmapped is told after it was, when something else may be there.
#[test]
#[ignore = "takes long: make test-long"]
fn what_was_unmapped_is_in_use_again() {
    let Some(_turn) = turn_beside() else { return };
    let Some(job) = job("taken place", "taken_place", "32 10") else { return };
    same(&job, &Limit { ram: 40 << 20, swap: Swap::Ram });
}

/// What is dropped is gone when the call returns, however much it is, and though lowtide lets go of it in parts.
#[test]
#[ignore = "takes long: make test-long"]
fn large_removals() {
    let Some(_turn) = turn_beside() else { return };
    let Some(job) = job("large removals", "large_removals", "384").map(Job::with_forks) else { return };
    same(&job, &Limit { ram: 64 << 20, swap: Swap::Ram });
}

/// More threads want mappings to be registered than there are places for what is asked.
#[test]
fn many_threads_map_memory() {
    let Some(_turn) = turn_beside() else { return };
    let Some(job) = job("mappers", "mappers", "150 16") else { return };
    same(&job, &Limit { ram: 40 << 20, swap: Swap::Ram });
}

/// Calls that are left by a jump out of a signal handler, with the thread, or in a child of vfork that is killed: nobody waits for
/// what was left behind, and all memory is under the limit. Before there was anything to evict, and after.
#[test]
fn calls_that_are_left_in_another_way_than_by_a_return() {
    let Some(_turn) = turn() else { return };
    let after = ["jump", "altstack", "deep", "ask", "exit", "gone", "cancel", "vfork"].map(|way| (way, 96));
    let before = ["jump", "drop", "exit", "vfork"].map(|way| (way, 0));
    for (way, filled) in after.into_iter().chain(before) {
        let name = format!("{way} out of a call, after {filled} MiB");
        let Some(job) = job(&name, "left_calls", &format!("{way} 10 {filled} 64")) else { return };
        let ram = 48 << 20;
        let Some(limited) = same(&job, &Limit { ram, swap: Swap::Ram }) else { continue };
        assert!(limited.stat("ram_peak") < ram as f64 * 7.0 / 6.0, "{name}: {}", limited.stats);
    }
}

/// Others than a thread that gives memory back make calls meanwhile, by the id that the C library keeps for that thread.
fn calls_of(who: &str, words: &str) {
    let Some(job) = job(&format!("calls of a {who}"), "whose_calls", &format!("{who} {words}")) else { return };
    let outcome = job.with_forks().limited(&Limit { ram: 48 << 20, swap: Swap::Ram });
    assert!(outcome.status == 0 && outcome.stdout == "all zeros\n", "{who}: {outcome:?}");
    assert!(outcome.stat("evictions.pages") > 0.0, "{who}: nothing was evicted: {}", outcome.stats);
}

/// Their calls are not taken for that thread's, whose pages would be back with their old bytes. (Natively the thread gets no CPU.)
#[test]
fn calls_are_those_of_their_own_thread() {
    let Some(_turn) = limited_turn_beside() else { return };
    calls_of("thread", "24 40");
    calls_of("process", "24 10");
}

/// The same in a child of `clone`, of which other threads fork.
#[test]
#[ignore = "takes long: make test-long"]
fn calls_in_a_cloned_child_are_those_of_their_own_thread() {
    let Some(_turn) = limited_turn_beside() else { return };
    calls_of("fork", "32 60");
}

/// A guard that is taken away again leaves zeros, not what was evicted there.
#[test]
fn pages_under_a_guard_are_gone() {
    let Some(_turn) = turn_beside() else { return };
    let Some(job) = job("guards", "dropped_pages", "guard 0 96 8") else { return };
    same(&job, &Limit { ram: 40 << 20, swap: Swap::Ram });
}

/// From Linux 6.15 on the kernel drops pages that were freed by MADV_FREE from where lowtide has moved them, too.
#[test]
#[ignore = "takes long: make test-long"]
fn freed_pages_are_dropped_anywhere() {
    let Some(_turn) = turn_beside() else { return };
    let Some(job) = job("MADV_FREE", "dropped_pages", "free 24 64 8") else { return };
    let Some(cgroup) = Cgroup::of_memory(96 << 20) else { return };
    let Some(job) = cgroup.around(job) else { return };
    same(&job, &Limit { ram: 48 << 20, swap: Swap::Ram });
}

/// A collector's write barrier takes the right to write away for a while, and then the kernel moves no page. No more moves are tried
/// than pages leave; where too much must stay, that is said once.
#[test]
fn memory_that_may_not_be_written_is_not_tried_in_vain() {
    let Some(_turn) = turn() else { return };
    for arguments in ["32 2 whole", "32 2 halves"] {
        let Some(job) = job(&format!("read-only memory {arguments}"), "read_only", arguments) else { return };
        let Some(limited) = same(&job, &Limit { ram: 24 << 20, swap: Swap::Ram }) else { return };
        let (tried, left) = (limited.stat("evictions.moved_calls"), limited.stat("evictions.pages"));
        assert!(left > 0.0 && tried <= left, "{arguments}: {tried} moves for {left} pages: {}", limited.stderr);
        let said = limited.stderr.matches("can't be moved out").count();
        assert!(said <= 1, "{arguments}: {}", limited.stderr);
    }
}

/// A page that is out has no soft-dirty bit. So nothing leaves once somebody has cleared these bits, and that is said.
#[test]
fn written_pages_are_soft_dirty() {
    let Some(_turn) = turn() else { return };
    for arguments in ["8 24 own", "8 24 another"] {
        let Some(job) = job(&format!("soft-dirty bits {arguments}"), "soft_dirty", arguments).map(Job::with_forks) else {
            return;
        };
        let native = job.native();
        if native.status == 77 {
            return skipped::skipped("this kernel has no soft-dirty bits (CONFIG_MEM_SOFT_DIRTY)");
        }
        if native_only() {
            continue;
        }
        let limited = job.limited(&Limit { ram: 18 << 20, swap: Swap::Ram });
        assert_eq!((limited.status, &limited.stdout), (0, &native.stdout), "{arguments}: {}", limited.stderr);
        assert_eq!(limited.stderr.matches("soft-dirty bits").count(), 1, "{arguments}: {}", limited.stderr);
    }
}

/// Runs a program natively and in so many bytes of RAM, where no sample of it may be above the bound.
fn stays_below(program: &str, arguments: &str, ram: u64, bound: u64) {
    let Some(job) = job(&format!("{program} {arguments}"), program, arguments) else { return };
    let Some(limited) = same(&job, &Limit { ram, swap: Swap::Ram }) else { return };
    assert!(limited.peak <= bound, "{arguments}: peak {} bytes, allowed {bound}: {}", limited.peak, limited.stderr);
}

/// While a thread waits for all of a range, again and again, the reclaimer goes on looking for mappings that it was not told of.
#[test]
fn mappings_are_found_while_a_range_is_populated() {
    let Some(_turn) = turn() else { return };
    stays_below("populate", "advice 256 96", 56 << 20, Growth::Stream.bound(56 << 20));
}

/// One call fills much more than the limit, before anything is registered.
#[test]
fn what_is_filled_by_one_call_keeps_the_limit() {
    let Some(_turn) = turn() else { return };
    for arguments in ["once 384", "once-advice 384"] {
        stays_below("populate", arguments, 96 << 20, Growth::Stream.bound(96 << 20));
    }
}

/// Where the kernel has mapped its page of zeros, a write is none of a missing page, and is held back all the same.
#[test]
fn what_was_only_read_is_held_back_when_it_is_written() {
    let Some(_turn) = turn() else { return };
    let ram = 96 << 20;
    stays_below("read_before", "1024 4", ram, Growth::Stream.bound(ram));
}

/// By huge pages the program grows at the speed of memory until there are traps everywhere, and where the host takes the CPUs away
/// from who sets them, for as much longer: so the middle one of three runs counts.
#[test]
#[ignore = "takes long: make test-long"]
fn what_was_only_read_is_held_back_when_it_is_written_by_huge_pages() {
    let Some(_turn) = turn() else { return };
    let limit = Limit { ram: 96 << 20, swap: Swap::Ram };
    let Some(job) = job("read before, huge pages", "read_before", "1024 4 huge") else { return };
    let Some(mut peaks) = (0..3).map(|_| same(&job, &limit).map(|limited| limited.peak)).collect::<Option<Vec<_>>>() else {
        return;
    };
    peaks.sort_unstable();
    assert!(peaks[1] <= 3 * limit.ram && peaks[2] <= 6 * limit.ram, "peaks {peaks:?} bytes, of {}", limit.ram);
}

/// Zeros that are read again and again are the kernel's one zero page, in a forked child as well; who writes there is held back.
#[test]
#[ignore = "takes long: make test-long"]
fn zeros_that_were_read_are_held_back_when_they_are_written() {
    let Some(_turn) = turn() else { return };
    let limit = Limit { ram: 96 << 20, swap: Swap::Ram };
    let Some(job) = job("zeros that are read", "zero_reads", "512 4") else { return };
    let Some(limited) = same(&job, &limit) else { return };
    let bound = Growth::Stream.bound(limit.ram);
    assert!(limited.peak <= bound, "peak {} bytes, allowed {bound}: {}", limited.peak, limited.stderr);
    // 131,072 pages are read seven times in no order.
    let faults = limited.stat("faults.total");
    assert!(faults < 500_000.0, "{faults} faults: {}", limited.stderr);
}

/// What has grown in place stays one mapping to the kernel, also when writes to zeros come to be reported, and in a forked child.
/// (Before Linux 6.11 the former is not so.)
#[test]
fn what_has_grown_can_be_moved_after_writes_are_watched() {
    let Some(_turn) = turn_beside() else { return };
    let Some(job) = job("mappings that have grown", "grown_tail", "64 100") else { return };
    same(&job, &Limit { ram: 32 << 20, swap: Swap::Ram });
}

/// A file that is mapped and read at once holds nobody up.
#[test]
#[ignore = "takes long: make test-long"]
fn a_file_is_populated() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("populate a file", "populate", "file 64 96 12") else { return };
    compare(&job, Growth::Existing, Data::Compressible, ends_well);
}
