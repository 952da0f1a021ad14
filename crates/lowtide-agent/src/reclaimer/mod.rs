//! The reclaimer, one thread in each process. Below the limit it only looks at the process's memory
//! now and then (`watch.rs`). Near it, it makes the pager and registers memory (`register.rs`);
//! above the high mark it evicts down to the low one (`observe.rs`), or finds the reachable minimum
//! (`floor.rs`).

mod answer;
mod areas;
mod floor;
mod growth;
pub mod idle;
mod judge;
mod leavers;
pub mod long_nap;
mod observe;
mod register;
pub mod request;
mod requests;
mod unpaged;
pub mod wake;
mod watch;

use alloc::boxed::Box;
use core::sync::atomic::{AtomicPtr, Ordering};

use lowtide_core::kernel_text;
use lowtide_pager::accounts::pool_share::PoolShare;
use lowtide_pager::accounts::pool_trial::PoolTrial;
use lowtide_pager::accounts::{Expected, Measuring};
use lowtide_pager::pager::Pager;
use lowtide_pager::pages::{Rights, Worker};
use lowtide_pager::reclaim::policy::{LONGEST_NAP_US, touch_rate};
use lowtide_pager::reclaim::{Calm, Depth, Nap, Reclaimer, Yields};
use lowtide_sys::clock::now_us;
use lowtide_sys::uffd::Uffd;
use lowtide_sys::{Line, cpus};
use lowtide_wire::Watermarks;
use lowtide_wire::segment::Proc;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::Timespec;

use crate::fork::clones;
use crate::handlers;
use crate::handlers::in_thread::InThread;
use crate::process::resident::Resident;
use crate::process::{agent, broker, pid_in_run, say, thread, thread_end};
use areas::Orders;
use growth::Growth;
use judge::Judge;
use leavers::Leavers;
use register::Look;
use requests::Reclaim;
use watch::Watching;

pub const NO_THREAD: &[u8] = b"a process of the run is not limited: lowtide's thread can't be started";

pub extern "C" fn fresh(_: usize) -> ! {
    begin();
    let uffd = match broker::userfaultfd() {
        Ok(uffd) => uffd,
        Err(e) => {
            let mut line = Line::new();
            line.push(b"a process of the run is not limited: it can't open a userfaultfd, error ")
                .number(e.raw_os_error() as u64);
            if e == Errno::CONNREFUSED {
                // A named socket exists only in its network namespace.
                line.push(
                    b" (it is in another network namespace, where `lowtide run` does not hear it: start lowtide in there, ",
                );
                line.push(b"or let the program use /dev/userfaultfd and keep CAP_SYS_PTRACE)");
            }
            say::warn(line.bytes());
            sleep_for_ever(None);
        }
    };
    let mut reclaimer = ReclaimerThread::new(Some(uffd));
    reclaimer.watching = Watching::new();
    reclaimer.run()
}

/// A new image or child ignores older requests.
pub fn forget_requests(proc: &Proc) {
    // Acquire: pairs with the Release of `lowtide run`'s request. Release: with the Acquire of its
    // check for answers (`live/reclaim.rs`).
    proc.reclaimed.store(agent::settings().reclaim.number.load(Ordering::Acquire), Ordering::Release);
}

fn begin() {
    thread::name(c"lowtide-reclaim");
    if thread::own_files().is_err() {
        say::fatal(b"Linux 5.9 or later is needed (close_range)");
    }
    agent::RECLAIMER.store(thread::id(), Ordering::Release);
    agent::thread_begins();
}

/// `inactive`: a pager that could not be activated.
pub(crate) fn sleep_for_ever(inactive: Option<&Pager>) -> ! {
    let supervisor = Supervisor::open();
    loop {
        inactive.inspect(|pager| pager.release_forks());
        supervisor.must_live();
        areas::have_nothing();
        if kernel_text::first_thread_has_ended() {
            clones::first_has_ended();
        }
        let bell = request::bell();
        let nap = if clones::end_with_program() { END_US } else { 10 * LONGEST_NAP_US };
        request::sleep(bell, nap);
        request::answer(|_| {});
    }
}

/// `lowtide run`. Its processes end with it: no limit would be kept and no warning shown, and the
/// environment's names may soon be another process's.
struct Supervisor(Option<OwnedFd>);

impl Supervisor {
    fn open() -> Supervisor {
        // The pid belongs to another namespace.
        let pid = Pid::from_raw(agent::settings().supervisor as i32).filter(|_| !pid_in_run::is_elsewhere());
        Supervisor(pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()))
    }

    /// Not in another pid namespace, which can't see it.
    fn must_live(&self) {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if let Some(pidfd) = &self.0
            && poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)) == Ok(1)
        {
            // Long sleepers would notice late.
            agent::segment().ring();
            say::stop();
        }
    }
}

/// After the program's last thread, if the first had ended before.
const END_US: u64 = 10_000;
const CPUS_EVERY_US: u64 = 1_000_000;

pub(crate) struct ReclaimerThread {
    uffd: Option<Uffd>,
    prepared: Option<&'static Pager>,
    watching: Watching,
    /// `lowtide run` rings when the program runs; the next nap relies on that.
    is_rung: bool,
    /// Bytes that the program can touch in a microsecond.
    touch_rate: u64,
    /// Held while far over the limit through uncounted growth; when that was last found, in
    /// microseconds.
    hurries: Option<(thread::Urgent, u64)>,
    supervisor: Supervisor,
    supervisor_seen_us: u64,
    resident: Resident,
    /// The run's use at the last measurement, and the estimate then.
    total: u64,
    expected: u64,
    expected_alone: Expected,
    pool_share: PoolShare,
    pool_trial: PoolTrial,
    reclaimer: Option<Box<Reclaimer>>,
    judge: Judge,
    look: Look,
    leavers: Leavers,
    growth: Growth,
    thread_ends: thread_end::Look,
    staging: Depth,
    measuring: Measuring,
    calm: Calm,
    yields: Yields,
    /// At the last look a fault waited, and none had been served before.
    faults_wait: bool,
    /// Last release of dead children's memory, in microseconds.
    reaped_us: u64,
    cpus_seen_us: u64,
    orders: Orders,
    reclaim: Reclaim,
    in_thread: InThread,
}

/// Owned by the reclaimer thread, which never frees it.
static MADE: AtomicPtr<Reclaimer> = AtomicPtr::new(core::ptr::null_mut());

fn make() -> Result<Box<Reclaimer>, Errno> {
    let mut made = Box::new(Reclaimer::new(Worker::new(Rights::All)?));
    MADE.store(&raw mut *made, Ordering::Relaxed);
    Ok(made)
}

/// None: no memory, or a fork must not copy a changing heap.
fn made<'a>(reclaimer: &'a mut Option<Box<Reclaimer>>, pager: &Pager) -> Option<&'a mut Reclaimer> {
    if reclaimer.is_none() && !pager.paused() {
        *reclaimer = make().ok();
    }
    reclaimer.as_deref_mut()
}

/// Frees what the parent's reclaimer had, in a forked child.
///
/// # Safety
/// This process has no reclaimer.
pub unsafe fn forget_parents() {
    let made = MADE.swap(core::ptr::null_mut(), Ordering::Relaxed);
    if !made.is_null() {
        // SAFETY: a box of `make` that only the parent's reclaimer had; it owns what it owned when
        // made.
        drop(unsafe { Box::from_raw(made) });
    }
}

impl ReclaimerThread {
    fn new(uffd: Option<Uffd>) -> ReclaimerThread {
        let resident = Resident::new();
        ReclaimerThread {
            uffd,
            prepared: None,
            watching: Watching::default(),
            is_rung: false,
            touch_rate: touch_rate(cpus::allowed()),
            hurries: None,
            supervisor: Supervisor::open(),
            supervisor_seen_us: 0,
            total: 0,
            expected: 0,
            expected_alone: Expected::default(),
            pool_share: PoolShare::default(),
            pool_trial: PoolTrial::default(),
            reclaimer: None,
            judge: Judge::new(),
            look: Look::default(),
            leavers: Leavers::default(),
            growth: Growth::default(),
            thread_ends: thread_end::Look::default(),
            staging: Depth::default(),
            measuring: Measuring::default(),
            calm: Calm::new(now_us(), resident.unaccounted()),
            resident,
            yields: Yields::default(),
            faults_wait: false,
            reaped_us: 0,
            cpus_seen_us: 0,
            orders: Orders::default(),
            reclaim: Reclaim::default(),
            in_thread: InThread::default(),
        }
    }

    /// In a forked child that has taken over its parent's pager.
    pub(crate) fn of_child() -> ReclaimerThread {
        let mut reclaimer = ReclaimerThread::new(None);
        // The child may change its root directory soon.
        reclaimer.thread_ends.open();
        reclaimer.reclaimer = make().ok();
        reclaimer
    }

    fn measure(&mut self) -> u64 {
        let limit = agent::settings().ram_limit.load(Ordering::Relaxed);
        let run = agent::segment();
        let watched = self.total.saturating_add(self.resident.may_be_off()) > Watermarks::of(limit).earliest_register();
        let Some(pager) = agent::pager() else {
            run.publish_ram(agent::proc(), self.resident.measure(watched, limit));
            self.total = run.ram_roughly();
            return self.total;
        };
        let budget = pager.budget();
        self.expected = budget.now();
        let before = budget.now_without_others();
        // Before this process is measured: newly found memory of lowtide's is no growth.
        let evicted = pager.counters().evictions_pages.load(Ordering::Relaxed);
        if self.measuring.is_due(now_us(), evicted) {
            pager.measure_rest();
            pager.counters().cpu_us.store(thread::cpu_us(handlers::polling::threads()), Ordering::Relaxed);
        }
        pager.publish();
        let bytes = self.resident.measure(watched, limit) + pager.unborn_bytes();
        self.expected_alone.measured(before, budget.now_without_others());
        budget.counted();
        run.publish_ram(agent::proc(), bytes);
        let told = budget.told();
        self.total = run.ram_roughly();
        budget.added_up(self.total, told);
        self.total
    }

    /// The process, or another, may have changed its CPUs.
    fn follow_cpus(&mut self, now_us: u64) {
        if now_us.saturating_sub(self.cpus_seen_us) < CPUS_EVERY_US {
            return;
        }
        self.cpus_seen_us = now_us;
        self.touch_rate = touch_rate(cpus::allowed());
        if agent::pager().is_some() {
            handlers::follow_cpus();
        }
    }

    pub(crate) fn run(mut self) -> ! {
        loop {
            let (bell, before) = (request::bell(), long_nap::before());
            (self.watching.may_map, self.is_rung) = (None, false);
            answer::all_there_is();
            let now = now_us();
            if now.saturating_sub(self.supervisor_seen_us) >= LONGEST_NAP_US {
                self.supervisor_seen_us = now;
                self.supervisor.must_live();
            }
            self.follow_cpus(now);
            let mut sentinels_in = u64::MAX;
            if let Some(pager) = agent::pager() {
                sentinels_in = self.set_sentinels(pager);
                pager.set_reclaiming(true);
            }
            let total = self.measure();
            let nap = match agent::pager() {
                None => Nap::UntilFaults(self.watch(total)),
                Some(pager) => self.turn(pager, total),
            };
            let mut nap = nap.or_until(sentinels_in).at_most(self.follow_orders(now));
            if clones::end_with_program() {
                self.watching.may_map = None;
                nap = nap.at_most(END_US);
            }
            if let Some(pager) = agent::pager() {
                pager.set_reclaiming(false);
            }
            match nap {
                Nap::UntilFaults(0) | Nap::Undisturbed(0) => {}
                Nap::UntilFaults(us) => match self.watching.may_map.take() {
                    Some(bytes) => {
                        long_nap::sleep(bell, before, us, bytes);
                        // The ring may mean the end of `lowtide run`, and the next nap may be long.
                        self.supervisor_seen_us = 0;
                    }
                    None if self.is_rung => wake::sleep_lightly(|| long_nap::sleep(bell, before, us, usize::MAX)),
                    None => wake::sleep_lightly(|| request::sleep(bell, us)),
                },
                Nap::Undisturbed(us) => request::sleep(bell, us),
            }
        }
    }
}
