//! `lowtide doctor redis://...` and `lowtide remote clean`: a server, without a run.

use super::{PATIENCE, TIMEOUT, password, random};
use crate::error::Failure;
use lowtide_config::server::Address;
use lowtide_config::size;
use lowtide_config::spec::{Spec, User};
use lowtide_core::device::wire::Run;
use lowtide_core::slot::CLUSTER_SLOTS;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_remote::client::Client;
use lowtide_remote::keys::{self, RunName};
use lowtide_remote::lease;
use lowtide_remote::pages::{Pages, Source};
use lowtide_remote::remote::{Remote, Survey};
use lowtide_remote::server::Problem;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Times that a page is read to see how long that takes.
const READS: usize = 101;

/// The server that a command names, as `--swap` has it, which is the failure's beginning.
fn remote(command: &str, text: &str) -> Result<Remote, Failure> {
    if !(text.starts_with("redis:") || text.starts_with("rediss:")) {
        return Err(Failure::usage(format!("{command} {text}: a server is written redis://HOST:PORT")));
    }
    // The text may hold a password.
    let spec = Spec::parse(text, User::Run { ram_usable: u64::MAX });
    let Spec::Remote { server, .. } = spec.map_err(|why| Failure::usage(format!("{command}: {why}")))? else {
        return Err(Failure::usage(format!("{command} {text}: a server is written redis://HOST:PORT")));
    };
    let about = |why: String| Failure::usage(format!("{command} {text}: {why}"));
    Remote::new(server, password().map_err(about)?, TIMEOUT).map_err(about)
}

/// `lowtide remote clean`; the exit code.
pub fn clean(text: &str) -> Result<u8, Failure> {
    let remote = Arc::new(remote("remote clean", text)?);
    let failed = |problem: Problem| Failure::failed(format!("remote clean {text}: {}", problem.text()));
    let mut cleaned = lease::clean(&remote, TIMEOUT).map_err(failed)?;
    println!("{} keys of {} runs that are gone were removed", cleaned.keys, cleaned.runs);
    let lost = lease::find_lost(&remote, &mut cleaned.left, TIMEOUT).map_err(failed)?;
    if lost > 0 {
        println!("{lost} runs were not in the list: what is left of those that are gone can be removed in ten minutes");
    }
    match cleaned.left.as_slice() {
        [] => Ok(0),
        left => {
            let why: Vec<String> = left.iter().map(|(node, problem)| format!("{node}: {}", problem.text())).collect();
            let runs = match cleaned.undecided {
                0 => String::new(),
                n => format!(", and of {n} runs all: they may go on, for all that is known without it"),
            };
            let line = format!("remote clean {text}: {}: what is there was left{runs}; try again later", why.join("; "));
            Err(Failure::failed(line))
        }
    }
}

/// `lowtide doctor redis://...`: prints what was found on standard output; 0 if pages can go there, else 1.
pub fn doctor(text: &str) -> Result<u8, Failure> {
    let remote = Arc::new(remote("doctor", text)?);
    let (mut said, mut works) = (format!("{}\n", remote.server), true);
    for (what, found) in examine(&remote) {
        let mark = if found.is_ok() { "ok" } else { "NO" };
        works &= found.is_ok();
        let (Ok(found) | Err(found)) = found;
        let _ = writeln!(said, "  {mark:<4} {what:<16} {found}");
    }
    let _ = match works {
        true => writeln!(said, "`lowtide run --swap {}` works.", remote.server.with_options()),
        false => writeln!(said, "`lowtide run --swap {}` does not work.", remote.server.with_options()),
    };
    let _ = std::io::stdout().write_all(said.as_bytes());
    Ok(u8::from(!works))
}

/// What is looked at, up to the first that is wrong.
fn examine(remote: &Arc<Remote>) -> Vec<(&'static str, Result<String, String>)> {
    let survey = match remote.survey(Instant::now() + PATIENCE) {
        Ok(survey) => survey,
        Err(problem) => return vec![("server", Err(problem.text().to_owned()))],
    };
    let mut found = vec![("server", Ok(survey.name()))];
    for (address, part, facts) in &survey.primaries {
        let limit = match facts.maxmemory {
            0 => "no maxmemory: it takes what its machine has".to_owned(),
            bytes => format!("maxmemory {}, {}", size::show(bytes), facts.policy),
        };
        let node = match survey.map.is_cluster {
            true => format!("{address}, {:.0} % of the pages: ", part * 100.0),
            false => String::new(),
        };
        let memory = format!("{node}{limit}; {} free", size::show(facts.free()));
        found.push(("memory", if facts.free() > 0 { Ok(memory) } else { Err(memory) }));
    }
    let Ok([name, _]) = random() else { return found };
    let run = RunName(name);
    let mut client = Client::new(remote.clone());
    if let Err(problem) = lease::renew(&mut client, run, Instant::now() + PATIENCE) {
        found.push(("a lease", Err(problem.text().to_owned())));
        return found;
    }
    for (address, _, _) in &survey.primaries {
        let tried = try_a_page(remote, run, &survey, address);
        let node = if survey.map.is_cluster { format!("{address}: ") } else { String::new() };
        found.push(("a page", tried.map(|found| format!("{node}{found}")).map_err(|why| format!("{node}{why}"))));
    }
    if let Err(problem) = lease::end(&mut client, run, Instant::now() + PATIENCE) {
        found.push(("a lease", Err(problem.text().to_owned())));
    }
    found
}

/// Writes a page to a node, reads it and removes it.
fn try_a_page(remote: &Arc<Remote>, run: RunName, survey: &Survey, node: &Address) -> Result<String, String> {
    let (mut pages, device) = (Pages::new(remote.clone()), run.device(1));
    let mut key = Vec::new();
    let is_there = |slot: &u64| {
        keys::slot(&mut key, &device, *slot);
        survey.map.owner(keys::hash_slot(&key)) == Some(node)
    };
    let clusters = (0..u64::from(u16::MAX)).map(|cluster| cluster * CLUSTER_SLOTS as u64);
    let slot = { clusters }.find(is_there).ok_or("it has no slots")?;
    let runs = [Run { slot, pages: 1 }];
    let page = [7; PAGE_SIZE];
    if let Some(Err(errno)) = pages.write(&device, &runs, &[PAGE_SIZE], &page).pop() {
        return Err(format!("it can't be written ({})", lowtide_config::reason(errno)));
    }
    let mut took = Vec::new();
    for _ in 0..READS {
        let (mut lengths, mut objects, began) = (Vec::new(), Vec::new(), Instant::now());
        let read = pages.read(&device, &runs, Source::Any, &mut lengths, &mut objects, began);
        took.push(began.elapsed());
        if read != [Ok(())] || objects != page {
            return Err("it does not come back as it was written".to_owned());
        }
    }
    took.sort();
    let removed: Result<(), _> = pages.remove(&device, &runs, Some(Duration::from_secs(2))).into_iter().collect();
    removed.map_err(|errno| format!("it can't be removed ({})", lowtide_config::reason(errno)))?;
    Ok(format!("written, read and removed; a read takes {} us", took[READS / 2].as_micros()))
}
