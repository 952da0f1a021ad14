//! The loop while the program runs: passes signals on, reaps children, shows warnings, and stops
//! the tree on a fatal message.

use crate::control::Control;
use crate::error::{self, say};
use crate::live::Live;
use crate::metrics::{self, Requests};
use crate::signal_fd::{Received, SignalFd};
use crate::supervisor::ancestry;
use crate::supervisor::broker::Broker;
use crate::supervisor::enter::{Agent, Copies, Seen};
use crate::supervisor::hold::Holder;
use crate::supervisor::overrun::Overrun;
use crate::supervisor::own_threads::OwnThreads;
use crate::supervisor::series::Series;
use crate::supervisor::terminal_stop::TerminalStop;
use lowtide_config::proc;
use lowtide_pager::segment::{MAX_WARNINGS, Segment};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const OWN_MEMORY: Duration = Duration::from_secs(1);
/// A program without a report of its agent after this time has none.
const UNMANAGED_AFTER: Duration = Duration::from_secs(2);

pub struct Outcome<'a> {
    pub code: u8,
    pub run: Live<'a>,
    pub managed: bool,
    pub elapsed: Duration,
    pub series: Option<Series>,
}

#[derive(Default)]
pub struct Onlookers {
    pub requests: Option<Requests>,
    pub series: Option<Series>,
}

struct Supervisor<'a> {
    run: Live<'a>,
    onlookers: Onlookers,
    own_memory_at: Option<Instant>,
    said_unmanaged: bool,
    overrun: Overrun,
    own_threads: OwnThreads,
    terminal_stop: TerminalStop,
    holder: Holder,
}

/// Stays until the program and all that it started have ended: a program may become a daemon, or
/// leave workers. `alone`: this process had no children before the program; otherwise it can't tell
/// when all are gone, and stays for the program only. (Over 70 lines: a turn asks each source of
/// events once.)
pub fn supervise<'a>(
    run: Live<'a>,
    broker: &mut Broker,
    control: &mut Control,
    signals: &SignalFd,
    child: Pid,
    alone: bool,
    onlookers: Onlookers,
) -> Outcome<'a> {
    let (shared, started) = (run.shared, run.started);
    let mut this = Supervisor {
        run,
        onlookers,
        own_memory_at: None,
        said_unmanaged: false,
        overrun: Overrun::default(),
        own_threads: OwnThreads::default(),
        terminal_stop: TerminalStop::default(),
        holder: Holder::default(),
    };
    let mut last_look = started;
    this.look();
    let mut ended = None;
    let mut copies = Copies::new();
    loop {
        let tick = this.run.tree.tick();
        let time = tick.saturating_sub(last_look.elapsed()).min(this.terminal_stop.pause());
        sleep(signals, broker, control, this.onlookers.requests.as_ref(), time);
        this.run.wakeups += 1;
        broker.serve(shared, &mut this.run.in_thread);
        if let Some(requests) = &this.onlookers.requests {
            requests.serve(|| metrics::text(&this.run));
        }
        control.serve(&mut this.run);
        this.pass_on(signals, child, ended.is_none());
        let agent = Agent { run: shared, path: &shared.preload, files: None };
        let (entering, following) = broker.entering();
        let saw = |pid, status| {
            let seen = entering.saw(pid, status, &agent, following);
            if let Some(Seen::NotEntered(text)) = &seen {
                this.warn(text.clone());
            }
            if let Some(Seen::Stopped) = &seen {
                copies.was_stopped(pid);
            }
            seen
        };
        let mut stops = Vec::new();
        if let Some(code) = reap(child, ended.is_none(), saw, |status| stops.push(status)) {
            ended = Some(code);
        }
        if ended.is_none() {
            stops.into_iter().for_each(|status| this.terminal_stop.was_told(child, status));
            this.terminal_stop.look(child);
        }
        if let Err(error) = this.holder.look(shared.segment(), shared.settings()) {
            let why = lowtide_config::reason(error);
            this.warn(format!("a program without hooks that grows fast will pass the limit further: {why}"));
        }
        following.warnings().for_each(|text| this.warn(text.to_owned()));
        if ended.is_some() && if alone { !ancestry::has_children() } else { !broker.kept().have_survivors() } {
            break;
        }
        if last_look.elapsed() >= tick {
            last_look = Instant::now();
            this.look();
            broker.entering().0.look();
            if let Some((pid, text)) = broker.kept().look() {
                shared.segment().fatal.put(pid, text.as_bytes());
            }
            if let Some(text) = copies.look(shared.segment(), broker.entering().0) {
                this.warn(text);
            }
            let beside = copies.unlimited();
            if beside > 0 {
                shared.segment().keep_peak(this.run.tree.now().ram.saturating_add(beside));
            }
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
    // The agent's finding may have ended the program.
    let code = match (shared.segment().fatal.get(), ended) {
        (Some(text), ended) => {
            this.run.tree.kill();
            if ended.is_none() {
                // Not reaped yet, so the pid is its own.
                let _ = rustix::process::kill_process(child, Signal::KILL);
                bury(child);
            }
            broker.kept().kill_survivors();
            this.look();
            say(&format!("{} was stopped: {}", this.run.program, clean(&text)));
            error::FAILED
        }
        (None, ended) => ended.unwrap_or(error::FAILED),
    };
    this.check_managed();
    if let Some(text) = this.overrun.warning(shared.segment(), &this.run.warnings) {
        this.warn(text);
    }
    let managed = !this.run.tree.pids().is_empty();
    if let Some(series) = &mut this.onlookers.series {
        series.finish(&this.run, elapsed);
    }
    Outcome { code, run: this.run, managed, elapsed, series: this.onlookers.series }
}

impl Supervisor<'_> {
    /// Passes pending signals on: to the program while it lives (`lives`), then to all processes of
    /// the run.
    fn pass_on(&mut self, signals: &SignalFd, child: Pid, lives: bool) {
        while let Some(Received { signal, from_kernel, alarm }) = signals.next() {
            if let Some(place) = alarm {
                self.run.tree.has_run(place);
                continue;
            }
            self.terminal_stop.signal(signal);
            // The terminal's signals (^C, ^Z, hang-up) went to the whole process group, the program
            // included.
            if signal == Signal::CHILD || from_kernel {
                continue;
            }
            if lives {
                // Not reaped yet, so the pid is its own.
                let _ = rustix::process::kill_process(child, signal);
            } else {
                self.run.tree.signal(signal);
            }
        }
    }

    fn look(&mut self) {
        let (shared, segment) = (self.run.shared, self.run.shared.segment());
        // Skips the memory used for loading BPF programs, which is temporary: the last figure
        // stays.
        if !self.run.in_thread.is_loading() && self.own_memory_at.is_none_or(|at| at.elapsed() >= OWN_MEMORY) {
            segment.supervisor_bytes.store(proc::anonymous("self") + shared.resident(), Ordering::Relaxed);
            self.own_memory_at = Some(Instant::now());
        }
        self.run.look();
        // While a lowered limit takes effect, the ceiling counts.
        let (limit, ceiling) = (&shared.settings().ram_limit, &shared.settings().ram_ceiling);
        let limit = limit.load(Ordering::Relaxed).max(ceiling.load(Ordering::Relaxed));
        self.overrun.look(segment, limit, self.run.tree.now().ram);
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
        self.run.areas.warnings().into_iter().for_each(|text| self.warn(text));
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

    /// Warns once if no agent has ever reported.
    fn check_managed(&mut self) {
        if self.run.tree.pids().is_empty() && !self.said_unmanaged {
            self.said_unmanaged = true;
            let name = &self.run.program;
            self.warn(format!("{name} is not managed, no limit holds: the agent never reported (was LD_PRELOAD ignored?)"));
        }
    }
}

/// An agent's text: NUL-padded, perhaps not UTF-8.
fn clean(text: &[u8]) -> String {
    let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
    String::from_utf8_lossy(&text[..end]).into_owned()
}

/// Sleeps until a signal, a request or a client comes, or the time is over.
fn sleep(signals: &SignalFd, broker: &Broker, control: &Control, requests: Option<&Requests>, time: Duration) {
    let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    // The caller looks at everything again, interrupted or not.
    let mut polled = vec![PollFd::new(signals, PollFlags::IN)];
    polled.extend(broker.waits_for().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    polled.extend(control.waits_for().map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)));
    polled.extend(requests.map(|requests| PollFd::from_borrowed_fd(requests.waits_for(), PollFlags::IN)));
    let _ = rustix::event::poll(&mut polled, Some(&timeout));
}

/// Takes the wait statuses of adopted orphans and of the program while it lives, without blocking.
/// Returns the program's exit code if it has ended. `saw` handles traced processes; `stopped` gets
/// the program's stops.
fn reap(
    program: Pid,
    lives: bool,
    mut saw: impl FnMut(Pid, WaitStatus) -> Option<Seen>,
    mut stopped: impl FnMut(WaitStatus),
) -> Option<u8> {
    let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
    loop {
        // Not waitpid(None), which waits for the process group's children only.
        match rustix::process::wait(options) {
            Ok(None) => return None,
            Ok(Some((pid, status))) => {
                let is_program = pid == program && lives;
                match saw(pid, status) {
                    Some(Seen::Stopped) | None if is_program && status.stopped() => stopped(status),
                    Some(Seen::Ended) | None if is_program => return exit_code(status),
                    _ => {}
                }
            }
            Err(Errno::INTR) => {}
            // Reaped elsewhere: the status is lost.
            Err(_) => return lives.then_some(error::FAILED),
        }
    }
}

/// Waits for the end of a killed process. (A traced one reports stops as well.)
fn bury(child: Pid) {
    loop {
        match rustix::process::waitpid(Some(child), WaitOptions::empty()) {
            Ok(Some((_, status))) if status.stopped() => {}
            Err(Errno::INTR) => {}
            _ => return,
        }
    }
}

/// The shell's exit code for a process; None: it was stopped.
fn exit_code(status: WaitStatus) -> Option<u8> {
    let killed = status.terminating_signal().map(|signal| 128 + signal);
    status.exit_status().or(killed).map(|code| code as u8)
}
