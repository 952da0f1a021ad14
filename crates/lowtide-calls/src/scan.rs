//! What an unknown call could name: its arguments, and the words behind them.

use crate::{Arguments, Memory, PAGE, Piece};

/// Below lie small numbers.
const LOWEST: usize = 64 << 10;
/// The end of the addresses of a program with four levels of page tables.
const END: usize = 1 << 47;
/// Bytes from a possible pointer on: no fixed structure of the kernel is longer.
const BEHIND_ARGUMENT: usize = 16 * PAGE;
const BEHIND_WORD: usize = PAGE;
/// Words that are taken for pointers, from each argument on.
const WORDS: usize = 64;

fn is_pointer(word: usize) -> bool {
    (LOWEST..END).contains(&word)
}

pub fn each_piece(arguments: &Arguments, memory: &dyn Memory, found: &mut dyn FnMut(Piece)) {
    for &argument in arguments.iter().filter(|argument| is_pointer(**argument)) {
        found(Piece { start: argument, len: BEHIND_ARGUMENT, lasts: false });
        for i in 0..WORDS {
            let mut bytes = [0; 8];
            if !memory.read(argument + i * 8, &mut bytes) {
                break;
            }
            let word = usize::from_ne_bytes(bytes);
            if is_pointer(word) {
                found(Piece { start: word, len: BEHIND_WORD, lasts: false });
            }
        }
    }
}
