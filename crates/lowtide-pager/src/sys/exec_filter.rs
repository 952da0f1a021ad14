//! The system call filter (seccomp) by which `lowtide run` is told of every exec of a process that has no hook for it, and of
//! what descends from that: the thread waits in the call until `lowtide run` lets it go on. Other calls pass.

/// What the sixth argument of an exec says, which the kernel does not look at: its caller has done all that is to be done, and
/// it passes.
pub const DONE: u64 = MARK << 32 | 0x1;
/// Of an exec of nothing: it fails with [`IS_THERE`] in a process that has this filter.
pub const IS_IT_THERE: u64 = MARK << 32 | 0x2;
/// `ENOTUNIQ`: no exec fails with that by itself.
pub const IS_THERE: u32 = 76;

/// No program has it there by chance.
const MARK: u64 = 0x6c6f_7774;

/// An instruction of classic BPF, the kernel's `struct sock_filter`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    value: u32,
}

impl Instruction {
    /// As they stand in memory.
    pub fn bytes(&self) -> [u8; 8] {
        let [code, value] = [u32::from(self.code) | u32::from(self.if_true) << 16 | u32::from(self.if_false) << 24, self.value];
        (u64::from(code) | u64::from(value) << 32).to_le_bytes()
    }
}

/// BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ | BPF_K, BPF_RET | BPF_K.
const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const NOTIFY: u32 = 0x7fc0_0000;
const FAIL: u32 = 0x0005_0000;
const X86_64: u32 = 0xc000_003e;
/// Where in the kernel's `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const SIXTH_LOW: u32 = 56;
const SIXTH_HIGH: u32 = 60;

const fn load(from: u32) -> Instruction {
    Instruction { code: LOAD, if_true: 0, if_false: 0, value: from }
}

/// Skips so many instructions.
const fn if_equal(value: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction { code: IF_EQUAL, if_true, if_false, value }
}

const fn give(value: u32) -> Instruction {
    Instruction { code: RETURN, if_true: 0, if_false: 0, value }
}

/// The filter.
pub const FILTER: [Instruction; 13] = [
    load(ARCHITECTURE),
    if_equal(X86_64, 0, 9),
    load(NUMBER),
    if_equal(linux_raw_sys::general::__NR_execve, 1, 0),
    if_equal(linux_raw_sys::general::__NR_execveat, 0, 6),
    load(SIXTH_HIGH),
    if_equal(MARK as u32, 0, 3),
    load(SIXTH_LOW),
    if_equal(DONE as u32, 2, 0),
    if_equal(IS_IT_THERE as u32, 2, 0),
    give(NOTIFY),
    give(ALLOW),
    give(FAIL | IS_THERE),
];

/// The arguments of seccomp(2) before the filter: SECCOMP_SET_MODE_FILTER, and NEW_LISTENER, WAIT_KILLABLE_RECV (no signal but a
/// deadly one takes a thread out of the call while it is looked at) and SPEC_ALLOW (it keeps nothing secret, so that no other
/// call gets slower).
pub const ARGUMENTS: [u64; 2] = [1, 1 << 3 | 1 << 5 | 1 << 2];

/// Said where the kernel refuses the filter.
pub const ANOTHERS: &str = "what a program without hooks executes is not limited, unless it preloads lowtide by itself: another \
                            system call filter than lowtide's has a listener";
/// Said where `lowtide run` does not take one more listener.
pub const TOO_MANY: &str = "what a program without hooks executes is not limited, unless it preloads lowtide by itself: too many \
                            such programs run";

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel does for a call.
    fn run(architecture: u32, number: u32, sixth: u64) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let Instruction { code, if_true, if_false, value } = FILTER[at];
            at += 1;
            match (code, value) {
                (LOAD, ARCHITECTURE) => loaded = architecture,
                (LOAD, NUMBER) => loaded = number,
                (LOAD, SIXTH_LOW) => loaded = sixth as u32,
                (LOAD, SIXTH_HIGH) => loaded = (sixth >> 32) as u32,
                (IF_EQUAL, _) => at += usize::from(if loaded == value { if_true } else { if_false }),
                (RETURN, _) => return value,
                _ => panic!("no such instruction: {code}, {value}"),
            }
        }
    }

    #[test]
    fn only_execs_are_told_and_those_that_say_so_are_not() {
        use linux_raw_sys::general::{__NR_execve, __NR_execveat, __NR_openat};
        for number in [__NR_execve, __NR_execveat] {
            for sixth in [0, 1, 2, MARK << 32, DONE & 0xffff_ffff, DONE + 2] {
                assert_eq!(run(X86_64, number, sixth), NOTIFY, "{number} {sixth:x}");
            }
            assert_eq!(run(X86_64, number, DONE), ALLOW);
            assert_eq!(run(X86_64, number, IS_IT_THERE), FAIL | IS_THERE);
            // Calls of 32-bit code have other numbers.
            assert_eq!(run(0x4000_0003, number, 0), ALLOW);
            assert_eq!(run(X86_64, number | 0x4000_0000, 0), ALLOW);
        }
        assert!((0..600).filter(|number| run(X86_64, *number, IS_IT_THERE) != ALLOW).eq([__NR_execve, __NR_execveat]));
        assert_eq!(run(X86_64, __NR_openat, DONE), ALLOW);
    }
}
