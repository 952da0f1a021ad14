//! What takes time.

use super::Live;
use crate::error::Failure;
use serde_json::{Map, Value};

/// What an answer says, or why there is none.
pub type Answer = Result<Map<String, Value>, Failure>;

/// How far a task is.
pub enum Step {
    /// It goes on; a report of its progress when there is something new.
    Going(Option<Value>),
    /// It is over.
    Done(Answer),
}

/// Something that was asked for and takes time.
pub trait Task {
    /// Looks how far it is, and does what can be done now. Not to be called again when it is over.
    fn step(&mut self, run: &mut Live<'_>) -> Step;

    /// Ends it before it is over, in a state that is whole.
    fn cancel(&mut self, run: &mut Live<'_>) -> Answer;
}

/// An answer from a JSON object.
pub fn said(value: Value) -> Answer {
    match value {
        Value::Object(said) => Ok(said),
        other => Ok(Map::from_iter([("value".to_owned(), other)])),
    }
}

/// An error that is no mistake of who asked: exit status 1.
pub fn in_vain(line: impl Into<String>) -> Failure {
    Failure { code: 1, line: line.into() }
}
