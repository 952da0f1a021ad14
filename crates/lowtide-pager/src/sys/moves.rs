//! What `lowtide run` and a process without hooks say to each other about moves of memory (`mremap`), guards and lazy frees
//! (`madvise`) and the word that the kernel clears when threads end (`set_tid_address`): a filter tells `lowtide run` of a call
//! ([`super::call_filter`]), a thread of lowtide's in that process makes it, and says what it has come to. Each is one message of
//! a connection that the process has made ([`super::broker::MOVES`]).

use rustix::fd::BorrowedFd;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags};

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// By which `lowtide run` knows it.
    pub id: u64,
    /// The system call's: mremap's, madvise's, or set_tid_address's, which has been made.
    pub number: u32,
    /// And what it is given.
    pub arguments: [u64; 5],
}

/// A call that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// The call's.
    pub id: u64,
    /// As the kernel has said it: an address, or minus the number of an error. None: the thread that asks is to make it itself.
    pub result: Option<i64>,
    /// How many threads lowtide has in the process.
    pub own_threads: u64,
}

impl Call {
    const WORDS: usize = 7;

    /// Sends it; never waits.
    ///
    /// # Errors
    /// Those of sending. `AGAIN`: there is no room for it.
    pub fn send(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let [a, b, c, d, e] = self.arguments;
        send(socket, &[self.id, self.number.into(), a, b, c, d, e], SendFlags::DONTWAIT)
    }

    /// Waits for the next.
    ///
    /// # Errors
    /// Those of receiving; `PIPE`: the other side has gone; `BADMSG`: it is no call.
    pub fn receive(socket: BorrowedFd<'_>) -> Result<Call, Errno> {
        let [id, number, arguments @ ..] = receive::<{ Call::WORDS }>(socket, RecvFlags::empty())?;
        Ok(Call { id, number: number as u32, arguments })
    }
}

impl Made {
    const WORDS: usize = 4;

    /// Sends it; waits for room.
    ///
    /// # Errors
    /// Those of sending.
    pub fn send(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let result = self.result.unwrap_or_default() as u64;
        send(socket, &[self.id, self.result.is_some().into(), result, self.own_threads], SendFlags::empty())
    }

    /// Takes the next, if there is one.
    ///
    /// # Errors
    /// As [`Call::receive`]. `AGAIN`: there is none.
    pub fn take(socket: BorrowedFd<'_>) -> Result<Made, Errno> {
        let [id, was_made, result, own_threads] = receive::<{ Made::WORDS }>(socket, RecvFlags::DONTWAIT)?;
        Ok(Made { id, result: (was_made != 0).then_some(result as i64), own_threads })
    }
}

fn send(socket: BorrowedFd<'_>, words: &[u64], flags: SendFlags) -> Result<(), Errno> {
    // SAFETY: the same memory, as bytes.
    let bytes = unsafe { core::slice::from_raw_parts(words.as_ptr().cast::<u8>(), size_of_val(words)) };
    retry_on_intr(|| rustix::net::send(socket, bytes, flags | SendFlags::NOSIGNAL)).map(drop)
}

fn receive<const WORDS: usize>(socket: BorrowedFd<'_>, flags: RecvFlags) -> Result<[u64; WORDS], Errno> {
    let mut words = [0; WORDS];
    // SAFETY: the same memory, as bytes, of which all are valid.
    let bytes = unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), size_of::<[u64; WORDS]>()) };
    let len = size_of_val(bytes);
    // With TRUNC the kernel says how long it was.
    let (_, sent) = retry_on_intr(|| rustix::net::recv(socket, &mut *bytes, flags | RecvFlags::TRUNC))?;
    match sent {
        0 => Err(Errno::PIPE),
        sent if sent == len => Ok(words),
        _ => Err(Errno::BADMSG),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn calls_and_results_arrive() {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let call = Call { id: 7, number: 25, arguments: [1 << 40, u64::MAX, 3, 4, 5] };
        call.send(a.as_fd()).unwrap();
        assert_eq!(Call::receive(b.as_fd()), Ok(call));
        assert_eq!(Made::take(a.as_fd()), Err(Errno::AGAIN));
        for result in [Some(-12), Some(0), None] {
            let made = Made { id: 7, result, own_threads: 4 };
            made.send(b.as_fd()).unwrap();
            assert_eq!(Made::take(a.as_fd()), Ok(made));
        }
        // What nobody says.
        for len in [1, 31, 33, 200] {
            rustix::io::write(&b, &[0; 200][..len]).unwrap();
            assert_eq!(Made::take(a.as_fd()), Err(Errno::BADMSG), "{len}");
        }
        drop(b);
        assert_eq!(Made::take(a.as_fd()), Err(Errno::PIPE));
        assert_eq!(call.send(a.as_fd()), Err(Errno::PIPE));
    }
}
