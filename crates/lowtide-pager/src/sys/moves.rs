//! Protocol between `lowtide run` and a process without hooks about moves (`mremap`), guards and
//! lazy frees (`madvise`) and `set_tid_address`: a filter reports a call ([`super::call_filter`]),
//! a lowtide thread in the process makes it and returns the result. Each is one message on a
//! connection of the process ([`super::broker::MOVES`]).

use rustix::fd::BorrowedFd;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags};

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// `lowtide run`'s id.
    pub id: u64,
    /// mremap, madvise or set_tid_address (made already).
    pub number: u32,
    /// Its arguments.
    pub arguments: [u64; 5],
}

/// Result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// The call's id.
    pub id: u64,
    /// An address or negative error; None: the thread must make it.
    pub result: Option<i64>,
    /// lowtide's threads in the process.
    pub own_threads: u64,
}

impl Call {
    const WORDS: usize = 7;

    /// Sends without waiting.
    ///
    /// # Errors
    /// Those of sending. `AGAIN`: no room.
    pub fn send(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let [a, b, c, d, e] = self.arguments;
        send(socket, &[self.id, self.number.into(), a, b, c, d, e], SendFlags::DONTWAIT)
    }

    /// Waits for the next call.
    ///
    /// # Errors
    /// Those of receiving; `PIPE`: closed; `BADMSG`: malformed.
    pub fn receive(socket: BorrowedFd<'_>) -> Result<Call, Errno> {
        let [id, number, arguments @ ..] = receive::<{ Call::WORDS }>(socket, RecvFlags::empty())?;
        Ok(Call { id, number: number as u32, arguments })
    }
}

impl Made {
    const WORDS: usize = 4;

    /// Sends, waiting for room.
    ///
    /// # Errors
    /// Those of sending.
    pub fn send(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let result = self.result.unwrap_or_default() as u64;
        send(socket, &[self.id, self.result.is_some().into(), result, self.own_threads], SendFlags::empty())
    }

    /// Takes the next result.
    ///
    /// # Errors
    /// As [`Call::receive`]. `AGAIN`: none.
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
    // SAFETY: the same memory, as bytes, all valid.
    let bytes = unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), size_of::<[u64; WORDS]>()) };
    let len = size_of_val(bytes);
    // TRUNC makes the kernel return the full length.
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
        for len in [1, 31, 33, 200] {
            rustix::io::write(&b, &[0; 200][..len]).unwrap();
            assert_eq!(Made::take(a.as_fd()), Err(Errno::BADMSG), "{len}");
        }
        drop(b);
        assert_eq!(Made::take(a.as_fd()), Err(Errno::PIPE));
        assert_eq!(call.send(a.as_fd()), Err(Errno::PIPE));
    }
}
