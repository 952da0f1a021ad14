//! The CPUs that this process may use, and the handler's post for each: one per CPU or per group of
//! neighbours.

use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use lowtide_core::cpu_groups;
use lowtide_core::kernel_text;
use lowtide_core::percpu::{each_in_list, last_in};
use lowtide_sys::Line;

use crate::process::{agent, thread};

/// Linux's maximum on x86-64.
const MAX_CPU: usize = 8192;
/// Each fault wakes all pollers, so more posts cost more.
pub const MAX_POSTS: usize = lowtide_core::posts::POSTS;

/// The post of each CPU, plus 1; 0: not for this process.
static POST_OF: [AtomicU8; MAX_CPU] = [const { AtomicU8::new(0) }; MAX_CPU];
static POSTS: AtomicUsize = AtomicUsize::new(1);

#[derive(Clone)]
pub struct CpuMask([u64; MAX_CPU / 64]);

impl CpuMask {
    pub const fn new() -> CpuMask {
        CpuMask([0; MAX_CPU / 64])
    }

    fn has(&self, cpu: usize) -> bool {
        self.0[cpu / 64] >> (cpu % 64) & 1 == 1
    }

    fn add(&mut self, cpu: usize) {
        self.0[cpu / 64] |= 1 << (cpu % 64);
    }

    pub fn words(&mut self) -> &mut [u64] {
        &mut self.0
    }
}

pub fn posts() -> usize {
    POSTS.load(Ordering::Relaxed)
}

/// A thread may be on another CPU than the process's: then any post, but always the same.
pub fn post_of(cpu: u32) -> usize {
    match POST_OF.get(cpu as usize).map(|post| post.load(Ordering::Relaxed)) {
        None | Some(0) => cpu as usize % posts(),
        Some(post) => usize::from(post - 1),
    }
}

/// Of a post without any: all of the process's.
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

fn allowed() -> Option<CpuMask> {
    // The program may confine one, the forking thread the other.
    let mut all = thread::affinity(0)?;
    if let Some(mut first) = thread::affinity(agent::pid()) {
        all.words().iter_mut().zip(first.words()).for_each(|(all, first)| *all |= *first);
    }
    Some(all)
}

/// Whether the CPUs have changed. For the reclaimer.
pub fn look() -> bool {
    let Some(allowed) = allowed() else { return false };
    let is_known = |cpu: usize| POST_OF[cpu].load(Ordering::Relaxed) != 0;
    if (0..MAX_CPU).all(|cpu| is_known(cpu) == allowed.has(cpu)) {
        return false;
    }
    share_out(&allowed);
    true
}

/// Apart, because it uses much stack.
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

/// Equal numbers share a cache and a node, near ones a node. Without data all are near.
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

fn read_list(path: &[u8], f: impl FnMut(usize)) -> bool {
    let mut text = [0u8; 4096];
    kernel_text::read(path, &mut text).map(|list| each_in_list(list, MAX_CPU, f)).is_some()
}
