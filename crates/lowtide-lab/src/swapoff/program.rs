//! The program whose memory is out: incompressible noise, written once and left alone until its
//! check. The lab runs itself for it.

use std::io::{Read, Write};
use std::process::ExitCode;

/// First argument of the program.
pub const NAME: &str = "swapoff-load";
/// Printed when its memory is filled, and after the check.
pub const FILLED: &str = "filled";
pub const RIGHT: &str = "right";

/// Bytes made or compared at a time.
const PART: usize = 4096;

/// `swapoff-load BYTES`: fills this much memory, prints that, waits for the end of its standard
/// input, and checks.
pub fn main(args: &[String]) -> ExitCode {
    let Some(bytes) = args.first().and_then(|text| text.parse::<usize>().ok()) else {
        eprintln!("lowtide-lab: {NAME} is started by experiments only");
        return ExitCode::from(2);
    };
    let mut memory = vec![0u8; bytes];
    let mut random = fastrand::Rng::with_seed(11);
    memory.chunks_mut(PART).for_each(|part| random.fill(part));
    say(FILLED);
    let _ = std::io::stdin().read(&mut [0]);
    let (mut random, mut expected) = (fastrand::Rng::with_seed(11), [0u8; PART]);
    let is_right = memory.chunks(PART).all(|part| {
        random.fill(&mut expected[..part.len()]);
        *part == expected[..part.len()]
    });
    if !is_right {
        return ExitCode::FAILURE;
    }
    say(RIGHT);
    ExitCode::SUCCESS
}

fn say(line: &str) {
    let mut out = std::io::stdout();
    // Without a reader the experiment is over, and so is this.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
