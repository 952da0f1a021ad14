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
/// Requests with their length in their number, and no pointers: TCGETS2 to TCSETSF2, TIOCGPTN,
/// TIOCSPTLCK, TIOCSIG, TIOCGPKT, TIOCGPTLCK, TIOCGEXCL; FS_IOC_GETFLAGS, _SETFLAGS, _GETVERSION,
/// _SETVERSION, _FSGETXATTR, _FSSETXATTR, FICLONERANGE; FIFREEZE, FITHAW, FITRIM.
const PLAIN: &[usize] = &[
    0x802c_542a,
    0x402c_542b,
    0x402c_542c,
    0x402c_542d,
    0x8004_5430,
    0x4004_5431,
    0x4004_5436,
    0x8004_5438,
    0x8004_5439,
    0x8004_5440,
    0x8008_6601,
    0x4008_6602,
    0x8008_7601,
    0x4008_7602,
    0x801c_581f,
    0x401c_5820,
    0x4020_940d,
    0xc004_5877,
    0xc004_5878,
    0xc018_5879,
];

const IFCONF: usize = 0x8912;
const FIEMAP: usize = 0xc020_660b;
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
    p.bytes(at, request >> 16 & 0x3fff);
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
        DEDUPE => {
            if let Some([.., count]) = p.words::<3>(at) {
                p.bytes(at.saturating_add(24), (count & 0xffff) * 32);
            }
        }
        _ if PLAIN.contains(&request) => {}
        _ if is_interface(request) => p.bytes(at, 40),
        _ => p.guess(),
    }
}

/// SIOCGIFNAME, SIOCGIFFLAGS to SIOCSIFMTU, SIOCGIFHWADDR, SIOCGIFINDEX, SIOCGIFTXQLEN: `struct
/// ifreq` by value.
fn is_interface(request: usize) -> bool {
    matches!(request, 0x8910 | 0x8913..=0x8922 | 0x8927 | 0x8933 | 0x8942 | 0x8943)
}
