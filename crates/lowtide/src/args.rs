//! The command line, and its errors as one line each.

use crate::error::Failure;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use std::ffi::OsString;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  lowtide run --ram 512M python3 big.py
      keep python3 and all its children under 512 MiB
  lowtide run --ram 40% --swap dir:/mnt/fast,size=20G sort -S 4G huge.txt
      40 % of this machine's RAM, cold pages compressed first, then to a file in /mnt/fast
  lowtide run --ram 1G --swap ram --codec zstd:3 --stats out.json redis-server
      compressed RAM only, and the numbers of the run in a file
  lowtide limit 4242 1G
      let a run use more (or less) from now on; 4242 is the pid of any of its processes
  lowtide doctor
      what this machine can do, and what would enable the rest";

/// Swap in user space, for one program: keeps an unmodified program under a memory limit.
#[derive(Parser, Debug)]
#[command(
    name = "lowtide",
    version,
    about,
    long_about = "Swap in user space, for one program, without kernel swap and without a reboot: `lowtide run` keeps an \
                  unmodified, dynamically linked program and all its children under a memory limit. Cold pages are compressed \
                  in RAM, then written to an unnamed swap file, and come back on a page fault.",
    after_long_help = EXAMPLES,
    disable_help_subcommand = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a program under a memory limit
    #[command(
        override_usage = "lowtide run --ram SIZE [OPTIONS] [--] PROGRAM [ARGS]...",
        long_about = "Run a program with all its children under a memory limit. Its anonymous pages and all that lowtide holds \
                      for them (compressed pages, staging, tables) stay under --ram; below the limit it runs at native speed. \
                      All that follows the program's name is the program's, also what looks like an option.\n\n\
                      Standard input and output, the terminal, signals and the exit status (128+N after signal N) are the \
                      program's own. Exit status 2: bad usage; 125: lowtide itself failed; 126: the program can't be executed; \
                      127: it was not found. At exit one summary line goes to standard error.\n\n\
                      SIZE: 512M, 2G, 1.5GiB, bytes, or 40% of the RAM that this process may use (the smaller of the machine's \
                      and its cgroup's). Units are binary.",
        after_long_help = EXAMPLES
    )]
    Run(Box<RunArgs>),
    /// List the runs that there are
    #[command(
        long_about = "List the runs that there are: pid of `lowtide run`, RAM used and its limit, bytes of pages that are out \
                      (in the compressed pool and on devices), time since the start, processes, program. root sees everybody's."
    )]
    Ps,
    /// Show the statistics of a run
    Stat(StatArgs),
    /// Watch runs on the terminal, and change them by keys
    #[command(
        long_about = "Watch the runs of this user (root: everybody's), or one of them, on the terminal: where their memory is, \
                      faults and how long they take, swap areas, processes. Keys set another limit, move pages out and turn \
                      swap areas on and off; ? lists them. It ends with the last run, or by q; the runs go on. Without colours \
                      if NO_COLOR is set."
    )]
    Top {
        /// Of `lowtide run`, or of any process of the run [default: all runs]
        pid: Option<u32>,
    },
    /// Print the statistics of a run as OpenMetrics text
    Metrics {
        /// Of `lowtide run`, or of any process of the run [default: the only run of this user]
        pid: Option<u32>,
    },
    /// Set another RAM limit
    #[command(
        long_about = "Set another RAM limit of a run. A higher one holds at once and brings nothing in by force. A lower one \
                      makes the run evict at once, while the program goes on; one that is below what can't be moved out is \
                      refused."
    )]
    Limit {
        /// Of `lowtide run`, or of any process of the run
        pid: u32,
        /// As for `lowtide run --ram`: 512M, 2G, 40%
        #[arg(allow_hyphen_values = true)]
        size: String,
        /// Do not wait (at most 10 seconds) until the run is below its limit
        #[arg(long)]
        no_wait: bool,
    },
    /// Move pages out now, though the limit is not reached
    Reclaim {
        /// Of `lowtide run`, or of any process of the run
        pid: u32,
        /// How much: 512M, 2G
        #[arg(allow_hyphen_values = true)]
        size: String,
    },
    /// Add a swap area
    Swapon {
        /// Of `lowtide run`, or of any process of the run
        pid: u32,
        /// As for `lowtide run --swap`: dir:DIR[,size=8G][,prio=N][,rotational],
        /// file:PATH[,size=8G][,prio=N][,rotational][,discard], redis://HOST:PORT[,size=8G][,prio=N][,timeout=30s][,copies=2],
        /// rediss://HOST:PORT[,...][,ca=FILE][,cert=FILE,key=FILE] or auto
        spec: String,
    },
    /// Move everything off a swap area and take it away, while the program goes on
    #[command(
        long_about = "Move everything off a swap area, to other areas, to the compressed pool or back into RAM as the limit \
                      allows, and take the area away, while the program goes on. Refused before anything is moved if there is \
                      not room enough elsewhere. ^C cancels: then, and after an error, the area stays in use. Exit status 1: \
                      pages have no room or can't be read, as the message says; 130: cancelled by ^C."
    )]
    Swapoff {
        /// Of `lowtide run`, or of any process of the run
        pid: u32,
        /// dir:DIR, file:PATH, redis://HOST:PORT or rediss://HOST:PORT as `lowtide stat` shows it, or the path alone
        spec: String,
    },
    /// Look after a server that pages go to
    Remote {
        /// What to do
        #[command(subcommand)]
        what: RemoteCommand,
    },
    /// Show what this machine can do, and the exact command that would enable what it can't
    Doctor {
        /// Show instead whether pages can go to this server: redis://[USER@]HOST:PORT[/DB], or rediss://, with the options
        /// that --swap has. The password comes from LOWTIDE_REDIS_PASSWORD
        server: Option<String>,
    },
    /// Print the manual page (roff) on standard output
    #[command(hide = true)]
    Man {
        /// A command, like `run`; without, lowtide itself
        command: Option<String>,
        /// Write the pages of lowtide and of all its commands into this directory
        #[arg(long, value_name = "DIR", conflicts_with = "command")]
        all: Option<PathBuf>,
    },
    /// Print the completions for a shell on standard output
    #[command(hide = true)]
    Completions {
        /// bash, zsh, fish, elvish or powershell
        #[arg(hide_possible_values = true)]
        shell: Shell,
    },
}

/// What to do with a server.
#[derive(Subcommand, Debug)]
pub enum RemoteCommand {
    /// Remove what runs have left on a server that were killed
    #[command(long_about = "Remove the pages of runs that were killed, and could not remove them: those whose lease, which \
                      `lowtide run` renews each minute, has been over for a while (ten minutes after the last time). Each \
                      start of a run with that server does the same. The password comes from LOWTIDE_REDIS_PASSWORD.")]
    Clean {
        /// redis://[USER@]HOST:PORT[/DB], or rediss://, with the options that --swap has
        server: String,
    },
}

/// Options of `lowtide run`. Sizes and specs are texts here; plan.rs reads them.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// RAM for the whole process tree: its anonymous pages plus all that lowtide holds for them
    #[arg(long, value_name = "SIZE", env = "LOWTIDE_RAM", hide_env_values = true, allow_hyphen_values = true)]
    pub ram: Option<String>,

    /// Where cold pages go, repeatable for several areas, of which those with a higher prio= come first: auto (compressed RAM
    /// first, then an unnamed file in $LOWTIDE_DIR, else /var/tmp), ram (compressed RAM only),
    /// dir:DIR[,size=8G][,prio=N][,rotational] (an unnamed file in DIR), file:PATH[,size=8G][,prio=N][,rotational][,discard] (a
    /// file of mode 0600, or a block device), redis://[USER@]HOST:PORT[/DB][,size=8G][,prio=N][,timeout=30s][,copies=2] (a
    /// Valkey or Redis server; its password comes from LOWTIDE_REDIS_PASSWORD), rediss:// (the same with TLS; also [,ca=FILE]
    /// and [,cert=FILE,key=FILE]). rotational: the disk turns; where it is not given the kernel is asked, rotational=0 says no
    #[arg(long, value_name = "SPEC", default_value = "auto")]
    pub swap: Vec<String>,

    /// Most RAM for the compressed pool [default: all of --ram but a working minimum of the program]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub pool: Option<String>,

    /// How pages are compressed: lz4 or zstd[:LEVEL]
    #[arg(long, value_name = "NAME[:LEVEL]", default_value = "lz4")]
    pub codec: String,

    /// When nothing can take another page: exceed (go over the limit with one warning) or stop (stop the program with a
    /// message)
    #[arg(long, value_name = "exceed|stop", default_value = "exceed")]
    pub when_full: String,

    /// Who brings pages in that a thread touches: in-thread (the thread itself, told by a BPF program: root or CAP_BPF and
    /// CAP_PERFMON), monitor (threads of lowtide), auto (in-thread where that can be and there are many faults)
    #[arg(long, value_name = "auto|in-thread|monitor", env = "LOWTIDE_PAGE_FAULTS", default_value = "auto")]
    pub faults: String,

    /// Whether static and musl programs are refused calls that lowtide can't follow: mremap of several threads, MADV_FREE,
    /// guards, shmat over memory
    #[arg(long, value_name = "on|off", default_value = "on")]
    pub exact_moves: String,

    /// Write the final statistics as one JSON object
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,

    /// Write a page about the run that needs nothing else: what happened over time, what more RAM would bring, advice
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,

    /// Serve the statistics as OpenMetrics text (for Prometheus) while the program runs: 127.0.0.1:PORT, [::1]:PORT or
    /// unix:PATH
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,

    /// Let --metrics name an address that other machines can reach
    #[arg(long, requires = "metrics")]
    pub metrics_anywhere: bool,

    /// No summary line
    #[arg(long, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Say what is registered and why
    #[arg(long)]
    pub verbose: bool,

    /// The program, then its arguments, whatever they look like
    #[arg(trailing_var_arg = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// Options of `lowtide stat`.
#[derive(Args, Debug)]
pub struct StatArgs {
    /// Of `lowtide run`, or of any process of the run [default: the only run of this user]
    pub pid: Option<u32>,

    /// One JSON object, with the fields of `lowtide run --stats`
    #[arg(long)]
    pub json: bool,

    /// Also how full the clusters of slots of each swap area are
    #[arg(long)]
    pub areas: bool,

    /// Again each second, until the run ends or ^C
    #[arg(long)]
    pub watch: bool,
}

/// Reads the command line. Err(None): help or version was printed.
pub fn parse(args: &[OsString]) -> Result<Cli, Option<Failure>> {
    Cli::try_parse_from(args).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            None
        }
        _ => Some(Failure::usage(one_line(&error, args))),
    })
}

/// clap's message in one line.
fn one_line(error: &clap::Error, args: &[OsString]) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    };
    let command = args.get(1).and_then(|arg| arg.to_str()).filter(|name| Cli::command().find_subcommand(name).is_some());
    let help = command.map_or("see `lowtide --help`".to_owned(), |name| format!("see `lowtide {name} --help`"));
    let arg = text(ContextKind::InvalidArg);
    match error.kind() {
        ErrorKind::UnknownArgument => format!("unknown option {arg}; {help}"),
        ErrorKind::InvalidSubcommand => {
            let name = text(ContextKind::InvalidSubcommand);
            format!("`{name}` is not a command of lowtide; to run a program: `lowtide run --ram SIZE PROGRAM`")
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            format!("no command is given; to run a program: `lowtide run --ram SIZE PROGRAM`; {help}")
        }
        ErrorKind::ArgumentConflict => {
            if arg.is_empty() || arg == text(ContextKind::PriorArg) {
                format!("{arg} is given twice; {help}")
            } else {
                format!("{arg} and {} exclude each other; {help}", text(ContextKind::PriorArg))
            }
        }
        ErrorKind::InvalidValue if text(ContextKind::InvalidValue).is_empty() => format!("{arg} needs a value; {help}"),
        ErrorKind::MissingRequiredArgument => format!("{arg} is missing; {help}"),
        ErrorKind::InvalidUtf8 => format!("an option's value is not valid UTF-8; {help}"),
        _ => {
            let rendered = error.render().to_string();
            let first = rendered.lines().next().unwrap_or_default();
            format!("{}; {help}", first.strip_prefix("error: ").unwrap_or(first))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_agrees_with_itself() {
        Cli::command().debug_assert();
    }

    #[test]
    fn faults_are_served_as_can_be_by_default() {
        let command = Cli::command();
        let run = command.find_subcommand("run").expect("a command");
        let faults = run.get_arguments().find(|argument| argument.get_id() == "faults").expect("an option");
        assert_eq!(faults.get_default_values(), ["auto"]);
    }

    #[test]
    fn errors_are_one_line() {
        for line in [
            "lowtide",
            "lowtide dance",
            "lowtide top x",
            "lowtide top 1 2",
            "lowtide stat x",
            "lowtide stat -1",
            "lowtide stat 1 2",
            "lowtide limit 1",
            "lowtide limit 1 2 3",
            "lowtide swapoff",
            "lowtide swapon 1",
            "lowtide run --ram",
            "lowtide run --ram 1G --ram 2G -- x",
            "lowtide run --frob -- x",
            "lowtide run --quiet --verbose -- x",
            "lowtide run --quiet=3 -- x",
        ] {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let failure = parse(&args).expect_err(line).expect(line);
            assert_eq!(failure.code, 2, "{line}");
            assert!(!failure.line.contains('\n') && !failure.line.is_empty(), "{line}: {}", failure.line);
        }
    }

    #[test]
    fn what_follows_the_name_of_the_program_is_its_own() {
        for (line, program, quiet) in [
            ("lowtide run --ram 1G sort -n", "sort -n", false),
            ("lowtide run --quiet --ram 1G sort --quiet --frob", "sort --quiet --frob", true),
            ("lowtide run --ram 1G sort --ram 2G", "sort --ram 2G", false),
            ("lowtide run --ram 1G sort --help --version", "sort --help --version", false),
            ("lowtide run --ram 1G sort -- -x", "sort -- -x", false),
            ("lowtide run --ram 1G -- sort --quiet", "sort --quiet", false),
            ("lowtide run --ram 1G -- -odd -- x", "-odd -- x", false),
            ("lowtide run --ram 1G", "", false),
            ("lowtide run --ram 1G --", "", false),
        ] {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let Ok(Cli { command: Command::Run(run) }) = parse(&args) else { panic!("{line}") };
            let words: Vec<String> = run.program.iter().map(|word| word.display().to_string()).collect();
            assert_eq!((words.join(" ").as_str(), run.quiet, run.ram.as_deref()), (program, quiet, Some("1G")), "{line}");
        }
    }
}
