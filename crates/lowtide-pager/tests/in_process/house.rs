//! A pager with its threads, and regions that it pages. With LOWTIDE_REFERENCES=on each page that leaves is asked for references, as
//! where NFS is mounted.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lowtide_core::codec::Codec;
use lowtide_core::device::DeviceName;
use lowtide_core::store::{FileConfig, Store, StoreConfig};
use lowtide_pager::fault::Handler;
use lowtide_pager::mappings::Changes;
use lowtide_pager::pager::{Host, Pager};
use lowtide_pager::pages::{Rights, Worker};
use lowtide_pager::reclaim::Evicted;
use lowtide_sys::Range;
use lowtide_sys::present::{Present, open_memory};
use lowtide_sys::uffd::{NEEDED_FEATURES, Uffd};
use lowtide_wire::segment::Proc;
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

pub const PAGE: usize = 4096;
pub const MIB: usize = 1 << 20;

/// Where pages go.
pub struct Config {
    /// Bytes of the pool at most.
    pub pool: usize,
    /// Bytes of a swap file at most; 0: there is none.
    pub file: usize,
    pub handlers: usize,
}

pub struct House {
    pub pager: &'static Pager,
    /// One at a time: what a test does to the process's memory (drops pages of it, leaves holes in it) is not to meet another's
    /// pager.
    _alone: MutexGuard<'static, ()>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Not by `eprintln!`: what a test prints is held back until its end, which `abort` forestalls.
fn say(what: &str, text: &[u8]) {
    let _ = writeln!(std::io::stderr(), "{what}: {}", String::from_utf8_lossy(text));
}

fn fatal(text: &[u8]) -> ! {
    say("the pager ends the run", text);
    std::process::abort()
}

fn warn(text: &[u8]) {
    say("warning", text);
}

static ALONE: Mutex<()> = Mutex::new(());

impl House {
    /// None, said loudly, where this user may not have a userfaultfd with all events; in CI nothing is skipped.
    pub fn new(config: Config) -> Option<House> {
        House::with_staging(config, 2 * MIB)
    }

    /// The same with a staging area of so many bytes.
    pub fn with_staging(config: Config, staging: usize) -> Option<House> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let uffd = match Uffd::open(NEEDED_FEATURES) {
            Ok(uffd) => uffd,
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "cannot run here, and CI must not skip: userfaultfd: {error}");
                crate::skipped::skipped(format_args!("userfaultfd with fork events needs root or CAP_SYS_PTRACE: {error}"));
                return None;
            }
        };
        let store = Store::new(StoreConfig { pool_limit: config.pool, accept_percent: 90, codec: Codec::Lz4 }).unwrap();
        if config.file > 0 {
            store.add_file(file(0, config.file)).unwrap();
        }
        // SAFETY: zeros are a valid Proc, and the memory is the global allocator's, of this layout; it is never freed.
        let proc: &'static Proc = unsafe { &*std::alloc::alloc_zeroed(std::alloc::Layout::new::<Proc>()).cast() };
        let lost = |text: &[u8]| fatal(text);
        let (turn, is_alone, child_wants_to_run) = (|| Changes::NONE, || true, || false);
        // Threads of odd numbers live.
        let has_thread = |thread| thread % 2 == 1;
        let (waits, open_page_map) = (|| {}, Present::open);
        let host = Host {
            fatal,
            lost,
            warn,
            waits,
            open_uffd: || Uffd::open(NEEDED_FEATURES),
            open_page_map,
            open_memory,
            has_page_map: || true,
            steps: 1,
            turn,
            is_alone,
            may_have_grown: |_| false,
            child_wants_to_run,
            undisturbed: |call| call(),
            has_thread,
            changes_are_over: || false,
        };
        let pager = Pager::new(uffd, store, staging, proc, host).unwrap();
        let pager: &'static Pager = Box::leak(Box::new(pager));
        pager.budget().set_limit(1 << 40);
        if std::env::var_os("LOWTIDE_REFERENCES").is_some_and(|text| text == "on") {
            pager.always_heed_references();
        }
        pager.activate().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let handler = |_| {
            let stop = stop.clone();
            thread::spawn(move || {
                let mut handler = Handler::new().unwrap();
                while !stop.load(Ordering::Relaxed) {
                    if !handler.turn(pager).read {
                        handler.wait(pager, 5);
                    }
                }
            })
        };
        let threads = (0..config.handlers).map(handler).collect();
        Some(House { pager, _alone: alone, stop, threads })
    }

    /// Fresh memory of `pages` pages, registered.
    pub fn region(&self, pages: usize) -> *mut u8 {
        let at = map(std::ptr::null_mut(), pages, MapFlags::empty());
        self.register(at, pages);
        at
    }

    pub fn register(&self, at: *mut u8, pages: usize) {
        self.pager.register(Range { start: at as usize, end: at as usize + pages * PAGE }).unwrap();
    }

    /// Registers memory that was used before.
    pub fn register_used(&self, at: *mut u8, pages: usize) {
        self.pager.register_used(Range { start: at as usize, end: at as usize + pages * PAGE }).unwrap();
    }

    /// Evicts until nothing more can be; what the last call said.
    pub fn evict_all(&self) -> Evicted {
        let mut worker = Worker::new(Rights::All).unwrap();
        loop {
            match self.pager.evict(&mut worker) {
                Evicted::Progress | Evicted::LetGo | Evicted::Later | Evicted::Ahead => {}
                end => return end,
            }
        }
    }

    pub fn evictions(&self) -> u64 {
        get(&self.pager.counters().evictions_pages)
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let end = thread.join();
            assert!(end.is_ok() || thread::panicking(), "a thread of the pager panicked");
        }
        // Nobody reads its events any more, and a fork waits for those of all userfaultfds with which memory is registered.
        let present = Present::open().unwrap();
        let (mut mappings, mut at) = (present.mappings.walk(), 0);
        while let Some(mapping) = mappings.next(at).unwrap() {
            // SAFETY: the pager is not used again, and its memory is the test's, which is over.
            let _ = unsafe { self.pager.uffd().unregister(mapping.start, mapping.end - mapping.start) };
            at = mapping.end;
        }
    }
}

/// Whether the kernel tells of one mapping at a time (Linux 6.11). Before that, pages behind a mapping that can't be moved may
/// stay, too.
pub fn knows_mappings() -> bool {
    let here = knows_mappings as fn() -> bool as usize;
    let knows = Present::open().unwrap().mappings.is_one(Range { start: here, end: here + 1 }).is_some();
    if !knows {
        crate::skipped::skipped("this kernel does not tell of one mapping at a time (PROCMAP_QUERY, Linux 6.11)");
    }
    knows
}

/// Does what hangs where lowtide is at fault.
pub fn within(what: &str, f: impl FnOnce() + Send + 'static) {
    let (ended, ends) = std::sync::mpsc::channel();
    thread::spawn(move || {
        f();
        let _ = ended.send(());
    });
    assert!(ends.recv_timeout(Duration::from_secs(60)).is_ok(), "this hangs: {what}");
}

pub fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// A swap file of so many bytes for the run's area `number`.
pub fn file(number: u8, bytes: usize) -> FileConfig {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open(env!("CARGO_TARGET_TMPDIR"), flags, Mode::RUSR | Mode::WUSR).unwrap();
    let name = DeviceName { kind: "dir:", path: b"here", number };
    FileConfig { name, ..FileConfig::new(fd, bytes as u64) }
}

/// Private anonymous memory.
pub fn map(at: *mut u8, pages: usize, flags: MapFlags) -> *mut u8 {
    let flags = flags | MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping, or one in place of memory that the caller owns.
    unsafe { rustix::mm::mmap_anonymous(at.cast(), pages * PAGE, ProtFlags::READ | ProtFlags::WRITE, flags).unwrap().cast() }
}

/// splitmix64.
pub fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The content that belongs to a seed: 0 is zeros; else noise, numbers that compress, or one word.
pub fn word(seed: u64, i: usize) -> u64 {
    match seed % 3 {
        _ if seed == 0 => 0,
        0 => mix(seed.wrapping_add(i as u64)),
        1 => seed.wrapping_add(i as u64 & 7),
        _ => mix(seed),
    }
}

/// Writes a page.
pub fn write(page: *mut u8, seed: u64) {
    for i in 0..PAGE / 8 {
        // SAFETY: the caller's page.
        unsafe { page.cast::<u64>().add(i).write_volatile(word(seed, i)) };
    }
}

/// Compares a page with what belongs to its seed.
pub fn verify(page: *const u8, seed: u64, what: &str) {
    for i in 0..PAGE / 8 {
        // SAFETY: the caller's page.
        let found = unsafe { page.cast::<u64>().add(i).read_volatile() };
        assert!(
            found == word(seed, i),
            "{what}: page {page:?}, word {i}: {found:#x}, not {:#x} (seed {seed:#x})",
            word(seed, i)
        );
    }
}
