//! The watched runs: a persistent connection to each, and one request a second.

use super::rates::Rates;
use super::sample::Sample;
use crate::client::connection::{Connection, Said};
use crate::client::find;
use crate::error::Failure;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Ten minutes.
const POINTS: usize = 600;
/// A run without an answer for this long shows as silent.
const SILENT: Duration = Duration::from_secs(3);

pub struct Watched {
    pub pid: u32,
    pub sample: Option<Sample>,
    /// The latest at the end.
    pub history: VecDeque<Rates>,
    /// The latest sample's time.
    pub seen: Instant,
    pub trouble: Option<String>,
    connection: Option<Connection>,
    asked: Option<Instant>,
}

impl Watched {
    pub fn new(pid: u32, connection: Option<Connection>) -> Watched {
        let (history, seen) = (VecDeque::new(), Instant::now());
        Watched { pid, sample: None, history, seen, trouble: None, connection, asked: None }
    }

    pub fn connection(&self) -> Option<&Connection> {
        self.connection.as_ref()
    }

    pub fn now(&self) -> Option<&Rates> {
        self.history.back()
    }

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

    /// Requests the next sample, unless a request is pending.
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

/// By pid.
pub struct Watch {
    pub runs: Vec<Watched>,
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

    #[cfg(test)]
    pub fn of(runs: Vec<Watched>) -> Watch {
        Watch { runs, only: None }
    }

    /// Finds new runs and reconnects to lost ones. Returns those that are over.
    pub fn look(&mut self) -> Vec<Watched> {
        let is_known = |watch: &Watch, pid| watch.runs.iter().any(|run| run.pid == pid && run.connection.is_some());
        for found in find::all() {
            if is_known(self, found.pid) || self.only.is_some_and(|pid| pid != found.pid) {
                continue;
            }
            // An unreachable one is another user's, or is ending.
            let Ok(Some(connection)) = Connection::new(&found.place, found.pid) else { continue };
            match self.runs.iter_mut().find(|run| run.pid == found.pid) {
                Some(run) => run.connection = Some(connection),
                None => self.runs.push(Watched::new(found.pid, Some(connection))),
            }
        }
        self.runs.sort_by_key(|run| run.pid);
        self.runs.extract_if(.., |run| run.connection.is_none()).collect()
    }

    pub fn ask(&mut self) {
        self.runs.iter_mut().for_each(Watched::ask);
    }

    /// Takes messages; whether a run has closed its connection.
    pub fn hear(&mut self) -> bool {
        self.runs.iter_mut().for_each(Watched::hear);
        self.runs.iter().any(|run| run.connection.is_none())
    }
}
