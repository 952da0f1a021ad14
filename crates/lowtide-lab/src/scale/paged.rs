//! A pager that serves faults and evicts on one thread, which also does the monitors' and the
//! reclaimer's work.

use std::time::Duration;

use lowtide_core::vm::PAGE_SIZE;
use lowtide_pager::fault::Served;
use lowtide_pager::mappings::Changes;
use lowtide_pager::pager::{Host, Pager};
use lowtide_pager::pages::{Rights, Worker};
use lowtide_sys::Range;
use lowtide_sys::clock::now_ns;
use lowtide_sys::present::{Present, open_memory};
use lowtide_sys::uffd::{Access, NEEDED_FEATURES, Uffd};
use lowtide_wire::segment::{Proc, Segment};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use super::Step;
use super::stored::{POOL, new_store};
use super::subject::counted;

/// Pages of a piece of memory: few, because compressing one takes a thousand irrelevant
/// instructions.
const PIECE: usize = 2;
/// Each page's passes, of which the last one counts: the first sets up permanent state.
const TIMES: usize = 2;
/// All of them: in each round one touched piece and two used before, and two more.
const PIECES: usize = 3 * TIMES + 2;
/// The same address in each run, for the same places in the page map's tables. These parts hold
/// nothing else.
const AT: *mut std::ffi::c_void = std::ptr::without_provenance_mut(1 << 45);
const STAGING: usize = 2 << 20;
/// Far beyond all that is used.
const NO_LIMIT: u64 = 1 << 40;
/// A limit that is used up.
const LIMIT: u64 = 64 << 20;
/// Attempts of reclaim, and the rest between them: longer than its pause after one vain look.
const TRIES: usize = 10;
const REST: Duration = Duration::from_millis(300);

/// A pager of the process that has `mine` in `run`.
///
/// # Errors
/// A line: no userfaultfd, or no memory.
pub(super) fn new_pager(run: &'static Segment, mine: &'static Proc) -> Result<&'static Pager, String> {
    fn fatal(text: &[u8]) -> ! {
        eprintln!("lowtide-lab: scale: {}", String::from_utf8_lossy(text));
        std::process::abort()
    }
    let uffd =
        Uffd::open(NEEDED_FEATURES).map_err(|e| format!("userfaultfd with fork events needs root or CAP_SYS_PTRACE: {e}"))?;
    let host = Host {
        fatal,
        lost: |text| fatal(text),
        warn: |text| eprintln!("lowtide-lab: scale: {}", String::from_utf8_lossy(text)),
        waits: || {},
        open_uffd: || Uffd::open(NEEDED_FEATURES),
        open_page_map: Present::open,
        open_memory,
        has_page_map: || true,
        steps: 1,
        turn: || Changes::NONE,
        is_alone: || true,
        may_have_grown: |_| false,
        child_wants_to_run: || false,
        undisturbed: |call| call(),
        has_thread: |_| true,
        changes_are_over: || false,
    };
    let pager = Pager::new(uffd, new_store(POOL)?, STAGING, mine, host).map_err(|e| format!("no pager: {e}"))?;
    let pager: &'static Pager = Box::leak(Box::new(pager));
    pager.budget().set_limit(NO_LIMIT);
    pager.budget().join(run, mine);
    pager.activate().map_err(|e| format!("no pager: {e}"))?;
    Ok(pager)
}

/// Memory of the program, in pieces: a fault brings in its piece. An unregistered page separates
/// two.
struct Memory {
    at: *mut u8,
}

impl Memory {
    const PAGES: usize = PIECES * (PIECE + 1);

    fn new() -> Result<Memory, String> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping.
        let at = unsafe { mmap_anonymous(AT, Memory::PAGES * PAGE_SIZE, prot, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE) };
        Ok(Memory { at: at.map_err(|e| format!("no memory: {e}"))?.cast() })
    }

    fn piece(&self, i: usize) -> Range {
        let start = self.at.addr() + i * (PIECE + 1) * PAGE_SIZE;
        Range { start, end: start + PIECE * PAGE_SIZE }
    }

    /// Writes a word to each page of a piece: the codec's work is small and the same in each run.
    fn write(&self, i: usize) {
        for page in 0..PIECE {
            // SAFETY: this process's memory, not paged yet.
            unsafe { self.at.add((i * (PIECE + 1) + page) * PAGE_SIZE).cast::<usize>().write(page + 1) }
        }
    }

    /// The address of a missing page of a piece.
    fn missing(&self, i: usize) -> Result<usize, String> {
        let (piece, mut there) = (self.piece(i), [0u8; PIECE]);
        // SAFETY: a byte for each page of the piece.
        if unsafe { libc::mincore(piece.start as *mut _, PIECE * PAGE_SIZE, there.as_mut_ptr()) } != 0 {
            return Err(format!("mincore: {}", std::io::Error::last_os_error()));
        }
        let page = there.iter().position(|there| there & 1 == 0).ok_or("no page is out")?;
        Ok(piece.start + page * PAGE_SIZE)
    }
}

/// A pager, the program's memory, and the state for serving and evicting.
struct Paged {
    pager: &'static Pager,
    memory: Memory,
    monitor: Worker,
    reclaimer: Worker,
    counts: bool,
}

impl Paged {
    fn new(pager: &'static Pager) -> Result<Paged, String> {
        let worker = |rights| Worker::new(rights).map_err(|e| e.to_string());
        Ok(Paged {
            pager,
            memory: Memory::new()?,
            monitor: worker(Rights::Serve)?,
            reclaimer: worker(Rights::All)?,
            counts: false,
        })
    }

    fn serve(&mut self, step: Step, addr: usize) -> Result<(), String> {
        let served = counted_if(self.counts, step, || {
            let served = self.pager.serve_within_limit(addr, Access::Write, now_ns(), &mut self.monitor);
            self.monitor.wake(self.pager.uffd());
            served
        });
        if served == Served::Done { Ok(()) } else { Err(format!("a fault is not served: {step:?}, {served:?}")) }
    }

    fn touch(&mut self, i: usize) -> Result<(), String> {
        self.pager.register(self.memory.piece(i)).map_err(|e| format!("memory can't be registered: {e}"))?;
        self.serve(Step::Touch, self.memory.piece(i).start)
    }

    /// Evicts used pieces into staging.
    fn fill(&mut self, pieces: &[usize]) -> Result<(), String> {
        for i in pieces {
            self.memory.write(*i);
            self.pager.register_used(self.memory.piece(*i)).map_err(|e| format!("memory can't be registered: {e}"))?;
        }
        for _ in 0..TRIES {
            let evicted = counted_if(self.counts, Step::Fill, || self.pager.evict(&mut self.reclaimer));
            if pieces.iter().all(|i| self.memory.missing(*i).is_ok()) {
                return Ok(());
            }
            if !evicted.is_progress() {
                std::thread::sleep(REST);
            }
        }
        Err("nothing is evicted".to_owned())
    }

    fn drain(&mut self) -> Result<(), String> {
        let drained = counted_if(self.counts, Step::Drain, || self.pager.empty_staging(&mut self.reclaimer));
        if drained { Ok(()) } else { Err("staging is not emptied".to_owned()) }
    }
}

fn counted_if<T>(counts: bool, step: Step, f: impl FnOnce() -> T) -> T {
    if counts { counted(step, f) } else { f() }
}

/// All ways in which a page comes in and leaves.
///
/// # Errors
/// A line: a page did not come, or leave.
pub(super) fn faults_and_evictions(pager: &'static Pager) -> Result<(), String> {
    let mut paged = Paged::new(pager)?;
    for round in 0..TIMES {
        paged.counts = round + 1 == TIMES;
        let [fresh, hot, cold] = [0, 1, 2].map(|i| 3 * round + i);
        paged.touch(fresh)?;
        paged.fill(&[hot, cold])?;
        paged.serve(Step::Staged, paged.memory.missing(hot)?)?;
        paged.drain()?;
        paged.serve(Step::Load, paged.memory.missing(cold)?)?;
    }
    paged.counts = false;
    let [stored, staged] = [PIECES - 2, PIECES - 1];
    paged.fill(&[stored])?;
    paged.drain()?;
    paged.fill(&[staged])?;
    pager.set_staging_target(0);
    pager.budget().set_limit(LIMIT);
    pager.budget().measured(LIMIT);
    paged.counts = true;
    paged.serve(Step::Direct, paged.memory.missing(stored)?)?;
    pager.budget().set_limit(NO_LIMIT);
    counted(Step::Lists, || pager.drain_frames());
    Ok(())
}
