//! Offsets and function numbers of the running kernel.

use crate::btf::{Btf, Kind};
use crate::error::Error;

const NAMES: [(Kind, &str); 20] = [
    (Kind::Struct, "vm_fault"),
    (Kind::Struct, "vm_area_struct"),
    (Kind::Struct, "mm_struct"),
    (Kind::Struct, "task_struct"),
    (Kind::Struct, "sighand_struct"),
    (Kind::Struct, "k_sigaction"),
    (Kind::Struct, "sigaction"),
    (Kind::Struct, "seccomp"),
    (Kind::Struct, "thread_info"),
    (Kind::Struct, FILTER),
    (Kind::Struct, DISPATCH),
    (Kind::Struct, IO_URING),
    (Kind::Struct, FUTEXES),
    (Kind::Enum, "syscall_work_bit"),
    (Kind::Struct, "pt_regs"),
    (Kind::Struct, "userfaultfd_ctx"),
    (Kind::Enum, "fault_flag"),
    (Kind::Function, FAULT),
    (Kind::Function, EVENT),
    (Kind::Function, SEND),
];

/// Hands a fault to userfaultfd: (vmf, reason).
pub const FAULT: &str = "handle_userfault";
/// Waits until an event was read: (ctx, ...).
pub const EVENT: &str = "userfaultfd_event_wait_completion";
/// Linux 6.13: (task, signal, kind of process id, value).
const SEND: &str = "bpf_send_signal_task";

/// Optional types: if present, they must have the members that checks read.
const FILTER: &str = "seccomp_filter";
const DISPATCH: &str = "syscall_user_dispatch";
const IO_URING: &str = "io_uring_task";
/// A task's futex data, separate since Linux 7.2 or earlier.
const FUTEXES: &str = "futex_sched_data";

/// Offsets are in bytes.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Kernel {
    pub fault_vma: i16,
    pub fault_address: i16,
    pub fault_flags: i16,
    pub vma_mm: i16,
    pub mm_owner: i16,
    pub ctx_mm: i16,
    pub task_process: i16,
    pub task_ptrace: i16,
    pub task_blocked: i16,
    pub task_sighand: i16,
    /// `None`: a kernel without seccomp filters.
    pub task_seccomp: Option<Seccomp>,
    /// `None`: a kernel without system call user dispatch.
    pub task_dispatch: Option<Dispatch>,
    /// `None`: a kernel without io_uring.
    pub task_io_uring: Option<i16>,
    pub task_alt_start: i16,
    pub task_alt_size: i16,
    /// In glibc this points to a thread's control block, at the upper end of its stack.
    pub task_robust_list: i16,
    pub task_mm: i16,
    /// The start of the main thread's stack.
    pub mm_start_stack: i16,
    /// In `sighand_struct`, of signal 1.
    pub first_handler: i16,
    pub handler_step: i16,
    pub registers_stack: i16,
    pub registers_first_argument: i16,
    pub registers_second_argument: i16,
    pub flag_user: i32,
    pub flag_write: i32,
    pub fault_function: u32,
    pub event_function: u32,
    /// `None`: before Linux 6.13.
    pub send_function: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
pub struct Seccomp {
    pub filters: i16,
    /// [`STRICT`], or another number.
    pub mode: i16,
}

/// SECCOMP_MODE_STRICT: only four system calls do not end the thread.
pub const STRICT: i32 = 1;

/// System call user dispatch of a task.
#[derive(Debug, Clone, Copy)]
pub struct Dispatch {
    pub flags: i16,
    pub bit: i32,
}

impl Kernel {
    /// # Errors
    /// [`Error::NoTypes`], [`Error::Malformed`], [`Error::Missing`].
    pub fn running() -> Result<Kernel, Error> {
        Kernel::by(&Btf::of_kernel(&NAMES)?)
    }

    fn by(btf: &Btf) -> Result<Kernel, Error> {
        let sum = |a: i16, b: i16| a.checked_add(b).ok_or_else(|| Error::Missing("member that near".to_owned()));
        let in_task = |member: &str, of: &str, part: &str| sum(btf.offset("task_struct", member)?, btf.offset(of, part)?);
        let seccomp = |part| in_task("seccomp", "seccomp", part);
        let seccomp = || Ok(Seccomp { filters: seccomp("filter_count")?, mode: seccomp("mode")? });
        let dispatch = || {
            let bit = btf.value("syscall_work_bit", "SYSCALL_WORK_BIT_SYSCALL_USER_DISPATCH")?;
            Ok(Dispatch { flags: in_task("thread_info", "thread_info", "syscall_work")?, bit })
        };
        let in_action = sum(btf.offset("k_sigaction", "sa")?, btf.offset("sigaction", "sa_handler")?)?;
        Ok(Kernel {
            fault_vma: btf.offset("vm_fault", "vma")?,
            fault_address: btf.offset("vm_fault", "address")?,
            fault_flags: btf.offset("vm_fault", "flags")?,
            vma_mm: btf.offset("vm_area_struct", "vm_mm")?,
            mm_owner: btf.offset("mm_struct", "owner")?,
            ctx_mm: btf.offset("userfaultfd_ctx", "mm")?,
            task_process: btf.offset("task_struct", "tgid")?,
            task_ptrace: btf.offset("task_struct", "ptrace")?,
            task_blocked: btf.offset("task_struct", "blocked")?,
            task_sighand: btf.offset("task_struct", "sighand")?,
            task_seccomp: btf.where_there(FILTER, seccomp)?,
            task_dispatch: btf.where_there(DISPATCH, dispatch)?,
            task_io_uring: btf.where_there(IO_URING, || btf.offset("task_struct", "io_uring"))?,
            task_alt_start: btf.offset("task_struct", "sas_ss_sp")?,
            task_alt_size: btf.offset("task_struct", "sas_ss_size")?,
            task_robust_list: match btf.where_there(FUTEXES, || in_task("futex", FUTEXES, "robust_list"))? {
                Some(apart) => apart,
                None => btf.offset("task_struct", "robust_list")?,
            },
            task_mm: btf.offset("task_struct", "mm")?,
            mm_start_stack: btf.offset("mm_struct", "start_stack")?,
            first_handler: sum(btf.offset("sighand_struct", "action")?, in_action)?,
            handler_step: btf.size("k_sigaction")?,
            registers_stack: btf.offset("pt_regs", "sp")?,
            registers_first_argument: btf.offset("pt_regs", "di")?,
            registers_second_argument: btf.offset("pt_regs", "si")?,
            flag_user: btf.value("fault_flag", "FAULT_FLAG_USER")?,
            flag_write: btf.value("fault_flag", "FAULT_FLAG_WRITE")?,
            fault_function: btf.find(Kind::Function, FAULT)?.0,
            event_function: btf.find(Kind::Function, EVENT)?.0,
            send_function: btf.find(Kind::Function, SEND).ok().map(|id| id.0),
        })
    }

    #[cfg(test)]
    pub fn made_up() -> Kernel {
        Kernel {
            fault_vma: 8,
            fault_address: 16,
            fault_flags: 24,
            vma_mm: 8,
            mm_owner: 8,
            ctx_mm: 8,
            task_process: 8,
            task_ptrace: 8,
            task_blocked: 8,
            task_sighand: 8,
            task_seccomp: Some(Seccomp { filters: 8, mode: 16 }),
            task_dispatch: Some(Dispatch { flags: 8, bit: 5 }),
            task_io_uring: Some(8),
            task_alt_start: 8,
            task_alt_size: 8,
            task_robust_list: 8,
            task_mm: 8,
            mm_start_stack: 8,
            first_handler: 8,
            handler_step: 32,
            registers_stack: 8,
            registers_first_argument: 8,
            registers_second_argument: 16,
            flag_user: 64,
            flag_write: 1,
            fault_function: 1,
            event_function: 2,
            send_function: Some(3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_has_all_of_it() {
        let kernel = match Kernel::running() {
            Err(Error::NoTypes(e)) => return crate::skipped::skipped(format_args!("no BTF here: {e}")),
            other => other.unwrap(),
        };
        assert!(kernel.fault_function != 0 && kernel.handler_step > 0 && kernel.flag_user > 0);
        assert!(kernel.task_seccomp.is_some() && kernel.task_dispatch.is_some() && kernel.task_io_uring.is_some());
    }
}
