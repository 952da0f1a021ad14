//! A trace of slot requests that is the same for every allocator: a full area, random frees, then
//! traffic at one fullness.
//!
//! Objects have numbers and orders; the allocator chooses their slots, so the trace does not depend
//! on it. (An object without a run is kept in single slots, as a split folio: the fullness stays
//! the same.)

use fastrand::Rng;

#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Slots of the area.
    pub slots: u64,
    /// Share of them in use while requests are counted.
    pub full: f64,
    /// Share of the area that ends in slots that are never freed, single ones and pages of folios:
    /// the trap.
    pub trapped: f64,
    /// Repetitions of freeing and requesting a [`ROUND`] of the area.
    pub rounds: usize,
    /// For the same trace again.
    pub seed: u64,
}

/// Share of the area that is freed and requested in one round.
const ROUND: f64 = 0.05;
/// Fullness of the area before the random frees.
const PEAK: f64 = 0.985;
/// Share of the slots in each order. The area is filled mostly with single slots; then the traffic
/// swings to and fro between few large folios and many, so that these must find room where single
/// slots were.
type Mix = [(u8, f64); 3];
const FILL: Mix = [(0, 0.75), (4, 0.2), (9, 0.05)];
const SWING: [Mix; 2] = [[(0, 0.3), (4, 0.55), (9, 0.15)], [(0, 0.7), (4, 0.25), (9, 0.05)]];
/// Rounds from one end of the swing to the other.
const SWING_ROUNDS: usize = 5;
/// Probability that a free is a stretch of neighbours, as when a program ends, rather than one
/// object. (It makes about half of the frees.)
const STRETCHES: f64 = 0.02;
/// Most pieces in a stretch.
const STRETCH: usize = 128;
/// Share of the folios that are freed in two pieces, as when a program gives back part of a buffer.
const IN_PIECES: f64 = 0.3;

/// The number of the new object and its order.
pub type Request = (u32, u8);

/// Part of an object that is freed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Number of the object.
    pub id: u32,
    /// Its first slot, counted from the object's first.
    pub from: u16,
    /// Slots.
    pub n: u16,
}

/// First frees `drops`, then makes `requests`.
#[derive(Debug, Default)]
pub struct Round {
    pub drops: Vec<Piece>,
    pub requests: Vec<Request>,
}

#[derive(Debug)]
pub struct Trace {
    /// Fills the area.
    pub fill: Vec<Request>,
    /// Frees down to the fullness.
    pub thin: Vec<Piece>,
    /// The traffic.
    pub rounds: Vec<Round>,
    pub objects: usize,
}

impl Trace {
    pub fn new(shape: Shape) -> Trace {
        let mut live = Live::new(shape);
        let fill = live.fill_to(PEAK, FILL);
        let thin = live.thin_to(shape.full);
        let rounds = (0..shape.rounds)
            .map(|round| {
                let drops = live.thin_to(shape.full - ROUND);
                Round { drops, requests: live.fill_to(shape.full, SWING[round / SWING_ROUNDS % 2]) }
            })
            .collect();
        Trace { fill, thin, rounds, objects: live.objects as usize }
    }
}

struct Live {
    shape: Shape,
    rng: Rng,
    objects: u32,
    /// All that may ever be freed.
    pieces: Vec<Piece>,
    /// By piece: freed.
    gone: Vec<bool>,
    /// By piece: freed at a time of its own, with those that follow it up to the next such one.
    leads: Vec<bool>,
    /// Leading pieces by number, in no order: all that are not gone, and some that are.
    mortal: Vec<u32>,
    used: u64,
    trapped: u64,
}

impl Live {
    fn new(shape: Shape) -> Live {
        let rng = Rng::with_seed(shape.seed);
        let (pieces, gone, leads, mortal) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Live { shape, rng, objects: 0, pieces, gone, leads, mortal, used: 0, trapped: 0 }
    }

    fn slots(&self, share: f64) -> u64 {
        (self.shape.slots as f64 * share) as u64
    }

    /// Requests up to a fullness: a stretch of one order at a time.
    fn fill_to(&mut self, share: f64, mix: Mix) -> Vec<Request> {
        let mut requests = Vec::new();
        let limit = self.slots(share);
        while self.used < limit {
            let (order, stretch) = self.pick_order(mix);
            for _ in 0..stretch {
                // The rest goes in single slots, so that every trace reaches its fullness.
                match limit - self.used {
                    0 => break,
                    left if left < 1 << order => requests.push(self.add(0)),
                    _ => requests.push(self.add(order)),
                }
            }
        }
        requests
    }

    /// An order, and a number of its objects to request in a row; weighted so that the orders get
    /// their shares of the slots.
    fn pick_order(&mut self, mix: Mix) -> (u8, usize) {
        let most = |order: u8| match order {
            0 => 64,
            4 => 8,
            _ => 1,
        };
        // A stretch takes half of that, on average.
        let weight = |(order, share): (u8, f64)| share / ((most(order) + 1) as f64 / 2.0 * (1u32 << order) as f64);
        let mut at = self.rng.f64() * mix.into_iter().map(weight).sum::<f64>();
        let picked = mix.into_iter().find(|part| {
            at -= weight(*part);
            at <= 0.0
        });
        let order = picked.map_or(0, |(order, _)| order);
        (order, self.rng.usize(1..=most(order)))
    }

    fn add(&mut self, order: u8) -> Request {
        let (id, n) = (self.objects, 1u16 << order);
        self.objects += 1;
        self.used += n as u64;
        let cut = if order > 0 && self.rng.f64() < IN_PIECES { self.rng.u16(1..n) } else { n };
        let (mut from, mut leads) = (0, true);
        for slot in 0..n {
            if slot == cut {
                self.piece(id, from, slot, leads);
                (from, leads) = (slot, true);
            }
            // Half as often as would fill the trap at once, so that it goes on to close while the
            // traffic runs.
            if self.rng.f64() < self.shape.trapped / 2.0 && self.trapped < self.slots(self.shape.trapped) {
                self.trapped += 1;
                leads &= !self.piece(id, from, slot, leads);
                from = slot + 1;
            }
        }
        self.piece(id, from, n, leads);
        (id, order)
    }

    /// The slots from `from` to before `end` of an object will be freed; whether there are any.
    fn piece(&mut self, id: u32, from: u16, end: u16, leads: bool) -> bool {
        if from < end {
            if leads {
                self.mortal.push(self.pieces.len() as u32);
            }
            self.pieces.push(Piece { id, from, n: end - from });
            self.gone.push(false);
            self.leads.push(leads);
        }
        from < end
    }

    /// Frees down to a fullness.
    fn thin_to(&mut self, share: f64) -> Vec<Piece> {
        let (mut drops, limit) = (Vec::new(), self.slots(share));
        while self.used > limit && !self.mortal.is_empty() {
            let at = self.mortal.swap_remove(self.rng.usize(..self.mortal.len())) as usize;
            let stretch = if self.rng.f64() < STRETCHES { self.rng.usize(1..STRETCH) } else { 1 };
            let mut led = 0;
            for i in at..self.pieces.len() {
                if self.leads[i] {
                    if led == stretch || self.used <= limit {
                        break;
                    }
                    led += 1;
                }
                if !std::mem::replace(&mut self.gone[i], true) {
                    self.used -= self.pieces[i].n as u64;
                    drops.push(self.pieces[i]);
                }
            }
        }
        drops
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const SHAPE: Shape = Shape { slots: 1 << 15, full: 0.8, trapped: 0.05, rounds: 20, seed: 3 };

    #[test]
    fn keeps_its_fullness_and_frees_each_slot_once() {
        let trace = Trace::new(SHAPE);
        // Slots as (object, slot of the object).
        let mut live = HashSet::new();
        let ask = |requests: &[Request], live: &mut HashSet<(u32, u16)>| {
            assert!(requests.iter().all(|(id, order)| (0..1 << order).all(|slot| live.insert((*id, slot)))));
        };
        let drop = |pieces: &[Piece], live: &mut HashSet<(u32, u16)>| {
            assert!(pieces.iter().all(|p| (p.from..p.from + p.n).all(|slot| live.remove(&(p.id, slot)))));
        };
        ask(&trace.fill, &mut live);
        drop(&trace.thin, &mut live);
        let mut orders = [0u64; 10];
        for round in &trace.rounds {
            drop(&round.drops, &mut live);
            ask(&round.requests, &mut live);
            round.requests.iter().for_each(|(_, order)| orders[*order as usize] += 1 << order);
            let full = live.len() as f64 / SHAPE.slots as f64;
            // A piece of a folio is freed whole, so a round may free a little more than it should.
            assert!((0.799..=0.8).contains(&full), "{full}");
        }
        let all: u64 = orders.iter().sum();
        assert!((0.2..0.6).contains(&(orders[4] as f64 / all as f64)) && orders[9] > 0, "{orders:?}");
    }

    #[test]
    fn the_trap_is_as_large_as_asked_for() {
        for trapped in [0.0, 0.02, 0.1] {
            let mut live = Live::new(Shape { trapped, ..SHAPE });
            for _ in 0..4 {
                live.fill_to(PEAK, FILL);
                live.thin_to(0.3);
            }
            live.thin_to(0.0);
            let left = live.used as f64 / SHAPE.slots as f64;
            assert!((trapped * 0.9..=trapped).contains(&left), "{left} of {trapped}");
        }
    }

    #[test]
    fn is_the_same_every_time() {
        let (a, b) = (Trace::new(SHAPE), Trace::new(SHAPE));
        assert!(a.rounds.iter().zip(&b.rounds).all(|(a, b)| a.drops == b.drops && a.requests == b.requests));
        let other = Trace::new(Shape { seed: 4, ..SHAPE });
        assert!(a.rounds[0].drops != other.rounds[0].drops);
    }
}
