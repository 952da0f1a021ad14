//! Memory of one process: one big malloc, millions of small ones, streams of new mappings, the break, locked memory.

use crate::check::{Data, Growth, compare, ends_well};
use crate::machine::{native_only, turn};
use crate::measure::{Limit, Swap};
use crate::programs::job;

fn program(label: &str, name: &str, arguments: &str, growth: Growth, data: Data) {
    let Some(_turn) = turn() else { return };
    let Some(job) = job(label, name, arguments) else { return };
    compare(&job, growth, data, ends_well);
}

#[test]
#[ignore = "takes long: make test-long"]
fn patterns_in_one_malloc() {
    program("one malloc, patterns", "one_malloc", "256 zwt", Growth::Existing, Data::Compressible);
}

#[test]
fn text_in_one_malloc() {
    program("one malloc, text", "one_malloc", "192 t", Growth::Existing, Data::Compressible);
}

#[test]
#[ignore = "takes long: make test-long"]
fn noise_in_one_malloc() {
    program("one malloc, noise", "one_malloc", "160 n 10000", Growth::Existing, Data::Any);
}

#[test]
#[ignore = "takes long: make test-long"]
fn everything_in_one_malloc() {
    program("one malloc, all kinds", "one_malloc", "192 ztnwtn 10000", Growth::Existing, Data::Any);
}

#[test]
#[ignore = "takes long: make test-long"]
fn millions_of_small_mallocs() {
    program("small mallocs", "small_mallocs", "2500000", Growth::Existing, Data::Compressible);
}

#[test]
fn stream_of_mappings() {
    program("stream of mappings", "new_mappings", "mmap 384", Growth::Stream, Data::Compressible);
}

#[test]
fn stream_of_mallocs() {
    program("stream of mallocs", "new_mappings", "malloc 384", Growth::Stream, Data::Compressible);
}

#[test]
fn growing_break() {
    program("growing break", "brk_growth", "200", Growth::Existing, Data::Compressible);
}

/// Small locks are honoured, large ones recorded and not: either way the calls succeed, and the limit holds.
#[test]
#[ignore = "takes long: make test-long"]
fn locked_memory() {
    program("locked memory", "locked_memory", "200", Growth::Existing, Data::Compressible);
}

/// Which parts of a mapping were registered when makes no difference to the program.
#[test]
fn split_mappings() {
    program("split mappings", "split_mapping", "160", Growth::Existing, Data::Compressible);
}

/// The kernel allows a process only so many mappings, and they are the program's.
#[test]
fn mappings_are_left_for_the_program() {
    program("many ranges", "many_ranges", "96 2000", Growth::Existing, Data::Compressible);
}

/// 20,000 areas of 256 KiB at random addresses: what lowtide keeps of them must not depend on where they are.
#[test]
#[ignore = "takes long: make test-long"]
fn scattered_areas() {
    program("scattered areas", "scattered", "20000 4", Growth::Stream, Data::Compressible);
}

/// What a program calls memcpy is its own affair, and none of lowtide's threads.
#[test]
fn programs_with_their_own_memcpy() {
    program("own memcpy", "own_memcpy", "96", Growth::Existing, Data::Compressible);
}

/// The kernel makes a mapping larger by itself when it is touched below its start.
#[test]
#[ignore = "takes long: make test-long"]
fn stacks_that_the_kernel_grows() {
    program("MAP_GROWSDOWN", "grows_down", "20 64", Growth::Existing, Data::Any);
}

/// Code beside data, as in the heaps of some runtimes: it is executed while it is evicted, and a collector changes what may be done
/// with it.
#[test]
fn heaps_that_may_be_executed() {
    program("executable heap", "executable_heap", "96 4 6", Growth::Existing, Data::Compressible);
}

/// Such memory can't leave where nothing more may be made executable (PR_SET_MDWE): the program runs on, over its limit.
#[test]
fn heaps_that_may_be_executed_where_no_more_may_be() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("executable heap, and no more", "executable_heap", "48 1 0") else { return };
    let native = job.native();
    assert!(ends_well(&native), "the native run is unsound: {native:?}");
    if native_only() {
        return;
    }
    let limited = job.limited(&Limit { ram: 24 << 20, swap: Swap::Ram });
    assert_eq!((limited.status, &limited.stdout), (native.status, &native.stdout), "{}", limited.stderr);
    assert!(limited.stderr.contains("can't be moved out"), "it says nothing: {}", limited.stderr);
}

/// What a program serves itself is left to it, all else is paged.
#[test]
fn programs_with_their_own_userfaultfd() {
    program("own userfaultfd", "own_userfaultfd", "early 128", Growth::Existing, Data::Any);
}

/// It gets back what lowtide had registered.
#[test]
fn programs_with_their_own_userfaultfd_under_pressure() {
    program("own userfaultfd, late", "own_userfaultfd", "late 128", Growth::Existing, Data::Any);
}
