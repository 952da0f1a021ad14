//! A program held at its exec, in which ptrace makes system calls and calls a function.
//!
//! It changes no code and delivers no signal. System calls use the instruction in the vDSO, which
//! every process has. A called function ends by sending its thread a signal, which stops the thread
//! and is then dropped.

use lowtide_config::proc::Auxv;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use std::fs::{File, OpenOptions};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;

const AT_SYSINFO_EHDR: u64 = 33;
const VDSO_BYTES: usize = 8192;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// The ABI's red zone: the program owns it below the stack pointer.
const RED_ZONE: u64 = 128;
const MOST_PATH: u64 = 4096;
/// Upper bound of the extended registers: 11 KiB with AMX.
const MOST_REGISTERS: usize = 64 << 10;
/// A new program's registers: the interrupt flag, the bit that is always set; and the arithmetic
/// control words.
const PLAIN_FLAGS: u64 = 0x202;
const X87_CONTROL: [u8; 2] = 0x37f_u16.to_le_bytes();
const MXCSR: [u8; 4] = 0x1f80_u32.to_le_bytes();
const MXCSR_AT: usize = 24;
/// PTRACE_GET_RSEQ_CONFIGURATION.
const GET_RSEQ: libc::c_uint = 0x420f;
/// PTRACE_GETSIGMASK and PTRACE_SETSIGMASK.
const GETSIGMASK: libc::c_uint = 0x420a;
const SETSIGMASK: libc::c_uint = 0x420b;
const OPTIONS: libc::c_int = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
/// A stop at a system call (PTRACE_O_TRACESYSGOOD).
const AT_SYSCALL: i32 = libc::SIGTRAP | 0x80;

#[derive(Debug)]
pub enum Untraced {
    /// It has ended; its parent's wait reports that.
    Died,
    Failed(&'static str, Errno),
}

impl Untraced {
    pub fn errno(&self) -> Errno {
        match self {
            Untraced::Died => Errno::SRCH,
            Untraced::Failed(_, errno) => *errno,
        }
    }
}

/// Makes the parent this process's tracer. Async-signal-safe.
///
/// # Errors
/// Tracing is not allowed.
pub fn trace_me() -> std::io::Result<()> {
    // SAFETY: touches no memory.
    if unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Traces a thread, which runs on until it executes a program.
///
/// # Errors
/// Tracing is not allowed: the thread has another tracer, or more rights.
pub fn seize(thread: Pid) -> Result<(), Untraced> {
    request(libc::PTRACE_SEIZE, thread, 0, (OPTIONS | libc::PTRACE_O_TRACEEXEC) as usize, "tracing")
}

/// Ends the trace of a [`seize`]d thread that has executed nothing.
///
/// # Errors
/// It died.
pub fn let_go(thread: Pid) -> Result<(), Untraced> {
    interrupt(thread)?;
    let signal = match wait(thread)? {
        // The signal arrived before the interrupt; deliver it now.
        Stop::Signal(signal) => signal,
        Stop::Event | Stop::Syscall => 0,
    };
    request(libc::PTRACE_DETACH, thread, 0, signal as usize, "detach")
}

/// Stops a [seized](seize()) thread as soon as its system call has ended; see [`Tracee::seized`].
///
/// # Errors
/// It died.
pub fn interrupt(thread: Pid) -> Result<(), Untraced> {
    request(libc::PTRACE_INTERRUPT, thread, 0, 0, "interrupt")
}

pub fn detach(thread: Pid) {
    // Fails if the thread died.
    let _ = request(libc::PTRACE_DETACH, thread, 0, 0, "detach");
}

/// Continues a thread after a signal stop; `of_the_process`: leaves it in its process's group stop.
pub fn pass_on(thread: Pid, signal: i32, of_the_process: bool) {
    let _ = if of_the_process {
        request(libc::PTRACE_LISTEN, thread, 0, 0, "listen")
    } else {
        request(libc::PTRACE_CONT, thread, 0, signal as usize, "go on")
    };
}

/// A held child; only the thread that traces it may use it.
pub struct Tracee {
    pid: Pid,
    memory: File,
    /// The original registers.
    registers: libc::user_regs_struct,
    syscall_at: u64,
    /// The stack pointer for work here.
    stack: u64,
    /// The original extended registers, if it is held in the middle of what it does.
    more: Option<Vec<u8>>,
    /// An unblockable signal that arrived meanwhile.
    pending: i32,
    /// The run's first program, which must not begin without the agent.
    pub is_first: bool,
    is_held: bool,
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if !self.is_held {
        } else if self.is_first {
            let _ = rustix::process::kill_process(self.pid, Signal::KILL);
        } else {
            let _ = request(libc::PTRACE_DETACH, self.pid, 0, 0, "detach");
        }
    }
}

impl Tracee {
    /// A child that has called [`trace_me`] and executed a program.
    ///
    /// # Errors
    /// It has died, or its state can't be read.
    pub fn of_mine(pid: Pid) -> Result<Tracee, Untraced> {
        if wait(pid)? != Stop::Signal(libc::SIGTRAP) {
            return Err(Untraced::Failed("no stop at exec", Errno::CHILD));
        }
        request(libc::PTRACE_SETOPTIONS, pid, 0, OPTIONS as usize, "options")?;
        Tracee::at_its_beginning(pid, true)
    }

    /// A [seized](seize()) thread in the middle of its exec.
    ///
    /// # Errors
    /// As [`Tracee::of_mine`].
    pub fn seized(pid: Pid) -> Result<Tracee, Untraced> {
        let held = || {
            request(libc::PTRACE_SYSCALL, pid, 0, 0, "end of exec")?;
            match wait(pid)? {
                Stop::Syscall => Tracee::at_its_beginning(pid, false),
                _ => Err(Untraced::Failed("end of exec", Errno::CHILD)),
            }
        };
        held().inspect_err(|_| drop(request(libc::PTRACE_DETACH, pid, 0, 0, "detach")))
    }

    /// A [seized](seize()) and interrupted thread, whatever it does.
    ///
    /// # Errors
    /// As [`Tracee::of_mine`].
    pub fn in_the_middle(pid: Pid) -> Result<Tracee, Untraced> {
        let held = || {
            let mut tracee = Tracee::at_its_beginning(pid, false)?;
            let mut more = vec![0; MOST_REGISTERS];
            let len = register_set(libc::PTRACE_GETREGSET, pid, &mut more)?;
            more.truncate(len);
            // Masks arithmetic exceptions for lowtide's code and the threads that it makes.
            let mut plain = more.clone();
            plain[..2].copy_from_slice(&X87_CONTROL);
            plain[MXCSR_AT..MXCSR_AT + 4].copy_from_slice(&MXCSR);
            register_set(libc::PTRACE_SETREGSET, pid, &mut plain)?;
            tracee.more = Some(more);
            tracee.leave_restartable_sequence()?;
            Ok(tracee)
        };
        held().inspect_err(|_| detach(pid))
    }

    /// Aborts a restartable sequence (rseq), as any interruption does: the thread will go on at its
    /// abort address.
    fn leave_restartable_sequence(&mut self) -> Result<(), Untraced> {
        // `struct ptrace_rseq_configuration` begins with the address of `struct rseq`, whose second
        // 8 bytes point to `struct rseq_cs`: two words, start, length, abort address.
        let mut configuration = [0u64; 3];
        let size = size_of_val(&configuration);
        match request(GET_RSEQ, self.pid, size, configuration.as_mut_ptr().addr(), "rseq") {
            Ok(()) if configuration[0] != 0 => {}
            Err(Untraced::Died) => return Err(Untraced::Died),
            // The thread has no rseq, or the kernel lacks the request.
            _ => return Ok(()),
        }
        let words = |at: u64| {
            let mut bytes = [0; 32];
            self.memory.read_exact_at(&mut bytes, at).ok()?;
            Some([0, 8, 16, 24].map(|i| u64::from_le_bytes(bytes[i..i + 8].try_into().unwrap_or_default())))
        };
        let at = configuration[0] + 8;
        if let Some([sequence, ..]) = words(at).filter(|words| words[0] != 0)
            && let Some([_, start, len, abort]) = words(sequence)
            && self.registers.rip.wrapping_sub(start) < len
        {
            self.write(at, &[0; 8])?;
            self.registers.rip = abort;
        }
        Ok(())
    }

    fn at_its_beginning(pid: Pid, is_first: bool) -> Result<Tracee, Untraced> {
        let failed =
            |what| move |error: std::io::Error| Untraced::Failed(what, Errno::from_io_error(&error).unwrap_or(Errno::IO));
        let path = format!("/proc/{}", pid.as_raw_nonzero());
        let memory = OpenOptions::new().read(true).write(true).open(format!("{path}/mem")).map_err(failed("its memory"))?;
        let auxv = Auxv::of(pid.as_raw_pid() as u32).map_err(failed("its auxv"))?;
        let vdso = auxv.value(AT_SYSINFO_EHDR).ok_or(Untraced::Failed("it has no vDSO", Errno::NOSYS))?;
        let mut code = [0; VDSO_BYTES];
        let n = memory.read_at(&mut code, vdso).map_err(failed("its vDSO"))?;
        let found = code[..n].windows(2).position(|bytes| bytes == SYSCALL);
        let syscall_at = vdso + found.ok_or(Untraced::Failed("no system call in its vDSO", Errno::NOSYS))? as u64;
        let registers = registers(pid)?;
        let stack = registers.rsp;
        Ok(Tracee { pid, memory, registers, syscall_at, stack, more: None, pending: 0, is_first, is_held: true })
    }

    /// Blocks all signals; returns the previous mask.
    ///
    /// # Errors
    /// It died.
    pub fn block_signals(&self) -> Result<u64, Untraced> {
        let (mut old, all) = (0u64, u64::MAX);
        request(GETSIGMASK, self.pid, size_of_val(&old), (&raw mut old).addr(), "signal mask")?;
        request(SETSIGMASK, self.pid, size_of_val(&all), (&raw const all).addr(), "signal mask")?;
        Ok(old)
    }

    /// The address of the program's environment.
    ///
    /// # Errors
    /// Its stack can't be read.
    pub fn environment(&self) -> Result<u64, Untraced> {
        let mut count = [0; 8];
        self.memory.read_exact_at(&mut count, self.stack()).map_err(|_| Untraced::Failed("its stack", Errno::FAULT))?;
        // Behind the count, the arguments and a NULL.
        Ok(self.stack() + 8 * (u64::from_le_bytes(count) + 2))
    }

    /// Writes bytes to free stack below what the program uses; `bytes` gets their address. The next
    /// call of this or of [`Tracee::call`] overwrites them.
    ///
    /// # Errors
    /// The stack can't be written.
    pub fn scratch(&self, bytes: impl FnOnce(u64) -> Vec<u8>) -> Result<u64, Untraced> {
        let at = self.stack - RED_ZONE - MOST_PATH;
        self.write(at, &bytes(at)).map(|()| at)
    }

    pub fn stack(&self) -> u64 {
        self.stack
    }

    /// Sets the stack for the time that it is held.
    pub fn works_at(&mut self, stack: u64) {
        self.stack = stack;
    }

    /// Sets the stack that the program begins with.
    pub fn begin_at(&mut self, stack: u64) {
        (self.registers.rsp, self.stack) = (stack, stack);
    }

    /// The words from the stack pointer up: at most `most` bytes.
    ///
    /// # Errors
    /// There are none.
    pub fn beginning(&self, most: usize) -> Result<Vec<u64>, Untraced> {
        // Mostly a page or two: a buffer for the maximum would count against the limit.
        const AT_ONCE: usize = 64 << 10;
        let (mut bytes, mut len) = (Vec::new(), 0);
        while len < most {
            bytes.resize(most.min(len + AT_ONCE), 0);
            match self.memory.read_at(&mut bytes[len..], self.registers.rsp + len as u64) {
                Ok(0) | Err(_) => break,
                Ok(n) => len += n,
            }
        }
        let words = bytes[..len].chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes)).collect();
        if len < 8 { Err(Untraced::Failed("its stack", Errno::FAULT)) } else { Ok(words) }
    }

    /// The text at an address, without its NUL.
    ///
    /// # Errors
    /// There is none, or it is longer than a program's texts can be.
    pub fn text(&self, at: u64) -> Result<Vec<u8>, Untraced> {
        const MOST: usize = 32 * 4096;
        let (mut bytes, mut part) = (Vec::new(), [0; 256]);
        while bytes.len() < MOST {
            let n = match self.memory.read_at(&mut part, at + bytes.len() as u64) {
                Ok(n) if n > 0 => n,
                _ => break,
            };
            if let Some(end) = part[..n].iter().position(|byte| *byte == 0) {
                bytes.extend(&part[..end]);
                return Ok(bytes);
            }
            bytes.extend(&part[..n]);
        }
        Err(Untraced::Failed("its environment", Errno::FAULT))
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Writes to its memory, whatever the protection.
    ///
    /// # Errors
    /// Nothing is mapped there.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Untraced> {
        self.memory.write_all_at(bytes, at).map_err(|_| Untraced::Failed("its memory can't be written", Errno::FAULT))
    }

    /// Makes a system call and returns its result.
    ///
    /// # Errors
    /// The call's, named by `what`.
    pub fn syscall(&mut self, what: &'static str, number: u32, [a, b, c, d, e, f]: [u64; 6]) -> Result<u64, Untraced> {
        let mut call = self.registers;
        (call.rax, call.rdi, call.rsi, call.rdx, call.r10, call.r8, call.r9) = (u64::from(number), a, b, c, d, e, f);
        (call.rip, call.orig_rax) = (self.syscall_at, u64::MAX);
        self.set(&call)?;
        // To the call's entry, then to its exit.
        self.run_to_syscall(what)?;
        self.run_to_syscall(what)?;
        let result = registers(self.pid)?.rax as i64;
        if (-4095..0).contains(&result) {
            return Err(Untraced::Failed(what, Errno::from_raw_os_error(-result as i32)));
        }
        Ok(result as u64)
    }

    /// Calls a function with five arguments on the program's stack. The function must end by
    /// sending SIGSTOP to its own thread; no other signal stops it.
    ///
    /// # Errors
    /// It dies there.
    pub fn call(&mut self, function: u64, [a, b, c, d]: [u64; 4]) -> Result<(), Untraced> {
        const WHAT: &str = "the agent's entry";
        let mut call = self.registers;
        // The ABI's alignment at a function's entry: a multiple of 16 above the return address,
        // which is 0.
        call.rsp = ((self.stack - RED_ZONE) & !15) - 8;
        self.write(call.rsp, &[0; 8])?;
        (call.rip, call.rdi, call.rsi, call.rdx, call.rcx) = (function, a, b, c, d);
        (call.rax, call.orig_rax) = (0, u64::MAX);
        // The ABI's flags: direction upwards. Threads made by the function inherit them.
        call.eflags = PLAIN_FLAGS;
        self.set(&call)?;
        loop {
            request(libc::PTRACE_CONT, self.pid, 0, 0, WHAT)?;
            match wait(self.pid)? {
                Stop::Signal(libc::SIGSTOP) if self.has_sent_it()? => return Ok(()),
                stop => self.meanwhile(stop, WHAT)?,
            }
        }
    }

    /// Whether the thread itself sent the signal that stopped it.
    fn has_sent_it(&self) -> Result<bool, Untraced> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        request(libc::PTRACE_GETSIGINFO, self.pid, 0, info.as_mut_ptr().addr(), "signal")?;
        // SAFETY: the kernel has filled it; zeroes are valid too.
        let info = unsafe { info.assume_init() };
        // SAFETY: a signal sent by a thread has that thread's pid there.
        Ok(info.si_code == libc::SI_TKILL && unsafe { info.si_pid() } == self.pid.as_raw_nonzero().get())
    }

    /// Detaches and lets the program run with these signals blocked.
    ///
    /// # Errors
    /// It died.
    pub fn go_on(mut self, mask: u64) -> Result<(), Untraced> {
        if let Some(mut more) = self.more.take() {
            // At this stop the kernel checks whether an interrupted system call must restart.
            interrupt(self.pid)?;
            loop {
                request(libc::PTRACE_CONT, self.pid, 0, 0, "go on")?;
                match wait(self.pid)? {
                    Stop::Event => break,
                    stop => self.meanwhile(stop, "go on")?,
                }
            }
            register_set(libc::PTRACE_SETREGSET, self.pid, &mut more)?;
            if std::mem::take(&mut self.pending) == libc::SIGSTOP {
                // A detach from this stop can carry no signal.
                let _ = rustix::process::kill_process(self.pid, Signal::STOP);
            }
        }
        request(SETSIGMASK, self.pid, size_of_val(&mask), (&raw const mask).addr(), "signal mask")?;
        self.set(&self.registers)?;
        request(libc::PTRACE_DETACH, self.pid, 0, self.pending as usize, "detach")?;
        self.is_held = false;
        Ok(())
    }

    fn set(&self, registers: &libc::user_regs_struct) -> Result<(), Untraced> {
        request(libc::PTRACE_SETREGS, self.pid, 0, core::ptr::from_ref(registers).addr(), "registers")
    }

    fn run_to_syscall(&mut self, what: &'static str) -> Result<(), Untraced> {
        loop {
            request(libc::PTRACE_SYSCALL, self.pid, 0, 0, what)?;
            match wait(self.pid)? {
                Stop::Syscall => return Ok(()),
                stop => self.meanwhile(stop, what)?,
            }
        }
    }

    /// Handles a stop for another reason than the expected one.
    fn meanwhile(&mut self, stop: Stop, what: &'static str) -> Result<(), Untraced> {
        match stop {
            // Unblockable: delivered when the program begins.
            Stop::Signal(libc::SIGSTOP) => self.pending = libc::SIGSTOP,
            // Continued; or stopped, and stops again when the program begins.
            Stop::Event => self.pending = 0,
            Stop::Signal(_) | Stop::Syscall => return Err(Untraced::Failed(what, Errno::FAULT)),
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    Syscall,
    /// A signal is about to be delivered.
    Signal(i32),
    /// A group stop, a continue, an interrupt (PTRACE_EVENT_STOP) or another event.
    Event,
}

/// Waits for its next stop. Leaves an ended thread waitable.
///
/// The wait is unbounded: a frozen thread, or one blocked on a dead file system, can be neither
/// held nor released. Meanwhile the present processes keep the limit by themselves; new ones wait.
fn wait(pid: Pid) -> Result<Stop, Untraced> {
    let failed = |errno| match errno {
        Errno::CHILD => Untraced::Died,
        errno => Untraced::Failed("wait", errno),
    };
    let look = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    let seen = rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::Pid(pid), look)).map_err(failed)?;
    if !seen.is_some_and(|status| status.stopped() || status.trapped()) {
        return Err(Untraced::Died);
    }
    let taken =
        rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED)).map_err(failed)?;
    let status = taken.ok_or(Untraced::Died)?;
    // The event stands above the signal.
    Ok(match status.stopping_signal().or_else(|| status.trapping_signal()).ok_or(Untraced::Died)? {
        AT_SYSCALL => Stop::Syscall,
        status if status >> 8 != 0 => Stop::Event,
        signal => Stop::Signal(signal),
    })
}

fn registers(pid: Pid) -> Result<libc::user_regs_struct, Untraced> {
    let mut registers = MaybeUninit::<libc::user_regs_struct>::zeroed();
    request(libc::PTRACE_GETREGS, pid, 0, registers.as_mut_ptr().addr(), "registers")?;
    // SAFETY: the kernel has filled it; zeroes are valid too.
    Ok(unsafe { registers.assume_init() })
}

/// Reads or writes the extended registers; returns the count of bytes.
fn register_set(what: libc::c_uint, pid: Pid, bytes: &mut [u8]) -> Result<usize, Untraced> {
    /// NT_X86_XSTATE
    const EXTENDED: usize = 0x202;
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    request(what, pid, EXTENDED, (&raw mut vector).addr(), "registers")?;
    Ok(vector.iov_len)
}

/// A ptrace request for which `data` is right.
pub(super) fn request(request: libc::c_uint, pid: Pid, addr: usize, data: usize, what: &'static str) -> Result<(), Untraced> {
    // SAFETY: each caller's `data` is a number, or the address of a value of the type that the
    // request takes.
    let r = unsafe { libc::ptrace(request, pid.as_raw_nonzero().get(), addr, data) };
    if r >= 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ESRCH) => Err(Untraced::Died),
        errno => Err(Untraced::Failed(what, Errno::from_raw_os_error(errno.unwrap_or(libc::EIO)))),
    }
}
