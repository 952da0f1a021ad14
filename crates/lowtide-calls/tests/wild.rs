//! Calls with arguments made at random: where the kernel says EFAULT with nothing in memory but the
//! pieces of a call, it says so natively. Each call is made in a child of its own, without
//! privilege. `LOWTIDE_SEED` repeats a run, `ROUNDS` says how many calls (2000).

#[path = "../../../tests/skipped.rs"]
mod skipped;

mod place;

use std::time::SystemTime;

use fastrand::Rng;
use linux_raw_sys::general as sys;
use lowtide_calls::Arguments;

use place::{PAGE, Place, SIZE, call};

const ROUNDS: u64 = 2_000;
const EFAULT: isize = -14;
/// Numbers of calls: the last of Linux 6.18.
const CALLS: u32 = 470;
const LAST_FD: usize = 32;
/// They would copy or end the child, wait, or change its mappings, its descriptors or its rights.
const NOT_MADE: &[u32] = &[
    sys::__NR_clone,
    sys::__NR_clone3,
    sys::__NR_fork,
    sys::__NR_vfork,
    sys::__NR_exit,
    sys::__NR_exit_group,
    sys::__NR_rt_sigreturn,
    sys::__NR_pause,
    sys::__NR_kill,
    sys::__NR_tkill,
    sys::__NR_tgkill,
    sys::__NR_munmap,
    sys::__NR_mmap,
    sys::__NR_mremap,
    sys::__NR_mprotect,
    sys::__NR_pkey_mprotect,
    sys::__NR_brk,
    sys::__NR_madvise,
    sys::__NR_process_madvise,
    sys::__NR_remap_file_pages,
    sys::__NR_shmat,
    sys::__NR_mseal,
    sys::__NR_map_shadow_stack,
    sys::__NR_arch_prctl,
    sys::__NR_prctl,
    sys::__NR_rseq,
    sys::__NR_seccomp,
    sys::__NR_modify_ldt,
    sys::__NR_iopl,
    sys::__NR_close,
    sys::__NR_close_range,
    sys::__NR_dup2,
    sys::__NR_dup3,
    sys::__NR_restart_syscall,
];

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Outcome {
    Result(isize),
    /// It waited, or its signal ended the child.
    Ended,
}

struct Round {
    number: u32,
    arguments: Arguments,
    contents: Vec<u8>,
}

fn value(rng: &mut Rng, base: usize) -> usize {
    let inside = |rng: &mut Rng| base + rng.usize(..SIZE);
    match rng.u8(..16) {
        0..=5 => inside(rng),
        // Just before a page, aligned.
        6..=8 => (base + rng.usize(1..SIZE / PAGE) * PAGE) - rng.usize(..4) * 8,
        9 | 10 => rng.usize(3..LAST_FD),
        11 => rng.usize(..8),
        12 => [8, 16, 24, 56, 64, 128, 1024, 5000][rng.usize(..8)],
        13 => [0, 1, 1 << 32, base + SIZE, 1 << 47, usize::MAX, usize::MAX - 4095, -100_isize as usize][rng.usize(..8)],
        14 => rng.usize(..) & 0xffff_ffff,
        _ => 1 << rng.u8(..32),
    }
}

fn round(rng: &mut Rng, base: usize) -> Round {
    let number = loop {
        let number = rng.u32(..CALLS);
        if !NOT_MADE.contains(&number) {
            break number;
        }
    };
    let arguments = core::array::from_fn(|_| value(rng, base));
    let mut contents = vec![0; SIZE];
    for word in contents.chunks_exact_mut(8) {
        let text = *b"/tmp/a\0b";
        let bytes = match rng.u8(..8) {
            0..=2 => [0; 8],
            3 => text,
            4 => (rng.usize(3..LAST_FD) | rng.usize(..8) << 32).to_ne_bytes(),
            5 => rng.usize(..100).to_ne_bytes(),
            _ => value(rng, base).to_ne_bytes(),
        };
        word.copy_from_slice(&bytes);
    }
    Round { number, arguments, contents }
}

/// Descriptors of several kinds, the same ones in each child.
fn open_some() {
    let mut pair = [0; 2];
    // SAFETY: system calls with memory of this function.
    unsafe {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
            libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_NONBLOCK, 0, pair.as_mut_ptr());
            libc::send(pair[0], b"some bytes".as_ptr().cast(), 10, 0);
        }
        libc::pipe2(pair.as_mut_ptr(), libc::O_NONBLOCK);
        libc::write(pair[1], b"more bytes".as_ptr().cast(), 10);
        libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0);
        libc::socket(libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0);
        let file = libc::memfd_create(c"file".as_ptr(), 0);
        libc::write(file, [7; 9000].as_ptr().cast(), 9000);
        libc::lseek(file, 0, libc::SEEK_SET);
        libc::eventfd(5, libc::EFD_NONBLOCK);
        libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK);
        libc::inotify_init1(libc::IN_NONBLOCK);
        let epoll = libc::epoll_create1(0);
        let mut event = libc::epoll_event { events: libc::EPOLLOUT as u32, u64: 1 };
        libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pair[1], &raw mut event);
        libc::open(c"/proc/self".as_ptr(), libc::O_DIRECTORY);
        libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        libc::open(c"/dev/zero".as_ptr(), libc::O_RDWR);
        libc::open(c"/dev/ptmx".as_ptr(), libc::O_RDWR | libc::O_NOCTTY);
    }
}

/// What children do stays their own. False: the kernel allows it to root only.
fn confine() -> bool {
    const NOBODY: u32 = 65534;
    // SAFETY: changes of this process alone.
    unsafe {
        let spaces = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWNET | libc::CLONE_NEWUTS;
        if libc::unshare(spaces) != 0 {
            return false;
        }
        libc::setgroups(0, std::ptr::null());
        libc::setgid(NOBODY);
        libc::setuid(NOBODY);
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    }
    true
}

/// In a child: it can't fork, and ends soon.
fn limit() {
    for resource in [libc::RLIMIT_NPROC, libc::RLIMIT_CORE] {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a limit of this process.
        unsafe { libc::setrlimit(resource, &raw const none) };
    }
    // SAFETY: changes of this process alone.
    unsafe {
        libc::setpgid(0, 0);
        libc::alarm(1);
    }
}

fn made(round: &Round, base: usize, with_pieces: bool) -> Outcome {
    let mut ends = [0; 2];
    // SAFETY: the child makes its calls and ends.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            let to = libc::fcntl(ends[1], libc::F_DUPFD, 200);
            let nowhere = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            (0..3).for_each(|fd| assert_eq!(libc::dup2(nowhere, fd), fd));
            for fd in 3..200 {
                libc::close(fd);
            }
            open_some();
            // Both use the same place, whose userfaultfd must be this process's own.
            let result = Place::at(base).map(|place| {
                limit();
                place.fill(&round.contents);
                if with_pieces {
                    place.call_with_pieces(round.number, &round.arguments).1
                } else {
                    call(round.number, &round.arguments)
                }
            });
            let bytes = result.unwrap_or(0).to_ne_bytes();
            libc::write(to, bytes.as_ptr().cast(), 8);
            libc::_exit(0);
        }
        libc::close(ends[1]);
        let mut bytes = [0; 8];
        let read = libc::read(ends[0], bytes.as_mut_ptr().cast(), 8);
        libc::close(ends[0]);
        libc::waitpid(child, std::ptr::null_mut(), 0);
        if read == 8 { Outcome::Result(isize::from_ne_bytes(bytes)) } else { Outcome::Ended }
    }
}

#[test]
fn wild_calls_fail_as_they_do_natively() {
    let Some(place) = Place::new() else { return };
    if !confine() {
        return skipped::skipped("namespaces need root");
    }
    let base = place.base;
    let given = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed = given("LOWTIDE_SEED")
        .unwrap_or_else(|| SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64);
    eprintln!("LOWTIDE_SEED={seed}");
    let (mut rng, mut refused, mut differed) = (Rng::with_seed(seed), 0, vec![]);
    for _ in 0..given("ROUNDS").unwrap_or(ROUNDS) {
        let round = round(&mut rng, base);
        let outcomes = [false, true].map(|with_pieces| made(&round, base, with_pieces));
        refused += u64::from(outcomes[0] == Outcome::Result(EFAULT));
        let is_refused = outcomes.map(|outcome| outcome == Outcome::Result(EFAULT));
        if is_refused[0] != is_refused[1] {
            differed.push(format!("call {}, {:x?}: {outcomes:?}", round.number, round.arguments));
        }
    }
    eprintln!("{refused} refused natively");
    assert!(differed.is_empty(), "{}", differed.join("\n"));
}
