//! The messages of a control socket: lines of JSON, of one version.
//!
//! A request: `{"lowtide":1,"do":"limit","size":"512M"}`. Its answer: any number of
//! `{"lowtide":1,"progress":{...}}`, then `{"lowtide":1,"ok":true,...}` or
//! `{"lowtide":1,"ok":false,"error":"one line","code":2}`, where `code` is the exit status. All may
//! get more fields. During a request, `{"lowtide":1,"do":"cancel"}` ends it.

use crate::error::Failure;
use crate::live::Answer;
use serde::Deserialize;
use serde_json::{Map, Value, json};

pub const VERSION: u64 = 1;
/// Including the newline.
pub const LONGEST_REQUEST: usize = 64 << 10;
pub const LONGEST_ANSWER: usize = 1 << 20;

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum Request {
    Ps,
    Stat {
        /// With the fill of each area's clusters.
        #[serde(default)]
        areas: bool,
    },
    Metrics,
    Has {
        pid: u32,
    },
    Limit {
        /// As `--ram`.
        size: String,
        /// Answer only when the limit is reached.
        #[serde(default = "yes")]
        wait: bool,
    },
    Reclaim {
        /// As `--ram`.
        size: String,
    },
    Swapon {
        /// As `--swap`, with an absolute path.
        spec: String,
    },
    Swapoff {
        /// As `--swap`, without options, or the path alone.
        spec: String,
    },
    /// Ends this connection's running request.
    Cancel,
}

fn yes() -> bool {
    true
}

const NAMES: [&str; 9] = ["ps", "stat", "metrics", "has", "limit", "reclaim", "swapon", "swapoff", "cancel"];

#[derive(Debug, PartialEq, Eq)]
pub struct BadRequest {
    pub failure: Failure,
    /// No JSON: the rest of the stream is meaningless.
    pub is_garbage: bool,
}

impl Request {
    pub fn parse(line: &[u8]) -> Result<Request, BadRequest> {
        let bad = |is_garbage: bool, why: String| BadRequest { failure: Failure::usage(why), is_garbage };
        let value: Value = serde_json::from_slice(line)
            .map_err(|error| bad(true, format!("the request is not a line of JSON ({error}): write it like {}", example())))?;
        match value.get("lowtide").map(Value::as_u64) {
            Some(Some(VERSION)) => {}
            Some(_) => {
                let why = format!("the request is of another version than {VERSION}: use the `lowtide` that started the run");
                return Err(bad(false, why));
            }
            None => return Err(bad(false, format!("the request has no \"lowtide\": write it like {}", example()))),
        }
        match value.get("do").and_then(Value::as_str) {
            Some(name) if NAMES.contains(&name) => {}
            _ => return Err(bad(false, format!("the request has no \"do\" that is known: use one of {}", NAMES.join(", ")))),
        }
        serde_json::from_value(value).map_err(|error| bad(false, format!("the request can't be read: {error}")))
    }
}

fn example() -> Value {
    request("stat", &[])
}

pub fn request(what: &str, fields: &[(&str, Value)]) -> Value {
    let mut value = json!({ "lowtide": VERSION, "do": what });
    for (name, field) in fields {
        value[*name] = field.clone();
    }
    value
}

pub fn answer(answer: Answer) -> Vec<u8> {
    let mut said = match answer {
        Ok(said) => {
            let mut whole = Map::from_iter([("lowtide".to_owned(), VERSION.into()), ("ok".to_owned(), true.into())]);
            whole.extend(said);
            Value::Object(whole)
        }
        Err(Failure { code, line }) => json!({ "lowtide": VERSION, "ok": false, "error": line, "code": code }),
    }
    .to_string();
    if said.len() >= LONGEST_ANSWER {
        said = json!({ "lowtide": VERSION, "ok": false, "error": "the answer is too long", "code": 1 }).to_string();
    }
    said.push('\n');
    said.into_bytes()
}

pub fn progress(report: Value) -> Vec<u8> {
    let mut said = json!({ "lowtide": VERSION, "progress": report }).to_string();
    said.push('\n');
    said.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_requests() {
        for (line, expected) in [
            (r#"{"lowtide":1,"do":"stat"}"#, Request::Stat { areas: false }),
            (r#"{"lowtide":1,"do":"stat","areas":true}"#, Request::Stat { areas: true }),
            (r#" {"do":"has","pid":7,"lowtide":1,"later":[1]} "#, Request::Has { pid: 7 }),
            (r#"{"lowtide":1,"do":"limit","size":"1G"}"#, Request::Limit { size: "1G".to_owned(), wait: true }),
            (r#"{"lowtide":1,"do":"limit","size":"1G","wait":false}"#, Request::Limit { size: "1G".to_owned(), wait: false }),
            (r#"{"lowtide":1,"do":"swapon","spec":"dir:/x"}"#, Request::Swapon { spec: "dir:/x".to_owned() }),
        ] {
            assert_eq!(Request::parse(line.as_bytes()), Ok(expected), "{line}");
        }
        for name in NAMES {
            let fields = [("pid", 1.into()), ("size", "1".into()), ("spec", "x".into())];
            assert!(Request::parse(request(name, &fields).to_string().as_bytes()).is_ok(), "{name}");
        }
    }

    #[test]
    fn bad_requests_are_told_apart_in_one_line() {
        let deep = "[".repeat(LONGEST_REQUEST - 1);
        for (line, garbage, word) in [
            ("", true, "JSON"),
            ("hello", true, "JSON"),
            ("\u{0}\u{1}", true, "JSON"),
            (r#"{"lowtide":1,"do":"sta"#, true, "JSON"),
            (deep.as_str(), true, "JSON"),
            ("[]", false, "no \"lowtide\""),
            ("7", false, "no \"lowtide\""),
            (r#"{"lowtide":2,"do":"stat"}"#, false, "version"),
            (r#"{"lowtide":"1","do":"stat"}"#, false, "version"),
            (r#"{"lowtide":1}"#, false, "swapoff"),
            (r#"{"lowtide":1,"do":7}"#, false, "swapoff"),
            (r#"{"lowtide":1,"do":"dance"}"#, false, "swapoff"),
            (r#"{"lowtide":1,"do":"limit"}"#, false, "size"),
            (r#"{"lowtide":1,"do":"has","pid":-1}"#, false, "can't be read"),
            (r#"{"lowtide":1,"do":"has","pid":"x"}"#, false, "can't be read"),
        ] {
            let bad = Request::parse(line.as_bytes()).expect_err(line);
            assert_eq!((bad.is_garbage, bad.failure.code), (garbage, 2), "{line}");
            assert!(bad.failure.line.contains(word) && !bad.failure.line.contains('\n'), "{line}: {}", bad.failure.line);
        }
    }

    #[test]
    fn answers_are_lines() {
        let text = |answer: Vec<u8>| String::from_utf8(answer).unwrap();
        let said = Map::from_iter([("moved_bytes".to_owned(), 5.into())]);
        assert_eq!(text(answer(Ok(said))), "{\"lowtide\":1,\"ok\":true,\"moved_bytes\":5}\n");
        let failure = Failure::usage("a\nb");
        assert_eq!(text(answer(Err(failure))), "{\"lowtide\":1,\"ok\":false,\"error\":\"a\\nb\",\"code\":2}\n");
        let long = Map::from_iter([("x".to_owned(), "y".repeat(LONGEST_ANSWER).into())]);
        assert!(text(answer(Ok(long))).contains("too long"));
        assert_eq!(text(progress(json!({"left_bytes":1}))), "{\"lowtide\":1,\"progress\":{\"left_bytes\":1}}\n");
    }
}
