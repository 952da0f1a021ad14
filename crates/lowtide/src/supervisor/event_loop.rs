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
use crate::supervisor::holder::Holder;
use crate::supervisor::overrun::Overrun;
use crate::supervisor::own_threads::OwnThreads;
use crate::supervisor::series::Series;
use crate::supervisor::terminal_stop::TerminalStop;
use lowtide_config::proc;
use lowtide_wire::segment::{MAX_WARNINGS, Segment};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const OWN_MEMORY: Duration = Duration::from_secs(1);
/// A program without a report of its agent after this time has none.
const UNMANAGED_AFTER: Duration = Duration::from_secs(2);
/// In a turn.
const MOST_EVENTS: usize = 1000;

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

/// What a run may be told. Requests and what only time brings are looked for in each turn.
enum Event {
    Signal(Received),
    /// Of the program, an adopted orphan or a traced process.
    Status(Pid, WaitStatus),
    /// The program was reaped elsewhere: its status is lost.
    Lost,
}

struct Supervisor<'a, 'b> {
    run: Live<'a>,
    broker: &'b mut Broker,
    control: &'b mut Control,
    signals: &'b SignalFd,
    child: Pid,
    alone: bool,
    /// The program's exit code, once it has ended.
    ended: Option<u8>,
    copies: Copies,
    onlookers: Onlookers,
    last_look: Instant,
    own_memory_at: Option<Instant>,
    said_unmanaged: bool,
    overrun: Overrun,
    own_threads: OwnThreads,
    terminal_stop: TerminalStop,
    holder: Holder,
}

/// Stays until the program and all that it started have ended: a program may become a daemon, or
/// leave workers. `alone`: this process had no children before the program; otherwise it can't tell
/// when all are gone, and stays for the program only.
pub fn supervise<'a>(
    run: Live<'a>,
    broker: &mut Broker,
    control: &mut Control,
    signals: &SignalFd,
    child: Pid,
    alone: bool,
    onlookers: Onlookers,
) -> Outcome<'a> {
    let mut this = Supervisor {
        last_look: run.started,
        run,
        broker,
        control,
        signals,
        child,
        alone,
        ended: None,
        copies: Copies::new(),
        onlookers,
        own_memory_at: None,
        said_unmanaged: false,
        overrun: Overrun::default(),
        own_threads: OwnThreads::default(),
        terminal_stop: TerminalStop::default(),
        holder: Holder::default(),
    };
    this.look();
    while !this.is_over() {
        this.sleep();
        this.serve();
        for _ in 0..MOST_EVENTS {
            let Some(event) = this.next() else { break };
            this.handle(event);
        }
        this.watch();
        if this.last_look.elapsed() >= this.run.tree.tick() {
            this.look_around();
        }
    }
    this.finish()
}

impl<'a> Supervisor<'a, '_> {
    fn is_over(&mut self) -> bool {
        if self.run.shared.segment().fatal.get().is_some() {
            return true;
        }
        let is_left = |this: &mut Self| if this.alone { ancestry::has_children() } else { this.broker.kept().have_survivors() };
        self.ended.is_some() && !is_left(self)
    }

    /// Until an event, a request or a client comes, or the time is over.
    fn sleep(&mut self) {
        let time = self.run.tree.tick().saturating_sub(self.last_look.elapsed()).min(self.terminal_stop.pause());
        let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        // The caller looks at everything again, interrupted or not.
        let mut polled = vec![PollFd::new(self.signals, PollFlags::IN)];
        polled.extend(self.broker.waits_for().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        polled.extend(self.control.waits_for().map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)));
        let requests = self.onlookers.requests.as_ref();
        polled.extend(requests.map(|requests| PollFd::from_borrowed_fd(requests.waits_for(), PollFlags::IN)));
        let _ = rustix::event::poll(&mut polled, Some(&timeout));
        self.run.wakeups += 1;
    }

    fn serve(&mut self) {
        self.broker.serve(self.run.shared, &mut self.run.in_thread);
        if let Some(requests) = &self.onlookers.requests {
            requests.serve(|| metrics::text(&self.run));
        }
        self.control.serve(&mut self.run);
    }

    /// Without blocking.
    fn next(&mut self) -> Option<Event> {
        if let Some(received) = self.signals.next() {
            return Some(Event::Signal(received));
        }
        // Not waitpid(None), which waits for the process group's children only.
        match rustix::io::retry_on_intr(|| rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED)) {
            Ok(Some((pid, status))) => Some(Event::Status(pid, status)),
            Err(_) if self.ended.is_none() => Some(Event::Lost),
            _ => None,
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Signal(received) => self.pass_on(received),
            Event::Status(pid, status) => self.saw(pid, status),
            Event::Lost => self.ended = Some(error::FAILED),
        }
    }

    /// Passes a signal on: to the program while it lives, then to all processes of the run.
    fn pass_on(&mut self, Received { signal, from_kernel, alarm }: Received) {
        if let Some(place) = alarm {
            self.run.tree.has_run(place);
            return;
        }
        self.terminal_stop.signal(signal);
        // The terminal's signals (^C, ^Z, hang-up) went to the whole process group, the program
        // included.
        if signal == Signal::CHILD || from_kernel {
            return;
        }
        if self.ended.is_none() {
            // Not reaped yet, so the pid is its own.
            let _ = rustix::process::kill_process(self.child, signal);
        } else {
            self.run.tree.signal(signal);
        }
    }

    fn saw(&mut self, pid: Pid, status: WaitStatus) {
        let shared = self.run.shared;
        let agent = Agent { run: shared, path: &shared.preload, files: None };
        let (entering, following) = self.broker.entering();
        let seen = entering.saw(pid, status, &agent, following);
        let is_program = pid == self.child && self.ended.is_none();
        match seen {
            Some(Seen::Stopped) | None if is_program && status.stopped() => self.terminal_stop.was_told(pid, status),
            Some(Seen::Ended) | None if is_program => self.ended = exit_code(status),
            _ => {}
        }
        match seen {
            Some(Seen::NotEntered(text)) => self.warn(text),
            Some(Seen::Stopped) => self.copies.was_stopped(pid),
            _ => {}
        }
    }

    /// What each turn looks at.
    fn watch(&mut self) {
        let shared = self.run.shared;
        if self.ended.is_none() {
            self.terminal_stop.look(self.child);
        }
        let under_way = &self.broker.entering().1.under_way;
        if let Err(error) = self.holder.look(shared.segment(), shared.settings(), under_way) {
            let why = lowtide_config::reason(error);
            self.warn(format!("a program without hooks that grows fast will pass the limit further: {why}"));
        }
        let warnings: Vec<_> = self.broker.entering().1.warnings().collect();
        warnings.into_iter().for_each(|text| self.warn(text.to_owned()));
    }

    /// At all processes.
    fn look_around(&mut self) {
        let segment = self.run.shared.segment();
        self.last_look = Instant::now();
        self.look();
        self.broker.entering().0.look();
        if let Some((pid, text)) = self.broker.kept().look() {
            segment.fatal.put(pid, text.as_bytes());
        }
        if let Some(text) = self.copies.look(segment, self.broker.entering().0) {
            self.warn(text);
        }
        let beside = self.copies.unlimited();
        if beside > 0 {
            segment.keep_peak(self.run.tree.now().ram.saturating_add(beside));
        }
        self.control.step(&mut self.run);
        if self.run.started.elapsed() > UNMANAGED_AFTER {
            self.check_managed();
        }
    }

    fn finish(mut self) -> Outcome<'a> {
        let elapsed = self.run.started.elapsed();
        let segment = self.run.shared.segment();
        self.look();
        // The agent's finding may have ended the program.
        let code = match segment.fatal.get() {
            Some(text) => {
                self.run.tree.kill();
                if self.ended.is_none() {
                    // Not reaped yet, so the pid is its own.
                    let _ = rustix::process::kill_process(self.child, Signal::KILL);
                    bury(self.child);
                }
                self.broker.kept().kill_survivors();
                self.look();
                say(&format!("{} was stopped: {}", self.run.program, clean(&text)));
                error::FAILED
            }
            None => self.ended.unwrap_or(error::FAILED),
        };
        self.check_managed();
        if let Some(text) = self.overrun.warning(segment, &self.run.warnings) {
            self.warn(text);
        }
        let managed = !self.run.tree.pids().is_empty();
        if let Some(series) = &mut self.onlookers.series {
            series.finish(&self.run, elapsed);
        }
        Outcome { code, run: self.run, managed, elapsed, series: self.onlookers.series }
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
