//! Calls on another stack: signal stacks of 8 KiB are too small to serve faults.

use core::arch::asm;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("lowtide is for 64-bit x86 only, so far");

/// Calls `f(argument)` on a stack.
///
/// # Safety
/// `top` is a multiple of 16, the end of enough memory that no one else uses meanwhile. `f`
/// returns, and does not unwind.
pub unsafe fn call_on(top: *mut u8, f: extern "C" fn(*mut u8), argument: *mut u8) {
    // SAFETY: `f` preserves r12, the old stack pointer; clobbers are declared, and the stack is
    // aligned to 16.
    unsafe {
        asm!(
            "xchg rsp, r12",
            "call {f}",
            "mov rsp, r12",
            f = in(reg) f,
            inout("r12") top => _,
            inout("rdi") argument => _,
            clobber_abi("C"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    extern "C" fn fill(at: *mut u8) {
        let here = [7u8; 4096];
        // SAFETY: the test's own variable.
        unsafe { *at.cast::<usize>() = core::hint::black_box(&here).as_ptr() as usize };
    }

    #[test]
    fn the_function_runs_there_and_comes_back() {
        let mut memory = vec![0u128; 4096];
        let (start, bytes) = (memory.as_mut_ptr(), memory.len() * 16);
        let mut seen = 0usize;
        // SAFETY: 64 KiB of the test's own, aligned to 16.
        unsafe { call_on(start.cast::<u8>().add(bytes), fill, (&raw mut seen).cast()) };
        assert!((start as usize..start as usize + bytes).contains(&seen));
    }
}
