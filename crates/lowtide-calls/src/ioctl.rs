//! ioctl: requests whose structure is known, by their number; all others are scanned.

use crate::part::Pieces;

/// Lengths of requests from before numbers carried one.
const LENGTHS: &[(usize, usize)] = &[
    // TCGETS to TCSETSF: the kernel's `struct termios`.
    (0x5401, 36),
    (0x5402, 36),
    (0x5403, 36),
    (0x5404, 36),
    // TCGETA to TCSETAF: `struct termio`.
    (0x5405, 18),
    (0x5406, 18),
    (0x5407, 18),
    (0x5408, 18),
    // TIOCGPGRP, TIOCSPGRP, TIOCOUTQ, TIOCSTI (one byte).
    (0x540f, 4),
    (0x5410, 4),
    (0x5411, 4),
    (0x5412, 1),
    // TIOCGWINSZ, TIOCSWINSZ.
    (0x5413, 8),
    (0x5414, 8),
    // TIOCMGET to TIOCSSOFTCAR.
    (0x5415, 4),
    (0x5416, 4),
    (0x5417, 4),
    (0x5418, 4),
    (0x5419, 4),
    (0x541a, 4),
    // FIONREAD, TIOCPKT, FIONBIO, TIOCGETD, TIOCSETD, TIOCGSID.
    (0x541b, 4),
    (0x5420, 4),
    (0x5421, 4),
    (0x5423, 4),
    (0x5424, 4),
    (0x5429, 4),
    // FIOASYNC, FIOQSIZE.
    (0x5452, 4),
    (0x5460, 8),
    // SIOCATMARK, FIOSETOWN, FIOGETOWN, SIOCSPGRP, SIOCGPGRP: an int. SIOCGSTAMP: a time.
    (0x8901, 4),
    (0x8902, 4),
    (0x8903, 4),
    (0x8904, 4),
    (0x8905, 4),
    (0x8906, 16),
    (0x8907, 16),
];
/// TCSBRK, TCXONC, TCFLSH, TIOCEXCL, TIOCNXCL, TIOCSCTTY, TIOCNOTTY, TCSBRKP, TIOCSBRK, TIOCCBRK,
/// TIOCVHANGUP, FIONCLEX, FIOCLEX; TIOCGPTPEER, FICLONE and requests of namespaces: by value.
const BY_VALUE: &[usize] = &[
    0x5409,
    0x540a,
    0x540b,
    0x540c,
    0x540d,
    0x540e,
    0x5422,
    0x5425,
    0x5427,
    0x5428,
    0x5437,
    0x5450,
    0x5451,
    0x5441,
    0x4004_9409,
    0xb701,
    0xb702,
    0xb703,
];
/// Types whose structures have no pointers: terminals, files' flags, FITRIM and freezing.
const PLAIN: [usize; 3] = [0x54, 0x66, 0x58];
/// Interfaces of the network: `struct ifreq`, `struct rtentry`.
const NETWORK: usize = 0x89;

const IFCONF: usize = 0x8912;
const FIEMAP: usize = 0xc020_660b;
const CLONE_RANGE: usize = 0x4020_940d;
const DEDUPE: usize = 0xc018_9436;

pub fn ioctl(p: &mut Pieces<'_>) {
    let [_, request, at, ..] = *p.arguments;
    let request = request & 0xffff_ffff;
    if BY_VALUE.contains(&request) {
        return;
    }
    if let Some((_, len)) = LENGTHS.iter().find(|(known, _)| *known == request) {
        return p.bytes(at, *len);
    }
    let (kind, len) = (request >> 8 & 0xff, request >> 16 & 0x3fff);
    p.bytes(at, len);
    match request {
        IFCONF => {
            p.bytes(at, 16);
            if let Some([len, list]) = p.words(at) {
                p.members(list, len, 1);
            }
        }
        FIEMAP => {
            if let Some([.., count]) = p.words::<4>(at) {
                p.members(at.saturating_add(32), count, 56);
            }
        }
        CLONE_RANGE => {}
        DEDUPE => {
            if let Some([.., count]) = p.words::<3>(at) {
                p.bytes(at.saturating_add(24), (count & 0xffff) * 32);
            }
        }
        _ if PLAIN.contains(&kind) && len > 0 => {}
        // Some of them have pointers, which the scan finds.
        _ if kind == NETWORK && is_interface(request) => p.bytes(at, 40),
        _ => p.guess(),
    }
}

/// SIOCGIFNAME, SIOCGIFFLAGS to SIOCSIFMTU, SIOCGIFHWADDR, SIOCGIFINDEX, SIOCGIFTXQLEN: `struct
/// ifreq` by value.
fn is_interface(request: usize) -> bool {
    matches!(request, 0x8910 | 0x8913..=0x8922 | 0x8927 | 0x8933 | 0x8942 | 0x8943)
}
