//! What an unknown call could name: its arguments, the words behind them, and the words behind
//! these.

use crate::{Arguments, Memory, Piece};

/// Below lie small numbers.
const LOWEST: usize = 64 << 10;
/// The end of the addresses of a program with four levels of page tables.
const END: usize = 1 << 47;
/// Bytes from a possible pointer on: few drivers transfer more at once.
const BEHIND: usize = 1 << 20;
/// Words that are taken for pointers, from each argument on, and from each of these on.
const WORDS: usize = 64;
const DEPTH: usize = 2;

fn is_pointer(word: usize) -> bool {
    (LOWEST..END).contains(&word)
}

pub fn each_piece(arguments: &Arguments, memory: &dyn Memory, found: &mut dyn FnMut(Piece)) {
    for &argument in arguments.iter().filter(|argument| is_pointer(**argument)) {
        behind(argument, DEPTH, memory, found);
    }
}

fn behind(start: usize, depth: usize, memory: &dyn Memory, found: &mut dyn FnMut(Piece)) {
    found(Piece { start, len: BEHIND, lasts: false });
    if depth == 0 {
        return;
    }
    for i in 0..WORDS {
        let mut bytes = [0; 8];
        if !memory.read(start + i * 8, &mut bytes) {
            return;
        }
        let word = usize::from_ne_bytes(bytes);
        if is_pointer(word) {
            behind(word, depth - 1, memory, found);
        }
    }
}
