//! The command line.

use std::path::PathBuf;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::experiments;
use crate::race::Swap;

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
    /// Draw the curves into FILE; `all` puts the name of each experiment into the name of its file.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Smaller and shorter: seconds, not minutes.
    #[arg(long)]
    pub quick: bool,
    /// What the kernel swaps to; for `race`, where a file is the default.
    #[arg(long, value_enum)]
    pub swap: Option<Swap>,
}

/// Reads the command line. The error is a line that says what is wrong with it, or `None` when help was asked for and printed.
pub fn parse() -> Result<Args, Option<String>> {
    match Args::try_parse() {
        Ok(args) if args.swap.is_some() && args.experiment != experiments::RACE => {
            Err(Some(format!("--swap is for `{}` only", experiments::RACE)))
        }
        parsed => parsed.map_err(|error| explain(&error)),
    }
}

/// Prints help that was asked for, or says what is wrong.
fn explain(error: &clap::Error) -> Option<String> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            None
        }
        _ => Some(one_line(error)),
    }
}

/// What clap says in several lines, in one.
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
}
