//! The thread that holds threads of the run by ptrace: those of a process that grows too fast
//! (`hold.rs`), and those that may be in a call that changes memory (`outlast_calls.rs`). A thread
//! of its own, because the kernel binds a tracer to its thread.
//!
//! It does not wait for stops: the event loop's thread collects and ignores them. It reaps threads
//! that end while held, as otherwise their process could not end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lowtide_wire::Watermarks;
use lowtide_wire::segment::{Proc, Segment, Settings};
use rustix::process::Pid;
use rustix::thread::Timespec;

use super::enter::{CallsUnderWay, let_run};
use super::hold::GrowthHolds;
use super::outlast_calls::Outlasting;

/// Shortest period of looking for running threads of a held process, ...
const EVERY: Duration = Duration::from_micros(500);
/// ... which is also at least this multiple of a look's duration.
const REST: u32 = 4;
/// The period while threads only remain to be released at their next stop.
const LEAVING_EVERY: Duration = Duration::from_millis(5);
const STACK: usize = 64 << 10;
/// Processes wait for this thread. A refusal only makes them wait longer.
const PRIORITY: i32 = -10;

/// Processes and threads to release at their next stop.
pub type Leaving = Vec<(Pid, Pid)>;

/// The holding thread; most runs never start it. It ends with this process.
#[derive(Default)]
pub struct Holder {
    has_begun: bool,
}

impl Holder {
    /// Starts the thread once a process has no hooks, or has asked for something.
    ///
    /// # Errors
    /// No thread is left: such programs exceed the limit further. There is no second attempt.
    pub fn look(
        &mut self,
        segment: &'static Segment,
        settings: &'static Settings,
        under_way: &Arc<CallsUnderWay>,
    ) -> io::Result<()> {
        // A C library whose code can't be hooked shows by its request.
        let is_needed = || segment.holds() > 0 || segment.used_procs().iter().any(Proc::forks_unseen);
        if self.has_begun || !is_needed() {
            return Ok(());
        }
        self.has_begun = true;
        let thread = std::thread::Builder::new().name("lowtide-hold".to_owned()).stack_size(STACK);
        let under_way = under_way.clone();
        thread.spawn(move || run(segment, settings, &under_way)).map(drop)
    }
}

/// Releases threads that have stopped.
pub fn let_all_run(leaving: &mut Leaving) {
    leaving.retain(|(process, thread)| !let_run(*process, *thread));
}

fn run(segment: &Segment, settings: &Settings, under_way: &CallsUnderWay) -> ! {
    let _ = rustix::process::setpriority_process(None, PRIORITY);
    let (mut growth, mut outlasting) = (GrowthHolds::default(), Outlasting::default());
    let (mut leaving, mut looked) = (Leaving::new(), None);
    loop {
        let (seen, started) = (segment.holds(), Instant::now());
        let is_above = segment.ram_roughly() > Watermarks::of(settings.ram_limit.load(Ordering::Relaxed)).high();
        if looked != Some(seen) {
            looked = Some(seen);
            growth.begin(segment, is_above);
            outlasting.begin();
        }
        let are_held = growth.look(segment, is_above, &mut leaving);
        let_all_run(&mut leaving);
        let outlasts = outlasting.look(segment, under_way, &mut leaving);
        let rest = started.elapsed() * REST;
        let pauses = [
            outlasts.map(|pause| pause.max(rest)),
            are_held.then_some(EVERY.max(rest)),
            (!leaving.is_empty()).then_some(LEAVING_EVERY),
        ];
        let pause = pauses.into_iter().flatten().min();
        let pause = pause.map(|pause| Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: i64::from(pause.subsec_nanos()) });
        segment.wait_for_holds(seen, pause.as_ref());
    }
}
