//! The program for events: their threads wait until the userfaultfd is read.

use std::mem::offset_of;

use super::{Emitter, Target, stack};
use crate::assembler::Register::{Fp, R0, R1, R6, R7};
use crate::assembler::{Assembler, Helper, Value, Width};
use crate::record::Why;
use crate::slot::Slot;

pub fn event(target: Target<'_>) -> Assembler {
    let mut emitter = Emitter::new(target);
    emitter.begin();
    emitter.member(Width::Double, R6, R7, target.kernel.ctx_mm);
    emitter.process_of();
    // First: the record's reader finds it counted.
    let counted = emitter.program.label();
    emitter.look_up(target.maps.slots, stack::PROCESS, counted);
    emitter.program.set(R1, Value::Of(R0));
    emitter.count_in_slots(offset_of!(Slot, asked), counted);
    emitter.program.bind(counted);
    emitter.program.store(Width::Double, Fp, stack::RECORD_WORD, Value::Number(0));
    emitter.program.call(Helper::ProcessAndThread);
    emitter.program.store(Width::Word, Fp, stack::RECORD_THREAD, Value::Of(R0));
    emitter.because(Why::Event);
    emitter.end()
}
