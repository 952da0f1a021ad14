//! The runs that are looked at: a connection to each, kept, and one request a second.

use super::rates::Rates;
use super::sample::Sample;
use crate::client::connection::{Connection, Said};
use crate::client::find;
use crate::error::Failure;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Points kept of each run: ten minutes.
const POINTS: usize = 600;
/// A run that has not answered for this long is said not to.
const SILENT: Duration = Duration::from_secs(3);

/// A run that is looked at.
pub struct Watched {
    /// The pid of its `lowtide run`.
    pub pid: u32,
    /// The latest sample.
    pub sample: Option<Sample>,
    /// What happened from sample to sample, the latest at the end.
    pub history: VecDeque<Rates>,
    /// When it was taken.
    pub seen: Instant,
    /// Why there is no new sample.
    pub trouble: Option<String>,
    connection: Option<Connection>,
    /// When it was asked what it has not answered yet.
    asked: Option<Instant>,
}

impl Watched {
    /// A run of which nothing is known yet.
    pub fn new(pid: u32, connection: Option<Connection>) -> Watched {
        let (history, seen) = (VecDeque::new(), Instant::now());
        Watched { pid, sample: None, history, seen, trouble: None, connection, asked: None }
    }

    /// The connection, to wait for what the run says.
    pub fn connection(&self) -> Option<&Connection> {
        self.connection.as_ref()
    }

    /// The latest rates.
    pub fn now(&self) -> Option<&Rates> {
        self.history.back()
    }

    /// Takes the next sample.
    pub fn take(&mut self, sample: Sample) {
        if let Some(before) = &self.sample
            && let Some(rates) = Rates::between(before, &sample)
        {
            if self.history.len() == POINTS {
                self.history.pop_front();
            }
            self.history.push_back(rates);
        }
        (self.sample, self.seen, self.trouble) = (Some(sample), Instant::now(), None);
    }

    /// Asks for the next sample, unless the one before is still to come.
    fn ask(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        match self.asked {
            None => match connection.ask("stat", &[]) {
                Ok(()) => self.asked = Some(Instant::now()),
                Err(failure) => self.trouble = Some(failure.line),
            },
            Some(asked) if asked.elapsed() >= SILENT => {
                let seconds = asked.elapsed().as_secs();
                self.trouble = Some(format!("no answer for {seconds} s: is it stopped?"));
            }
            Some(_) => {}
        }
    }

    /// Takes what the run has said.
    fn hear(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        loop {
            match connection.hear() {
                Ok(Said::Answer(answer)) => {
                    self.asked = None;
                    self.take(Sample::read(&answer));
                    return;
                }
                Ok(Said::Error(failure)) | Err(failure) => {
                    (self.asked, self.trouble) = (None, Some(failure.line));
                    return;
                }
                Ok(Said::Progress(_)) => {}
                Ok(Said::Nothing) => return,
                Ok(Said::End) => {
                    (self.connection, self.asked) = (None, None);
                    return;
                }
            }
        }
    }
}

/// All runs that are looked at, by pid.
pub struct Watch {
    /// They.
    pub runs: Vec<Watched>,
    /// Only this one.
    only: Option<u32>,
}

impl Watch {
    /// The run that a process belongs to, or all of this user.
    ///
    /// # Errors
    /// There is none.
    pub fn new(pid: Option<u32>) -> Result<Watch, Failure> {
        let (runs, only) = match pid {
            Some(pid) => {
                let connection = find::by_pid(pid)?;
                let pid = connection.pid;
                (vec![Watched::new(pid, Some(connection))], Some(pid))
            }
            None => (Vec::new(), None),
        };
        let mut watch = Watch { runs, only };
        watch.look();
        if watch.runs.is_empty() {
            return Err(find::none());
        }
        Ok(watch)
    }

    /// Runs that nobody asks.
    #[cfg(test)]
    pub fn of(runs: Vec<Watched>) -> Watch {
        Watch { runs, only: None }
    }

    /// Finds runs that are new, and connects anew to those that were lost. Those that are over are handed out.
    pub fn look(&mut self) -> Vec<Watched> {
        let is_known = |watch: &Watch, pid| watch.runs.iter().any(|run| run.pid == pid && run.connection.is_some());
        for found in find::all() {
            if is_known(self, found.pid) || self.only.is_some_and(|pid| pid != found.pid) {
                continue;
            }
            // One that can't be reached is not ours, or ends just now.
            let Ok(Some(connection)) = Connection::new(&found.place, found.pid) else { continue };
            match self.runs.iter_mut().find(|run| run.pid == found.pid) {
                Some(run) => run.connection = Some(connection),
                None => self.runs.push(Watched::new(found.pid, Some(connection))),
            }
        }
        self.runs.sort_by_key(|run| run.pid);
        self.runs.extract_if(.., |run| run.connection.is_none()).collect()
    }

    /// Asks all of them.
    pub fn ask(&mut self) {
        self.runs.iter_mut().for_each(Watched::ask);
    }

    /// Takes what they have said; whether one has closed its connection.
    pub fn hear(&mut self) -> bool {
        self.runs.iter_mut().for_each(Watched::hear);
        self.runs.iter().any(|run| run.connection.is_none())
    }
}
