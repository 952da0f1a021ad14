//! `lowtide-lab`: the experiments behind lowtide's design. Each reproduces a published result on
//! this machine, compares lowtide's figure with it and with the stated target.
//!
//! Exit status: 0 all targets met but known misses, 1 another missed, 2 bad usage, 125 the lab
//! itself failed.

mod args;
mod build;
mod burners;
mod experiment;
mod experiments;
mod fault;
mod kept;
mod measure;
mod page;
mod plot;
mod programs;
mod progress;
mod published;
mod race;
mod report;
mod scale;
mod slots;
mod swapoff;
mod threads;
mod trace;
mod wishes;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use args::Args;
use experiment::Experiment;
use progress::Progress;
use report::Report;

const MISSED: u8 = 1;
const USAGE: u8 = 2;
const FAILED: u8 = 125;

fn main() -> ExitCode {
    let helpers = [race::helper, fault::helper, burners::helper, swapoff::helper, scale::helper];
    if let Some(code) = helpers.into_iter().find_map(|helper| helper()) {
        return code;
    }
    let args = match args::parse() {
        Ok(args) => args,
        Err(None) => return ExitCode::SUCCESS,
        Err(Some(line)) => return fail(USAGE, &line),
    };
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(MISSED),
        Err(line) => fail(FAILED, &line),
    }
}

fn fail(code: u8, line: &str) -> ExitCode {
    eprintln!("lowtide-lab: {line}");
    ExitCode::from(code)
}

/// Runs the experiments and writes the files; whether all targets were met.
fn run(args: &Args) -> Result<bool, String> {
    let chosen = experiments::named(&args.experiment);
    let progress = Progress::new(chosen.len());
    let scale = experiment::Scale { quick: args.quick, race: args.race.wishes(), progress: progress.clone() };
    let machine = page::machine();
    let mut reports = Vec::new();
    for experiment in &chosen {
        progress.doing(format!("{}: {}", experiment.name, experiment.question));
        let outcome = (experiment.run)(&scale).inspect_err(|_| progress.end())?;
        progress.done();
        let report = Report::new(experiment.name, experiment.question, args.quick, outcome.tables, outcome.findings);
        let printed = progress.above(|| std::io::stdout().write_all(report.to_string().as_bytes()));
        printed.map_err(|e| format!("can't print: {e}"))?;
        if let Some(path) = &args.plot {
            draw(experiment, &outcome.charts, &plot_path(path, experiment, chosen.len()))?;
        }
        if let Some(path) = &args.published {
            publish(path, &report)?;
        }
        reports.push(report);
    }
    progress.end();
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&reports).map_err(|e| e.to_string())?;
        std::fs::write(path, text + "\n").map_err(|e| format!("can't write {}: {e}", path.display()))?;
    }
    if let Some(path) = &args.results {
        let text = page::of(&page::command(), &machine, &reports);
        std::fs::write(path, text).map_err(|e| format!("can't write {}: {e}", path.display()))?;
    }
    Ok(reports.iter().all(Report::met))
}

/// Puts an experiment's published figures into the document.
fn publish(path: &Path, report: &Report) -> Result<(), String> {
    let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let document = std::fs::read_to_string(path).map_err(|e| fail(&e))?;
    let order: Vec<&str> = experiments::choices().collect();
    let updated = published::update(&document, std::slice::from_ref(report), &order).map_err(|e| fail(&e))?;
    std::fs::write(path, updated).map_err(|e| fail(&e))
}

fn draw(experiment: &Experiment, charts: &[plot::Chart], path: &Path) -> Result<(), String> {
    if charts.is_empty() {
        eprintln!("lowtide-lab: {} has nothing to plot", experiment.name);
        return Ok(());
    }
    plot::write(charts, path)
}

/// The file of one experiment's plot: with its name in it if several run.
fn plot_path(path: &Path, experiment: &Experiment, experiments: usize) -> PathBuf {
    if experiments == 1 {
        return path.to_owned();
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}-{}.svg", experiment.name))
}
