//! `lowtide doctor redis://...` and `lowtide remote clean`: a server, without a run.

use crate::error::Failure;
use lowtide_config::server::Address;
use lowtide_config::size;
use lowtide_config::spec::{Spec, User};
use lowtide_core::device::wire::Run;
use lowtide_core::slot::CLUSTER_SLOTS;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_remote::client::Client;
use lowtide_remote::copies::Places;
use lowtide_remote::keys::RunName;
use lowtide_remote::lease;
use lowtide_remote::pages::{Pages, Source};
use lowtide_remote::relay::{PATIENCE, TIMEOUT};
use lowtide_remote::remote::{Remote, Survey};
use lowtide_remote::server::{Problem, password};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Reads of a page for its latency.
const READS: usize = 101;

/// The server and the number of copies in a command's SPEC. The failure begins with `command`.
fn remote(command: &str, text: &str) -> Result<(Remote, u8), Failure> {
    if !(text.starts_with("redis:") || text.starts_with("rediss:")) {
        return Err(Failure::usage(format!("{command} {text}: a server is written redis://HOST:PORT")));
    }
    // The text may hold a password.
    let spec = Spec::parse(text, User::Run { ram_usable: u64::MAX });
    let Spec::Remote { server, copies, .. } = spec.map_err(|why| Failure::usage(format!("{command}: {why}")))? else {
        return Err(Failure::usage(format!("{command} {text}: a server is written redis://HOST:PORT")));
    };
    let about = |why: String| Failure::usage(format!("{command} {text}: {why}"));
    Ok((Remote::new(server, password().map_err(about)?, TIMEOUT).map_err(about)?, copies))
}

pub fn clean(text: &str) -> Result<u8, Failure> {
    let remote = Arc::new(remote("remote clean", text)?.0);
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

/// Prints the findings on standard output; 0 if pages can go there, else 1.
pub fn doctor(text: &str) -> Result<u8, Failure> {
    let (remote, copies) = remote("doctor", text)?;
    let copies_option = if copies > 1 { ",copies=2" } else { "" };
    let spec = format!("{}{copies_option}", remote.server.with_options());
    let (mut said, mut works) = (format!("{}\n", remote.server), true);
    for (what, found) in examine(remote, copies) {
        let mark = if found.is_ok() { "ok" } else { "NO" };
        works &= found.is_ok();
        let (Ok(found) | Err(found)) = found;
        let _ = writeln!(said, "  {mark:<4} {what:<16} {found}");
    }
    let _ = match works {
        true => writeln!(said, "`lowtide run --swap {spec}` works."),
        false => writeln!(said, "`lowtide run --swap {spec}` does not work."),
    };
    let _ = std::io::stdout().write_all(said.as_bytes());
    Ok(u8::from(!works))
}

fn examine(mut remote: Remote, copies: u8) -> Vec<(&'static str, Result<String, String>)> {
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
    if copies > 1 {
        match remote.keep_two_copies(&survey, Instant::now() + PATIENCE) {
            Ok(odd) => {
                found.push(("two copies", Ok(on_which(&survey))));
                found.extend(odd.map(|odd| ("two copies", Ok(odd))));
            }
            Err(problem) => {
                found.push(("two copies", Err(problem.text().to_owned())));
                return found;
            }
        }
    }
    let remote = Arc::new(remote);
    let Ok(run) = RunName::new() else { return found };
    let mut client = Client::new(remote.clone());
    if let Err(problem) = lease::renew(&mut client, run, Instant::now() + PATIENCE) {
        found.push(("a lease", Err(problem.text().to_owned())));
        return found;
    }
    for (address, _, _) in &survey.primaries {
        let (tried, other) = try_a_page(&remote, run, &survey, address);
        let other = other.map_or(String::new(), |other| format!(" and {other}"));
        let node = if survey.map.is_cluster { format!("{address}{other}: ") } else { String::new() };
        found.push(("a page", tried.map(|found| format!("{node}{found}")).map_err(|why| format!("{node}{why}"))));
    }
    if let Err(problem) = lease::end(&mut client, run, Instant::now() + PATIENCE) {
        found.push(("a lease", Err(problem.text().to_owned())));
    }
    found
}

fn on_which(survey: &Survey) -> String {
    let n = survey.primaries.len();
    let is_one = survey.primaries.windows(2).all(|two| two[0].0.host == two[1].0.host);
    let remark = if is_one { "; all of them are on one machine: its loss is that of both copies" } else { "" };
    format!("each page is on two of the {n} primaries{remark}")
}

/// Writes, reads and removes a page on a node; returns the node of its second copy.
fn try_a_page(
    remote: &Arc<Remote>,
    run: RunName,
    survey: &Survey,
    node: &Address,
) -> (Result<String, String>, Option<Address>) {
    let device = run.device(1);
    let places = |cluster: u64| Places::of(&device, cluster, remote.begun.as_deref());
    let is_there = |cluster: &u64| survey.map.owner(places(*cluster).first) == Some(node);
    let Some(cluster) = (0..u64::from(u16::MAX)).find(is_there) else {
        return (Err("it has no slots".to_owned()), None);
    };
    let other = places(cluster).second.and_then(|(_, second)| survey.map.owner(second)).cloned();
    if other.as_ref() == Some(node) {
        return (Err("both copies would be on it".to_owned()), other);
    }
    (try_slot(remote, &device, cluster * CLUSTER_SLOTS as u64), other)
}

fn try_slot(remote: &Arc<Remote>, device: &str, slot: u64) -> Result<String, String> {
    let mut pages = Pages::new(remote.clone());
    let (runs, page) = ([Run { slot, pages: 1 }], [7; PAGE_SIZE]);
    if let Some(Err(errno)) = pages.write(device, &runs, &[PAGE_SIZE], &page).pop() {
        return Err(format!("it can't be written ({})", lowtide_config::reason(errno)));
    }
    let mut comes_back = |source| {
        let (mut lengths, mut objects, began) = (Vec::new(), Vec::new(), Instant::now());
        let read = pages.read(device, &runs, source, &mut lengths, &mut objects, began);
        match read == [Ok(())] && objects == page {
            true => Ok(began.elapsed()),
            false => Err("it does not come back as it was written".to_owned()),
        }
    };
    let mut took = (0..READS).map(|_| comes_back(Source::Any)).collect::<Result<Vec<_>, _>>()?;
    if remote.begun.is_some() {
        comes_back(Source::First)?;
        comes_back(Source::Second)?;
    }
    took.sort();
    let removed: Result<(), _> = pages.remove(device, &runs, Some(Duration::from_secs(2))).into_iter().collect();
    removed.map_err(|errno| format!("it can't be removed ({})", lowtide_config::reason(errno)))?;
    Ok(format!("written, read and removed; a read takes {} us", took[READS / 2].as_micros()))
}
