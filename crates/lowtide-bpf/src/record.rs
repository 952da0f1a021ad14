//! What a program says of a fault: in a ring of the process, or in a thread's slot.

/// A page, and what a thread wants of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Address of the page.
    pub page: usize,
    /// Whether it is to be written.
    pub write: bool,
}

impl Fault {
    /// The bit of a word that says that the page is to be written; the address of a page leaves it free.
    pub(crate) const WRITE: u64 = 1;

    /// By the word in which the programs tell it: in a record, in a slot, and in a signal's value.
    pub fn of_word(word: u64) -> Fault {
        Fault { page: (word & !Self::WRITE) as usize, write: word & Self::WRITE != 0 }
    }
}

/// Where a fault went, and why. The number is the place of its count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Why {
    /// The page is there and write-protected, or protected otherwise by a userfaultfd.
    Protected,
    /// The kernel faulted, in a system call or for another process.
    KernelMode,
    /// A thread of another process faulted in this address space: a child of vfork.
    OtherProcess,
    /// A tracer would see the signal.
    Traced,
    /// The thread blocks the signal.
    Blocked,
    /// The signal has another handler than the process was registered with.
    OtherHandler,
    /// No room for the signal's frame is in memory.
    NoStack,
    /// The thread's stack may be one that the program made, with no more room than the program itself takes.
    UnknownStack,
    /// Seccomp could forbid what the handler does: filters came, or the strict mode.
    Filtered,
    /// The thread's system calls become signals, also those of the handler (system call user dispatch).
    Dispatched,
    /// The thread has used io_uring, whose work the kernel does at any moment, also under the handler.
    IoUring,
    /// The handler can't serve it, and said so: [`crate::slot::Slots::decline`].
    Declined,
    /// The kernel did not send the signal.
    NotSent,
    /// An event of userfaultfd waits (fork, unmap, remap, remove): the record has no fault.
    Event,
    /// In counts only: the ring was full.
    Lost,
    /// In counts only: the thread's last record, which nobody has read yet, says the same.
    Again,
}

impl Why {
    /// All, by their numbers.
    pub const ALL: [Why; 16] = [
        Why::Protected,
        Why::KernelMode,
        Why::OtherProcess,
        Why::Traced,
        Why::Blocked,
        Why::OtherHandler,
        Why::NoStack,
        Why::UnknownStack,
        Why::Filtered,
        Why::Dispatched,
        Why::IoUring,
        Why::Declined,
        Why::NotSent,
        Why::Event,
        Why::Lost,
        Why::Again,
    ];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Why::Protected => "protected",
            Why::KernelMode => "kernel mode",
            Why::OtherProcess => "another process",
            Why::Traced => "traced",
            Why::Blocked => "signal blocked",
            Why::OtherHandler => "another handler",
            Why::NoStack => "no stack",
            Why::UnknownStack => "unknown stack",
            Why::Filtered => "seccomp",
            Why::Dispatched => "user dispatch",
            Why::IoUring => "io_uring",
            Why::Declined => "declined",
            Why::NotSent => "not sent",
            Why::Event => "event",
            Why::Lost => "ring full",
            Why::Again => "asked already",
        }
    }
}

/// What a ring says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The fault that is to be served; of no meaning with [`Why::Event`].
    pub fault: Fault,
    /// The thread that waits, by its number in the first PID namespace.
    pub thread: u32,
    /// Why its own handler does not serve it.
    pub why: Why,
    /// With [`Why::NoStack`]: an address of its stack that is missing; 0: its alternate stack is too small.
    pub stack: usize,
}

/// How the programs write a [`Record`].
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawRecord {
    pub word: u64,
    pub thread: u32,
    pub why: u32,
    pub stack: u64,
}

impl RawRecord {
    /// `None`: no program of this version wrote it.
    pub fn read(self) -> Option<Record> {
        let why = *Why::ALL.get(self.why as usize)?;
        let stack = if why == Why::NoStack { self.stack as usize } else { 0 };
        Some(Record { fault: Fault::of_word(self.word), thread: self.thread, why, stack })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_the_place_in_the_list() {
        for (number, why) in Why::ALL.into_iter().enumerate() {
            assert_eq!(why as usize, number, "{why:?}");
        }
    }

    #[test]
    fn a_write_is_no_part_of_the_address() {
        assert_eq!(Fault::of_word(0x7000_0001), Fault { page: 0x7000_0000, write: true });
        assert_eq!(Fault::of_word(0x7000_0000), Fault { page: 0x7000_0000, write: false });
    }
}
