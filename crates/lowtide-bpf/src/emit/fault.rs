//! The program for faults: a signal to the faulting thread, or a record with the reason against it.

use std::mem::offset_of;

use super::{Emitter, Target, stack};
use crate::assembler::Register::{Fp, R0, R1, R2, R3, R4, R6, R7, R8, R9};
use crate::assembler::{Assembler, Helper, Label, Operation, Register, Value, When, Width};
use crate::kernel::STRICT;
use crate::maps::{Registration, Stacks};
use crate::notifier::Carrier;
use crate::record::{Fault, Why};
use crate::slot::Slot;

use Value::{Number, Of};

/// On x86-64 programs may keep data below the stack pointer; the kernel spares it.
const RED_ZONE: i32 = 128;
/// VM_UFFD_MISSING.
const MISSING: i32 = 1 << 9;
/// PIDTYPE_PID.
const ONE_THREAD: i32 = 0;
/// This much below its start, only the main thread's stack exists: its usual limit is 8 MiB, and
/// mappings are at least 128 MiB below.
const MAIN_STACK: i32 = 8 << 20;
/// This much below its control block is the stack of a glibc thread, unless a program gives it
/// less, without a guard.
const THREAD_STACK: i32 = 64 << 10;
const GUARD: u64 = 4096;
/// More than any signal frame (AMX, 11 KiB) and the handler take.
const MOST_STACK: u64 = 32 << 10;

/// Where each check reports its reason against a signal.
struct Checks([(Why, Label); 13]);

impl Checks {
    fn new(emitter: &mut Emitter<'_>) -> Checks {
        let all = [
            Why::Protected,
            Why::KernelMode,
            Why::OtherProcess,
            Why::Declined,
            Why::Traced,
            Why::Blocked,
            Why::OtherHandler,
            Why::Filtered,
            Why::Dispatched,
            Why::IoUring,
            Why::NoStack,
            Why::UnknownStack,
            Why::NotSent,
        ];
        Checks(all.map(|why| (why, emitter.program.label())))
    }

    fn label(&self, why: Why) -> Label {
        self.0.iter().find(|(other, _)| *other == why).map_or(self.0[0].1, |(_, label)| *label)
    }

    fn not_if(&self, emitter: &mut Emitter<'_>, a: Register, when: When, b: Value, why: Why) {
        if emitter.checks(why) {
            emitter.program.jump_if(a, when, b, self.label(why));
        }
    }

    fn say(self, emitter: &mut Emitter<'_>) {
        for (why, label) in self.0 {
            // The verifier refuses unreachable code.
            if emitter.program.is_target(label) {
                emitter.program.bind(label);
                emitter.because(why);
            }
        }
    }
}

pub fn fault(target: Target<'_>) -> Assembler {
    let mut emitter = Emitter::new(target);
    let checks = Checks::new(&mut emitter);
    emitter.begin();
    whose_and_what(&mut emitter, &checks);
    find_slot(&mut emitter, checks.label(Why::NotSent));
    if emitter.checks(Why::Declined) {
        unless_declined(&mut emitter, checks.label(Why::Declined));
    }
    can_be_signalled(&mut emitter, &checks);
    if emitter.checks(Why::NoStack) {
        has_stack(&mut emitter, &checks);
    }
    send(&mut emitter, checks.label(Why::NotSent));
    checks.say(&mut emitter);
    emitter.end()
}

/// Leaves R9 = the registration, and fault and thread in the record; passes only user mode faults
/// of that process's threads.
fn whose_and_what(emitter: &mut Emitter<'_>, checks: &Checks) {
    let kernel = emitter.target.kernel;
    // The memory's owner: the faulting thread may be a child of vfork, or of another process.
    emitter.member(Width::Double, R6, R7, kernel.fault_vma);
    emitter.member(Width::Double, R6, R6, kernel.vma_mm);
    emitter.process_of();
    emitter.member(Width::Double, R6, R7, kernel.fault_address);
    emitter.member(Width::Word, R7, R7, kernel.fault_flags);
    let read = emitter.program.label();
    emitter.program.set(R1, Of(R7));
    emitter.program.compute(Operation::And, R1, Number(kernel.flag_write));
    emitter.program.jump_if(R1, When::Equal, Number(0), read);
    emitter.program.compute(Operation::Or, R6, Number(Fault::WRITE as i32));
    emitter.program.bind(read);
    emitter.program.store(Width::Double, Fp, stack::RECORD_WORD, Of(R6));
    emitter.program.call(Helper::ProcessAndThread);
    emitter.program.store(Width::Word, Fp, stack::RECORD_THREAD, Of(R0));
    checks.not_if(emitter, R8, When::NotEqual, Number(MISSING), Why::Protected);
    emitter.program.compute(Operation::And, R7, Number(kernel.flag_user));
    checks.not_if(emitter, R7, When::Equal, Number(0), Why::KernelMode);
    emitter.program.compute(Operation::Right, R0, Number(32));
    emitter.program.load(Width::Word, R1, Fp, stack::PROCESS);
    checks.not_if(emitter, R0, When::NotEqual, Of(R1), Why::OtherProcess);
}

/// R0, and `stack::SLOT` = the thread's slot.
fn find_slot(emitter: &mut Emitter<'_>, without: Label) {
    emitter.look_up(emitter.target.maps.slots, stack::PROCESS, without);
    emitter.program.set(R1, Of(R0));
    emitter.slot_in_r1(without);
    emitter.program.store(Width::Double, Fp, stack::SLOT, Of(R0));
}

/// The handler may have declined this page, for one fault. The slot is at R0.
fn unless_declined(emitter: &mut Emitter<'_>, declined: Label) {
    let goes_on = emitter.program.label();
    let place = offset_of!(Slot, declined) as i16;
    emitter.program.load(Width::Double, R1, R0, place);
    emitter.program.jump_if(R1, When::Equal, Number(0), goes_on);
    emitter.program.load(Width::Double, R2, Fp, stack::RECORD_WORD);
    emitter.program.compute(Operation::And, R2, Number(!(Fault::WRITE as i32)));
    emitter.program.jump_if(R1, When::NotEqual, Of(R2), goes_on);
    emitter.program.store(Width::Double, R0, place, Number(0));
    emitter.program.jump(declined);
    emitter.program.bind(goes_on);
}

/// R6 = the thread's task, which would run the registered handler.
fn can_be_signalled(emitter: &mut Emitter<'_>, checks: &Checks) {
    let (kernel, signal) = (emitter.target.kernel, emitter.target.signal);
    let registered = |field: usize| field as i16;
    emitter.program.call(Helper::Task);
    emitter.program.set(R6, Of(R0));
    emitter.program.load(Width::Word, R1, R6, kernel.task_ptrace);
    checks.not_if(emitter, R1, When::NotEqual, Number(0), Why::Traced);
    emitter.program.load(Width::Double, R1, R6, kernel.task_blocked);
    emitter.program.set_wide(R2, 1 << (signal - 1));
    emitter.program.compute(Operation::And, R1, Of(R2));
    checks.not_if(emitter, R1, When::NotEqual, Number(0), Why::Blocked);
    emitter.program.load(Width::Double, R1, R6, kernel.task_sighand);
    let handler = i32::from(kernel.first_handler) + i32::from(kernel.handler_step) * (signal - 1);
    emitter.program.load(Width::Double, R1, R1, handler as i16);
    emitter.program.load(Width::Double, R2, R9, registered(offset_of!(Registration, handler)));
    checks.not_if(emitter, R1, When::NotEqual, Of(R2), Why::OtherHandler);
    if let Some(seccomp) = kernel.task_seccomp {
        emitter.program.load(Width::Word, R1, R6, seccomp.filters);
        emitter.program.load(Width::Word, R2, R9, registered(offset_of!(Registration, filters)));
        checks.not_if(emitter, R1, When::NotEqual, Of(R2), Why::Filtered);
        emitter.program.load(Width::Word, R1, R6, seccomp.mode);
        checks.not_if(emitter, R1, When::Equal, Number(STRICT), Why::Filtered);
    }
    if let Some(dispatch) = kernel.task_dispatch {
        emitter.program.load(Width::Double, R1, R6, dispatch.flags);
        emitter.program.compute(Operation::And, R1, Number(1 << dispatch.bit));
        checks.not_if(emitter, R1, When::NotEqual, Number(0), Why::Dispatched);
    }
    if let Some(io_uring) = kernel.task_io_uring {
        emitter.program.load(Width::Double, R1, R6, io_uring);
        checks.not_if(emitter, R1, When::NotEqual, Number(0), Why::IoUring);
    }
}

/// A frame without room ends the program, or overwrites other memory.
fn has_stack(emitter: &mut Emitter<'_>, checks: &Checks) {
    let (kernel, without) = (emitter.target.kernel, checks.label(Why::NoStack));
    let [enough, alternate, elsewhere] = [(); 3].map(|()| emitter.program.label());
    // R7 = the stack pointer, R8 = the needed bytes.
    emitter.program.load(Width::Double, R8, R9, offset_of!(Registration, stack) as i16);
    emitter.program.jump_if(R8, When::Equal, Number(0), enough);
    emitter.program.set(R1, Of(R6));
    emitter.program.call(Helper::UserRegisters);
    emitter.program.load(Width::Double, R7, R0, kernel.registers_stack);
    emitter.program.load(Width::Double, R2, R6, kernel.task_alt_size);
    emitter.program.jump_if(R2, When::NotEqual, Number(0), alternate);
    if emitter.checks(Why::UnknownStack) {
        is_known(emitter, checks.label(Why::UnknownStack));
    }
    // No alternate stack: the frame's last byte and one byte of each page above must be in memory.
    emitter.program.set(R3, Of(R7));
    emitter.program.compute(Operation::Sub, R3, Of(R8));
    emitter.program.compute(Operation::Sub, R3, Number(RED_ZONE));
    in_memory(emitter, without);
    for below in (8..MOST_STACK).step_by(GUARD as usize) {
        emitter.program.jump_if(R8, When::Less, Number(below as i32), enough);
        emitter.program.set(R3, Of(R7));
        emitter.program.compute(Operation::Sub, R3, Number(below as i32 + RED_ZONE));
        in_memory(emitter, without);
    }
    emitter.program.jump(enough);
    emitter.program.bind(alternate);
    // R3 = offset from its start; beyond its end the thread is elsewhere, and all of it is free.
    emitter.program.load(Width::Double, R1, R6, kernel.task_alt_start);
    emitter.program.set(R3, Of(R7));
    emitter.program.compute(Operation::Sub, R3, Of(R1));
    emitter.program.jump_if(R3, When::More, Of(R2), elsewhere);
    emitter.program.set(R2, Of(R3));
    emitter.program.bind(elsewhere);
    emitter.program.jump_if(R2, When::Less, Of(R8), without);
    emitter.program.bind(enough);
}

/// Whether the stack at R7 of the task at R6 has certain room, if required.
fn is_known(emitter: &mut Emitter<'_>, unknown: Label) {
    let (kernel, known) = (emitter.target.kernel, emitter.program.label());
    emitter.program.load(Width::Double, R1, R9, offset_of!(Registration, stacks) as i16);
    emitter.program.jump_if(R1, When::Equal, Number(Stacks::Any as i32), known);
    emitter.program.load(Width::Double, R1, R6, kernel.task_mm);
    emitter.program.load(Width::Double, R1, R1, kernel.mm_start_stack);
    emitter.program.compute(Operation::Sub, R1, Of(R7));
    emitter.program.jump_if(R1, When::Less, Number(MAIN_STACK), known);
    // The main thread's control block is on no stack.
    emitter.program.load(Width::Word, R1, Fp, stack::RECORD_THREAD);
    emitter.program.load(Width::Word, R2, Fp, stack::PROCESS);
    emitter.program.jump_if(R1, When::Equal, Of(R2), unknown);
    // The verifier forbids arithmetic with this pointer.
    emitter.program.load(Width::Double, R1, R6, kernel.task_robust_list);
    emitter.program.jump_if(R1, When::Less, Of(R7), unknown);
    emitter.program.set(R2, Of(R7));
    emitter.program.compute(Operation::Add, R2, Number(THREAD_STACK));
    emitter.program.jump_if(R1, When::Less, Of(R2), known);
    emitter.program.jump(unknown);
    emitter.program.bind(known);
}

/// Whether the program's byte at R3 is in memory; R1 to R5 are lost.
fn in_memory(emitter: &mut Emitter<'_>, without: Label) {
    emitter.program.store(Width::Double, Fp, stack::RECORD_STACK, Of(R3));
    emitter.read_to_stack(Helper::ReadUser, 1);
    emitter.program.jump_if(R0, When::NotEqual, Number(0), without);
}

/// To the task at R6. The fault then does not sleep, and the thread runs its handler.
fn send(emitter: &mut Emitter<'_>, failed: Label) {
    let signal = Number(emitter.target.signal);
    match emitter.target.carrier {
        Carrier::Value => {
            emitter.program.set(R1, Of(R6));
            emitter.program.set(R2, signal);
            emitter.program.set(R3, Number(ONE_THREAD));
            emitter.program.load(Width::Double, R4, Fp, stack::RECORD_WORD);
            // `Notifier` avoids this way on kernels without the function.
            emitter.program.call_kernel(emitter.target.kernel.send_function.unwrap_or(0));
        }
        Carrier::Slot => {
            emitter.program.load(Width::Double, R0, Fp, stack::SLOT);
            emitter.program.load(Width::Double, R1, Fp, stack::RECORD_WORD);
            emitter.program.store(Width::Double, R0, offset_of!(Slot, signalled) as i16, Of(R1));
            emitter.program.load(Width::Word, R1, Fp, stack::RECORD_THREAD);
            emitter.program.store(Width::Word, R0, offset_of!(Slot, thread) as i16, Of(R1));
            emitter.program.set(R1, signal);
            emitter.program.call(Helper::SendSignal);
        }
    }
    emitter.program.compute(Operation::Left, R0, Number(32));
    emitter.program.jump_if(R0, When::NotEqual, Number(0), failed);
    emitter.program.exit();
}
