//! `lowtide run`: plan, probe, start, supervise, report.

use crate::args::RunArgs;
use crate::control::Control;
use crate::error::{Failure, say};
use crate::host::probe::Probe;
use crate::host::swap_race;
use crate::live::Live;
use crate::metrics::{self, Requests};
use crate::plan::Plan;
use crate::report::Report;
use crate::stats::Stats;
use crate::supervisor::ancestry;
use crate::supervisor::broker::Broker;
use crate::supervisor::event_loop::{Onlookers, supervise};
use crate::supervisor::in_thread::{self, InThread};
use crate::supervisor::launch::launch;
use crate::supervisor::series::Series;
use crate::supervisor::shared_memory::Shared;
use crate::supervisor::signals;
use lowtide_config::{codec, reason, size};
use lowtide_wire::segment::{BROKER_FOLLOWS, ENV_SEGMENT, FAULTS_AS_CAN_BE, FAULTS_BY_HANDLERS, FAULTS_IN_THREAD};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Returns lowtide's exit code. (Over 70 lines: the steps of a run in order, each of which may
/// refuse.)
pub fn run(args: RunArgs) -> Result<u8, Failure> {
    refuse_setuid()?;
    let mut plan = Plan::new(args)?;
    refuse_nesting()?;
    let probe = Probe::new();
    if let Some(why) = probe.refusal() {
        return Err(Failure::failed(why));
    }
    plan.warnings.extend(swap_race::warning());
    if plan.faults == FAULTS_AS_CAN_BE && !in_thread::may_load(&probe.confinement) {
        // Saves the processes a request in vain.
        plan.faults = FAULTS_BY_HANDLERS;
    }
    let mut in_thread = InThread::new(plan.faults);
    if plan.faults == FAULTS_IN_THREAD {
        in_thread.load().map_err(|why| Failure::failed(format!("--faults in-thread can't be had here: {why}")))?;
    }
    plan.take_files()?;
    let (mut broker, listening) = Broker::new();
    if let Err(error) = listening {
        let why = reason(error);
        plan.warnings.push(format!("no socket can be made ({why}): processes that change their user will not be limited"));
    }
    let (mut control, listening) = Control::new();
    if let Err(why) = listening {
        plan.warnings
            .push(format!("no control socket can be made ({why}): `lowtide ps`, stat, limit and so on can't reach this run"));
    }
    let shared = Shared::new(&plan, broker.name())?;
    let following = broker.entering().1;
    (following.tells_changes, following.processes) = (plan.tells_changes, Some(shared.segment()));
    let (signals, inherited) = signals::take()?;
    for warning in &plan.warnings {
        say(&format!("warning: {warning}"));
    }
    if plan.verbose {
        describe(&plan).iter().for_each(|line| say(line));
    }
    ancestry::adopt_orphans().map_err(|error| {
        Failure::failed(format!("can't become the parent of orphans among the program's children ({error})"))
    })?;
    let alone = !ancestry::has_children();
    let mut onlookers = Onlookers { series: plan.report.as_ref().map(|_| Series::default()), ..Onlookers::default() };
    let asker = match &plan.metrics {
        None => None,
        Some(_) => {
            let (requests, asker) = Requests::new()
                .map_err(|error| Failure::failed(format!("no descriptor can be made ({}); see `ulimit -n`", reason(error))))?;
            onlookers.requests = Some(requests);
            Some(asker)
        }
    };
    let child = launch(&plan, &shared, inherited, broker.entering().1)?;
    more_descriptors();
    for why in plan.swap.iter().filter_map(|swap| swap.start().err()) {
        say(&format!("warning: --swap {why}"));
    }
    if let (Some(listening), Some(asker)) = (&plan.metrics, asker) {
        match metrics::start(listening, asker) {
            // The user does not know a port that the kernel chose.
            Ok(()) if plan.verbose || listening.has_chosen_port() => say(&format!("metrics at {}", listening.shown())),
            Ok(()) => {}
            Err(error) => say(&format!("warning: the metrics can't be served: {error}")),
        }
    }
    let run = Live::new(&mut plan, &shared, in_thread);
    let outcome = supervise(run, &mut broker, &mut control, &signals, child, alone, onlookers);
    // Clients must not find a run that is over.
    drop(control);
    for why in outcome.run.areas.in_use().iter().filter_map(|swap| swap.finish()) {
        say(&format!("warning: {why}"));
    }

    let stats = Stats::new(&outcome.run, outcome.run.tree.gauges(), outcome.elapsed);
    if let Some(file) = plan.stats.take() {
        let written =
            serde_json::to_string_pretty(&stats).map_err(std::io::Error::from).and_then(|text| file.write(&(text + "\n")));
        if let Err(error) = written {
            say(&format!("warning: the statistics can't be written: {error}"));
        }
    }
    if let (Some(file), Some(series)) = (plan.report.take(), &outcome.series) {
        let report = Report::new(&plan, &stats, shared.segment(), series, outcome.code);
        if let Err(error) = file.write(&report.page()) {
            say(&format!("warning: the report can't be written: {error}"));
        }
    }
    if !plan.quiet {
        say(&stats.summary(outcome.managed));
    }
    Ok(outcome.code)
}

/// Raises this process's limit of descriptors: it holds a userfaultfd of each process of the run,
/// and some channels. (The program has started already, with the original limits.)
fn more_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// A setuid lowtide would run any program as root for anybody.
fn refuse_setuid() -> Result<(), Failure> {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    if geteuid() == getuid() && getegid() == getgid() {
        return Ok(());
    }
    let exe = std::env::current_exe().map_or_else(|_| "lowtide".to_owned(), |path| path.display().to_string());
    Err(Failure::failed(format!(
        "lowtide is setuid or setgid, which would give its privilege to every program: \
         `sudo chmod ug-s {exe} && sudo setcap cap_sys_ptrace,cap_dac_read_search=p {exe}`"
    )))
}

/// Two agents in one program would page each other's memory.
fn refuse_nesting() -> Result<(), Failure> {
    match std::env::var_os(ENV_SEGMENT) {
        // The variable of a run that is over means nothing.
        Some(origin) if settings_path(&origin).exists() => Err(Failure::usage(
            "this is already inside a `lowtide run`, and its limit holds for all its children: start the program without \
             lowtide",
        )),
        _ => Ok(()),
    }
}

fn settings_path(origin: &OsStr) -> PathBuf {
    let path = origin.as_bytes().split(|byte| *byte == BROKER_FOLLOWS).next().unwrap_or_default();
    PathBuf::from(OsStr::from_bytes(path))
}

fn describe(plan: &Plan) -> Vec<String> {
    let codec = codec::show(plan.codec);
    let (ram, pool) = (size::show(plan.ram), size::show(plan.pool));
    let swap = if plan.swap.is_empty() { ", swap: compressed RAM only" } else { "" };
    let mut lines = vec![format!("{}: ram {ram}, pool up to {pool} ({codec}){swap}", plan.path.display())];
    lines.extend(plan.swap.iter().map(|area| {
        let how = area.how().unwrap_or_else(|why| format!("not known how it is read and written: {why}"));
        format!("swap {}: up to {}, priority {}, {how}", area.spec(), size::show(area.size), area.prio)
    }));
    lines
}
