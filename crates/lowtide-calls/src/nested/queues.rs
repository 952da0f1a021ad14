//! Semaphores and queues of messages.

use super::INT;
use crate::part::Pieces;

pub fn semctl(p: &mut Pieces<'_>) {
    const VERSION_64: usize = 0x100;
    /// SEMMSL's greatest value, two bytes each.
    const ALL: usize = 2 * 65536;
    let at = p.arguments[3];
    match p.arguments[2] & INT & !VERSION_64 {
        1..=3 | 18..=20 => p.bytes(at, 104),
        13 | 17 => p.bytes(at, ALL),
        0 | 11 | 12 | 14..=16 => {}
        _ => p.guess(),
    }
}

pub fn queue_message(p: &mut Pieces<'_>) {
    p.bytes(p.arguments[1], p.arguments[2].saturating_add(8));
}

pub fn mq_notify(p: &mut Pieces<'_>) {
    const BY_THREAD: usize = 2;
    let at = p.arguments[1];
    p.bytes(at, 64);
    if let Some([value, how]) = p.words(at)
        && how >> 32 == BY_THREAD
    {
        p.bytes(value, 32);
    }
}
