//! What tells the keys of a run that goes on from those of one that was killed: a key that is renewed, and is gone some minutes
//! after nobody renews it. Pages never have such a time: a server that is slow for a while must not forget them.

use std::time::{Duration, Instant};

use crate::keys::{RUNS, RunName};
use crate::resp::Reply;
use crate::server::{Link, Problem, asked};

/// How long a lease lasts, in seconds: a `lowtide run` that is stopped for longer may lose its pages to a cleaner.
const LEASE: u64 = 600;
/// How often it is to be renewed.
pub const RENEWED_EVERY: Duration = Duration::from_secs(60);
/// Keys that a scan looks at in one step.
const SCANNED_AT_ONCE: &[u8] = b"1000";

/// What was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Runs that were gone.
    pub runs: usize,
    /// Their keys.
    pub keys: usize,
}

/// Tells the server that a run goes on.
///
/// # Errors
/// It does not answer, or takes no writes.
pub fn renew(link: &mut Link, run: RunName) -> Result<(), Problem> {
    let (lease, seconds) = (run.lease(), LEASE.to_string());
    // In this order: a run in the list without a lease is taken for dead.
    done(link, &[b"SET", lease.as_bytes(), b"1", b"EX", seconds.as_bytes()])?;
    done(link, &[b"SADD", RUNS.as_bytes(), run.text().as_bytes()])
}

/// The run is over, and its pages are removed.
///
/// # Errors
/// It does not answer.
pub fn end(link: &mut Link, run: RunName) -> Result<(), Problem> {
    done(link, &[b"UNLINK", run.lease().as_bytes()])?;
    done(link, &[b"SREM", RUNS.as_bytes(), run.text().as_bytes()])
}

/// Removes what runs have left that are gone. Looks through all keys of the server if there are such.
///
/// # Errors
/// It does not answer.
pub fn clean(link: &mut Link, patience: Duration) -> Result<Cleaned, Problem> {
    let mut cleaned = Cleaned::default();
    let Reply::List(names) = asked(&mut link.connection, &[b"SMEMBERS", RUNS.as_bytes()])? else { return Ok(cleaned) };
    for name in names {
        let Reply::Bytes(name) = name else { continue };
        let Some(run) = std::str::from_utf8(&name).ok().and_then(RunName::parse) else { continue };
        if asked(&mut link.connection, &[b"EXISTS", run.lease().as_bytes()])? != Reply::Number(0) {
            continue;
        }
        cleaned.keys += remove_all(link, run, patience)?;
        if asked(&mut link.connection, &[b"EXISTS", run.lease().as_bytes()])? == Reply::Number(0) {
            cleaned.runs += 1;
            end(link, run)?;
        }
    }
    Ok(cleaned)
}

/// Removes all keys of a run.
fn remove_all(link: &mut Link, run: RunName, patience: Duration) -> Result<usize, Problem> {
    let prefix = run.prefix();
    let pattern = format!("{prefix}*");
    let (mut cursor, mut removed) = (b"0".to_vec(), 0);
    loop {
        let _ = link.connection.until(Instant::now() + patience);
        // It may have been stopped, and go on by now.
        if asked(&mut link.connection, &[b"EXISTS", run.lease().as_bytes()])? != Reply::Number(0) {
            return Ok(removed);
        }
        let scanned =
            asked(&mut link.connection, &[b"SCAN", &cursor, b"MATCH", pattern.as_bytes(), b"COUNT", SCANNED_AT_ONCE])?;
        let Reply::List(parts) = scanned else { return Err(Problem::Refused("SCAN is not for us".to_owned())) };
        let [Reply::Bytes(next), Reply::List(keys)] = parts.as_slice() else { return Ok(removed) };
        let mut words: Vec<&[u8]> = vec![b"UNLINK"];
        words.extend(keys.iter().filter_map(|key| match key {
            Reply::Bytes(key) if key.starts_with(prefix.as_bytes()) => Some(key.as_slice()),
            _ => None,
        }));
        if words.len() > 1
            && let Reply::Number(n) = asked(&mut link.connection, &words)?
        {
            removed += n as usize;
        }
        if next == b"0" {
            return Ok(removed);
        }
        cursor.clone_from(next);
    }
}

fn done(link: &mut Link, words: &[&[u8]]) -> Result<(), Problem> {
    match asked(&mut link.connection, words)? {
        Reply::Error(text) => Err(Problem::Refused(format!("it takes no pages ({text})"))),
        _ => Ok(()),
    }
}
