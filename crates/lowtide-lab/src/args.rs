//! The command line.

use std::path::PathBuf;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::experiments;
use crate::race::{self, Order, Swap};
use crate::wishes::Wishes;

/// The experiments behind lowtide's design: published figures, reproduced and beaten on this machine.
#[derive(Parser, Debug)]
#[command(name = "lowtide-lab", version)]
pub struct Args {
    /// What to run.
    #[arg(value_name = "EXPERIMENT", value_parser = PossibleValuesParser::new(experiments::choices()))]
    pub experiment: String,
    /// Write all figures to FILE.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write all that is printed into FILE, as a page that begins with the command and the machine (bench/results).
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
    /// Put the rows of published figures, ours beside them, into the table of FILE (bench/results/published.md); others stay.
    #[arg(long, value_name = "FILE")]
    pub published: Option<PathBuf>,
    /// Draw the curves into FILE; `all` puts the name of each experiment into the name of its file.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Smaller and shorter: seconds, not minutes.
    #[arg(long)]
    pub quick: bool,
    /// Options of `race`, and of `region` some of them.
    #[command(flatten)]
    pub race: RaceArgs,
}

/// Options of `race`.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Options of race")]
pub struct RaceArgs {
    /// What both swap to: compressed RAM (zram; the default), a file, of which there is a race of its own, or a file behind
    /// compressed RAM (zswap).
    #[arg(long, value_enum)]
    swap: Option<Swap>,
    /// lowtide with its default options, a pool and a swap file of its own, whatever the kernel swaps to.
    #[arg(long)]
    plain: bool,
    /// The limit, in percent of what a load takes natively (default: 70; 40 with `--swap zswap`, 33 with `--swap file`).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(10..=95))]
    percent: Option<u64>,
    /// Only these loads; of `region`: only these orders; of `build`: only these variants; of `slots-locks`:
    /// only these allocators, or what one thread executes (`counts`); of `fault`: only `counts`, by a plain userfaultfd on a
    /// machine that is idle.
    #[arg(long, value_name = "NAME,NAME...", value_delimiter = ',', value_parser = PossibleValuesParser::new(names()))]
    only: Vec<String>,
    /// How often each load runs natively, under the kernel's swap and under lowtide; also of `region` (default: 3; 1 with
    /// `--quick`) and `build` (5; 1).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=99))]
    rounds: Option<u64>,
    /// Programs that burn CPU while a load runs (default: none).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    burners: Option<u64>,
    /// Of `slots-locks` and `fault`: with these numbers of threads, on machines with more CPUs or fewer.
    #[arg(long, value_name = "N,N...", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=32))]
    threads: Vec<u64>,
}

impl RaceArgs {
    pub fn wishes(&self) -> Wishes {
        let count = |wish: Option<u64>| wish.and_then(|n| usize::try_from(n).ok());
        let (rounds, burners) = (count(self.rounds), count(self.burners));
        let mut threads: Vec<usize> = self.threads.iter().filter_map(|n| count(Some(*n))).collect();
        threads.sort_unstable();
        threads.dedup();
        Wishes { swap: self.swap, percent: self.percent, only: self.only.clone(), rounds, plain: self.plain, burners, threads }
    }

    /// Why these options do not fit the experiment.
    fn misfit(&self, experiment: &str) -> Option<String> {
        let is_more = self.swap.is_some() || self.plain || self.percent.is_some() || self.burners.is_some();
        if !self.threads.is_empty() && ![experiments::LOCKS, experiments::FAULT].contains(&experiment) {
            return Some(format!("--threads is for `{}` and `{}`", experiments::LOCKS, experiments::FAULT));
        }
        let is_given = is_more || !self.only.is_empty() || self.rounds.is_some();
        let own: Vec<&str> = match experiment {
            experiments::RACE => race::names().collect(),
            experiments::BUILD | experiments::REGION if is_more => {
                return Some("--swap, --plain, --percent and --burners are for `race`".to_owned());
            }
            experiments::REGION => Order::NAMES.to_vec(),
            experiments::BUILD => experiments::builds().collect(),
            experiments::LOCKS | experiments::FAULT | experiments::DENSITY if is_more || self.rounds.is_some() => {
                return Some("--swap, --plain, --percent, --rounds and --burners are for `race`".to_owned());
            }
            experiments::LOCKS => experiments::allocators().collect(),
            experiments::FAULT => vec![experiments::COUNTS],
            experiments::DENSITY => race::names().collect(),
            _ => {
                return is_given
                    .then(|| "--swap, --plain, --percent, --only, --rounds and --burners are for `race`".to_owned());
            }
        };
        let other = self.only.iter().find(|name| !own.contains(&name.as_str()))?;
        Some(format!("`{other}` is nothing of `{experiment}`; there are: {}", own.join(", ")))
    }
}

/// For `--only`.
fn names() -> impl Iterator<Item = &'static str> {
    let more = |name: &&str| !race::names().any(|other| other == *name);
    race::names().chain(Order::NAMES.into_iter().filter(more)).chain(experiments::builds()).chain(experiments::allocators())
}

/// The error is one line, or `None` after printing the requested help.
pub fn parse() -> Result<Args, Option<String>> {
    match Args::try_parse() {
        Ok(args) => args.race.misfit(&args.experiment).map_or(Ok(args), |line| Err(Some(line))),
        Err(error) => Err(explain(&error)),
    }
}

/// Prints requested help, or returns the error.
fn explain(error: &clap::Error) -> Option<String> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            None
        }
        _ => Some(one_line(error)),
    }
}

/// clap's message in one line.
fn one_line(error: &clap::Error) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    };
    match error.kind() {
        ErrorKind::InvalidValue if text(ContextKind::InvalidArg) == "<EXPERIMENT>" => format!(
            "`{}` is not an experiment; there are: {}",
            text(ContextKind::InvalidValue),
            experiments::choices().collect::<Vec<_>>().join(", ")
        ),
        ErrorKind::InvalidValue if !text(ContextKind::ValidValue).is_empty() => {
            let (argument, value) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue));
            format!("`{value}` is nothing for {argument}; there are: {}", text(ContextKind::ValidValue))
        }
        ErrorKind::MissingRequiredArgument => {
            format!("which experiment? There are: {}", experiments::choices().collect::<Vec<_>>().join(", "))
        }
        _ => {
            let all = error.to_string();
            let first = all.lines().next().unwrap_or_default().trim_start_matches("error: ");
            format!("{first}; see `lowtide-lab --help`")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_usage_is_one_line_that_names_the_choices() {
        for (args, says) in
            [(vec!["lab", "slot-locks"], "slots-locks"), (vec!["lab"], "all"), (vec!["lab", "all", "--fast"], "--fast")]
        {
            let line = one_line(&Args::try_parse_from(args).unwrap_err());
            assert!(line.contains(says) && !line.contains('\n'), "{line}");
        }
        let args = Args::try_parse_from(["lab", "slots-locks", "--quick", "--json", "x"]).unwrap();
        assert!(args.quick && args.json.is_some() && args.plot.is_none());
    }

    #[test]
    fn faults_can_be_counted_only() {
        let parse = |experiment, only| Args::try_parse_from(["lab", experiment, "--only", only]).unwrap().race;
        assert_eq!(parse("fault", "counts").misfit("fault"), None);
        assert!(parse("fault", "sort").misfit("fault").is_some_and(|line| line.contains("counts")));
        assert!(parse("race", "counts").misfit("race").is_some_and(|line| line.contains("sort")));
    }

    #[test]
    fn numbers_of_threads_are_a_list_in_order_for_those_that_have_threads() {
        let parse = |experiment, threads| Args::try_parse_from(["lab", experiment, "--threads", threads]);
        for experiment in ["slots-locks", "fault"] {
            let args = parse(experiment, "16,1,4,4").unwrap();
            assert_eq!((args.race.misfit(experiment), args.race.wishes().threads), (None, vec![1, 4, 16]));
        }
        assert!(parse("pool", "2").unwrap().race.misfit("pool").is_some_and(|line| line.contains("slots-locks")));
        for wrong in ["0", "33", "1,,2", "many"] {
            let line = one_line(&parse("fault", wrong).unwrap_err());
            assert!(line.contains("--threads") && !line.contains('\n'), "{line}");
        }
    }
}
