//! `swapon`: adds a swap area to a live run.
//!
//! A separate thread checks, locks and marks it, which takes as long as a busy disk likes.

use super::task::{answer, failure};
use super::{Answer, Live, Step, Task};
use crate::error::Failure;
use crate::host::machine;
use crate::swap;
use crate::swap::area::Swap;
use lowtide_config::reason;
use lowtide_config::size;
use lowtide_core::store::MAX_AREAS;
use rustix::io::Errno;
use serde_json::json;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

type Opened = Result<(Swap, Vec<String>), Failure>;

struct Swapon {
    spec: String,
    /// None: it waits for its turn.
    opened: Option<Receiver<Opened>>,
}

pub fn start(spec: String) -> Result<Box<dyn Task>, Failure> {
    swap::area::check(&spec).map_err(|why| Failure::usage(format!("swapon {why}")))?;
    Ok(Box::new(Swapon { spec, opened: None }))
}

impl Task for Swapon {
    fn step(&mut self, run: &mut Live<'_>) -> Step {
        let Some(opened) = &self.opened else {
            if run.opening {
                return Step::Going(None);
            }
            if run.areas.free_place().is_none() {
                return Step::Done(Err(self.no_place()));
            }
            return match open(self.spec.clone(), run.areas.in_use()) {
                Ok(opened) => {
                    (run.opening, self.opened) = (true, Some(opened));
                    Step::Going(None)
                }
                Err(error) => Step::Done(Err(failure(format!("swapon {}: no thread can be started ({error})", self.spec)))),
            };
        };
        match opened.try_recv() {
            Err(TryRecvError::Empty) => Step::Going(None),
            Err(TryRecvError::Disconnected) => {
                run.opening = false;
                Step::Done(Err(failure(format!("swapon {}: it was given up", self.spec))))
            }
            Ok(opened) => {
                run.opening = false;
                Step::Done(opened.and_then(|(swap, warnings)| self.add(swap, &warnings, run)))
            }
        }
    }

    fn cancel(&mut self, run: &mut Live<'_>) -> Answer {
        // The thread closes what it opens if the receiver is gone.
        if self.opened.take().is_some() {
            run.opening = false;
        }
        Err(failure(format!("swapon {}: cancelled, it is not used", self.spec)))
    }
}

impl Swapon {
    fn add(&self, swap: Swap, warnings: &[String], run: &mut Live<'_>) -> Answer {
        let (spec, size, prio) = (swap.spec(), swap.size, swap.prio);
        match run.areas.turn_on(swap, run.shared) {
            Ok(()) => {}
            Err(Errno::NOSPC) => return Err(self.no_place()),
            Err(Errno::NAMETOOLONG) => return Err(Failure::usage(format!("swapon {spec}: the path is too long"))),
            Err(error) => return Err(failure(format!("swapon {spec}: {}", reason(error)))),
        }
        answer(json!({ "spec": spec, "size": size, "shown_size": size::show(size), "prio": prio, "warnings": warnings }))
    }

    fn no_place(&self) -> Failure {
        let spec = &self.spec;
        Failure::usage(format!("swapon {spec}: the run has {MAX_AREAS} areas, and that is the most: take one off first"))
    }
}

fn open(spec: String, before: Vec<Arc<Swap>>) -> std::io::Result<Receiver<Opened>> {
    // Room for one: the thread never waits for a receiver.
    let (sender, receiver) = sync_channel(1);
    let work = move || {
        let before: Vec<&Swap> = before.iter().map(Arc::as_ref).collect();
        let opened = swap::area::open_one(&spec, &before, machine::ram_usable());
        let opened = opened.map_err(|failure| Failure { line: format!("swapon {}", failure.line), ..failure });
        let _ = sender.send(opened);
    };
    std::thread::Builder::new().name("lowtide-swapon".to_owned()).stack_size(256 << 10).spawn(work)?;
    Ok(receiver)
}
