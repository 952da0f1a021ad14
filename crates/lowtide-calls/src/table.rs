//! The table of calls with memory.

use linux_raw_sys::general as sys;

use crate::ioctl::ioctl;
use crate::nested::{self, files, memory, queues, sockets, threads, transfers};
use crate::part::Part::{self, Bytes, Counted, Lasting, Members, Nested, Path, Result, Sized, Strings, Vector};
use crate::without_memory::WITHOUT_MEMORY;

/// What a call reads and writes; `None`: unknown.
pub fn parts(number: usize) -> Option<&'static [Part]> {
    *BY_NUMBER.get(number)?
}

const MOST: usize = 512;

static BY_NUMBER: [Option<&[Part]>; MOST] = {
    let mut table: [Option<&[Part]>; MOST] = [None; MOST];
    let mut i = 0;
    while i < WITHOUT_MEMORY.len() {
        table[WITHOUT_MEMORY[i] as usize] = Some(&[]);
        i += 1;
    }
    i = 0;
    while i < LIST.len() {
        table[LIST[i].0 as usize] = Some(LIST[i].1);
        i += 1;
    }
    table
};

/// `struct stat`, `statfs`, `statx`.
const STAT: usize = 144;
const STATFS: usize = 120;
const STATX: usize = 256;
/// `struct timespec` or `timeval`; two of them or an `itimerspec`.
const TIME: usize = 16;
const TIMES: usize = 32;
/// `struct rusage`.
const USAGE: usize = 144;
const SIGNALS: usize = 8;
const SIGINFO: usize = 128;
const RLIMIT: usize = 16;
const OFFSET: usize = 8;

const LIST: &[(u32, &[Part])] = &[
    // Files.
    (sys::__NR_read, &[Counted(1, 2)]),
    (sys::__NR_write, &[Counted(1, 2)]),
    (sys::__NR_pread64, &[Counted(1, 2)]),
    (sys::__NR_pwrite64, &[Counted(1, 2)]),
    (sys::__NR_readv, &[Vector(1, 2)]),
    (sys::__NR_writev, &[Vector(1, 2)]),
    (sys::__NR_preadv, &[Vector(1, 2)]),
    (sys::__NR_pwritev, &[Vector(1, 2)]),
    (sys::__NR_preadv2, &[Vector(1, 2)]),
    (sys::__NR_pwritev2, &[Vector(1, 2)]),
    (sys::__NR_sendfile, &[Bytes(2, OFFSET)]),
    (sys::__NR_splice, &[Bytes(1, OFFSET), Bytes(3, OFFSET)]),
    (sys::__NR_copy_file_range, &[Bytes(1, OFFSET), Bytes(3, OFFSET)]),
    (sys::__NR_vmsplice, &[Lasting(&Vector(1, 2))]),
    (sys::__NR_getdents, &[Members(1, 2, 1)]),
    (sys::__NR_getdents64, &[Members(1, 2, 1)]),
    (sys::__NR_pipe, &[Bytes(0, 8)]),
    (sys::__NR_pipe2, &[Bytes(0, 8)]),
    (sys::__NR_fcntl, &[Nested(files::fcntl)]),
    (sys::__NR_ioctl, &[Nested(ioctl)]),
    (sys::__NR_cachestat, &[Bytes(1, 16), Bytes(2, 40)]),
    // Paths.
    (sys::__NR_open, &[Path(0)]),
    (sys::__NR_openat, &[Path(1)]),
    (sys::__NR_openat2, &[Path(1), Counted(2, 3)]),
    (sys::__NR_creat, &[Path(0)]),
    (sys::__NR_stat, &[Path(0), Bytes(1, STAT)]),
    (sys::__NR_fstat, &[Bytes(1, STAT)]),
    (sys::__NR_lstat, &[Path(0), Bytes(1, STAT)]),
    (sys::__NR_newfstatat, &[Path(1), Bytes(2, STAT)]),
    (sys::__NR_statx, &[Path(1), Bytes(4, STATX)]),
    (sys::__NR_statfs, &[Path(0), Bytes(1, STATFS)]),
    (sys::__NR_fstatfs, &[Bytes(1, STATFS)]),
    (sys::__NR_ustat, &[Bytes(1, 32)]),
    (sys::__NR_access, &[Path(0)]),
    (sys::__NR_faccessat, &[Path(1)]),
    (sys::__NR_faccessat2, &[Path(1)]),
    (sys::__NR_truncate, &[Path(0)]),
    (sys::__NR_getcwd, &[Counted(0, 1)]),
    (sys::__NR_chdir, &[Path(0)]),
    (sys::__NR_chroot, &[Path(0)]),
    (sys::__NR_rename, &[Path(0), Path(1)]),
    (sys::__NR_renameat, &[Path(1), Path(3)]),
    (sys::__NR_renameat2, &[Path(1), Path(3)]),
    (sys::__NR_mkdir, &[Path(0)]),
    (sys::__NR_mkdirat, &[Path(1)]),
    (sys::__NR_rmdir, &[Path(0)]),
    (sys::__NR_link, &[Path(0), Path(1)]),
    (sys::__NR_linkat, &[Path(1), Path(3)]),
    (sys::__NR_unlink, &[Path(0)]),
    (sys::__NR_unlinkat, &[Path(1)]),
    (sys::__NR_symlink, &[Path(0), Path(1)]),
    (sys::__NR_symlinkat, &[Path(0), Path(2)]),
    (sys::__NR_readlink, &[Path(0), Members(1, 2, 1)]),
    (sys::__NR_readlinkat, &[Path(1), Members(2, 3, 1)]),
    (sys::__NR_chmod, &[Path(0)]),
    (sys::__NR_fchmodat, &[Path(1)]),
    (sys::__NR_fchmodat2, &[Path(1)]),
    (sys::__NR_chown, &[Path(0)]),
    (sys::__NR_lchown, &[Path(0)]),
    (sys::__NR_fchownat, &[Path(1)]),
    (sys::__NR_mknod, &[Path(0)]),
    (sys::__NR_mknodat, &[Path(1)]),
    (sys::__NR_utime, &[Path(0), Bytes(1, 16)]),
    (sys::__NR_utimes, &[Path(0), Bytes(1, TIMES)]),
    (sys::__NR_futimesat, &[Path(1), Bytes(2, TIMES)]),
    (sys::__NR_utimensat, &[Path(1), Bytes(2, TIMES)]),
    (sys::__NR_setxattr, &[Path(0), Path(1), Counted(2, 3)]),
    (sys::__NR_lsetxattr, &[Path(0), Path(1), Counted(2, 3)]),
    (sys::__NR_fsetxattr, &[Path(1), Counted(2, 3)]),
    (sys::__NR_getxattr, &[Path(0), Path(1), Counted(2, 3)]),
    (sys::__NR_lgetxattr, &[Path(0), Path(1), Counted(2, 3)]),
    (sys::__NR_fgetxattr, &[Path(1), Counted(2, 3)]),
    (sys::__NR_listxattr, &[Path(0), Counted(1, 2)]),
    (sys::__NR_llistxattr, &[Path(0), Counted(1, 2)]),
    (sys::__NR_flistxattr, &[Counted(1, 2)]),
    (sys::__NR_removexattr, &[Path(0), Path(1)]),
    (sys::__NR_lremovexattr, &[Path(0), Path(1)]),
    (sys::__NR_fremovexattr, &[Path(1)]),
    // setxattrat to removexattrat.
    (463, &[Path(1), Path(3), Nested(files::xattr_at)]),
    (464, &[Path(1), Path(3), Nested(files::xattr_at)]),
    (465, &[Path(1), Counted(3, 4)]),
    (466, &[Path(1), Path(3)]),
    (sys::__NR_inotify_add_watch, &[Path(1)]),
    (sys::__NR_fanotify_mark, &[Path(4)]),
    (sys::__NR_name_to_handle_at, &[Path(1), Nested(files::name_to_handle_at), Bytes(3, 8)]),
    (sys::__NR_open_by_handle_at, &[Nested(files::open_by_handle_at)]),
    (sys::__NR_memfd_create, &[Path(0)]),
    // open_tree_attr, file_getattr, file_setattr.
    (467, &[Path(1), Counted(3, 4)]),
    (468, &[Path(1), Counted(2, 3)]),
    (469, &[Path(1), Counted(2, 3)]),
    // Mounts, and what else only root may do.
    (sys::__NR_mount, &[Path(0), Path(1), Path(2), Nested(files::mount)]),
    (sys::__NR_umount2, &[Path(0)]),
    (sys::__NR_pivot_root, &[Path(0), Path(1)]),
    (sys::__NR_open_tree, &[Path(1)]),
    (sys::__NR_move_mount, &[Path(1), Path(3)]),
    (sys::__NR_fsopen, &[Path(0)]),
    (sys::__NR_fsconfig, &[Path(2), Nested(files::fsconfig)]),
    (sys::__NR_fspick, &[Path(1)]),
    (sys::__NR_mount_setattr, &[Path(1), Counted(3, 4)]),
    (sys::__NR_statmount, &[Sized(0), Counted(1, 2)]),
    (sys::__NR_listmount, &[Sized(0), Nested(files::mounts)]),
    (sys::__NR_swapon, &[Path(0)]),
    (sys::__NR_swapoff, &[Path(0)]),
    (sys::__NR_acct, &[Path(0)]),
    (sys::__NR_uselib, &[Path(0)]),
    (sys::__NR_quotactl, &[Path(1), Bytes(3, 160), Path(3)]),
    (sys::__NR_init_module, &[Counted(0, 1), Path(2)]),
    (sys::__NR_finit_module, &[Path(1)]),
    (sys::__NR_delete_module, &[Path(0)]),
    (sys::__NR_sethostname, &[Members(0, 1, 1)]),
    (sys::__NR_setdomainname, &[Members(0, 1, 1)]),
    (sys::__NR_syslog, &[Members(1, 2, 1)]),
    (sys::__NR_reboot, &[Path(3)]),
    // Waiting for descriptors.
    (sys::__NR_poll, &[Members(0, 1, 8)]),
    (sys::__NR_ppoll, &[Members(0, 1, 8), Bytes(2, TIME), Bytes(3, SIGNALS)]),
    (sys::__NR_select, &[Nested(files::fd_sets), Bytes(4, TIME)]),
    (sys::__NR_pselect6, &[Nested(files::fd_sets), Bytes(4, TIME), Nested(files::signals_behind)]),
    (sys::__NR_epoll_ctl, &[Bytes(3, 12)]),
    (sys::__NR_epoll_wait, &[Members(1, 2, 12)]),
    (sys::__NR_epoll_pwait, &[Members(1, 2, 12), Bytes(4, SIGNALS)]),
    (sys::__NR_epoll_pwait2, &[Members(1, 2, 12), Bytes(3, TIME), Bytes(4, SIGNALS)]),
    // Sockets.
    (sys::__NR_bind, &[Members(1, 2, 1)]),
    (sys::__NR_connect, &[Members(1, 2, 1)]),
    (sys::__NR_accept, &[Result(1, 2)]),
    (sys::__NR_accept4, &[Result(1, 2)]),
    (sys::__NR_getsockname, &[Result(1, 2)]),
    (sys::__NR_getpeername, &[Result(1, 2)]),
    (sys::__NR_socketpair, &[Bytes(3, 8)]),
    (sys::__NR_sendto, &[Counted(1, 2), Members(4, 5, 1)]),
    (sys::__NR_recvfrom, &[Counted(1, 2), Result(4, 5)]),
    (sys::__NR_sendmsg, &[Nested(sockets::message)]),
    (sys::__NR_recvmsg, &[Nested(sockets::message)]),
    (sys::__NR_sendmmsg, &[Nested(sockets::messages)]),
    (sys::__NR_recvmmsg, &[Nested(sockets::messages), Bytes(4, TIME)]),
    (sys::__NR_setsockopt, &[Nested(sockets::setsockopt)]),
    (sys::__NR_getsockopt, &[Nested(sockets::getsockopt)]),
    // Signals.
    (sys::__NR_rt_sigaction, &[Bytes(1, 32), Bytes(2, 32)]),
    (sys::__NR_rt_sigprocmask, &[Bytes(1, SIGNALS), Bytes(2, SIGNALS)]),
    (sys::__NR_rt_sigpending, &[Bytes(0, SIGNALS)]),
    (sys::__NR_rt_sigtimedwait, &[Bytes(0, SIGNALS), Bytes(1, SIGINFO), Bytes(2, TIME)]),
    (sys::__NR_rt_sigqueueinfo, &[Bytes(2, SIGINFO)]),
    (sys::__NR_rt_tgsigqueueinfo, &[Bytes(3, SIGINFO)]),
    (sys::__NR_pidfd_send_signal, &[Bytes(2, SIGINFO)]),
    (sys::__NR_rt_sigsuspend, &[Bytes(0, SIGNALS)]),
    (sys::__NR_sigaltstack, &[Bytes(0, 24), Bytes(1, 24), Nested(threads::alternate_stack)]),
    (sys::__NR_signalfd, &[Bytes(1, SIGNALS)]),
    (sys::__NR_signalfd4, &[Bytes(1, SIGNALS)]),
    // Time.
    (sys::__NR_nanosleep, &[Bytes(0, TIME), Bytes(1, TIME)]),
    (sys::__NR_clock_nanosleep, &[Bytes(2, TIME), Bytes(3, TIME)]),
    (sys::__NR_clock_gettime, &[Bytes(1, TIME)]),
    (sys::__NR_clock_getres, &[Bytes(1, TIME)]),
    (sys::__NR_clock_settime, &[Bytes(1, TIME)]),
    (sys::__NR_gettimeofday, &[Bytes(0, TIME), Bytes(1, 8)]),
    (sys::__NR_settimeofday, &[Bytes(0, TIME), Bytes(1, 8)]),
    (sys::__NR_time, &[Bytes(0, 8)]),
    (sys::__NR_times, &[Bytes(0, 32)]),
    (sys::__NR_getitimer, &[Bytes(1, TIMES)]),
    (sys::__NR_setitimer, &[Bytes(1, TIMES), Bytes(2, TIMES)]),
    (sys::__NR_timer_create, &[Bytes(1, 64), Bytes(2, 4)]),
    (sys::__NR_timer_settime, &[Bytes(2, TIMES), Bytes(3, TIMES)]),
    (sys::__NR_timer_gettime, &[Bytes(1, TIMES)]),
    (sys::__NR_timerfd_settime, &[Bytes(2, TIMES), Bytes(3, TIMES)]),
    (sys::__NR_timerfd_gettime, &[Bytes(1, TIMES)]),
    (sys::__NR_adjtimex, &[Bytes(0, 208)]),
    (sys::__NR_clock_adjtime, &[Bytes(1, 208)]),
    // Threads and processes.
    (sys::__NR_clone, &[Nested(threads::clone)]),
    (sys::__NR_clone3, &[Nested(threads::clone3)]),
    (sys::__NR_execve, &[Path(0), Strings(1), Strings(2)]),
    (sys::__NR_execveat, &[Path(1), Strings(2), Strings(3)]),
    (sys::__NR_wait4, &[Bytes(1, 4), Bytes(3, USAGE)]),
    (sys::__NR_waitid, &[Bytes(2, SIGINFO), Bytes(4, USAGE)]),
    (sys::__NR_futex, &[Nested(threads::futex)]),
    (sys::__NR_futex_waitv, &[Nested(threads::futex_waiters)]),
    (sys::__NR_futex_wake, &[Bytes(0, 8)]),
    (sys::__NR_futex_wait, &[Bytes(0, 8), Bytes(4, TIME)]),
    (sys::__NR_futex_requeue, &[Nested(threads::futex_requeue)]),
    (sys::__NR_set_robust_list, &[Lasting(&Bytes(0, 24))]),
    (sys::__NR_get_robust_list, &[Bytes(1, 8), Bytes(2, 8)]),
    (sys::__NR_set_tid_address, &[Lasting(&Bytes(0, 4))]),
    (sys::__NR_rseq, &[Lasting(&Members(0, 1, 1))]),
    (sys::__NR_prctl, &[Nested(threads::prctl)]),
    (sys::__NR_arch_prctl, &[Nested(threads::arch_prctl)]),
    (sys::__NR_ptrace, &[Nested(threads::ptrace)]),
    (sys::__NR_seccomp, &[Nested(threads::seccomp)]),
    (sys::__NR_modify_ldt, &[Counted(1, 2)]),
    (sys::__NR_process_vm_readv, &[Vector(1, 2), Vector(3, 4)]),
    (sys::__NR_process_vm_writev, &[Vector(1, 2), Vector(3, 4)]),
    (sys::__NR_process_madvise, &[Nested(memory::process_madvise)]),
    (sys::__NR_landlock_create_ruleset, &[Counted(0, 1)]),
    (sys::__NR_landlock_add_rule, &[Bytes(2, 16)]),
    (sys::__NR_lsm_get_self_attr, &[Result(1, 2)]),
    (sys::__NR_lsm_set_self_attr, &[Counted(1, 2)]),
    (sys::__NR_lsm_list_modules, &[Result(0, 1)]),
    // The scheduler and NUMA.
    (sys::__NR_sched_setparam, &[Bytes(1, 4)]),
    (sys::__NR_sched_getparam, &[Bytes(1, 4)]),
    (sys::__NR_sched_setscheduler, &[Bytes(2, 4)]),
    (sys::__NR_sched_rr_get_interval, &[Bytes(1, TIME)]),
    (sys::__NR_sched_setaffinity, &[Members(2, 1, 1)]),
    (sys::__NR_sched_getaffinity, &[Members(2, 1, 1)]),
    (sys::__NR_sched_setattr, &[Bytes(1, 56), Sized(1)]),
    (sys::__NR_sched_getattr, &[Members(1, 2, 1)]),
    (sys::__NR_getcpu, &[Bytes(0, 4), Bytes(1, 4)]),
    (sys::__NR_mbind, &[Nested(memory::mbind)]),
    (sys::__NR_set_mempolicy, &[Nested(memory::mempolicy)]),
    (sys::__NR_get_mempolicy, &[Bytes(0, 4), Nested(memory::mempolicy), Bytes(3, 1)]),
    (sys::__NR_migrate_pages, &[Nested(memory::migrate_pages)]),
    (sys::__NR_move_pages, &[Nested(memory::move_pages)]),
    (sys::__NR_mincore, &[Nested(memory::mincore)]),
    (sys::__NR_madvise, &[Nested(memory::madvise)]),
    (sys::__NR_mlock, &[Lasting(&Counted(0, 1))]),
    (sys::__NR_mlock2, &[Lasting(&Counted(0, 1))]),
    // The last argument, for KCMP_EPOLL_TFD.
    (sys::__NR_kcmp, &[Bytes(4, 12)]),
    // Users, limits, the machine.
    (sys::__NR_getgroups, &[Members(1, 0, 4)]),
    (sys::__NR_setgroups, &[Members(1, 0, 4)]),
    (sys::__NR_getresuid, &[Bytes(0, 4), Bytes(1, 4), Bytes(2, 4)]),
    (sys::__NR_getresgid, &[Bytes(0, 4), Bytes(1, 4), Bytes(2, 4)]),
    (sys::__NR_capget, &[Bytes(0, 8), Bytes(1, 24)]),
    (sys::__NR_capset, &[Bytes(0, 8), Bytes(1, 24)]),
    (sys::__NR_getrlimit, &[Bytes(1, RLIMIT)]),
    (sys::__NR_setrlimit, &[Bytes(1, RLIMIT)]),
    (sys::__NR_prlimit64, &[Bytes(2, RLIMIT), Bytes(3, RLIMIT)]),
    (sys::__NR_getrusage, &[Bytes(1, USAGE)]),
    (sys::__NR_sysinfo, &[Bytes(0, 112)]),
    (sys::__NR_uname, &[Bytes(0, 390)]),
    (sys::__NR_getrandom, &[Counted(0, 1)]),
    (sys::__NR_add_key, &[Path(0), Path(1), Counted(2, 3)]),
    (sys::__NR_request_key, &[Path(0), Path(1), Path(2)]),
    // Queues between processes.
    (sys::__NR_shmctl, &[Bytes(2, 112)]),
    (sys::__NR_semop, &[Members(1, 2, 6)]),
    (sys::__NR_semtimedop, &[Members(1, 2, 6), Bytes(3, TIME)]),
    (sys::__NR_semctl, &[Nested(queues::semctl)]),
    (sys::__NR_msgsnd, &[Nested(queues::queue_message)]),
    (sys::__NR_msgrcv, &[Nested(queues::queue_message)]),
    (sys::__NR_msgctl, &[Bytes(2, 120)]),
    (sys::__NR_mq_open, &[Path(0), Bytes(3, 64)]),
    (sys::__NR_mq_unlink, &[Path(0)]),
    (sys::__NR_mq_timedsend, &[Counted(1, 2), Bytes(4, TIME)]),
    (sys::__NR_mq_timedreceive, &[Counted(1, 2), Bytes(3, 4), Bytes(4, TIME)]),
    (sys::__NR_mq_notify, &[Nested(queues::mq_notify)]),
    (sys::__NR_mq_getsetattr, &[Bytes(1, 64), Bytes(2, 64)]),
    // Asynchronous transfers.
    (sys::__NR_io_setup, &[Bytes(1, 8)]),
    (sys::__NR_io_submit, &[Lasting(&Nested(transfers::io_submit))]),
    (sys::__NR_io_cancel, &[Bytes(1, 64), Bytes(2, 32)]),
    (sys::__NR_io_getevents, &[Nested(transfers::io_getevents)]),
    (sys::__NR_io_pgetevents, &[Nested(transfers::io_getevents), Nested(files::signals_behind)]),
    (sys::__NR_io_uring_setup, &[Nested(transfers::io_uring_setup)]),
    (sys::__NR_io_uring_enter, &[Nested(transfers::io_uring_enter)]),
    (sys::__NR_perf_event_open, &[Nested(nested::perf_event)]),
];
