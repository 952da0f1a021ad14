//! What a thread may do, as the kernel tells it in `/proc/PID/status`.

use lowtide_core::kernel_text::number;

/// Of a thread: as much of it as can be given up. What the text does not have counts as none.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// Ids: real, effective, saved.
    pub user: [u32; 3],
    /// The same.
    pub group: [u32; 3],
    /// A hash of its other groups.
    pub groups: u64,
    /// Sets of capabilities, a bit for each.
    pub inheritable: u64,
    /// The same.
    pub permitted: u64,
    /// The same.
    pub effective: u64,
    /// The same: what programs that it executes may get.
    pub bounding: u64,
    /// Nothing that it executes gives it more.
    pub no_new_privileges: bool,
    /// How many seccomp filters it has.
    pub filters: u64,
}

impl Credentials {
    /// What the file says.
    pub fn parse(text: &[u8]) -> Credentials {
        let mut found = Credentials::default();
        for line in text.split(|byte| *byte == b'\n') {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let value = line[colon + 1..].trim_ascii_start();
            match &line[..colon] {
                b"Uid" => found.user = three(value),
                b"Gid" => found.group = three(value),
                b"Groups" => found.groups = hash(value),
                b"CapInh" => found.inheritable = set(value),
                b"CapPrm" => found.permitted = set(value),
                b"CapEff" => found.effective = set(value),
                b"CapBnd" => found.bounding = set(value),
                b"NoNewPrivs" => found.no_new_privileges = number(value) != 0,
                b"Seccomp_filters" => found.filters = number(value),
                _ => {}
            }
        }
        found
    }
}

fn three(text: &[u8]) -> [u32; 3] {
    let mut numbers = text.split(u8::is_ascii_whitespace).map(|word| number(word) as u32);
    core::array::from_fn(|_| numbers.next().unwrap_or_default())
}

fn set(text: &[u8]) -> u64 {
    core::str::from_utf8(text).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_default()
}

/// FNV-1a.
fn hash(text: &[u8]) -> u64 {
    text.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] =
        b"Name:\ta: Uid: 7\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nFDSize:\t64\nGroups:\t5 9 \nCapInh:\t0000000000000001\n\
        CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000003\nCapBnd:\t00000000000000ff\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n";

    #[test]
    fn what_the_kernel_says_of_a_thread_is_read() {
        let found = Credentials::parse(TEXT);
        assert_eq!((found.user, found.group), ([1, 2, 3], [5, 6, 7]));
        assert_eq!((found.inheritable, found.permitted, found.effective, found.bounding), (1, 0x1ff_ffff_ffff, 3, 0xff));
        assert_eq!((found.no_new_privileges, found.filters), (true, 3));
        let less = [b"Groups:\t5 \n", &TEXT[TEXT.iter().position(|byte| *byte == b'C').unwrap()..]].concat();
        assert_ne!(Credentials::parse(&less).groups, found.groups);
    }

    #[test]
    fn what_is_cut_off_is_taken_for_nothing() {
        let cut = TEXT.windows(6).position(|window| window == b"CapPrm").unwrap();
        let found = Credentials::parse(&TEXT[..cut + 12]);
        assert_eq!((found.user, found.permitted, found.effective, found.bounding), ([1, 2, 3], 0, 0, 0));
    }
}
