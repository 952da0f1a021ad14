//! `lowtide doctor redis://...` and `lowtide remote clean`: a server, without a run.

use super::{PATIENCE, TIMEOUT, password, random};
use crate::error::Failure;
use lowtide_config::server::Server;
use lowtide_config::size;
use lowtide_core::device::wire::Run;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_remote::keys::RunName;
use lowtide_remote::lease;
use lowtide_remote::pages::Pages;
use lowtide_remote::server::Remote;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Times that a page is read to see how long that takes.
const READS: usize = 101;

/// The server that a command names, which is the failure's beginning.
fn remote(command: &str, text: &str) -> Result<Arc<Remote>, Failure> {
    let Some(server) = text.strip_prefix("redis://") else {
        return Err(Failure::usage(format!("{command} {text}: a server is written redis://HOST:PORT")));
    };
    // The text may hold a password.
    let server = Server::parse(server).map_err(|why| Failure::usage(format!("{command}: {why}")))?;
    let password = password().map_err(|why| Failure::usage(format!("{command} {text}: {why}")))?;
    Ok(Arc::new(Remote::new(server, password, TIMEOUT)))
}

/// `lowtide remote clean`; the exit code.
pub fn clean(text: &str) -> Result<u8, Failure> {
    let remote = remote("remote clean", text)?;
    let cleaned = remote.connect(Instant::now() + PATIENCE).and_then(|mut link| lease::clean(&mut link, TIMEOUT));
    let cleaned = cleaned.map_err(|problem| Failure::failed(format!("remote clean {text}: {}", problem.text())))?;
    println!("{} keys of {} runs that are gone were removed", cleaned.keys, cleaned.runs);
    Ok(0)
}

/// `lowtide doctor redis://...`: prints what was found on standard output; 0 if pages can go there, else 1.
pub fn doctor(text: &str) -> Result<u8, Failure> {
    let remote = remote("doctor", text)?;
    let (mut said, mut works) = (format!("{}\n", remote.server), true);
    for (what, found) in examine(&remote) {
        let mark = if found.is_ok() { "ok" } else { "NO" };
        works &= found.is_ok();
        let (Ok(found) | Err(found)) = found;
        let _ = writeln!(said, "  {mark:<4} {what:<16} {found}");
    }
    let _ = match works {
        true => writeln!(said, "`lowtide run --swap {}` works.", remote.server),
        false => writeln!(said, "`lowtide run --swap {}` does not work.", remote.server),
    };
    let _ = std::io::stdout().write_all(said.as_bytes());
    Ok(u8::from(!works))
}

/// What is looked at, up to the first that is wrong.
fn examine(remote: &Arc<Remote>) -> Vec<(&'static str, Result<String, String>)> {
    let mut link = match remote.connect(Instant::now() + PATIENCE) {
        Ok(link) => link,
        Err(problem) => return vec![("server", Err(problem.text().to_owned()))],
    };
    let facts = link.facts.clone();
    if let Some(why) = facts.refusal() {
        return vec![("server", Err(why))];
    }
    let limit = match facts.maxmemory {
        0 => "no maxmemory: it takes what its machine has".to_owned(),
        bytes => format!("maxmemory {}, {}", size::show(bytes), facts.policy),
    };
    let memory = format!("{limit}; {} free", size::show(facts.free()));
    let memory = if facts.free() > 0 { Ok(memory) } else { Err(memory) };
    let mut found = vec![("server", Ok(facts.name)), ("memory", memory)];
    let Ok([name, _]) = random() else { return found };
    let run = RunName(name);
    if let Err(problem) = lease::renew(&mut link, run) {
        found.push(("a lease", Err(problem.text().to_owned())));
        return found;
    }
    let tried = try_a_page(remote, run);
    let ended = lease::end(&mut link, run).map_err(|problem| problem.text().to_owned());
    found.push(("a page", tried.and_then(|found| ended.map(|()| found))));
    found
}

/// Writes a page, reads it and removes it.
fn try_a_page(remote: &Arc<Remote>, run: RunName) -> Result<String, String> {
    let (mut pages, device, runs) = (Pages::new(remote.clone()), run.device(1), [Run { slot: 1, pages: 1 }]);
    let page = [7; PAGE_SIZE];
    if let Some(Err(errno)) = pages.write(&device, &runs, &[PAGE_SIZE], &page).pop() {
        return Err(format!("it can't be written ({})", lowtide_config::reason(errno)));
    }
    let mut took = Vec::new();
    for _ in 0..READS {
        let (mut lengths, mut objects, began) = (Vec::new(), Vec::new(), Instant::now());
        let read = pages.read(&device, &runs, &mut lengths, &mut objects);
        took.push(began.elapsed());
        if read != [Ok(())] || objects != page {
            return Err("it does not come back as it was written".to_owned());
        }
    }
    took.sort();
    let removed = pages.remove(&device, &runs, Duration::from_secs(2));
    removed.map_err(|errno| format!("it can't be removed ({})", lowtide_config::reason(errno)))?;
    Ok(format!("written, read and removed; a read takes {} us", took[READS / 2].as_micros()))
}
