//! Work that takes several looks.

use super::Live;
use crate::error::Failure;
use serde_json::{Map, Value};

pub type Answer = Result<Map<String, Value>, Failure>;

pub enum Step {
    /// With a report if its progress has changed.
    Going(Option<Value>),
    Done(Answer),
}

pub trait Task {
    /// Advances it. Not to be called after `Done`.
    fn step(&mut self, run: &mut Live<'_>) -> Step;

    /// Ends it early, in a consistent state.
    fn cancel(&mut self, run: &mut Live<'_>) -> Answer;
}

pub fn answer(value: Value) -> Answer {
    match value {
        Value::Object(said) => Ok(said),
        other => Ok(Map::from_iter([("value".to_owned(), other)])),
    }
}

/// An error with exit status 1: not the client's mistake.
pub fn failure(line: impl Into<String>) -> Failure {
    Failure { code: 1, line: line.into() }
}
