//! Pieces of single calls, over memory that is a list of bytes at one address.

extern crate std;

use std::vec;
use std::vec::Vec;

use linux_raw_sys::general as sys;

use crate::{Arguments, Known, Memory, Piece, each_piece, each_robust_piece};

const BASE: usize = 0x10_0000;

struct Bytes(Vec<u8>);

impl Memory for Bytes {
    fn read(&self, at: usize, into: &mut [u8]) -> bool {
        let from = at.checked_sub(BASE).and_then(|start| self.0.get(start..start.checked_add(into.len())?));
        from.map(|from| into.copy_from_slice(from)).is_some()
    }
}

impl Bytes {
    fn of_words(words: &[usize]) -> Bytes {
        Bytes(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
    }
}

fn pieces(number: u32, arguments: &[usize], memory: &Bytes) -> (Known, Vec<(usize, usize)>) {
    let mut all: Arguments = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    let mut found = vec![];
    let known = each_piece(number as usize, &all, memory, &mut |Piece { start, len, .. }| found.push((start, len)));
    (known, found)
}

fn listed(number: u32, arguments: &[usize], memory: &Bytes) -> Vec<(usize, usize)> {
    let (known, found) = pieces(number, arguments, memory);
    assert_eq!(known, Known::Listed);
    found
}

#[test]
fn buffers_are_as_long_as_their_count() {
    let nothing = Bytes(vec![]);
    assert_eq!(listed(sys::__NR_read, &[3, 0x5000, 100], &nothing), [(0x5000, 100)]);
    assert_eq!(listed(sys::__NR_read, &[3, 0x5000, 0], &nothing), []);
    assert_eq!(listed(sys::__NR_read, &[3, 0, 100], &nothing), []);
    assert_eq!(listed(sys::__NR_read, &[3, 0x5000, usize::MAX], &nothing), [(0x5000, 0x7fff_f000)]);
    assert_eq!(listed(sys::__NR_read, &[3, usize::MAX - 7, 100], &nothing), [(usize::MAX - 7, 7)]);
    assert_eq!(listed(sys::__NR_getpid, &[0x5000; 6], &nothing), []);
}

#[test]
fn lengths_of_32_bits_have_no_upper_half() {
    let nothing = Bytes(vec![]);
    assert_eq!(listed(sys::__NR_poll, &[0x5000, 7 << 32 | 2], &nothing), [(0x5000, 16)]);
    assert_eq!(listed(sys::__NR_connect, &[3, 0x5000, -1_isize as usize], &nothing), [(0x5000, 0x7fff_f000)]);
}

#[test]
fn a_path_ends_at_the_page_with_its_nul() {
    let mut bytes = vec![b'x'; 3 * 4096];
    bytes[4096 + 5] = 0;
    let from = BASE + 4000;
    assert_eq!(listed(sys::__NR_unlink, &[from], &Bytes(bytes.clone())), [(from, 96), (BASE + 4096, 4000)]);
    bytes[4095] = 0;
    assert_eq!(listed(sys::__NR_unlink, &[from], &Bytes(bytes)), [(from, 96)]);
}

#[test]
fn a_path_without_an_end_is_read_no_farther_than_the_kernel_reads_it() {
    let endless = Bytes(vec![b'x'; 4 * 4096]);
    let found = listed(sys::__NR_unlink, &[BASE + 100], &endless);
    assert_eq!(found.iter().map(|piece| piece.1).sum::<usize>(), 4096);
    assert_eq!(listed(sys::__NR_unlink, &[1], &endless), [(1, 4095)]);
}

#[test]
fn a_vector_names_itself_and_its_buffers() {
    let memory = Bytes::of_words(&[0x7000, 5, 0, 9, 0x8000, 0, 0x9000, 3]);
    assert_eq!(listed(sys::__NR_writev, &[1, BASE, 4], &memory), [(BASE, 64), (0x7000, 5), (0x9000, 3)]);
    assert_eq!(listed(sys::__NR_writev, &[1, BASE, 1025], &memory), []);
    // Behind the memory's end.
    assert_eq!(listed(sys::__NR_writev, &[1, BASE + 48, 2], &memory), [(BASE + 48, 32), (0x9000, 3)]);
}

#[test]
fn a_message_names_address_buffers_and_control() {
    let memory = Bytes::of_words(&[0x5000, 16, BASE + 56, 1, 0x6000, 24, 0, 0x7000, 8]);
    let found = [(BASE, 56), (0x5000, 16), (BASE + 56, 16), (0x7000, 8), (0x6000, 24)];
    assert_eq!(listed(sys::__NR_recvmsg, &[3, BASE], &memory), found);
}

#[test]
fn strings_end_with_a_null_pointer() {
    let mut words = vec![BASE + 32, BASE + 36, 0, 0xdead_0000];
    words.push(usize::from_ne_bytes(*b"abc\0def\0"));
    let found = listed(sys::__NR_execve, &[BASE + 32, BASE, 0], &Bytes::of_words(&words));
    assert!(found.contains(&(BASE + 16, 8)) && !found.iter().any(|piece| piece.0 == 0xdead_0000));
    assert!(found.contains(&(BASE + 36, 4096 - 36)));
}

#[test]
fn what_a_futex_reads_depends_on_its_operation() {
    let nothing = Bytes(vec![]);
    let with = |operation: usize| listed(sys::__NR_futex, &[0x5000, operation, 1, 0x6000, 0x7000, 0], &nothing);
    assert_eq!(with(128), [(0x5000, 4), (0x6000, 16)]);
    assert_eq!(with(1), [(0x5000, 4)]);
    assert_eq!(with(4), [(0x5000, 4), (0x7000, 4)]);
}

#[test]
fn a_length_that_the_caller_passes_by_pointer_is_read() {
    let memory = Bytes(7_u32.to_ne_bytes().to_vec());
    assert_eq!(listed(sys::__NR_getsockname, &[3, 0x5000, BASE], &memory), [(BASE, 4), (0x5000, 7)]);
    assert_eq!(listed(sys::__NR_getsockname, &[3, 0x5000, 0], &memory), []);
}

#[test]
fn what_the_kernel_uses_later_lasts() {
    let lasting = |number: u32, arguments: &[usize], memory: &Bytes| {
        let mut all: Arguments = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        let mut found = vec![];
        each_piece(number as usize, &all, memory, &mut |piece| found.extend(piece.lasts.then_some(piece.start)));
        found
    };
    let nothing = Bytes(vec![]);
    assert_eq!(lasting(sys::__NR_set_tid_address, &[0x5000], &nothing), [0x5000]);
    assert_eq!(lasting(sys::__NR_clone, &[0x120_0011, 0, 0x5000, 0x6000], &nothing), [0x6000]);
    assert_eq!(lasting(sys::__NR_clone, &[0x11, 0, 0x5000, 0x6000], &nothing), []);
    let stack = Bytes::of_words(&[0x7000, 0, 0x2000]);
    assert_eq!(lasting(sys::__NR_sigaltstack, &[BASE, 0x9000], &stack), [0x7000]);
    let transfer = Bytes::of_words(&[BASE + 8, 0, 0, 1, 0x7000, 30, 0, 0, 0]);
    assert_eq!(lasting(sys::__NR_io_submit, &[1, 1, BASE], &transfer), [BASE, BASE + 8, 0x7000]);
    assert_eq!(lasting(sys::__NR_read, &[3, 0x5000, 10], &nothing), []);
}

#[test]
fn an_unknown_call_is_guessed_with_what_its_words_name() {
    let memory = Bytes::of_words(&[5, 0x7f00_0000_1000, 0x20_0000]);
    let (known, found) = pieces(510, &[BASE, 3], &memory);
    assert_eq!(known, Known::Guessed);
    assert_eq!(found, [(BASE, 1 << 20), (0x7f00_0000_1000, 1 << 20), (0x20_0000, 1 << 20)]);
    // An option that the table does not know.
    assert_eq!(pieces(sys::__NR_prctl, &[9999, BASE], &memory).0, Known::Guessed);
    assert_eq!(pieces(sys::__NR_ioctl, &[3, 0x1234, BASE], &memory).0, Known::Guessed);
}

#[test]
fn an_ioctl_is_as_long_as_its_number_says() {
    let nothing = Bytes(vec![]);
    // TIOCGWINSZ, TIOCGPTN, FICLONE.
    assert_eq!(listed(sys::__NR_ioctl, &[0, 0x5413, 0x5000], &nothing), [(0x5000, 8)]);
    assert_eq!(listed(sys::__NR_ioctl, &[0, 0x8004_5430, 0x5000], &nothing), [(0x5000, 4)]);
    assert_eq!(listed(sys::__NR_ioctl, &[0, 0x4004_9409, 5], &nothing), []);
}

#[test]
fn each_robust_mutex_is_named_once() {
    // The head, then two members; their words lie 16 bytes before them.
    let (head, first, second) = (BASE, BASE + 40, BASE + 72);
    let memory = Bytes::of_words(&[first | 1, -16_isize as usize, 0x7000, 0, 0, second, 0, 0, 0, head]);
    let mut found = vec![];
    each_robust_piece(head, &memory, &mut |piece| found.push((piece.start, piece.len)));
    assert_eq!(found, [(head, 24), (first, 8), (first - 16, 4), (second, 8), (second - 16, 4), (0x7000 - 16, 4)]);
    // A circle that does not come back to its head.
    let circle = Bytes::of_words(&[first, 0, 0, 0, 0, first]);
    let mut count = 0;
    each_robust_piece(head, &circle, &mut |_| count += 1);
    assert_eq!(count, 1 + 2 * 2048);
}

#[test]
fn an_int_has_no_upper_half() {
    let nothing = Bytes(vec![]);
    assert_eq!(listed(sys::__NR_fcntl, &[3, 7 << 32 | 5, 0x5000], &nothing), [(0x5000, 32)]);
    let memory = Bytes::of_words(&[0x7000, 5]);
    assert_eq!(listed(sys::__NR_writev, &[1, BASE, 1 << 32 | 1], &memory), [(BASE, 16), (0x7000, 5)]);
}

/// Whatever a program passes, finding pieces ends, and soon.
#[test]
fn wild_arguments_do_no_harm() {
    let memory = Bytes::of_words(&[usize::MAX; 64]);
    let wild = [0, 1, BASE, BASE + 500, usize::MAX, usize::MAX - 8, 1 << 47, 1 << 63];
    for number in 0..600 {
        for (i, value) in wild.iter().enumerate() {
            let arguments: Arguments = core::array::from_fn(|n| wild[(i + n * n) % wild.len()].wrapping_add(n & *value));
            let mut count = 0_usize;
            each_piece(number, &arguments, &memory, &mut |piece| {
                count += 1;
                assert!(piece.start.checked_add(piece.len).is_some());
            });
            assert!(count < 1 << 21, "call {number}: {count} pieces");
        }
    }
}
