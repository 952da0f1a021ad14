//! The reclaimer: one thread in each process. Below the limit it looks at the process's memory now and then, and that is all
//! lowtide costs (`watch.rs`). Near the limit it sets up the pager and adopts the program's memory (`register.rs`); above the
//! high mark it evicts down to the low one (`observe.rs`), and where that can't be reached it finds out what can (`floor.rs`).

mod answer;
mod areas;
mod floor;
mod growth;
mod judge;
mod leavers;
mod observe;
mod register;
mod requests;
mod unpaged;
mod watch;

use alloc::boxed::Box;
use core::sync::atomic::{AtomicPtr, Ordering};

use lowtide_core::steps;
use lowtide_pager::accounts::pool_share::PoolShare;
use lowtide_pager::accounts::{Expected, Measuring};
use lowtide_pager::fault::Worker;
use lowtide_pager::fork::{Inheritance, TakenOver};
use lowtide_pager::pager::Pager;
use lowtide_pager::reclaim::policy::{LONGEST_NAP_US, touch_rate};
use lowtide_pager::reclaim::{Calm, Depth, Nap, Reclaimer, Watermarks, Yields};
use lowtide_pager::segment::{Proc, proc_state};
use lowtide_pager::sys::Line;
use lowtide_pager::sys::clock::now_us;
use lowtide_pager::sys::cpus;
use lowtide_pager::sys::uffd::Uffd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::Timespec;

use crate::in_thread::InThread;
use crate::resident::Resident;
use crate::{
    agent, broker, clones, fork_handshake, inheritance, kept, long_nap, monitor, pid_in_run, request, say, swap_file, thread,
    thread_end, wake,
};
use areas::Orders;
use growth::Growth;
use judge::Judge;
use leavers::Leavers;
use register::Look;
use requests::Reclaim;
use watch::Watching;

/// Said where the reclaimer can't be started.
pub const NO_THREAD: &[u8] = b"a process of the run is not limited: lowtide's thread can't be started";

/// Thread entry: the reclaimer of a process that starts with nothing adopted.
pub extern "C" fn fresh(_: usize) -> ! {
    begin();
    let uffd = match broker::userfaultfd() {
        Ok(uffd) => uffd,
        Err(e) => {
            let mut line = Line::new();
            line.push(b"a process of the run is not limited: it can't open a userfaultfd, error ")
                .number(e.raw_os_error() as u64);
            if e == Errno::CONNREFUSED {
                // By its name in a network namespace a socket is found in that one only.
                line.push(
                    b" (it is in another network namespace, where `lowtide run` does not hear it: start lowtide in there, ",
                );
                line.push(b"or let the program use /dev/userfaultfd and keep CAP_SYS_PTRACE)");
            }
            say::warn(line.bytes());
            sleep_for_ever();
        }
    };
    let mut reclaimer = ReclaimerThread::new(Some(uffd));
    reclaimer.watching = Watching::new();
    reclaimer.run()
}

/// Thread entry: the reclaimer of a forked child whose parent had adopted memory.
pub extern "C" fn inherited(_: usize) -> ! {
    let parent_reclaimer = agent::RECLAIMER.load(Ordering::Acquire);
    thread::name(c"lowtide-reclaim");
    // Before the parent lets go: a child that has no threads to serve itself gets all of its memory instead.
    let able = thread::own_files().and_then(|()| monitor::start());
    agent::RECLAIMER.store(thread::id(), Ordering::Release);
    agent::thread_begins();
    let Some(pager) = agent::pager() else { sleep_for_ever() };
    let Some(parent) = fork_handshake::parent_of_child() else { say::fatal(b"a forked child has no parent") };
    let mut reopen = |_area: u8, number: i32| inheritance::reopen(parent, parent_reclaimer, number);
    let inheritance = Inheritance {
        run: agent::segment(),
        proc: agent::proc(),
        parent_serves: &|| fork_handshake::parent_serves(parent_reclaimer),
        reopen: &mut reopen,
        able,
    };
    // SAFETY: the handler of the fork waits for this thread, and the monitors wait until they are told to go.
    match unsafe { pager.take_over(inheritance) } {
        Ok(TakenOver::Serves) => {}
        Ok(TakenOver::Whole(errno)) => {
            // Release: pairs with the Acquire with which `lowtide run` looks for processes.
            agent::proc().state.store(proc_state::WATCHING, Ordering::Release);
            fork_handshake::child_is_whole(errno);
            fork_handshake::child_is_ready();
            sleep_for_ever();
        }
        Err(why) => say::fatal(why),
    }
    kept::hand_over(pager.uffd());
    let Some(operation) = pager.enter() else { say::fatal(b"a forked child was made to wait for itself") };
    swap_file::add_all(operation.store());
    drop(operation);
    steps::taken(steps::Fork::Child);
    let mut reclaimer = ReclaimerThread::new(None);
    // The child may change its root directory at once.
    reclaimer.thread_ends.open();
    // Before this process can fork.
    reclaimer.reclaimer = make().ok();
    monitor::go();
    fork_handshake::child_is_ready();
    reclaimer.run()
}

/// A process image, or a forked child, has nothing to do with what was asked before it came to be.
pub fn forget_requests(proc: &Proc) {
    // Acquire: pairs with the Release with which `lowtide run` asks. Release: with the Acquire with which it looks for answers
    // (`live/reclaim.rs`).
    proc.reclaimed.store(agent::settings().reclaim.number.load(Ordering::Acquire), Ordering::Release);
}

/// What every reclaimer does first.
fn begin() {
    thread::name(c"lowtide-reclaim");
    if thread::own_files().is_err() {
        say::fatal(b"Linux 5.9 or later is needed (close_range)");
    }
    agent::RECLAIMER.store(thread::id(), Ordering::Release);
    agent::thread_begins();
}

fn sleep_for_ever() -> ! {
    let supervisor = Supervisor::open();
    loop {
        supervisor.must_live();
        areas::have_nothing();
        let bell = request::bell();
        let nap = if clones::end_with_program() { END_US } else { 10 * LONGEST_NAP_US };
        request::sleep(bell, nap);
        request::answer(|_| {});
    }
}

/// `lowtide run`. A process of a run ends with it: nobody would keep its limit, show its warnings, or know its files any more,
/// and what its environment says of lowtide would soon be another process's.
struct Supervisor(Option<OwnedFd>);

impl Supervisor {
    fn open() -> Supervisor {
        // In another pid namespace the number may be a stranger's.
        let pid = Pid::from_raw(agent::settings().supervisor as i32).filter(|_| !pid_in_run::is_elsewhere());
        Supervisor(pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()))
    }

    /// Ends this process if `lowtide run` is gone. (In another pid namespace, where it can't be seen, it lives.)
    fn must_live(&self) {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if let Some(pidfd) = &self.0
            && poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)) == Ok(1)
        {
            // Who sleeps long would find out late.
            agent::segment().ring();
            say::stop();
        }
    }
}

/// How soon a process ends after the program's last thread, where the first had ended before.
const END_US: u64 = 10_000;
/// How often it is looked which CPUs the process may use.
const CPUS_EVERY_US: u64 = 1_000_000;

struct ReclaimerThread {
    /// Until it is the pager's.
    uffd: Option<Uffd>,
    /// Made well before, used when it is time to adopt memory.
    prepared: Option<&'static Pager>,
    watching: Watching,
    /// `lowtide run` rings as soon as the program runs, and the nap that follows goes by that.
    is_rung: bool,
    /// What the program can touch in a microsecond, in bytes.
    touch_rate: u64,
    /// The run is far over its limit, and what nobody counted was found then, in microseconds.
    hurries: Option<(thread::Urgent, u64)>,
    supervisor: Supervisor,
    /// When it was last looked whether that lives, in microseconds.
    supervisor_seen_us: u64,
    resident: Resident,
    /// What the run used when last measured, and what was thought then that it used.
    total: u64,
    expected: u64,
    /// The same if nobody but this process had grown.
    expected_alone: Expected,
    pool_share: PoolShare,
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
    /// At the last look a fault waited, and none had been served since the look before.
    faults_wait: bool,
    /// When what forked children had that are gone was last dropped, in microseconds.
    reaped_us: u64,
    /// When it was last looked which CPUs the process may use.
    cpus_seen_us: u64,
    orders: Orders,
    reclaim: Reclaim,
    in_thread: InThread,
}

/// What evicts in this process, once it is made: its thread has it, and never frees it.
static MADE: AtomicPtr<Reclaimer> = AtomicPtr::new(core::ptr::null_mut());

fn make() -> Result<Box<Reclaimer>, Errno> {
    let mut made = Box::new(Reclaimer::new(Worker::new(true)?));
    MADE.store(&raw mut *made, Ordering::Relaxed);
    Ok(made)
}

/// What evicts, made now if there is none; None: there is no memory for it yet, or a child's copy of the heap must not be one of
/// a heap that changes.
fn made<'a>(reclaimer: &'a mut Option<Box<Reclaimer>>, pager: &Pager) -> Option<&'a mut Reclaimer> {
    if reclaimer.is_none() && !pager.paused() {
        *reclaimer = make().ok();
    }
    reclaimer.as_deref_mut()
}

/// In a forked child: lets go of what its parent's reclaimer had.
///
/// # Safety
/// This process has no reclaimer.
pub unsafe fn forget_parents() {
    let made = MADE.swap(core::ptr::null_mut(), Ordering::Relaxed);
    if !made.is_null() {
        // SAFETY: a box of `make`, which only the parent's reclaimer had; what it owns it has owned since it was made.
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

    /// Measures this process, publishes it, and returns what the whole run uses.
    fn measure(&mut self) -> u64 {
        let limit = agent::settings().ram_limit.load(Ordering::Relaxed);
        let run = agent::segment();
        let watched = self.total.saturating_add(self.resident.may_be_off()) > Watermarks::of(limit).earliest_register();
        let Some(pager) = agent::pager() else {
            run.publish_ram(agent::proc(), self.resident.measure(watched, limit));
            self.total = run.ram_roughly();
            return self.total;
        };
        let budget = &pager.budget;
        self.expected = budget.now();
        let before = budget.now_without_others();
        // Before this process is measured: what is found out about lowtide's own memory is no growth.
        let evicted = pager.counters().evictions_pages.load(Ordering::Relaxed);
        if self.measuring.is_due(now_us(), evicted) {
            pager.measure_rest();
            pager.counters().cpu_us.store(thread::cpu_us(crate::watch::threads()), Ordering::Relaxed);
        }
        pager.publish();
        // What comes between the two is counted by nobody.
        let bytes = self.resident.measure(watched, limit) + pager.unborn_bytes();
        self.expected_alone.measured(before, budget.now_without_others());
        budget.counted();
        run.publish_ram(agent::proc(), bytes);
        let told = budget.told();
        self.total = run.ram_roughly();
        budget.added_up(self.total, told);
        self.total
    }

    /// Follows the CPUs that the process may use, which it may have changed, or somebody else.
    fn follow_cpus(&mut self, now_us: u64) {
        if now_us.saturating_sub(self.cpus_seen_us) < CPUS_EVERY_US {
            return;
        }
        self.cpus_seen_us = now_us;
        self.touch_rate = touch_rate(cpus::allowed());
        if agent::pager().is_some() {
            monitor::follow_cpus();
        }
    }

    fn run(mut self) -> ! {
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
                Some(pager) => {
                    let shared_in = self.protect_shared(pager);
                    self.turn(pager, total).at_most(shared_in)
                }
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
                        // Who has woken it may have found that `lowtide run` is gone: the next nap may be as long.
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
