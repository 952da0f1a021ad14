//! The parts of a call's memory, as the table names them, and the pieces that they are.

use crate::{Arguments, Known, Memory, PAGE, Piece, scan};

/// The most bytes that one call transfers (the kernel's MAX_RW_COUNT).
pub const MOST_BYTES: usize = 0x7fff_f000;
/// PATH_MAX, with the NUL.
const MOST_OF_PATH: usize = 4096;
/// MAX_ARG_STRLEN.
const MOST_OF_STRING: usize = 32 * PAGE;
/// More strings can't be passed: each takes a pointer, and all at most 6 MiB.
const MOST_STRINGS: usize = 6 << 20 >> 3;
/// UIO_MAXIOV.
pub const MOST_IN_VECTOR: usize = 1024;

/// An argument's number, from 0.
pub type Argument = usize;

/// Memory that a call may read or write. Null pointers have none.
#[derive(Clone, Copy)]
pub enum Part {
    /// So many bytes.
    Bytes(Argument, usize),
    /// As many bytes as the second argument says.
    Counted(Argument, Argument),
    /// As many members of so many bytes as the second argument says, in 32 bits.
    Members(Argument, Argument, usize),
    /// A string with a NUL.
    Path(Argument),
    /// An array of pointers to strings, with a null at its end.
    Strings(Argument),
    /// An array of `struct iovec`, and what it names.
    Vector(Argument, Argument),
    /// A structure that says its length in its first word of 32 bits.
    Sized(Argument),
    /// As many bytes as the `int` says to which the second argument points.
    Result(Argument, Argument),
    /// All else.
    Nested(fn(&mut Pieces<'_>)),
    /// Memory that the kernel uses after the call, too.
    Lasting(&'static Part),
}

/// The pieces of one call.
pub struct Pieces<'a> {
    pub arguments: &'a Arguments,
    pub memory: &'a dyn Memory,
    pub found: &'a mut dyn FnMut(Piece),
    /// Whether pieces found now last.
    pub lasts: bool,
    pub known: Known,
}

impl Pieces<'_> {
    pub fn part(&mut self, part: &Part) {
        let a = self.arguments;
        match *part {
            Part::Bytes(at, len) => self.bytes(a[at], len),
            Part::Counted(at, count) => self.bytes(a[at], a[count]),
            Part::Members(at, count, size) => self.members(a[at], a[count], size),
            Part::Path(at) => self.path(a[at]),
            Part::Strings(at) => self.strings(a[at]),
            Part::Vector(at, count) => self.vector(a[at], a[count]),
            Part::Sized(at) => self.sized(a[at]),
            Part::Result(at, len) => self.result(a[at], a[len]),
            Part::Nested(of) => of(self),
            Part::Lasting(part) => {
                self.lasts = true;
                self.part(part);
                self.lasts = false;
            }
        }
    }

    pub fn bytes(&mut self, start: usize, len: usize) {
        let len = len.min(MOST_BYTES);
        if start != 0 && len > 0 {
            (self.found)(Piece { start, len: len.min(usize::MAX - start), lasts: self.lasts });
        }
    }

    pub fn lasting(&mut self, start: usize, len: usize) {
        let outer = core::mem::replace(&mut self.lasts, true);
        self.bytes(start, len);
        self.lasts = outer;
    }

    /// `count`: the kernel ignores its upper half. Some calls take huge ones for as many as there
    /// can be.
    pub fn members(&mut self, start: usize, count: usize, size: usize) {
        self.bytes(start, count as u32 as usize * size);
    }

    pub fn path(&mut self, start: usize) {
        self.string(start, MOST_OF_PATH);
    }

    /// Page by page up to the one with the NUL: the next need not be mapped.
    fn string(&mut self, start: usize, most: usize) {
        let end = start.saturating_add(most);
        let mut at = start;
        while at != 0 && at < end {
            let next = (at | (PAGE - 1)).saturating_add(1);
            self.bytes(at, next.min(end) - at);
            if self.has_nul(at, next.min(end)) {
                return;
            }
            at = next;
        }
    }

    /// True also where nothing can be read: the kernel gets no farther.
    fn has_nul(&self, mut at: usize, end: usize) -> bool {
        let mut bytes = [0; 64];
        while at < end {
            let some = &mut bytes[..(end - at).min(64)];
            if !self.memory.read(at, some) || some.contains(&0) {
                return true;
            }
            at += some.len();
        }
        false
    }

    pub fn strings(&mut self, start: usize) {
        for i in 0..MOST_STRINGS {
            let at = start.saturating_add(i * 8);
            self.bytes(at, 8);
            match self.word(at) {
                Some(string @ 1..) => self.string(string, MOST_OF_STRING),
                _ => return,
            }
        }
    }

    pub fn vector(&mut self, start: usize, count: usize) {
        let count = count as u32 as usize;
        // The kernel refuses longer ones before it reads any.
        if count > MOST_IN_VECTOR {
            return;
        }
        self.bytes(start, count * 16);
        for i in 0..count {
            let Some([base, len]) = self.words(start.saturating_add(i * 16)) else { return };
            self.bytes(base, len);
        }
    }

    pub fn sized(&mut self, start: usize) {
        self.bytes(start, 4);
        if let Some(len) = self.int(start) {
            self.bytes(start, (len as usize).min(PAGE));
        }
    }

    pub fn result(&mut self, start: usize, len: usize) {
        self.bytes(len, 4);
        if let Some(len) = self.int(len) {
            self.members(start, len as usize, 1);
        }
    }

    /// What the table does not know: all that looks like a pointer.
    pub fn guess(&mut self) {
        self.known = Known::Guessed;
        scan::each_piece(self.arguments, self.memory, self.found);
    }

    pub fn words<const N: usize>(&self, at: usize) -> Option<[usize; N]> {
        let mut words = [0; N];
        for (i, word) in words.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            if at == 0 || !self.memory.read(at.checked_add(i * 8)?, &mut bytes) {
                return None;
            }
            *word = usize::from_ne_bytes(bytes);
        }
        Some(words)
    }

    pub fn word(&self, at: usize) -> Option<usize> {
        self.words::<1>(at).map(|[word]| word)
    }

    pub fn int(&self, at: usize) -> Option<u32> {
        let mut bytes = [0; 4];
        (at != 0 && self.memory.read(at, &mut bytes)).then(|| u32::from_ne_bytes(bytes))
    }
}
