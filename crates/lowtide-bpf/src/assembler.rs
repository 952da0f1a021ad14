//! Assembles BPF instructions, with labels.

use crate::error::Error;

/// The last is the end of the stack, which has 512 bytes and grows down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Register {
    R0 = 0,
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    /// Calls preserve R6 to R9.
    R6 = 6,
    R7 = 7,
    R8 = 8,
    R9 = 9,
    Fp = 10,
}

impl Register {
    fn number(self) -> u8 {
        self as u8
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    Word,
    Double,
}

impl Width {
    pub fn bytes(self) -> i32 {
        match self {
            Width::Word => 4,
            Width::Double => 8,
        }
    }

    fn code(self) -> u8 {
        match self {
            Width::Word => 0x00,
            Width::Double => 0x18,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    Add = 0x00,
    Sub = 0x10,
    Or = 0x40,
    And = 0x50,
    Left = 0x60,
    Right = 0x70,
    /// Remainder.
    Rest = 0x90,
    Move = 0xb0,
}

/// On unsigned 64-bit values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum When {
    Equal = 0x10,
    More = 0x20,
    NotEqual = 0x50,
    Less = 0xa0,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    Of(Register),
    /// Signed.
    Number(i32),
}

/// Kernel helpers, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Helper {
    /// (map, key): a value, or an inner map.
    LookUp = 1,
    /// (): this CPU.
    Cpu = 8,
    /// (): the process in the upper half, the thread in the lower.
    ProcessAndThread = 14,
    /// (to, bytes, from)
    ReadUser = 112,
    /// (to, bytes, from)
    ReadKernel = 113,
    /// (signal): to this thread.
    SendSignal = 117,
    /// (ring, record, bytes, flags)
    WriteRing = 130,
    /// (ring, what)
    AskRing = 134,
    /// (): this thread's task.
    Task = 158,
    /// (task): its user-mode registers.
    UserRegisters = 175,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    number: i32,
}

/// Bound once; earlier instructions may jump to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label(usize);

#[derive(Debug, Default)]
pub struct Assembler {
    instructions: Vec<Instruction>,
    places: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
    bound_twice: bool,
}

impl Assembler {
    pub fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    pub fn bind(&mut self, label: Label) {
        let place = self.places[label.0].replace(self.instructions.len());
        self.bound_twice |= place.is_some();
    }

    pub fn is_target(&self, label: Label) -> bool {
        self.jumps.iter().any(|(_, to)| *to == label)
    }

    /// `to` = memory at `from` + `offset`.
    pub fn load(&mut self, width: Width, to: Register, from: Register, offset: i16) {
        self.one(0x61 | width.code(), to.number(), from.number(), offset, 0);
    }

    pub fn store(&mut self, width: Width, to: Register, offset: i16, from: Value) {
        match from {
            Value::Of(from) => self.one(0x63 | width.code(), to.number(), from.number(), offset, 0),
            Value::Number(number) => self.one(0x62 | width.code(), to.number(), 0, offset, number),
        }
    }

    /// 8 bytes at `to` += `from`.
    pub fn add_atomically(&mut self, to: Register, from: Register) {
        self.one(0xdb, to.number(), from.number(), 0, 0);
    }

    /// `to` = `to` `operation` `value`.
    pub fn compute(&mut self, operation: Operation, to: Register, value: Value) {
        match value {
            Value::Of(from) => self.one(0x0f | operation as u8, to.number(), from.number(), 0, 0),
            Value::Number(number) => self.one(0x07 | operation as u8, to.number(), 0, 0, number),
        }
    }

    /// `to` = `value`.
    pub fn set(&mut self, to: Register, value: Value) {
        self.compute(Operation::Move, to, value);
    }

    pub fn set_wide(&mut self, to: Register, number: u64) {
        self.wide(to, 0, number as i32, (number >> 32) as i32);
    }

    pub fn set_map(&mut self, to: Register, descriptor: i32) {
        const A_MAP: u8 = 1;
        self.wide(to, A_MAP, descriptor, 0);
    }

    pub fn jump_if(&mut self, a: Register, when: When, b: Value, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        match b {
            Value::Of(b) => self.one(0x0d | when as u8, a.number(), b.number(), 0, 0),
            Value::Number(number) => self.one(0x05 | when as u8, a.number(), 0, 0, number),
        }
    }

    pub fn jump(&mut self, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.one(0x05, 0, 0, 0, 0);
    }

    /// Arguments from R1, the result in R0; R1 to R5 are lost.
    pub fn call(&mut self, helper: Helper) {
        self.one(0x85, 0, 0, 0, helper as i32);
    }

    /// By the function's type number.
    pub fn call_kernel(&mut self, function: u32) {
        const A_FUNCTION: u8 = 2;
        self.one(0x85, 0, A_FUNCTION, 0, function.cast_signed());
    }

    pub fn exit(&mut self) {
        self.set(Register::R0, Value::Number(0));
        self.one(0x95, 0, 0, 0, 0);
    }

    /// # Errors
    /// [`Error::Assembly`]: a label is unbound, bound twice, or too far.
    pub fn finish(mut self) -> Result<Vec<Instruction>, Error> {
        if self.bound_twice {
            return Err(Error::Assembly("a label is bound twice"));
        }
        for (at, label) in self.jumps {
            let place = self.places[label.0].ok_or(Error::Assembly("a label is not bound"))?;
            // From the next instruction.
            let distance = place as isize - at as isize - 1;
            self.instructions[at].offset = distance.try_into().map_err(|_| Error::Assembly("a jump is too far"))?;
        }
        Ok(self.instructions)
    }

    fn wide(&mut self, to: Register, what: u8, low: i32, high: i32) {
        self.one(0x18, to.number(), what, 0, low);
        self.one(0, 0, 0, 0, high);
    }

    fn one(&mut self, code: u8, to: u8, from: u8, offset: i16, number: i32) {
        self.instructions.push(Instruction { code, registers: to | from << 4, offset, number });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Register::{Fp, R0, R1, R6};

    #[test]
    fn jumps_go_forwards_and_backwards_over_wide_instructions() {
        let mut program = Assembler::default();
        let (back, out) = (program.label(), program.label());
        program.bind(back);
        program.jump_if(R1, When::Equal, Value::Number(7), out);
        program.set_wide(R1, 0x1_0000_0002);
        program.jump(back);
        program.bind(out);
        program.exit();
        let program = program.finish().unwrap();
        // 0: if, 1 and 2: the wide one, 3: back, 4 and 5: the end.
        assert_eq!((program[0].offset, program[3].offset, program.len()), (3, -4, 6));
        assert_eq!((program[1].number, program[2].number), (2, 1));
    }

    #[test]
    fn instructions_have_the_kernels_form() {
        let mut program = Assembler::default();
        program.load(Width::Double, R6, R1, 112);
        program.store(Width::Word, Fp, -4, Value::Number(9));
        program.compute(Operation::Rest, R0, Value::Of(R6));
        program.call(Helper::LookUp);
        program.set_map(R1, 5);
        let program = program.finish().unwrap();
        let words = program.iter().map(|i| (i.code, i.registers, i.offset, i.number)).collect::<Vec<_>>();
        let wanted =
            [(0x79, 0x16, 112, 0), (0x62, 0x0a, -4, 9), (0x9f, 0x60, 0, 0), (0x85, 0, 0, 1), (0x18, 0x11, 0, 5), (0, 0, 0, 0)];
        assert_eq!(words, wanted);
        assert_eq!(size_of::<Instruction>(), 8);
    }

    #[test]
    fn labels_are_bound_once() {
        let mut program = Assembler::default();
        let label = program.label();
        program.jump(label);
        assert!(program.finish().is_err());
        let mut program = Assembler::default();
        let label = program.label();
        program.bind(label);
        program.bind(label);
        assert!(program.finish().is_err());
        let mut program = Assembler::default();
        let far = program.label();
        program.jump(far);
        (0..40_000).for_each(|_| program.set(R0, Value::Number(0)));
        program.bind(far);
        assert!(program.finish().is_err());
    }
}
