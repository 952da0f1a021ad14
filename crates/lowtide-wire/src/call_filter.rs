//! The seccomp filter for programs without hooks: reports to `lowtide run` execs (of descendants
//! too), `set_tid_address`, and calls that change memory otherwise than events say: `mremap`,
//! guards and large lazy frees (`madvise`, `process_madvise`), replacing `shmat`. The thread waits
//! until `lowtide run` continues the call or refuses it (its `supervisor/enter/memory_calls.rs`).
//! Small lazy frees do nothing.

use linux_raw_sys::general::{
    __NR_execve, __NR_execveat, __NR_madvise, __NR_mremap, __NR_process_madvise, __NR_set_tid_address, __NR_shmat, MADV_FREE,
    MADV_GUARD_INSTALL, MREMAP_DONTUNMAP, MREMAP_FIXED,
};

/// Sixth argument, ignored by the kernel: handled already.
pub const DONE: u64 = MARK << 32 | 0x1;
/// Sixth argument of a test exec, which then fails with [`IS_THERE`].
pub const IS_IT_THERE: u64 = MARK << 32 | 0x2;
/// `ENOTUNIQ`, never from exec itself.
pub const IS_THERE: u32 = 76;

/// Upper half of both.
const MARK: u64 = 0x6c6f_7774;

/// Classic BPF, the kernel's `struct sock_filter`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    value: u32,
}

impl Instruction {
    /// The in-memory encoding.
    pub fn bytes(&self) -> [u8; 8] {
        let [code, value] = [u32::from(self.code) | u32::from(self.if_true) << 16 | u32::from(self.if_false) << 24, self.value];
        (u64::from(code) | u64::from(value) << 32).to_le_bytes()
    }
}

/// BPF_LD | BPF_W | BPF_ABS, BPF_RET | BPF_K, BPF_MISC | BPF_TAX.
const LOAD: u16 = 0x20;
const RETURN: u16 = 0x06;
const TO_OTHER: u16 = 0x07;
/// BPF_JMP with BPF_JEQ, BPF_JGE, BPF_JSET | BPF_K; BPF_JEQ, BPF_JGT, BPF_JGE | BPF_X.
const IF_EQUAL: u16 = 0x15;
const IF_NOT_BELOW: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const IF_EQUALS_OTHER: u16 = 0x1d;
const IF_ABOVE_OTHER: u16 = 0x2d;
const IF_NOT_BELOW_OTHER: u16 = 0x3d;
const ALLOW: u32 = 0x7fff_0000;
const NOTIFY: u32 = 0x7fc0_0000;
const FAIL: u32 = 0x0005_0000;
/// Returns 0 without the call.
const AS_IF_DONE: u32 = FAIL;
const X86_64: u32 = 0xc000_003e;
/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ADDRESS: u32 = 16;
/// Of moves and advices.
const OLD_LENGTH: u32 = 24;
const NEW_LENGTH: u32 = 32;
const ADVICE: u32 = 32;
const FLAGS: u32 = 40;
const SHM_FLAGS: u32 = 32;
const PROCESS_ADVICE: u32 = 40;
const SIXTH: u32 = 56;
const UPPER: u32 = 4;
/// Number of instructions, and the last ones.
const LENGTH: usize = 46;
const WHETHER_DONE: u8 = 37;
const TELL: u8 = 42;
const PASS: u8 = 43;
const SAY: u8 = 44;
const DO_NOTHING: u8 = 45;

/// shmat(2) replaces existing mappings.
pub const SHM_REMAP: u32 = 0o40000;

/// Bytes of the smallest lazy free told. MADV_FREE allows keeping pages, and musl's `free`
/// repeats it block by block. (The kernel's checks are skipped too.)
const WORTH_FREEING: u32 = 64 << 10;

const fn load(from: u32) -> Instruction {
    Instruction { code: LOAD, if_true: 0, if_false: 0, value: from }
}

const fn jump(at: u8, code: u16, value: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction { code, if_true: if_true - at - 1, if_false: if_false - at - 1, value }
}

const fn give(value: u32) -> Instruction {
    Instruction { code: RETURN, if_true: 0, if_false: 0, value }
}

/// With `tells_changes` also moves to a given place or that keep the old mapping, growth, guards
/// and large lazy frees; skips small lazy frees.
pub const fn filter(tells_changes: bool) -> [Instruction; LENGTH] {
    let [of_moves, of_advice, of_shm, of_process] = if tells_changes { [21, 10, 32, 34] } else { [PASS; 4] };
    [
        load(ARCHITECTURE),
        jump(1, IF_EQUAL, X86_64, 2, PASS),
        load(NUMBER),
        jump(3, IF_EQUAL, __NR_execve, WHETHER_DONE, 4),
        jump(4, IF_EQUAL, __NR_execveat, WHETHER_DONE, 5),
        jump(5, IF_EQUAL, __NR_mremap, of_moves, 6),
        jump(6, IF_EQUAL, __NR_set_tid_address, TELL, 7),
        jump(7, IF_EQUAL, __NR_madvise, of_advice, 8),
        jump(8, IF_EQUAL, __NR_shmat, of_shm, 9),
        jump(9, IF_EQUAL, __NR_process_madvise, of_process, PASS),
        load(ADVICE),
        jump(11, IF_EQUAL, MADV_GUARD_INSTALL, WHETHER_DONE, 12),
        jump(12, IF_EQUAL, MADV_FREE, 13, PASS),
        load(OLD_LENGTH + UPPER),
        jump(14, IF_EQUAL, 0, 15, WHETHER_DONE),
        load(OLD_LENGTH),
        jump(16, IF_NOT_BELOW, WORTH_FREEING, WHETHER_DONE, 17),
        // Hooks rely on the kernel's result.
        load(SIXTH + UPPER),
        jump(18, IF_EQUAL, MARK as u32, WHETHER_DONE, 19),
        // The kernel refuses unaligned addresses.
        load(ADDRESS),
        jump(20, IF_ANY_BIT, 0xfff, PASS, DO_NOTHING),
        load(FLAGS),
        jump(22, IF_ANY_BIT, MREMAP_FIXED | MREMAP_DONTUNMAP, WHETHER_DONE, 23),
        // Old against new length.
        load(NEW_LENGTH + UPPER),
        Instruction { code: TO_OTHER, if_true: 0, if_false: 0, value: 0 },
        load(OLD_LENGTH + UPPER),
        jump(26, IF_ABOVE_OTHER, 0, PASS, 27),
        jump(27, IF_EQUALS_OTHER, 0, 28, WHETHER_DONE),
        load(NEW_LENGTH),
        Instruction { code: TO_OTHER, if_true: 0, if_false: 0, value: 0 },
        load(OLD_LENGTH),
        jump(31, IF_NOT_BELOW_OTHER, 0, PASS, WHETHER_DONE),
        load(SHM_FLAGS),
        jump(33, IF_ANY_BIT, SHM_REMAP, WHETHER_DONE, PASS),
        load(PROCESS_ADVICE),
        jump(35, IF_EQUAL, MADV_GUARD_INSTALL, WHETHER_DONE, 36),
        jump(36, IF_EQUAL, MADV_FREE, WHETHER_DONE, PASS),
        load(SIXTH + UPPER),
        jump(38, IF_EQUAL, MARK as u32, 39, TELL),
        load(SIXTH),
        jump(40, IF_EQUAL, DONE as u32, PASS, 41),
        jump(41, IF_EQUAL, IS_IT_THERE as u32, SAY, TELL),
        give(NOTIFY),
        give(ALLOW),
        give(FAIL | IS_THERE),
        give(AS_IF_DONE),
    ]
}

/// For seccomp(2): SECCOMP_SET_MODE_FILTER; NEW_LISTENER, WAIT_KILLABLE_RECV (only fatal signals
/// interrupt) and SPEC_ALLOW (no slowdown: no secrets).
pub const ARGUMENTS: [u64; 2] = [1, 1 << 3 | 1 << 5 | 1 << 2];

/// Message if the kernel refuses the filter.
pub const ANOTHERS: &str = "what a program without hooks executes is not limited, unless it preloads lowtide by itself: another \
                            system call filter than lowtide's has a listener";
/// Message if `lowtide run` accepts no more listeners.
pub const TOO_MANY: &str = "what a program without hooks executes is not limited, unless it preloads lowtide by itself: too many \
                            such programs run";

#[cfg(test)]
mod tests {
    use super::*;
    use linux_raw_sys::general::__NR_openat;
    use std::vec::Vec;

    /// The loaded part of the kernel's `struct seccomp_data`.
    #[derive(Clone, Copy)]
    struct Call {
        architecture: u32,
        number: u32,
        arguments: [u64; 6],
    }

    impl Call {
        fn word(&self, at: u32) -> u32 {
            match at {
                NUMBER => self.number,
                ARCHITECTURE => self.architecture,
                _ => (self.arguments[(at as usize - 16) / 8] >> (at % 8 * 8)) as u32,
            }
        }
    }

    /// Interprets the filter for a call.
    fn run(filter: &[Instruction], call: Call) -> u32 {
        let (mut at, mut loaded, mut other) = (0, 0, 0);
        loop {
            let Instruction { code, if_true, if_false, value } = filter[at];
            at += 1;
            let is_true = match code {
                LOAD => {
                    loaded = call.word(value);
                    continue;
                }
                TO_OTHER => {
                    other = loaded;
                    continue;
                }
                RETURN => return value,
                IF_EQUAL => loaded == value,
                IF_NOT_BELOW => loaded >= value,
                IF_ANY_BIT => loaded & value != 0,
                IF_EQUALS_OTHER => loaded == other,
                IF_ABOVE_OTHER => loaded > other,
                IF_NOT_BELOW_OTHER => loaded >= other,
                _ => panic!("no such instruction: {code}"),
            };
            at += usize::from(if is_true { if_true } else { if_false });
        }
    }

    fn exec(architecture: u32, number: u32, sixth: u64) -> u32 {
        run(&filter(true), Call { architecture, number, arguments: [0, 0, 0, 0, 0, sixth] })
    }

    #[test]
    fn execs_are_told_and_those_that_say_so_are_not() {
        for number in [__NR_execve, __NR_execveat] {
            for sixth in [0, 1, 2, MARK << 32, DONE & 0xffff_ffff, DONE + 2] {
                assert_eq!(exec(X86_64, number, sixth), NOTIFY, "{number} {sixth:x}");
            }
            assert_eq!(exec(X86_64, number, DONE), ALLOW);
            assert_eq!(exec(X86_64, number, IS_IT_THERE), FAIL | IS_THERE);
            // 32-bit code has other call numbers.
            assert_eq!(exec(0x4000_0003, number, 0), ALLOW);
            assert_eq!(exec(X86_64, number | 0x4000_0000, 0), ALLOW);
        }
        let told = [__NR_execve, __NR_set_tid_address, __NR_execveat];
        assert!((0..600).filter(|number| exec(X86_64, *number, IS_IT_THERE) != ALLOW).eq(told));
        assert_eq!(exec(X86_64, __NR_set_tid_address, 0), NOTIFY);
        assert_eq!(exec(X86_64, __NR_openat, DONE), ALLOW);
    }

    #[test]
    fn advice_that_drops_pages_without_an_event_is_told() {
        let advise = |tells_changes, advice: u64, sixth| {
            let arguments = [4096, 64 << 10, advice, 0, 0, sixth];
            run(&filter(tells_changes), Call { architecture: X86_64, number: __NR_madvise, arguments })
        };
        let told = [MADV_FREE, MADV_GUARD_INSTALL].map(u64::from);
        for advice in told {
            assert_eq!(advise(true, advice, 0), NOTIFY);
            // The kernel looks at the lower half.
            assert_eq!(advise(true, advice | 1 << 32, 0), NOTIFY);
            assert_eq!([advise(true, advice, DONE), advise(false, advice, 0)], [ALLOW; 2]);
        }
        assert!((0..=u64::from(u8::MAX)).filter(|advice| advise(true, *advice, 0) != ALLOW).eq(told));
    }

    #[test]
    fn other_calls_that_drop_pages_without_an_event_are_told() {
        let call = |number, arguments| run(&filter(true), Call { architecture: X86_64, number, arguments });
        let remap = u64::from(SHM_REMAP);
        let attach = |flags, sixth| call(__NR_shmat, [1, 4096, flags, 0, 0, sixth]);
        assert_eq!(
            [attach(remap, 0), attach(remap | 0o10000, 0), attach(0, 0), attach(remap, DONE)],
            [NOTIFY, NOTIFY, ALLOW, ALLOW]
        );
        let advise = |advice: u32, sixth| call(__NR_process_madvise, [3, 4096, 1, advice.into(), 0, sixth]);
        let told = (0..256).filter(|advice| advise(*advice, 0) != ALLOW);
        assert!(told.eq([MADV_FREE, MADV_GUARD_INSTALL]) && advise(MADV_FREE, DONE) == ALLOW);
        assert_eq!(
            run(&filter(false), Call { architecture: X86_64, number: __NR_shmat, arguments: [1, 4096, remap, 0, 0, 0] }),
            ALLOW
        );
    }

    #[test]
    fn few_pages_are_freed_when_the_program_does_it_otherwise() {
        let free = |tells_changes, address, len: u64| {
            let arguments = [address, len, u64::from(MADV_FREE), 0, 0, 0];
            run(&filter(tells_changes), Call { architecture: X86_64, number: __NR_madvise, arguments })
        };
        let most = u64::from(WORTH_FREEING);
        assert_eq!([0, 1, 4096, most - 1].map(|len| free(true, 0x7f12_3456_7000, len)), [AS_IF_DONE; 4]);
        assert_eq!([most, 1 << 32, u64::MAX].map(|len| free(true, 0x7f12_3456_7000, len)), [NOTIFY; 3]);
        assert_eq!([free(true, 0x7f12_3456_7001, 4096), free(false, 0x7f12_3456_7000, 4096)], [ALLOW; 2]);
        let of_hooks = [0x7f12_3456_7000, 4096, u64::from(MADV_FREE), 0, 0, DONE];
        assert_eq!(run(&filter(true), Call { architecture: X86_64, number: __NR_madvise, arguments: of_hooks }), ALLOW);
    }

    #[test]
    fn calls_that_may_move_memory_are_told() {
        const GIB: u64 = 1 << 30;
        let call = |tells_changes, arguments: [u64; 4], sixth| {
            let [addr, old_len, new_len, flags] = arguments;
            let arguments = [addr, old_len, new_len, flags, 0, sixth];
            run(&filter(tells_changes), Call { architecture: X86_64, number: __NR_mremap, arguments })
        };
        let [may_move, fixed, leaves] = [1, MREMAP_FIXED, MREMAP_DONTUNMAP].map(u64::from);
        let lengths = [0, 1, 4096, GIB, 4 * GIB - 1, 4 * GIB, 4 * GIB + 1, 9 * GIB, u64::MAX];
        let pairs: Vec<_> = lengths.iter().flat_map(|old| lengths.iter().map(move |new| (*old, *new))).collect();
        for (old, new) in pairs {
            let told = if new > old { NOTIFY } else { ALLOW };
            for flags in [0, may_move] {
                assert_eq!(call(true, [4096, old, new, flags], 0), told, "{old} {new}");
            }
            for flags in [may_move | fixed, may_move | leaves, fixed, 7] {
                assert_eq!(call(true, [4096, old, new, flags], 0), NOTIFY, "{old} {new} {flags}");
                assert_eq!(call(true, [4096, old, new, flags], DONE), ALLOW, "of hooks");
                assert_eq!(call(false, [4096, old, new, flags], 0), ALLOW, "not asked for");
            }
        }
    }
}
