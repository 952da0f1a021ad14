//! Common parts of both programs.
//!
//! R7 is the function's argument at first; R9 is the process's [`Registration`], once found.

mod event;
mod fault;

use std::mem::offset_of;

pub use event::event;
pub use fault::fault;

use crate::assembler::{Assembler, Helper, Label, Operation, Register, Value, When, Width};
use crate::kernel::Kernel;
use crate::maps::Registration;
use crate::notifier::{Carrier, Hook};
use crate::record::{RawRecord, Why};
use crate::slot::{SLOTS, Slot};

use Register::{Fp, R0, R1, R2, R3, R4, R6, R7, R8, R9};
use Value::{Number, Of};

/// Offsets from the end of a program's stack.
mod stack {
    use super::{RawRecord, offset_of};

    pub const KEY: i16 = -4;
    /// Also a key.
    pub const PROCESS: i16 = -8;
    pub const RECORD: i16 = -32;
    pub const RECORD_WORD: i16 = RECORD + offset_of!(RawRecord, word) as i16;
    pub const RECORD_THREAD: i16 = RECORD + offset_of!(RawRecord, thread) as i16;
    pub const RECORD_WHY: i16 = RECORD + offset_of!(RawRecord, why) as i16;
    pub const RECORD_STACK: i16 = RECORD + offset_of!(RawRecord, stack) as i16;
    /// For reads through plain numbers.
    pub const READ: i16 = -40;
    /// A process and a ring's number: a key.
    pub const PAIR: i16 = -48;
    /// The thread's slot.
    pub const SLOT: i16 = -56;
}

#[derive(Debug, Clone, Copy)]
pub struct Descriptors {
    pub processes: i32,
    pub rings: i32,
    pub slots: i32,
    pub counts: i32,
}

#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    pub kernel: &'a Kernel,
    pub maps: Descriptors,
    pub hook: Hook,
    pub carrier: Carrier,
    pub signal: i32,
    /// In tests only: the reason whose check is left out.
    pub without: Option<Why>,
}

struct Emitter<'a> {
    program: Assembler,
    target: Target<'a>,
    out: Label,
    record: Label,
}

impl Emitter<'_> {
    fn new(target: Target<'_>) -> Emitter<'_> {
        let mut program = Assembler::default();
        let (out, record) = (program.label(), program.label());
        Emitter { program, target, out, record }
    }

    fn checks(&self, why: Why) -> bool {
        self.target.without != Some(why)
    }

    /// First of all: R7 = the function's first argument, R8 = its second.
    fn begin(&mut self) {
        let kernel = self.target.kernel;
        let [first, second] = match self.target.hook {
            Hook::Entry => [0, 8],
            Hook::Probe => [kernel.registers_first_argument, kernel.registers_second_argument],
        };
        self.program.load(Width::Double, R7, R1, first);
        self.program.load(Width::Double, R8, R1, second);
        self.program.store(Width::Double, Fp, stack::RECORD_STACK, Number(0));
    }

    /// `to` = a member of a kernel structure.
    fn member(&mut self, width: Width, to: Register, of: Register, offset: i16) {
        if self.target.hook == Hook::Entry {
            return self.program.load(width, to, of, offset);
        }
        // A word read fills only a part.
        self.program.store(Width::Double, Fp, stack::READ, Number(0));
        self.program.set(R3, Of(of));
        self.program.compute(Operation::Add, R3, Number(i32::from(offset)));
        self.read_to_stack(Helper::ReadKernel, width.bytes());
        self.program.load(Width::Double, to, Fp, stack::READ);
    }

    /// Copies `bytes` from R3; R0 is 0 on success.
    fn read_to_stack(&mut self, helper: Helper, bytes: i32) {
        self.program.set(R2, Number(bytes));
        self.program.set(R1, Of(Fp));
        self.program.compute(Operation::Add, R1, Number(i32::from(stack::READ)));
        self.program.call(helper);
    }

    /// R0 = the map's value for the key on the stack; if none, jumps to `without`.
    fn look_up(&mut self, map: i32, key: i16, without: Label) {
        self.program.set_map(R1, map);
        self.look_up_in_r1(key, without);
    }

    fn look_up_in_r1(&mut self, key: i16, without: Label) {
        self.program.set(R2, Of(Fp));
        self.program.compute(Operation::Add, R2, Number(i32::from(key)));
        self.program.call(Helper::LookUp);
        self.program.jump_if(R0, When::Equal, Number(0), without);
    }

    /// R9 = the registration for the memory described at R6, which is lost; unregistered: jumps
    /// out.
    fn process_of(&mut self) {
        let kernel = self.target.kernel;
        self.member(Width::Double, R6, R6, kernel.mm_owner);
        self.program.jump_if(R6, When::Equal, Number(0), self.out);
        self.member(Width::Word, R1, R6, kernel.task_process);
        self.program.store(Width::Word, Fp, stack::PROCESS, Of(R1));
        self.look_up(self.target.maps.processes, stack::PROCESS, self.out);
        self.program.set(R9, Of(R0));
    }

    /// R0 to R4 are lost.
    fn count(&mut self, why: Why) {
        let past = self.program.label();
        self.program.store(Width::Word, Fp, stack::KEY, Number(why as i32));
        self.look_up(self.target.maps.counts, stack::KEY, past);
        self.program.set(R1, Number(1));
        self.program.add_atomically(R0, R1);
        self.program.bind(past);
    }

    fn because(&mut self, why: Why) {
        self.program.store(Width::Word, Fp, stack::RECORD_WHY, Number(why as i32));
        self.count(why);
        self.program.jump(self.record);
    }

    /// R0 = the slot, in the slots at R1, of the thread in the record.
    fn slot_in_r1(&mut self, without: Label) {
        self.program.load(Width::Word, R2, Fp, stack::RECORD_THREAD);
        self.program.compute(Operation::And, R2, Number(SLOTS as i32 - 1));
        self.program.store(Width::Word, Fp, stack::KEY, Of(R2));
        self.look_up_in_r1(stack::KEY, without);
    }

    /// Increments a word of the last of the slots at R1.
    fn count_in_slots(&mut self, word: usize, without: Label) {
        self.program.store(Width::Word, Fp, stack::KEY, Number(SLOTS as i32));
        self.look_up_in_r1(stack::KEY, without);
        self.program.compute(Operation::Add, R0, Number(word as i32));
        self.program.set(R1, Number(1));
        self.program.add_atomically(R0, R1);
    }

    /// Binds `record` and `out`. The record is complete; R9 is the registration.
    fn end(mut self) -> Assembler {
        let (new, out) = (self.program.label(), self.out);
        let slot = |offset: usize| offset as i16;
        self.program.bind(self.record);
        // R8 = the ring's number, R7 = the ring, R9 = the slots, R6 = the thread's.
        self.program.call(Helper::Cpu);
        self.program.set(R8, Of(R0));
        self.program.load(Width::Word, R1, R9, offset_of!(Registration, rings) as i16);
        self.program.compute(Operation::Rest, R8, Of(R1));
        self.program.load(Width::Word, R1, Fp, stack::PROCESS);
        self.program.store(Width::Word, Fp, stack::PAIR, Of(R1));
        self.program.store(Width::Word, Fp, stack::PAIR + 4, Of(R8));
        self.look_up(self.target.maps.rings, stack::PAIR, out);
        self.program.set(R7, Of(R0));
        self.look_up(self.target.maps.slots, stack::PROCESS, out);
        self.program.set(R9, Of(R0));
        self.program.set(R1, Of(R9));
        self.slot_in_r1(out);
        self.program.set(R6, Of(R0));
        if self.checks(Why::Again) {
            self.unless_said_already(new);
        }
        self.program.bind(new);
        self.ask_ring(Position::Produced);
        self.program.store(Width::Double, R6, slot(offset_of!(Slot, position)), Of(R0));
        self.program.load(Width::Word, R1, Fp, stack::RECORD_THREAD);
        self.program.store(Width::Word, R6, slot(offset_of!(Slot, thread)), Of(R1));
        self.program.store(Width::Word, R6, slot(offset_of!(Slot, ring)), Of(R8));
        self.program.load(Width::Double, R1, Fp, stack::RECORD_WORD);
        self.program.store(Width::Double, R6, slot(offset_of!(Slot, asked)), Of(R1));
        self.program.set(R1, Of(R7));
        self.program.set(R2, Of(Fp));
        self.program.compute(Operation::Add, R2, Number(i32::from(stack::RECORD)));
        self.program.set(R3, Number(size_of::<RawRecord>() as i32));
        self.program.set(R4, Number(0));
        self.program.call(Helper::WriteRing);
        self.program.jump_if(R0, When::Equal, Number(0), out);
        // Full: the reader of rings must read the userfaultfd.
        self.program.store(Width::Double, R6, slot(offset_of!(Slot, asked)), Number(0));
        self.count(Why::Lost);
        self.program.set(R1, Of(R9));
        self.count_in_slots(offset_of!(Slot, signalled), out);
        self.program.bind(out);
        self.program.exit();
        self.program
    }

    /// Ends the program if the thread's last record is the same and unread: a kernel fault under a
    /// pending signal does not sleep but repeats thousands of times. Else jumps to `new`.
    fn unless_said_already(&mut self, new: Label) {
        let same = [
            (Width::Double, stack::RECORD_WORD, offset_of!(Slot, asked)),
            (Width::Word, stack::RECORD_THREAD, offset_of!(Slot, thread)),
        ];
        for (width, on_stack, in_slot) in same {
            self.program.load(width, R1, Fp, on_stack);
            // An event, not a fault.
            self.program.jump_if(R1, When::Equal, Number(0), new);
            self.program.load(width, R2, R6, in_slot as i16);
            self.program.jump_if(R1, When::NotEqual, Of(R2), new);
        }
        self.program.load(Width::Word, R1, R6, offset_of!(Slot, ring) as i16);
        self.program.jump_if(R1, When::NotEqual, Of(R8), new);
        self.ask_ring(Position::Consumed);
        self.program.load(Width::Double, R1, R6, offset_of!(Slot, position) as i16);
        self.program.jump_if(R0, When::More, Of(R1), new);
        self.count(Why::Again);
        self.program.jump(self.out);
    }

    /// R0 = a position of the ring at R7.
    fn ask_ring(&mut self, which: Position) {
        self.program.set(R1, Of(R7));
        self.program.set(R2, Number(which as i32));
        self.program.call(Helper::AskRing);
    }
}

#[derive(Clone, Copy)]
#[repr(i32)]
enum Position {
    Consumed = 2,
    Produced = 3,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_can_be_put_together() {
        let kernel = Kernel::made_up();
        let maps = Descriptors { processes: 3, rings: 4, slots: 5, counts: 6 };
        for (hook, carrier) in [(Hook::Entry, Carrier::Value), (Hook::Entry, Carrier::Slot), (Hook::Probe, Carrier::Slot)] {
            for kernel in
                [kernel.clone(), Kernel { task_seccomp: None, task_dispatch: None, task_io_uring: None, ..kernel.clone() }]
            {
                let target = Target { kernel: &kernel, maps, hook, carrier, signal: 16, without: None };
                assert!(event(target).finish().is_ok(), "{hook:?} {carrier:?}");
                for without in Why::ALL.map(Some).into_iter().chain([None]) {
                    let target = Target { without, ..target };
                    assert!(fault(target).finish().is_ok(), "{hook:?} {carrier:?} {without:?}");
                }
            }
        }
    }
}
