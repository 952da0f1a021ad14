//! Which CPUs this process may use, and the post of which fault handler thread each of them is served from: of its own, or,
//! where there are more CPUs than posts, of a group of neighbours.

use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use lowtide_core::cpu_groups;
use lowtide_core::kernel_text;
use lowtide_core::percpu::{each_in_list, last_in};
use lowtide_pager::sys::Line;

use crate::{agent, thread};

/// Most CPUs that Linux can have on x86-64.
const MAX_CPU: usize = 8192;
/// Most posts: a fault wakes all threads that watch, so more of them cost more.
pub const MAX_POSTS: usize = lowtide_core::posts::POSTS;

/// The post of each CPU, plus 1; 0: the process may not use it.
static POST_OF: [AtomicU8; MAX_CPU] = [const { AtomicU8::new(0) }; MAX_CPU];
/// How many posts there are.
static POSTS: AtomicUsize = AtomicUsize::new(1);

/// A set of CPUs, as the kernel's calls take it.
#[derive(Clone)]
pub struct CpuMask([u64; MAX_CPU / 64]);

impl CpuMask {
    /// Without any.
    pub const fn new() -> CpuMask {
        CpuMask([0; MAX_CPU / 64])
    }

    /// Whether it has this one.
    fn has(&self, cpu: usize) -> bool {
        self.0[cpu / 64] >> (cpu % 64) & 1 == 1
    }

    fn add(&mut self, cpu: usize) {
        self.0[cpu / 64] |= 1 << (cpu % 64);
    }

    /// Its words.
    pub fn words(&mut self) -> &mut [u64] {
        &mut self.0
    }
}

/// How many posts there are, at least one.
pub fn posts() -> usize {
    POSTS.load(Ordering::Relaxed)
}

/// The post that serves a CPU. (A thread of the program may be where the process as a whole may not: at any of them, then, but
/// always at the same.)
pub fn post_of(cpu: u32) -> usize {
    match POST_OF.get(cpu as usize).map(|post| post.load(Ordering::Relaxed)) {
        None | Some(0) => cpu as usize % posts(),
        Some(post) => usize::from(post - 1),
    }
}

/// The CPUs that a post serves; all that the process may use, where they have become fewer and it has none.
pub fn cpus_of(post: usize) -> CpuMask {
    let (mut own, mut all, mut has_any) = (CpuMask::new(), CpuMask::new(), false);
    for (cpu, of) in POST_OF.iter().enumerate() {
        let of = usize::from(of.load(Ordering::Relaxed));
        if of != 0 {
            all.add(cpu);
        }
        if of == post + 1 {
            own.add(cpu);
            has_any = true;
        }
    }
    if has_any { own } else { all }
}

/// The CPUs on which threads of this process may run, by what its first thread and the calling one may; None: the kernel does
/// not say.
fn allowed() -> Option<CpuMask> {
    // Each may be confined for reasons of its own: the one by the program, the other by the thread that forked.
    let mut all = thread::affinity(0)?;
    if let Some(mut first) = thread::affinity(agent::pid()) {
        all.words().iter_mut().zip(first.words()).for_each(|(all, first)| *all |= *first);
    }
    Some(all)
}

/// Looks which CPUs this process may use: whether that has changed. By the reclaimer.
pub fn look() -> bool {
    let Some(allowed) = allowed() else { return false };
    let is_known = |cpu: usize| POST_OF[cpu].load(Ordering::Relaxed) != 0;
    if (0..MAX_CPU).all(|cpu| is_known(cpu) == allowed.has(cpu)) {
        return false;
    }
    share_out(&allowed);
    true
}

/// Gives each CPU its post. (Apart: it takes much of a stack that else has little in memory.)
#[cold]
#[inline(never)]
fn share_out(allowed: &CpuMask) {
    let mut cpus: ArrayVec<u16, MAX_CPU> = (0..MAX_CPU as u16).filter(|&cpu| allowed.has(cpu.into())).collect();
    let most = most_posts();
    let mut places = [0; MAX_CPU];
    if cpus.len() > most {
        find_places(&cpus, &mut places);
    }
    (0..MAX_CPU).filter(|&cpu| !allowed.has(cpu)).for_each(|cpu| POST_OF[cpu].store(0, Ordering::Relaxed));
    let posts = cpu_groups::divide(
        &mut cpus,
        most,
        |cpu| places[usize::from(cpu)],
        |cpu, post| POST_OF[usize::from(cpu)].store(post as u8 + 1, Ordering::Relaxed),
    );
    POSTS.store(posts.max(1), Ordering::Relaxed);
}

fn most_posts() -> usize {
    #[cfg(feature = "faults")]
    if let Some(most) = lowtide_core::faults::most_handlers() {
        return most;
    }
    MAX_POSTS
}

/// Numbers for CPUs: the same for those that share a cache and a node, and near for those that share a node only. Where the
/// kernel does not say, all are near.
fn find_places(cpus: &[u16], places: &mut [u16; MAX_CPU]) {
    let mut next = 1;
    for node in 0..=last_in(c"/sys/devices/system/node/has_cpu").unwrap_or(0) {
        let mut of_node = CpuMask::new();
        let mut path = Line::new();
        path.push(b"/sys/devices/system/node/node").number(node as u64).push(b"/cpulist");
        if !read_list(path.bytes(), |cpu| of_node.add(cpu)) {
            continue;
        }
        for &cpu in cpus {
            if !of_node.has(cpu.into()) || places[usize::from(cpu)] != 0 {
                continue;
            }
            let mut path = Line::new();
            path.push(b"/sys/devices/system/cpu/cpu").number(cpu.into()).push(b"/cache/index3/shared_cpu_list");
            read_list(path.bytes(), |near| {
                if of_node.has(near) {
                    places[near] = next;
                }
            });
            places[usize::from(cpu)] = next;
            next += 1;
        }
    }
}

/// Calls `f` with each CPU of a list of the kernel's. False: it can't be read.
fn read_list(path: &[u8], f: impl FnMut(usize)) -> bool {
    let mut text = [0u8; 4096];
    kernel_text::read(path, &mut text).map(|list| each_in_list(list, MAX_CPU, f)).is_some()
}
