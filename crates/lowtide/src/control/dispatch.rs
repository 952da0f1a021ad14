//! Starts what a request asks for.

use super::protocol::Request;
use crate::error::Failure;
use crate::live::{Answer, Live, Task, answer, limit, reclaim, swapoff, swapon};
use crate::metrics;
use crate::stats::{Stats, fills};
use crate::supervisor::ancestry;
use lowtide_core::vm::PAGE_SIZE;
use serde_json::{Value, json};

pub enum Reply {
    Now(Answer),
    Later(Box<dyn Task>),
}

pub fn start(request: Request, run: &mut Live<'_>) -> Reply {
    // Answers are to reflect the present.
    run.look();
    let begun = match request {
        Request::Ps => return Reply::Now(answer(ps(run))),
        Request::Stat { areas: true } => Ok(fills::start(run)),
        Request::Stat { areas: false } => {
            let stats = Stats::new(run, run.tree.now(), run.started.elapsed());
            let value = serde_json::to_value(stats).map_err(|error| Failure::failed(format!("no statistics: {error}")));
            return Reply::Now(value.and_then(answer));
        }
        Request::Metrics => return Reply::Now(answer(json!({ "text": metrics::text(run) }))),
        Request::Has { pid } => {
            let has = ancestry::belongs(pid) == Some(true);
            return Reply::Now(answer(json!({ "has": has, "program": run.program })));
        }
        Request::Cancel => Err(Failure::usage("there is nothing to cancel")),
        Request::Limit { size, wait } => limit::start(&size, wait, run),
        Request::Reclaim { size } => reclaim::start(&size, run),
        Request::Swapon { spec } => swapon::start(spec),
        Request::Swapoff { spec } => swapoff::start(&spec, run),
    };
    begun.map_or_else(|failure| Reply::Now(Err(failure)), Reply::Later)
}

fn ps(run: &Live<'_>) -> Value {
    let now = run.tree.now();
    json!({
        "pid": std::process::id(),
        "program": run.program,
        "ram_now": now.ram,
        "ram_limit": run.limits.ram(),
        "out_bytes": now.now_stored.saturating_mul(PAGE_SIZE as u64),
        "elapsed_seconds": run.started.elapsed().as_secs_f64(),
        "processes": run.shared.segment().seen.load(std::sync::atomic::Ordering::Relaxed),
    })
}
