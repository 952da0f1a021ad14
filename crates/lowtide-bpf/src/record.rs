//! A program's report of a fault: in a ring of the process, or in a thread's slot.

/// A page, and how a thread accesses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The page's address.
    pub page: usize,
    /// Whether the access is a write.
    pub write: bool,
}

impl Fault {
    /// The write bit of a word, which page addresses leave free.
    pub(crate) const WRITE: u64 = 1;

    /// From the programs' word: in a record, a slot or a signal's value.
    pub fn of_word(word: u64) -> Fault {
        Fault { page: (word & !Self::WRITE) as usize, write: word & Self::WRITE != 0 }
    }
}

/// Why a fault went to a ring. The number is the index of its count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Why {
    /// The page is present, with write or other protection by a userfaultfd.
    Protected,
    /// The kernel faulted, in a system call or for another process.
    KernelMode,
    /// Another process's thread faulted in this address space: a child of vfork.
    OtherProcess,
    /// A tracer would see the signal.
    Traced,
    /// The thread blocks the signal.
    Blocked,
    /// The signal has another handler than registered.
    OtherHandler,
    /// The signal's frame has no room in memory.
    NoStack,
    /// The program may have made the stack, without room to spare.
    UnknownStack,
    /// Seccomp may forbid the handler's calls: new filters, or strict mode.
    Filtered,
    /// System call user dispatch would turn the handler's calls into signals.
    Dispatched,
    /// The thread has used io_uring, whose work may run under the handler.
    IoUring,
    /// The handler declined it: [`crate::slot::Slots::decline`].
    Declined,
    /// The kernel did not send the signal.
    NotSent,
    /// A userfaultfd event waits (fork, unmap, remap, remove): no fault.
    Event,
    /// In counts only: the ring was full.
    Lost,
    /// In counts only: the same as the thread's last record, still unread.
    Again,
}

impl Why {
    /// All, in order of their numbers.
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

/// A ring's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The fault to serve; meaningless with [`Why::Event`].
    pub fault: Fault,
    /// The waiting thread's id in the first PID namespace.
    pub thread: u32,
    /// Why its handler does not serve it.
    pub why: Why,
    /// With [`Why::NoStack`]: a missing address of its stack; 0: its alternate stack is too small.
    pub stack: usize,
}

/// A [`Record`] as written.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawRecord {
    pub word: u64,
    pub thread: u32,
    pub why: u32,
    pub stack: u64,
}

impl RawRecord {
    /// `None`: from another version's program.
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
