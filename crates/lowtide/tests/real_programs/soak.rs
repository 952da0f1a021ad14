//! The tests that find races by repetition, for minutes: `make soak`, `SOAK_SECONDS` (default 300).

use std::time::{Duration, Instant};

use crate::check::{Data, Growth, ends_well, faults, limits, report};
use crate::machine::{native_only, say, turn};
use crate::programs::job;
use crate::progress::Progress;

/// Programs with their arguments; `SEED` becomes the round's number.
const MIXES: [(&str, &str); 9] = [
    ("thread_mix", "4 12000 48 SEED"),
    ("thread_mix", "8 4000 32 SEED"),
    ("dontneed_race", "own 4 1000 160"),
    ("dontneed_race", "stack 3 200 160"),
    ("forks", "stay 128 6"),
    ("forks", "orphan 160"),
    ("forks", "thread 128 6"),
    ("forks", "nested 128"),
    ("system_calls", "160 6"),
];

#[test]
#[ignore = "takes minutes: make soak"]
fn everything_again_and_again() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(300, |text| text.parse().expect("SOAK_SECONDS is a number"));
    let began = Instant::now();
    let until = began + Duration::from_secs(seconds);
    let Some(_turn) = turn() else { return };
    let progress = Progress::new("programs", seconds);
    for round in 1u64.. {
        for (program, arguments) in MIXES {
            if Instant::now() > until {
                say(&format!("soak: {round} rounds"));
                return;
            }
            let label = format!("soak {program} {}", arguments.split(' ').next().unwrap_or_default());
            progress.at(began.elapsed().as_secs(), format!("seconds: round {round}, {label}"));
            let Some(job) = job(&label, program, &arguments.replace("SEED", &round.to_string())) else { return };
            let native = job.native();
            assert!(ends_well(&native), "{label}, round {round}: natively {native:?}");
            if native_only() {
                continue;
            }
            for limit in limits(native.peak, if program == "forks" { Data::Any } else { Data::Compressible }) {
                let limited = job.limited(&limit);
                report(&job, &limit, &native, &limited);
                let wrong = faults(&native, &limited, &limit, Growth::Stream);
                assert!(wrong.is_empty(), "{label}, round {round}, {limit:?}: {wrong:?}\n{}", limited.stderr);
            }
        }
    }
}
