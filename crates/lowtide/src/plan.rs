//! Reads and checks the options of a run, before anything is started or created.

use crate::args::RunArgs;
use crate::error::Failure;
use crate::host::machine;
use crate::metrics::Listening;
use crate::output_file::OutputFile;
use crate::program::{self, Entry, Program};
use crate::swap::area::{self, Swap};
use crate::swap::slots::SlotSetting;
use lowtide_config::ram::{LEAST, default_pool};
use lowtide_config::{codec, size};
use lowtide_core::codec::Codec;
use lowtide_sys::rss::may_be_off_here;
use lowtide_wire::segment;
use std::ffi::OsString;
use std::path::PathBuf;

pub struct Plan {
    /// Bytes.
    pub ram: u64,
    /// Bytes.
    pub pool: u64,
    pub pool_given: Option<u64>,
    /// For cold pages that don't stay in compressed RAM.
    pub swap: Vec<Swap>,
    pub codec: Codec,
    /// A `WHEN_FULL_` value of the segment.
    pub when_full: u32,
    /// A `FAULTS_` value of the segment.
    pub faults: u32,
    /// See [`segment::Settings::tells_changes`].
    pub tells_changes: bool,
    pub slots: SlotSetting,
    pub quiet: bool,
    pub verbose: bool,
    pub stats: Option<OutputFile>,
    pub report: Option<OutputFile>,
    pub metrics: Option<Listening>,
    pub path: PathBuf,
    pub entry: Entry,
    pub argv: Vec<OsString>,
    pub warnings: Vec<String>,
}

impl Plan {
    /// The error is the first thing that is wrong. (Over 70 lines: the options in order, each of
    /// which may be refused.)
    pub fn new(args: RunArgs) -> Result<Plan, Failure> {
        let usable = machine::ram_usable();
        let mut warnings = Vec::new();

        let text = args.ram.filter(|text| !text.is_empty());
        let text = text.ok_or_else(|| {
            Failure::usage("no limit is given: add --ram SIZE before the program, like --ram 512M, or set LOWTIDE_RAM")
        })?;
        let (ram, odd) = read_limit("--ram", &text, usable)?;
        warnings.extend(odd);
        warnings.extend(machine::odd_counts(ram, may_be_off_here()));

        let (swap, odd) = area::resolve(&args.swap, usable)?;
        warnings.extend(odd);
        let pool_given = args.pool.as_ref().map(|text| size::parse(text, usable)).transpose();
        let pool_given = pool_given.map_err(|why| Failure::usage(format!("--pool: {why}")))?;
        let pool = pool_given.unwrap_or_else(|| default_pool(ram));
        if pool > ram {
            let line = format!(
                "--pool {} is larger than --ram {}, of which it is a part: make it smaller",
                size::show(pool),
                size::show(ram)
            );
            return Err(Failure::usage(line));
        }

        let codec = codec::parse(&args.codec).map_err(|why| Failure::usage(format!("--codec {}: {why}", args.codec)))?;
        let when_full = match args.when_full.as_str() {
            "exceed" => segment::WHEN_FULL_EXCEED,
            "stop" => segment::WHEN_FULL_STOP,
            other => return Err(Failure::usage(format!("--when-full {other}: use exceed or stop"))),
        };
        let faults = match args.faults.as_str() {
            "monitor" => segment::FAULTS_BY_HANDLERS,
            "auto" => segment::FAULTS_AS_CAN_BE,
            "in-thread" => segment::FAULTS_IN_THREAD,
            other => return Err(Failure::usage(format!("--faults {other}: use auto, in-thread or monitor"))),
        };
        let tells_changes = match args.exact_moves.as_str() {
            "on" => true,
            "off" => false,
            other => return Err(Failure::usage(format!("--exact-moves {other}: use on or off"))),
        };
        let slots = SlotSetting::from_env()?;
        if swap.is_empty() && pool == 0 {
            return Err(Failure::usage(
                "--pool 0 and no swap file leave no place for a page: give --pool more or --swap dir:DIR",
            ));
        }

        let argv = args.program;
        let Some(name) = argv.first() else {
            return Err(Failure::usage("no program is given: add it, like `lowtide run --ram 512M python3 big.py`"));
        };
        let Program { path, entry } = program::find(name)?;
        let stats = args.stats.as_deref().map(|path| OutputFile::open("--stats", path)).transpose()?;
        let report = args.report.as_deref().map(|path| OutputFile::open("--report", path)).transpose()?;
        let metrics = args.metrics.as_deref().map(|address| Listening::new(address, args.metrics_anywhere)).transpose()?;
        let (quiet, verbose) = (args.quiet, args.verbose);
        Ok(Plan {
            ram,
            pool,
            pool_given,
            swap,
            codec,
            when_full,
            faults,
            tells_changes,
            slots,
            quiet,
            verbose,
            stats,
            report,
            metrics,
            path,
            entry,
            argv,
            warnings,
        })
    }

    /// Takes the named swap files, which destroys their content: call it when nothing else can
    /// refuse the run.
    pub fn take_files(&mut self) -> Result<(), Failure> {
        for swap in &mut self.swap {
            let odd = swap.take().map_err(|why| Failure::usage(format!("--swap {why}")))?;
            self.warnings.extend(odd.into_iter().map(|why| format!("--swap {why}")));
        }
        Ok(())
    }
}

/// Reads a limit, which `what` asks for. The second value is a warning.
pub fn read_limit(what: &str, text: &str, usable: u64) -> Result<(u64, Option<String>), Failure> {
    let ram = size::parse(text, usable).map_err(|why| Failure::usage(format!("{what}: {why}")))?;
    if ram < LEAST {
        let line = format!("{what} {text}: too small, no program runs in less than {}; give it more", size::show(LEAST));
        return Err(Failure::usage(line));
    }
    let odd = format!("{what} {text} is more than the RAM there is ({}), so it limits nothing", size::show(usable));
    Ok((ram, (ram > usable).then_some(odd)))
}
