//! The table against the kernel: each call is made natively, then once more in memory whose pages
//! are all missing but those that [`each_piece`] names, under a userfaultfd without privilege.
//! Results, errno and memory must be the same.

#[path = "../../../tests/skipped.rs"]
mod skipped;

mod place;

use std::cell::RefCell;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general as sys;
use lowtide_calls::{Arguments, Known};

use place::{PAGE, Place, SIZE, call};

/// Lays out what a call needs. Each thing begins a few bytes before the end of a page.
struct Scene<'a> {
    place: &'a Place,
    next: RefCell<usize>,
    open: RefCell<Vec<OwnedFd>>,
}

impl Scene<'_> {
    fn put(&self, bytes: &[u8]) -> usize {
        self.put_at(bytes, 4)
    }

    /// `before`: how many bytes lie on the first page.
    fn put_at(&self, bytes: &[u8], before: usize) -> usize {
        let mut next = self.next.borrow_mut();
        let at = self.place.base + *next + PAGE - before;
        *next += PAGE + (bytes.len() + PAGE).div_ceil(PAGE) * PAGE;
        assert!(*next < SIZE, "the place is full");
        // SAFETY: within the place.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
        at
    }

    fn room(&self, len: usize) -> usize {
        self.put(&vec![0xee; len])
    }

    fn text(&self, text: &str) -> usize {
        self.put(&[text.as_bytes(), b"\0"].concat())
    }

    fn words(&self, words: &[usize]) -> usize {
        self.put_at(&words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>(), 8)
    }

    fn int(&self, value: u32) -> usize {
        self.put_at(&value.to_ne_bytes(), 2)
    }

    fn keep(&self, fd: i32) -> usize {
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: a new descriptor.
        self.open.borrow_mut().push(unsafe { OwnedFd::from_raw_fd(fd) });
        fd as usize
    }

    /// A descriptor by a call.
    fn by(&self, number: u32, given: &[usize]) -> usize {
        let mut arguments: Arguments = [0; 6];
        arguments[..given.len()].copy_from_slice(given);
        self.keep(call(number, &arguments) as i32)
    }

    fn file(&self, bytes: &[u8]) -> usize {
        // SAFETY: system calls with memory of this function.
        unsafe {
            let fd = libc::memfd_create(c"scene".as_ptr(), 0);
            assert_eq!(libc::write(fd, bytes.as_ptr().cast(), bytes.len()), bytes.len() as isize);
            libc::lseek(fd, 0, libc::SEEK_SET);
            self.keep(fd)
        }
    }

    fn pipe(&self) -> [usize; 2] {
        let mut fds = [0; 2];
        // SAFETY: room for two.
        unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_NONBLOCK) };
        fds.map(|fd| self.keep(fd))
    }

    fn sockets(&self, kind: i32) -> [usize; 2] {
        let mut fds = [0; 2];
        // SAFETY: room for two.
        unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_NONBLOCK, 0, fds.as_mut_ptr()) };
        fds.map(|fd| self.keep(fd))
    }

    fn bound(&self) -> (usize, [u8; 16]) {
        // SAFETY: system calls with memory of this function.
        unsafe {
            let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0);
            let mut address = [0_u8; 16];
            address[0] = 2;
            address[4..8].copy_from_slice(&[127, 0, 0, 1]);
            assert_eq!(libc::bind(fd, address.as_ptr().cast(), 16), 0);
            let mut len = 16;
            libc::getsockname(fd, address.as_mut_ptr().cast(), &raw mut len);
            (self.keep(fd), address)
        }
    }
}

fn send(fd: usize, bytes: &[u8]) {
    // SAFETY: memory of the caller.
    assert_eq!(unsafe { libc::send(fd as i32, bytes.as_ptr().cast(), bytes.len(), 0) }, bytes.len() as isize);
}

/// Makes the call natively, and with nothing in memory but its pieces.
fn same(name: &str, number: u32, lay_out: impl Fn(&Scene<'_>) -> Vec<usize>, differs: &[&str]) {
    let Some(place) = Place::new() else { return };
    let mut outcomes = vec![];
    for is_watched in [false, true] {
        place.fill(&[0xaa; SIZE]);
        let scene = Scene { place: &place, next: RefCell::new(0), open: RefCell::default() };
        let mut arguments: Arguments = [0; 6];
        let given = lay_out(&scene);
        arguments[..given.len()].copy_from_slice(&given);
        let result = if is_watched {
            let (known, result) = place.call_with_pieces(number, &arguments);
            assert_eq!(known, Known::Listed, "{name}");
            result
        } else {
            call(number, &arguments)
        };
        outcomes.push((result, place.contents()));
    }
    let [(native, before), (watched, after)] = <[_; 2]>::try_from(outcomes).unwrap();
    assert_ne!(native, -14, "{name}: the scene itself is wrong");
    if differs.contains(&"result") {
        assert_eq!(native < 0, watched < 0, "{name}: {native} natively, {watched}");
    } else {
        assert_eq!(native, watched, "{name}");
    }
    let other_bytes = before.iter().zip(&after).filter(|(a, b)| a != b).count();
    if differs.contains(&"few bytes") {
        // Numbers of ports and descriptors.
        assert!(other_bytes <= 8, "{name}: {other_bytes} other bytes");
    } else if !differs.contains(&"memory") {
        assert_eq!(other_bytes, 0, "{name}");
    }
}

macro_rules! cases {
    ($($name:ident: $number:ident $(but $($differs:literal)*)?, |$scene:ident| $lay_out:expr;)*) => {$(
        #[test]
        fn $name() {
            same(stringify!($name), sys::$number, |$scene| $lay_out, &[$($($differs),*)?]);
        }
    )*};
}

cases! {
    read: __NR_read, |s| vec![s.file(&[7; 9000]), s.room(8500), 8500];
    write: __NR_write, |s| vec![s.file(b""), s.room(8500), 8500];
    pread: __NR_pread64, |s| vec![s.file(&[7; 9000]), s.room(100), 100, 8];
    readv: __NR_readv, |s| { let v = s.words(&[s.room(30), 30, s.room(5000), 5000]); vec![s.file(&[9; 6000]), v, 2] };
    writev: __NR_writev, |s| { let v = s.words(&[s.room(30), 30, s.room(5000), 5000]); vec![s.file(b""), v, 2] };
    preadv2: __NR_preadv2, |s| { let v = s.words(&[s.room(30), 30]); vec![s.file(&[9; 6000]), v, 1, 10, 0, 0] };
    read_of_a_pipe: __NR_read, |s| { let [from, to] = s.pipe(); write_to(to, &[5; 100]); vec![from, s.room(100), 100] };
    read_of_an_event: __NR_read, |s| vec![s.by(sys::__NR_eventfd2, &[5]), s.room(8), 8];
    open: __NR_open but "result", |s| vec![s.text("/proc/self/status"), 0];
    openat: __NR_openat but "result", |s| vec![libc::AT_FDCWD as usize, s.text("/proc/self/status"), 0];
    openat2: __NR_openat2 but "result", |s| vec![libc::AT_FDCWD as usize, s.text("/proc"), s.words(&[0, 0, 0]), 24];
    a_path_that_is_too_long: __NR_open, |s| vec![s.put(&[b'x'; 5000]), 0];
    stat: __NR_stat, |s| vec![s.text("/sys"), s.room(144)];
    fstat: __NR_newfstatat, |s| vec![libc::AT_FDCWD as usize, s.text("/sys"), s.room(144), 0];
    statx: __NR_statx, |s| vec![libc::AT_FDCWD as usize, s.text("/sys"), 0, 0x7ff, s.room(256)];
    statfs: __NR_statfs, |s| vec![s.text("/proc"), s.room(120)];
    access: __NR_faccessat2, |s| vec![libc::AT_FDCWD as usize, s.text("/nowhere"), 0, 0];
    getcwd: __NR_getcwd, |s| vec![s.room(6000), 6000];
    readlink: __NR_readlink, |s| vec![s.text("/proc/self/exe"), s.room(5000), 5000];
    rename: __NR_rename, |s| vec![s.text("/nowhere"), s.text("/elsewhere")];
    getxattr: __NR_getxattr, |s| vec![s.text("/"), s.text("user.none"), s.room(100), 100];
    getdents: __NR_getdents64, |s| {
        let fd = s.by(sys::__NR_open, &[c"/sys/kernel".as_ptr().addr(), libc::O_DIRECTORY as usize]);
        vec![fd, s.room(6000), 6000]
    };
    utimensat: __NR_utimensat, |s| vec![libc::AT_FDCWD as usize, s.text("/nowhere"), s.words(&[0; 4]), 0];
    pipe: __NR_pipe2 but "few bytes", |s| vec![s.room(8), 0];
    locks: __NR_fcntl, |s| { let lock = [&[0, 0][..], &[0; 30]].concat(); vec![s.file(b"x"), 5, s.put(&lock)] };
    an_owner: __NR_fcntl, |s| vec![s.file(b"x"), 16, s.room(8)];
    how_much_is_there: __NR_ioctl, |s| { let [from, to] = s.pipe(); write_to(to, b"abc"); vec![from, 0x541b, s.room(4)] };
    interfaces: __NR_ioctl, |s| { let list = s.room(80); vec![s.bound().0, 0x8912, s.words(&[80, list])] };
    an_interface: __NR_ioctl, |s| vec![s.bound().0, 0x8913, s.put(&[b"lo\0".to_vec(), vec![0; 37]].concat())];
    extents: __NR_ioctl, |s| {
        let fd = s.by(sys::__NR_open, &[c"/etc/passwd".as_ptr().addr()]);
        let mut map = vec![0; 32 + 2 * 56];
        map[8..16].fill(0x7f);
        map[24] = 2;
        vec![fd, 0xc020_660b, s.put(&map)]
    };
    poll: __NR_poll but "few bytes", |s| { let [from, to] = s.pipe(); write_to(to, b"x"); vec![s.words(&[from | 1 << 32, from | 1 << 32]), 2, 0] };
    ppoll: __NR_ppoll but "few bytes", |s| { let [from, _] = s.pipe(); vec![s.words(&[from | 1 << 32]), 1, s.words(&[0, 5]), s.words(&[0]), 8] };
    select: __NR_select but "few bytes", |s| { let [from, _] = s.pipe(); vec![from + 1, set_of(s, from), set_of(s, from), 0, s.words(&[0, 5])] };
    pselect: __NR_pselect6 but "few bytes", |s| {
        let [from, _] = s.pipe();
        let signals = s.words(&[0]);
        vec![from + 1, set_of(s, from), 0, 0, s.words(&[0, 5]), s.words(&[signals, 8])]
    };
    epoll: __NR_epoll_wait, |s| { let epoll = epoll_of_one(s); vec![epoll, s.room(36), 3, 0] };
    epoll_ctl: __NR_epoll_ctl, |s| {
        let [from, _] = s.pipe();
        vec![s.by(sys::__NR_epoll_create1, &[]), 1, from, s.put(&[1; 12])]
    };
    epoll_pwait2: __NR_epoll_pwait2, |s| { let epoll = epoll_of_one(s); vec![epoll, s.room(36), 3, s.words(&[0, 0]), s.words(&[0]), 8] };
    sendto: __NR_sendto but "few bytes", |s| { let (fd, address) = s.bound(); vec![fd, s.room(50), 50, 0, s.put(&address), 16] };
    recvfrom: __NR_recvfrom but "few bytes", |s| {
        let (fd, address) = s.bound();
        // SAFETY: memory of this closure.
        let to = unsafe { libc::sendto(fd as i32, b"datagram".as_ptr().cast(), 8, 0, address.as_ptr().cast(), 16) };
        assert_eq!(to, 8);
        vec![fd, s.room(50), 50, 0, s.room(16), s.int(16)]
    };
    recv_of_a_packet: __NR_recvfrom, |s| { let [a, b] = s.sockets(libc::SOCK_SEQPACKET); send(a, &[3; 40]); vec![b, s.room(60), 60] };
    sendmsg: __NR_sendmsg but "few bytes", |s| {
        let (fd, address) = s.bound();
        let vector = s.words(&[s.room(20), 20, s.room(30), 30]);
        vec![fd, s.words(&[s.put(&address), 16, vector, 2, 0, 0, 0]), 0]
    };
    recvmsg_with_a_descriptor: __NR_recvmsg but "few bytes", |s| {
        let [a, b] = s.sockets(libc::SOCK_DGRAM);
        send_descriptor(a, a);
        let vector = s.words(&[s.room(20), 20]);
        vec![b, s.words(&[0, 0, vector, 1, s.put_at(&[0; 64], 8), 64, 0]), 0]
    };
    recvmmsg: __NR_recvmmsg but "memory", |s| {
        let [a, b] = s.sockets(libc::SOCK_DGRAM);
        send(a, b"one");
        send(a, b"two");
        let vectors = [s.words(&[s.room(20), 20]), s.words(&[s.room(20), 20])];
        let messages: Vec<usize> = vectors.iter().flat_map(|v| [0, 0, *v, 1, 0, 0, 0, 0]).collect();
        vec![b, s.words(&messages), 2, 0, s.words(&[1, 0])]
    };
    sendmmsg: __NR_sendmmsg, |s| {
        let [a, _] = s.sockets(libc::SOCK_DGRAM);
        let vectors = [s.words(&[s.room(20), 20]), s.words(&[s.room(20), 20])];
        let messages: Vec<usize> = vectors.iter().flat_map(|v| [0, 0, *v, 1, 0, 0, 0, 0]).collect();
        vec![a, s.words(&messages), 2, 0]
    };
    getsockname: __NR_getsockname but "few bytes", |s| vec![s.bound().0, s.room(16), s.int(16)];
    setsockopt: __NR_setsockopt, |s| vec![s.bound().0, 1, 20, s.words(&[1, 0]), 16];
    a_filter: __NR_setsockopt, |s| { let all = s.words(&[0xffff_ffff_0000_0006]); vec![s.bound().0, 1, 26, s.words(&[1, all]), 16] };
    getsockopt: __NR_getsockopt, |s| vec![s.bound().0, 1, 7, s.room(4), s.int(4)];
    socketpair: __NR_socketpair but "few bytes", |s| vec![1, 1, 0, s.room(8)];
    sigaction: __NR_rt_sigaction, |s| vec![libc::SIGWINCH as usize, 0, s.room(32), 8];
    sigprocmask: __NR_rt_sigprocmask, |s| vec![0, s.words(&[0]), s.room(8), 8];
    sigtimedwait: __NR_rt_sigtimedwait, |s| vec![s.words(&[1 << 40]), s.room(128), s.words(&[0, 5]), 8];
    sigaltstack: __NR_sigaltstack but "memory", |s| vec![0, s.room(24)];
    signalfd: __NR_signalfd4 but "result", |s| vec![usize::MAX, s.words(&[1 << 40]), 8, 0];
    nanosleep: __NR_nanosleep, |s| vec![s.words(&[0, 5]), s.room(16)];
    clock: __NR_clock_gettime but "memory", |s| vec![1, s.room(16)];
    timerfd: __NR_timerfd_settime, |s| {
        let fd = s.by(sys::__NR_timerfd_create, &[1]);
        vec![fd, 0, s.words(&[0, 0, 1000, 0]), s.room(32)]
    };
    itimer: __NR_getitimer, |s| vec![0, s.room(32)];
    uname: __NR_uname, |s| vec![s.room(390)];
    sysinfo: __NR_sysinfo but "memory", |s| vec![s.room(112)];
    getrusage: __NR_getrusage but "memory", |s| vec![0, s.room(144)];
    prlimit: __NR_prlimit64, |s| vec![0, 7, 0, s.room(16)];
    getgroups: __NR_getgroups, |s| vec![64, s.room(256)];
    getresuid: __NR_getresuid, |s| vec![s.room(4), s.room(4), s.room(4)];
    capget: __NR_capget, |s| vec![s.words(&[0x2008_0522]), s.room(24)];
    getrandom: __NR_getrandom but "memory", |s| vec![s.room(6000), 6000, 0];
    affinity: __NR_sched_getaffinity, |s| vec![0, 128, s.room(128)];
    sched_getattr: __NR_sched_getattr, |s| vec![0, s.room(56), 56, 0];
    getcpu: __NR_getcpu but "memory", |s| vec![s.room(4), s.room(4), 0];
    mincore: __NR_mincore, |s| { let at = s.room(1); vec![call as *const () as usize & !(PAGE - 1), PAGE, at] };
    name: __NR_prctl, |s| vec![16, s.room(16)];
    thread_pointer: __NR_arch_prctl, |s| vec![0x1003, s.room(8)];
    futex: __NR_futex, |s| vec![aligned(s, 5), 128, 5, s.words(&[0, 5])];
    futex_waitv: __NR_futex_waitv, |s| { let word = aligned(s, 5); vec![s.words(&[6, word, 2]), 1, 0, 0, 0] };
    splice: __NR_splice, |s| { let [_, to] = s.pipe(); vec![s.file(&[1; 200]), s.words(&[50]), to, 0, 100, 0] };
    sendfile: __NR_sendfile, |s| { let [_, to] = s.pipe(); vec![to, s.file(&[1; 200]), s.words(&[50]), 100] };
    handle: __NR_name_to_handle_at but "memory", |s| {
        vec![libc::AT_FDCWD as usize, s.text("/"), s.put(&[[128, 0, 0, 0].to_vec(), vec![0; 132]].concat()), s.room(8), 0]
    };
    own_memory: __NR_process_vm_readv, |s| {
        let (from, to) = (s.room(100), s.room(100));
        vec![std::process::id() as usize, s.words(&[to, 100]), 1, s.words(&[from, 100]), 1, 0]
    };
    wait_for_a_child: __NR_wait4 but "memory" "result", |s| vec![child(), s.room(4), 0, s.room(144)];
    wait_for_a_child_by_id: __NR_waitid but "memory", |s| vec![1, child(), s.room(128), 4, s.room(144)];
    a_file_that_is_no_program: __NR_execveat, |s| {
        let (name, value) = (s.text("name"), s.text(&"A=B".repeat(2000)));
        vec![s.file(b"no program"), s.text(""), s.words(&[name, name, 0]), s.words(&[value, 0]), 0x1000]
    };
    connect: __NR_connect but "few bytes", |s| vec![s.bound().0, s.put(&s.bound().1), 16];
    memfd: __NR_memfd_create but "result", |s| vec![s.text("name"), 0];
    inotify: __NR_inotify_add_watch, |s| vec![s.by(sys::__NR_inotify_init1, &[]), s.text("/proc"), 2];
    robust_list: __NR_get_robust_list but "memory", |s| vec![0, s.room(8), s.room(8)];
    a_queued_signal: __NR_rt_sigqueueinfo, |s| vec![std::process::id() as usize, 0, s.put(&[0xff; 128])];
    policy: __NR_get_mempolicy, |s| vec![s.room(4), s.room(128), 1024, 0, 0];
    timex: __NR_adjtimex but "memory", |s| vec![s.put(&[0; 208])];
    an_old_queue: __NR_msgctl, |s| vec![0, 3, s.room(120)];
    shared_memory: __NR_shmctl, |s| vec![0, 3, s.room(112)];
    transfers: __NR_io_submit but "few bytes", |s| {
        let mut context = 0_usize;
        assert_eq!(call(sys::__NR_io_setup, &[4, (&raw mut context).addr(), 0, 0, 0, 0]), 0);
        let transfer = s.words(&[0, 0, 1 | s.file(b"") << 32, s.room(30), 30, 0, 0, 0]);
        vec![context, 1, s.words(&[transfer])]
    };
    accept: __NR_accept4 but "result" "few bytes", |s| vec![s.listening(), s.room(16), s.int(16), 0];
    getpeername: __NR_getpeername but "few bytes", |s| { let (fd, address) = s.bound(); reach(fd, &address); vec![fd, s.room(16), s.int(16)] };
    bind: __NR_bind but "few bytes", |s| vec![s.by(sys::__NR_socket, &[2, 2]), s.put(&s.bound().1[..2].iter().chain(&[0; 14]).copied().collect::<Vec<_>>()), 16];
    copy_file_range: __NR_copy_file_range, |s| vec![s.file(&[1; 200]), s.words(&[50]), s.file(b""), s.words(&[0]), 100, 0];
    cachestat: __NR_cachestat, |s| vec![s.file(&[1; 9000]), s.words(&[0, 9000]), s.room(40), 0];
    vmsplice: __NR_vmsplice, |s| { let [_, to] = s.pipe(); vec![to, s.words(&[s.room(30), 30]), 1, 0] };
    preadv: __NR_preadv, |s| { let v = s.words(&[s.room(30), 30]); vec![s.file(&[9; 6000]), v, 1, 10, 0] };
    pwritev: __NR_pwritev2, |s| { let v = s.words(&[s.room(30), 30]); vec![s.file(b""), v, 1, 10, 0, 0] };
    old_getdents: __NR_getdents, |s| vec![s.by(sys::__NR_open, &[c"/sys/kernel".as_ptr().addr(), libc::O_DIRECTORY as usize]), s.room(6000), 6000];
    readlinkat: __NR_readlinkat, |s| vec![libc::AT_FDCWD as usize, s.text("/proc/self/exe"), s.room(5000), 5000];
    fstat_alone: __NR_fstat but "few bytes", |s| vec![s.by(sys::__NR_open, &[c"/proc/self".as_ptr().addr()]), s.room(144)];
    fstatfs: __NR_fstatfs, |s| vec![s.by(sys::__NR_open, &[c"/proc".as_ptr().addr()]), s.room(120)];
    listxattr: __NR_flistxattr, |s| vec![s.file(b"x"), s.room(100), 100];
    setxattr: __NR_fsetxattr, |s| vec![s.file(b"x"), s.text("user.name"), s.room(40), 40, 0];
    mounts: __NR_listmount, |s| vec![s.words(&[24, usize::MAX, 0]), s.room(4000), 500, 0];
    mount_of_the_root: __NR_statmount but "memory" "result", |s| vec![s.words(&[24, usize::MAX, 1]), s.room(600), 600, 0];
    epoll_pwait: __NR_epoll_pwait, |s| { let epoll = epoll_of_one(s); vec![epoll, s.room(36), 3, 0, s.words(&[0]), 8] };
    signals_that_wait: __NR_rt_sigpending, |s| vec![s.room(8)];
    a_signal_by_pidfd: __NR_pidfd_send_signal, |s| vec![s.by(sys::__NR_pidfd_open, &[std::process::id() as usize]), 0, s.put(&[0; 128]), 0];
    old_signalfd: __NR_signalfd but "result", |s| vec![usize::MAX, s.words(&[1 << 40]), 8];
    time_of_day: __NR_gettimeofday but "memory", |s| vec![s.room(16), s.room(8)];
    time: __NR_time but "memory" "result", |s| vec![s.room(8)];
    times: __NR_times but "memory" "result", |s| vec![s.room(32)];
    resolution: __NR_clock_getres, |s| vec![1, s.room(16)];
    clock_nanosleep: __NR_clock_nanosleep, |s| vec![1, 0, s.words(&[0, 5]), 0];
    timer_create: __NR_timer_create but "few bytes", |s| vec![1, s.put(&[vec![0; 12], vec![1, 0, 0, 0], vec![0; 48]].concat()), s.room(4)];
    timer_settime: __NR_timer_settime but "few bytes", |s| vec![s.timer(), 0, s.words(&[0, 0, 1000, 0]), s.room(32)];
    timer_gettime: __NR_timer_gettime, |s| vec![s.timer(), s.room(32)];
    timerfd_gettime: __NR_timerfd_gettime, |s| vec![s.by(sys::__NR_timerfd_create, &[1]), s.room(32)];
    getrlimit: __NR_getrlimit, |s| vec![7, s.room(16)];
    getresgid: __NR_getresgid, |s| vec![s.room(4), s.room(4), s.room(4)];
    setaffinity: __NR_sched_setaffinity, |s| vec![0, 128, s.put(&[0xff; 128])];
    interval: __NR_sched_rr_get_interval but "memory", |s| vec![0, s.room(16)];
    sched_getparam: __NR_sched_getparam, |s| vec![0, s.room(4)];
    sched_setattr: __NR_sched_setattr, |s| vec![0, s.put(&[vec![48, 0, 0, 0], vec![0; 44]].concat()), 0];
    set_mempolicy: __NR_set_mempolicy, |s| vec![1, s.put(&[1, 0, 0, 0, 0, 0, 0, 0]), 64];
    where_pages_are: __NR_move_pages, |s| {
        let page = call as *const () as usize;
        vec![0, 2, s.words(&[page, page]), 0, s.room(8), 2]
    };
    semtimedop: __NR_semtimedop, |s| vec![s.semaphores(1), s.put(&[0, 0, 255, 255, 0, 0]), 1, s.words(&[0, 5])];
    msgsnd: __NR_msgsnd, |s| vec![s.queue(), s.put(&[vec![1; 8], vec![5; 40]].concat()), 40, 0o4000];
    msgrcv: __NR_msgrcv, |s| vec![s.queue_with_one(), s.room(48), 40, 0, 0o4000];
    mq_timedsend: __NR_mq_timedsend, |s| vec![s.mq(), s.room(40), 40, 1, s.words(&[0, 5])];
    mq_timedreceive: __NR_mq_timedreceive, |s| vec![s.mq_with_one(), s.room(64), 64, s.room(4), s.words(&[0, 5])];
    mq_getsetattr: __NR_mq_getsetattr, |s| vec![s.mq(), 0, s.room(64)];
    io_getevents: __NR_io_getevents but "memory", |s| vec![s.context_with_one(), 1, 2, s.room(64), s.words(&[1, 0])];
    io_pgetevents: __NR_io_pgetevents but "memory", |s| {
        let signals = s.words(&[0]);
        vec![s.context_with_one(), 1, 2, s.room(64), s.words(&[1, 0]), s.words(&[signals, 8])]
    };
    an_event_counter: __NR_perf_event_open but "result", |s| vec![s.put(&[vec![1, 0, 0, 0, 128, 0, 0, 0], vec![0; 120]].concat()), 0, usize::MAX, usize::MAX, 0];
    futex_of_2024: __NR_futex_wait, |s| vec![aligned(s, 5), 6, 0xffff_ffff, 2, s.words(&[0, 5]), 1];
    futexes_of_2024: __NR_futex_requeue, |s| { let word = aligned(s, 5); vec![s.words(&[6, word, 2, 6, word, 2]), 0, 1, 1] };
    other_memory: __NR_process_vm_writev, |s| {
        let (from, to) = (s.room(100), s.room(100));
        vec![std::process::id() as usize, s.words(&[to, 100]), 1, s.words(&[from, 100]), 1, 0]
    };
    ruleset: __NR_landlock_create_ruleset but "result", |s| vec![s.words(&[1]), 8, 0];
    modules: __NR_lsm_list_modules but "memory" "result", |s| vec![s.room(800), s.int(800), 0];
    a_key: __NR_add_key but "result", |s| vec![s.text("user"), s.text("name"), s.room(40), 40, -2_isize as usize];
    compared: __NR_kcmp, |s| {
        let me = std::process::id() as usize;
        let epoll = epoll_of_one(s);
        vec![me, me, 7, epoll, s.put(&[1; 12])]
    };
    node_of_a_page: __NR_get_mempolicy, |s| vec![s.room(4), 0, 0, s.room(8), 3];
    populated: __NR_madvise, |s| vec![(s.room(9000) + 8) & !4095, 4096, 23];
    setitimer: __NR_setitimer, |s| vec![1, s.words(&[0; 4]), s.room(32)];
    utime: __NR_utime, |s| vec![s.text("/nowhere"), s.words(&[0; 2])];
    a_program_that_is_not_there: __NR_execve, |s| {
        let (name, value) = (s.text("name"), s.text("A=B"));
        vec![s.text("/nowhere/at/all"), s.words(&[name, name, 0]), s.words(&[value, 0])]
    };
    mq_open: __NR_mq_open, |s| vec![s.text("nowhere"), 0, 0, s.room(64)];
    semop: __NR_semop, |s| vec![s.semaphores(1), s.put(&[0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0]), 2];
    semctl: __NR_semctl but "memory", |s| vec![s.semaphores(3), 0, 2, s.room(104)];
    all_of_semctl: __NR_semctl, |s| vec![s.semaphores(3), 0, 13, s.room(6)];
}

impl Scene<'_> {
    fn listening(&self) -> usize {
        let mut address = [0_u8; 16];
        address[0] = 2;
        address[4..8].copy_from_slice(&[127, 0, 0, 1]);
        let (fd, client) = (self.by(sys::__NR_socket, &[2, 1]), self.by(sys::__NR_socket, &[2, 1]));
        let mut len = 16_u32;
        let at = address.as_mut_ptr().addr();
        assert_eq!(call(sys::__NR_bind, &[fd, at, 16, 0, 0, 0]), 0);
        assert_eq!(call(sys::__NR_listen, &[fd, 1, 0, 0, 0, 0]), 0);
        assert_eq!(call(sys::__NR_getsockname, &[fd, at, (&raw mut len).addr(), 0, 0, 0]), 0);
        reach(client, &address);
        fd
    }

    fn timer(&self) -> usize {
        let (mut event, mut timer) = ([0_u32; 16], 0_u32);
        // SIGEV_NONE.
        event[3] = 1;
        assert_eq!(call(sys::__NR_timer_create, &[1, event.as_mut_ptr().addr(), (&raw mut timer).addr(), 0, 0, 0]), 0);
        timer as usize
    }

    /// Removed when the test's thread ends.
    fn queue(&self) -> usize {
        let queue = call(sys::__NR_msgget, &[0, 0o600, 0, 0, 0, 0]);
        assert!(queue >= 0);
        SETS.with_borrow_mut(|sets| sets.queues.push(queue as i32));
        queue as usize
    }

    fn queue_with_one(&self) -> usize {
        let (queue, message) = (self.queue(), [1_u64; 6]);
        assert_eq!(call(sys::__NR_msgsnd, &[queue, message.as_ptr().addr(), 40, 0, 0, 0]), 0);
        queue
    }

    fn mq(&self) -> usize {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let attributes = [0_usize, 4, 64, 0, 0, 0, 0, 0];
        let name = format!("lowtide-calls-{}-{}\0", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let mq = self.by(sys::__NR_mq_open, &[name.as_ptr().addr(), 0o4102, 0o600, attributes.as_ptr().addr()]);
        call(sys::__NR_mq_unlink, &[name.as_ptr().addr(), 0, 0, 0, 0, 0]);
        mq
    }

    fn mq_with_one(&self) -> usize {
        let (mq, message) = (self.mq(), [7_u8; 50]);
        assert_eq!(call(sys::__NR_mq_timedsend, &[mq, message.as_ptr().addr(), 50, 3, 0, 0]), 0);
        mq
    }

    /// A context of asynchronous transfers, one of which is done.
    fn context_with_one(&self) -> usize {
        let (mut context, buffer) = (0_usize, [0_u8; 30]);
        assert_eq!(call(sys::__NR_io_setup, &[4, (&raw mut context).addr(), 0, 0, 0, 0]), 0);
        let transfer = [0, 0, 1 | self.file(b"") << 32, buffer.as_ptr().addr(), 30, 0, 0, 0];
        let list = [transfer.as_ptr().addr()];
        assert_eq!(call(sys::__NR_io_submit, &[context, 1, list.as_ptr().addr(), 0, 0, 0]), 1);
        context
    }

    /// Removed when the test's thread ends.
    fn semaphores(&self, count: usize) -> usize {
        let set = call(sys::__NR_semget, &[0, count, 0o600, 0, 0, 0]);
        assert!(set >= 0);
        SETS.with_borrow_mut(|sets| sets.semaphores.push(set as i32));
        set as usize
    }
}

#[derive(Default)]
struct Sets {
    semaphores: Vec<i32>,
    queues: Vec<i32>,
}

impl Drop for Sets {
    fn drop(&mut self) {
        for set in &self.semaphores {
            // SAFETY: removes a set of this test.
            unsafe { libc::semctl(*set, 0, libc::IPC_RMID) };
        }
        for queue in &self.queues {
            // SAFETY: removes a queue of this test.
            unsafe { libc::msgctl(*queue, libc::IPC_RMID, std::ptr::null_mut()) };
        }
    }
}

thread_local! {
    static SETS: RefCell<Sets> = RefCell::default();
}

fn reach(fd: usize, address: &[u8; 16]) {
    assert_eq!(call(sys::__NR_connect, &[fd, address.as_ptr().addr(), 16, 0, 0, 0]), 0);
}

fn write_to(fd: usize, bytes: &[u8]) {
    // SAFETY: memory of the caller.
    assert_eq!(unsafe { libc::write(fd as i32, bytes.as_ptr().cast(), bytes.len()) }, bytes.len() as isize);
}

/// The kernel wants futex words aligned: they can't cross pages.
fn aligned(s: &Scene<'_>, value: usize) -> usize {
    s.put_at(&value.to_ne_bytes(), 8)
}

fn set_of(s: &Scene<'_>, fd: usize) -> usize {
    let mut words = vec![0; fd / 64 + 1];
    words[fd / 64] = 1 << (fd % 64);
    s.words(&words)
}

/// A child that has ended.
fn child() -> usize {
    // SAFETY: the child makes one system call.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(3);
        }
        child as usize
    }
}

fn epoll_of_one(s: &Scene<'_>) -> usize {
    let [from, to] = s.pipe();
    write_to(to, b"x");
    // SAFETY: system calls with memory of this function.
    unsafe {
        let epoll = libc::epoll_create1(0);
        let mut event = libc::epoll_event { events: 1, u64: 77 };
        libc::epoll_ctl(epoll, 1, from as i32, &raw mut event);
        s.keep(epoll)
    }
}

fn send_descriptor(to: usize, fd: usize) {
    let mut control = [20_usize, 1 << 32 | 1, fd];
    let mut byte = *b"x";
    let mut vector = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: a zeroed structure is a valid one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut vector, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), 24);
    // SAFETY: memory of this function.
    assert_eq!(unsafe { libc::sendmsg(to as i32, &raw const message, 0) }, 1);
}

/// Without its pieces a call fails where the kernel needs them: else these tests would show
/// nothing.
#[test]
fn a_call_on_missing_memory_fails() {
    let Some(place) = Place::new() else { return };
    place.fill(&[1; SIZE]);
    assert_eq!(place.call_with_nothing(sys::__NR_uname, &[place.base, 0, 0, 0, 0, 0]), -14);
    let file = std::fs::File::open("/proc/self/status").unwrap();
    assert_eq!(place.call_with_nothing(sys::__NR_read, &[file.as_raw_fd() as usize, place.base, 10, 0, 0, 0]), -14);
}
