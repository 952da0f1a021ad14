//! Frames and stores of their own, without a pager: steps of an eviction and a fork that need a
//! full pool.

use std::hint::black_box;

use lowtide_core::frame::{Frames, LIST_FRAMES, Layout};
use lowtide_core::percpu;
use lowtide_core::store::{Codec, FileConfig, Image, Page, Scratch, Store, StoreConfig, StoreError, Stored};
use lowtide_core::vm::PAGE_SIZE;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use super::Step;
use super::subject::counted;

/// Of the pool: room for lists of all CPUs on all nodes.
pub(super) const POOL: usize = 4 << 30;
const FILE: u64 = 64 << 20;

/// Frames of the largest pool. Hands out all, and then tries one more.
pub(super) fn hand_out_frames(nodes: usize) -> Result<(), String> {
    let counts = vec![1024; nodes];
    let node_of_cpu: Vec<u8> = (0..percpu::count()).map(|cpu| (cpu * nodes / percpu::count()) as u8).collect();
    let layout = Layout { nodes: &counts, node_of_cpu: &node_of_cpu, list_frames: 64 * LIST_FRAMES };
    let frames = Frames::with_layout(layout).map_err(|e| format!("no frames: {e}"))?;
    counted(Step::Frame, || (0..64).for_each(|_| _ = black_box(frames.alloc_run(1))));
    // The last time counts: the first one into lists registers them for searches.
    for _ in 0..2 {
        let last = frames.alloc_on(percpu::count() - 1, 1).ok_or("no frame")?;
        counted(Step::Free, || frames.free_run(last, 1)).map_err(|_| "a frame can't be freed")?;
    }
    while frames.alloc_run(1).is_some() {}
    counted(Step::RunOut, || black_box(frames.alloc_run(1)));
    Ok(())
}

pub(super) fn new_store(pool_limit: usize) -> Result<Store, String> {
    Store::new(StoreConfig { pool_limit, accept_percent: 90, codec: Codec::Lz4 }).map_err(failed)
}

fn failed(e: StoreError) -> String {
    format!("the store: {e:?}")
}

/// Without a pool each page goes to the file at once: it takes a slot, and gives it back.
pub(super) fn store_to_file() -> Result<(), String> {
    let store = new_store(0)?;
    let fd = memfd_create(c"lowtide-lab", MemfdFlags::CLOEXEC).map_err(|e| format!("no file: {e}"))?;
    store.add_file(FileConfig::new(fd, FILE)).map_err(failed)?;
    let mut scratch = Scratch::new().map_err(|e| format!("no memory: {e:?}"))?;
    let (mut page, mut back): (Page, Page) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    fastrand::Rng::with_seed(1).fill(&mut page);
    // The last time counts: the first opens a cluster.
    for _ in 0..2 {
        let mut stored = [Ok(Stored::Zero)];
        counted(Step::Write, || store.store_run(&[&page], &[None], &mut stored, &mut scratch));
        let [Ok(Stored::Entry(entry))] = stored else { return Err("a page is not stored".to_owned()) };
        counted(Step::Read, || store.load(entry, &mut back, &mut scratch)).map_err(failed)?;
        counted(Step::FreeSlot, || store.free(entry));
    }
    if page == back { Ok(()) } else { Err("a page came back changed".to_owned()) }
}

/// A forked child's work on its copy of the store.
pub(super) fn store_of_child() -> Result<(), String> {
    let store = new_store(POOL)?;
    let mut scratch = Scratch::new().map_err(|e| format!("no memory: {e:?}"))?;
    let mut stored = [Ok(Stored::Zero)];
    let mut page = [0; PAGE_SIZE];
    page[..8].copy_from_slice(&7u64.to_ne_bytes());
    store.store_run(&[&page], &[None], &mut stored, &mut scratch);
    store.fork_add_references(Image::new(1), &mut |_| true);
    // SAFETY: this process has one thread, which makes no other call now: its store is as a child's
    // copy would be.
    let child = counted(Step::Child, || unsafe { store.fork_child(Image::new(2), &mut |_, _| Err(Errno::NOENT)) });
    child.map_err(|e| format!("a child has no store: {e:?}"))
}
