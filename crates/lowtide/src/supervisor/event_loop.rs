//! While the program runs: signals go to it, the dead are buried, warnings are shown, a fatal message stops the tree.

use crate::control::Control;
use crate::error::{self, say};
use crate::live::Live;
use crate::metrics::Desk;
use crate::supervisor::ancestry;
use crate::supervisor::broker::Broker;
use crate::supervisor::own_threads::OwnThreads;
use crate::supervisor::series::Series;
use crate::supervisor::signals::Signals;
use crate::supervisor::tree;
use lowtide_pager::segment::{MAX_WARNINGS, Segment};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often the tree is looked at.
const TICK: Duration = Duration::from_millis(25);
/// The same while many processes come and go.
const SHORT_TICK: Duration = Duration::from_millis(10);
/// How often the supervisor's own memory is measured.
const OWN_MEMORY: Duration = Duration::from_secs(1);
/// A program whose agent hasn't reported for so long has none.
const UNMANAGED_AFTER: Duration = Duration::from_secs(2);

/// How a run ended.
pub struct Outcome<'a> {
    /// Exit code of lowtide.
    pub code: u8,
    /// What it was in the end, for the statistics.
    pub run: Live<'a>,
    /// Whether an agent ever reported.
    pub managed: bool,
    /// From the start of the program to its end.
    pub elapsed: Duration,
    /// What it did over time, if that was asked for.
    pub series: Option<Series>,
}

/// How waiting for the program went.
enum Waited {
    Running,
    /// It has been stopped by this signal.
    Stopped(libc::c_int),
    /// It is gone, with this exit code.
    Ended(u8),
}

/// Who wants to know what the run does.
#[derive(Default)]
pub struct Onlookers {
    /// Threads that serve metrics.
    pub desk: Option<Desk>,
    /// The report.
    pub series: Option<Series>,
}

struct Supervisor<'a> {
    run: Live<'a>,
    onlookers: Onlookers,
    own_memory_at: Option<Instant>,
    said_unmanaged: bool,
    own_threads: OwnThreads,
}

/// Stays until the program has ended and nothing of what it started is left: a daemon that it became, or workers that outlive
/// it. `alone`: this process had no children before it started the program; else it can't tell when all are gone, and stays for
/// the program only.
pub fn supervise<'a>(
    run: Live<'a>,
    broker: &mut Broker,
    control: &mut Control,
    signals: &Signals,
    child: libc::pid_t,
    alone: bool,
    onlookers: Onlookers,
) -> Outcome<'a> {
    let (shared, started) = (run.shared, run.started);
    let mut this =
        Supervisor { run, onlookers, own_memory_at: None, said_unmanaged: false, own_threads: OwnThreads::default() };
    let mut last_look = started;
    this.look();
    let mut ended = None;
    loop {
        let tick = if this.run.tree.is_crowded() { SHORT_TICK } else { TICK };
        sleep(signals, broker, control, this.onlookers.desk.as_ref(), tick.saturating_sub(last_look.elapsed()));
        this.run.wakeups += 1;
        broker.serve(shared);
        if let Some(desk) = &this.onlookers.desk {
            desk.serve(|| this.run.metrics());
        }
        control.serve(&mut this.run);
        while let Some(signal) = signals.next() {
            // What the kernel sends (^C, ^Z, hang-up) went to the whole process group, and the program is in it.
            if signal.number == libc::SIGCHLD || signal.from_kernel {
                continue;
            }
            if ended.is_some() {
                this.run.tree.signal(signal.number);
            } else {
                // SAFETY: sends a signal to our child, which hasn't been waited for yet, so the pid is still its own.
                unsafe { libc::kill(child, signal.number) };
            }
        }
        ancestry::reap_orphans(if ended.is_none() { child } else { 0 });
        if ended.is_none() {
            match wait(child, libc::WNOHANG | libc::WUNTRACED) {
                Waited::Ended(code) => ended = Some(code),
                // ^Z in a terminal: the shell waits for us to stop as well.
                Waited::Stopped(libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) => {
                    // SAFETY: stops this process; the shell's SIGCONT continues it and the program.
                    unsafe { libc::raise(libc::SIGSTOP) };
                }
                Waited::Stopped(_) | Waited::Running => {}
            }
        }
        if ended.is_some() && (!alone || !ancestry::has_children()) {
            break;
        }
        if last_look.elapsed() >= tick {
            last_look = Instant::now();
            this.look();
            control.step(&mut this.run);
            if started.elapsed() > UNMANAGED_AFTER {
                this.check_managed();
            }
        }
        if shared.segment().fatal.get().is_some() {
            break;
        }
    }
    let elapsed = started.elapsed();
    this.look();
    // The program may have ended because of what its agent found.
    let code = match (shared.segment().fatal.get(), ended) {
        (Some(text), ended) => {
            this.run.tree.kill();
            if ended.is_none() {
                // SAFETY: our child, not waited for yet.
                unsafe { libc::kill(child, libc::SIGKILL) };
                wait(child, 0);
            }
            this.look();
            say(&format!("{} was stopped: {}", this.run.program, clean(&text)));
            error::FAILED
        }
        (None, ended) => ended.unwrap_or(error::FAILED),
    };
    this.check_managed();
    let managed = !this.run.tree.pids().is_empty();
    if let Some(series) = &mut this.onlookers.series {
        series.finish(&this.run, elapsed);
    }
    Outcome { code, run: this.run, managed, elapsed, series: this.onlookers.series }
}

impl Supervisor<'_> {
    /// One look at the tree.
    fn look(&mut self) {
        let (shared, segment) = (self.run.shared, self.run.shared.segment());
        if self.own_memory_at.is_none_or(|at| at.elapsed() >= OWN_MEMORY) {
            segment.supervisor_bytes.store(tree::own_anonymous() + shared.resident(), Ordering::Relaxed);
            self.own_memory_at = Some(Instant::now());
        }
        self.run.look();
        if let Some(series) = &mut self.onlookers.series {
            series.look(&self.run);
        }
        if let Some(pid) = self.own_threads.ended(segment) {
            let text = format!(
                "one of lowtide's threads in process {pid} was ended (by a system call filter, a debugger?): its memory can't be \
                 served"
            );
            segment.fatal.put(pid, text.as_bytes());
        }
        self.show_warnings(segment);
    }

    fn show_warnings(&mut self, segment: &Segment) {
        if segment.warnings_sent.load(Ordering::Relaxed) == 0 {
            return;
        }
        for text in segment.warnings.iter().filter_map(|line| line.get()) {
            self.warn(clean(&text));
        }
        if segment.warnings_sent.load(Ordering::Relaxed) as usize > MAX_WARNINGS {
            self.warn("there were more warnings, which are not shown".to_owned());
        }
    }

    fn warn(&mut self, text: String) {
        if !self.run.warnings.contains(&text) {
            say(&format!("warning: {text}"));
            self.run.warnings.push(text);
        }
    }

    /// Says once if no agent has ever reported.
    fn check_managed(&mut self) {
        if self.run.tree.pids().is_empty() && !self.said_unmanaged {
            self.said_unmanaged = true;
            let name = &self.run.program;
            self.warn(format!(
                "{name} is not managed, no limit holds: the preloaded agent never reported (LD_PRELOAD was ignored)"
            ));
        }
    }
}

/// Text of an agent: NUL-padded, perhaps not UTF-8.
fn clean(text: &[u8]) -> String {
    let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
    String::from_utf8_lossy(&text[..end]).into_owned()
}

/// Until a signal, a question or a client comes or the time is over.
fn sleep(signals: &Signals, broker: &Broker, control: &Control, desk: Option<&Desk>, time: Duration) {
    let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    // Interrupted or not, the caller looks at everything again.
    let mut polled = vec![PollFd::new(signals, PollFlags::IN)];
    polled.extend(broker.waits_for().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    polled.extend(control.waits_for().map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)));
    polled.extend(desk.map(|desk| PollFd::from_borrowed_fd(desk.waits_for(), PollFlags::IN)));
    let _ = rustix::event::poll(&mut polled, Some(&timeout));
}

fn wait(child: libc::pid_t, flags: libc::c_int) -> Waited {
    let mut status = 0;
    // SAFETY: waits for our child and writes one int.
    let pid = unsafe { libc::waitpid(child, &raw mut status, flags) };
    if pid == 0 {
        Waited::Running
    } else if pid < 0 {
        match std::io::Error::last_os_error().kind() {
            std::io::ErrorKind::Interrupted => Waited::Running,
            // Somebody else has waited for it: nothing to tell.
            _ => Waited::Ended(error::FAILED),
        }
    } else if libc::WIFSTOPPED(status) {
        Waited::Stopped(libc::WSTOPSIG(status))
    } else if libc::WIFSIGNALED(status) {
        Waited::Ended((128 + libc::WTERMSIG(status)) as u8)
    } else {
        Waited::Ended(libc::WEXITSTATUS(status) as u8)
    }
}
