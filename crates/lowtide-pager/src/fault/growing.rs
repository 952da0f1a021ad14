//! Locked memory that grows while it moves (mlock, mremap). The kernel brings in the growth before
//! it reports the move, and installs no page until the report is read: the thread would wait for
//! ever. So the growth is unregistered, for the kernel to fill, and registered again by the next
//! look at the mappings.

use lowtide_core::kernel_text;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::{Line, Range};

use crate::pagemap::PageState;
use crate::pagemap::ids::PageNo;
use crate::pager::Pager;
use crate::pages::worker::Fault;

const MREMAP: u64 = linux_raw_sys::general::__NR_mremap as u64;

impl Pager {
    /// Frees a thread whose fault waits long for a change of mappings, perhaps its own. The caller
    /// holds no lock.
    pub(super) fn let_grow(&self, fault: Fault) {
        let Some(range) = grown(fault.thread, fault.addr) else { return };
        let lock = self.pages.space.exclusive();
        // While the program forks the tables don't change.
        if self.forks.held_back.is_on(&lock) {
            return;
        }
        let mut is_new = self.present().scan_all(range.start, range.end).is_ok_and(|found| found.iter().next().is_none());
        self.pages.map.each(PageNo::of(range.start), PageNo::of(range.end), |_, slot| is_new &= slot.peek() == PageState::None);
        // SAFETY: nothing is there yet, in memory or in lowtide's hands.
        if is_new && unsafe { self.uffd().unregister(range.start, range.end - range.start) }.is_ok() {
            self.mappings.regions.remove(&lock, range);
        }
    }
}

/// The growth, if the thread waits in such a call for its first page.
fn grown(thread: u32, addr: usize) -> Option<Range> {
    let mut path = Line::new();
    path.push(b"/proc/self/task/").number(thread.into()).push(b"/syscall");
    let mut text = [0; 256];
    let (number, [_, old, new]) = call(kernel_text::read(path.bytes(), &mut text)?)?;
    let more = new.next_multiple_of(PAGE_SIZE).checked_sub(old.next_multiple_of(PAGE_SIZE))?;
    let start = addr & !(PAGE_SIZE - 1);
    (number == MREMAP && more > 0).then_some(Range { start, end: start + more })
}

/// None: the thread is in no call, or runs.
fn call(text: &[u8]) -> Option<(u64, [usize; 3])> {
    let mut words = text.split(|c| *c == b' ');
    let number = words.next().filter(|word| word.first().is_some_and(u8::is_ascii_digit)).map(kernel_text::number)?;
    let mut argument = || usize::from_str_radix(core::str::from_utf8(words.next()?).ok()?.strip_prefix("0x")?, 16).ok();
    Some((number, [argument()?, argument()?, argument()?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read() {
        let text = b"25 0x7f7503a93000 0x8000 0x40000 0x1 0x0 0x7f7503a00000 0x7ffc5e0082d0 0x4512a7\n";
        assert_eq!(call(text), Some((25, [0x7f75_03a9_3000, 0x8000, 0x4_0000])));
        for text in ["running\n", "-1 0x7ffc5e0082d0 0x4512a7\n", "", "25 0x1"] {
            assert_eq!(call(text.as_bytes()), None, "{text}");
        }
        assert_eq!(grown(rustix::thread::gettid().as_raw_nonzero().get() as u32, 4096), None, "it is in no such call");
    }
}
