//! The program for events: someone must read the userfaultfd, because a thread waits until that was done.

use super::{Emitter, Target, stack};
use crate::assembler::Register::{Fp, R0, R6, R7};
use crate::assembler::{Assembler, Helper, Value, Width};
use crate::record::Why;

/// At the entry of `userfaultfd_event_wait_completion`.
pub fn event(target: Target<'_>) -> Assembler {
    let mut emitter = Emitter::new(target);
    emitter.begin();
    emitter.member(Width::Double, R6, R7, target.kernel.ctx_mm);
    emitter.process_of();
    emitter.program.store(Width::Double, Fp, stack::RECORD_WORD, Value::Number(0));
    emitter.program.call(Helper::ProcessAndThread);
    emitter.program.store(Width::Word, Fp, stack::RECORD_THREAD, Value::Of(R0));
    emitter.because(Why::Event);
    emitter.end()
}
